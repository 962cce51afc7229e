"""Datasets that only have names, with tables of samples; and lists of labels for them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path

from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import Classes, DatasetFile, Manifest, Producer, Shard, Split
from imagenet_prep.dataset.samples import HEADER
from imagenet_prep.sources.labels import official_classes
from tests.kit.samples import kept
from tests.kit.tfrecords import wnid

OFFICIAL = official_classes().wnids
VALIDATION = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 50_001)]


def labels_of_validation() -> list[int]:
    """Returns 50 images of each of 1,000 classes, shuffled."""
    labels = [number % 1000 for number in range(50_000)]
    random.Random(0).shuffle(labels)
    return labels


def write_names(
    root: Path,
    heads: Sequence[tuple[str, int]],
    *,
    num_classes: int = 1000,
    split: str = "validation",
    edition: str = "",
    answers: dict[str, list[str]] | None = None,
    names: Sequence[str] = (),
) -> Path:
    """Writes manifest, class list and tables; shards only have names, because no test reads them.

    Args:
      root: folder to create.
      heads: key and class index of each image, divided between two shards.
      num_classes: 1,000 are ILSVRC2012's.
      split, edition, answers: of the manifest.
      names: of the classes; by default, WNIDs.
    """
    wnids = OFFICIAL if num_classes == 1000 else tuple(map(wnid, range(num_classes)))
    wnids = tuple(names) or wnids
    labels = "".join(f"{each} thing\n" for each in wnids).encode()
    digest = _sha256("".join(f"{each}\n" for each in wnids).encode())
    (root / schema.SAMPLES).mkdir(parents=True)
    (root / schema.LABELS).write_bytes(labels)
    half = -(-len(heads) // 2)
    shards = []
    for number, part in enumerate((heads[:half], heads[half:])):
        name = schema.shard_name(split, number, 2)
        table = HEADER + b"".join(kept(*head).line for head in part)
        (root / schema.samples_name(name)).write_bytes(table)
        shards.append(Shard(name, len(part), 64 * len(part), "", 1, "", len(table), _sha256(table)))
    counts = [0] * num_classes
    for _, class_index in heads:
        counts[class_index] += 1
    made = Manifest(
        schema_version=1,
        producer=Producer("tests", "0", {}),
        config={},
        config_digest="",
        plan_digest="",
        label_offset=1,
        subset=True,
        classes=Classes(num_classes, digest, num_classes == 1000),
        sources=[],
        splits={split: Split(len(heads), 64 * len(heads), counts, 0, 1, 1, shards, "root")},
        quarantined={},
        repaired={},
        files=[DatasetFile(schema.LABELS, len(labels), _sha256(labels))],
        edition=edition,
        answers=answers or {},
    )
    (root / schema.MANIFEST).write_bytes(made.dumps())
    return root


def write_real(
    path: Path, labels: Sequence[int], *, random_labels: bool = False
) -> list[list[int]]:
    """Writes a list in ReaL's form, with ReaL's counts, and returns it.

    39,394 images have one label, 5,408 two, 1,319 three, 716 four to nine, and 3,163 none.

    Args:
      path: of the file.
      labels: of the images in the dataset; most have it among others.
      random_labels: all labels are random instead.
    """
    rng = random.Random(1)
    more = [4 + number % 6 for number in range(50_000 - 39_394 - 5_408 - 1_319 - 3_163)]
    counts = [1] * 39_394 + [2] * 5_408 + [3] * 1_319 + [0] * 3_163 + more
    rng.shuffle(counts)
    rows = []
    for own, count in zip(labels, counts, strict=True):
        row = rng.sample(range(1000), count)
        if row and not random_labels and rng.random() < 0.9 and own not in row:
            row[0] = own
        rows.append(row)
    path.write_text(json.dumps(rows))
    return rows


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
