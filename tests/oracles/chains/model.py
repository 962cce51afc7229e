"""The expected state of a dataset, and its comparison with the files of the dataset."""

from __future__ import annotations

import itertools
import json
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.oracles import plain_reading
from tests.oracles.chains import pictures

# A split and a key: the only name of a record.
Name = tuple[str, str]
_SIDES = ("xmin", "xmax", "ymin", "ymax")
_PREFIX = "input_"


class Image(NamedTuple):
    """An image of a dataset.

    Attributes:
      number: the number that its picture shows.
      class_id: its class, as in labels.txt.
      hashes: sha256 of its file in the source, and of its stored bytes, as far as they are known.
      boxes: fractions of the sides (xmin, xmax, ymin, ymax).
    """

    number: int
    class_id: str
    hashes: frozenset[str] = frozenset()
    boxes: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class State:
    """A dataset as the model expects it.

    Attributes:
        class_ids: as in labels.txt; None if the class list has more classes than the images.
        images: by split and key.
        excluded: images that lists excluded, by split and key.
        quarantined: names of damaged images, each as often as quarantine.jsonl lists it.
        families: splits that divide one split of the source, and so share their keys.
        is_encoding: whether `amend --add` encodes new images, or keeps their bytes.
    """

    root: Path
    class_ids: tuple[str, ...]
    images: Mapping[Name, Image]
    excluded: Mapping[Name, Image] = field(default_factory=dict)
    quarantined: Counter[Name] = field(default_factory=Counter)
    families: tuple[frozenset[str], ...] = ()
    is_encoding: bool = True

    @property
    def splits(self) -> list[str]:
        return list(dict.fromkeys(split for split, _ in self.images))

    def family(self, split: str) -> frozenset[str]:
        """Returns the splits that share their keys with a split."""
        return next((family for family in self.families if split in family), frozenset({split}))

    def is_ambiguous(self, key: str) -> bool:
        """Returns whether several splits have an image with this key."""
        return sum((split, key) in self.images for split in self.splits) > 1


def checked(state: State) -> State:
    """Compares a dataset with its expected state; returns the state with the hashes of the tables.

    Raises AssertionError at the first difference.
    """
    root = state.root
    found: dict[Name, Image] = {}
    for split, shards in plain_reading.dataset(root).items():
        for record in itertools.chain.from_iterable(shards):
            assert record.key.endswith(record.filename), record.row
            hashes = frozenset({record.row["sha256"], record.row["source_sha256"]})
            image = Image(pictures.number_of(record.encoded), record.wnid, hashes)
            found[split, record.key] = image
    _compare("images", _shown(state.images), _shown(found))
    labels = (root / "labels.txt").read_text("utf-8").splitlines()
    assert tuple(line.partition(" ")[0] for line in labels) == state.class_ids
    _check_boxes(state)
    _check_incidents(state)
    known = {
        name: image._replace(hashes=found[name].hashes) for name, image in state.images.items()
    }
    return replace(state, images=known)


def _shown(images: Mapping[Name, Image]) -> dict[Name, tuple[int, str]]:
    return {name: (image.number, image.class_id) for name, image in images.items()}


def _compare(what: str, expected: Mapping[Any, Any], found: Mapping[Any, Any]) -> None:
    missing = {name: value for name, value in expected.items() if found.get(name) != value}
    surplus = {name: value for name, value in found.items() if expected.get(name) != value}
    assert (missing, surplus) == ({}, {}), f"{what}: expected {missing}, found {surplus}"


def _check_boxes(state: State) -> None:
    """Compares the boxes of each record with the expected boxes."""
    manifest = json.loads((state.root / "dataset.json").read_bytes())
    for split, described in manifest["splits"].items():
        for shard in described["shards"]:
            name = shard["name"]
            keys = plain_reading.keys(state.root, name)
            payloads = plain_reading.payloads(state.root / name)
            for key, (_, payload) in zip(keys, payloads, strict=True):
                values = plain_reading.example(payload)
                sides = [_floats(values[f"image/object/bbox/{side}"]) for side in _SIDES]
                boxes = [
                    tuple(round(value, 4) for value in box) for box in zip(*sides, strict=True)
                ]
                expected = [
                    tuple(round(value, 4) for value in box)
                    for box in state.images[split, key].boxes
                ]
                assert boxes == expected, f"{split}, {key}: boxes {boxes}, expected {expected}"
                label = values["image/class/label"][0]
                assert set(values["image/object/bbox/label"]) <= {label}, f"{split}, {key}"


def _rounded(box: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in box]


def _floats(values: list[bytes]) -> list[float]:
    data = b"".join(values)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def _check_incidents(state: State) -> None:
    """Compares quarantine.jsonl and the counts of the manifest with the expected state."""
    listed: dict[str, Counter[Name]] = {"excluded": Counter(), "quarantined": Counter()}
    reasons: dict[str, Counter[str]] = {"repaired": Counter(), "quarantined": Counter()}
    for line in map(json.loads, (state.root / "quarantine.jsonl").read_text("utf-8").splitlines()):
        action = line["action"].removeprefix(_PREFIX)
        if action in listed:
            listed[action][_split_of(line), line["key"]] += 1
        if action in reasons:
            reasons[action][line["reason"]] += 1
    _compare("excluded", Counter(state.excluded.keys()), listed["excluded"])
    _compare("quarantined", state.quarantined, listed["quarantined"])
    manifest = json.loads((state.root / "dataset.json").read_bytes())
    for action, counts in reasons.items():
        assert manifest[action] == dict(counts), action


def _split_of(line: Mapping[str, Any]) -> str:
    """Returns the split of a line of quarantine.jsonl, by docs/data-format.md."""
    if "split" in line:
        return str(line["split"])
    return "validation" if line["key"].startswith("ILSVRC2012_val_") else "train"
