"""Exported files and their descriptions, without a dataset on the disk."""

from __future__ import annotations

import io
import json
import tarfile
from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_prep.dataset import record_files
from imagenet_prep.exporting.examples import Example, ExportPart, Written
from imagenet_prep.exporting.formats import Tfds, WebDatasetFormat

WNIDS = ("n00000001", "n00000002")


def examples(count: int, num_bytes: int) -> list[Example]:
    image = bytes(num_bytes)
    return [Example(n, f"n1/{n}.JPEG", 0, "n1", image, "", {}) for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("num_bytes", [1, 512, 5000])
def test_tars_end_with_a_complete_record(count: int, num_bytes: int) -> None:
    """As POSIX requires and `tar` writes: blocks of 10,240 bytes."""
    part = ExportPart("train", 0, 1, range(count))
    pieces = WebDatasetFormat(()).pieces(part, examples(count, num_bytes))
    data = b"".join(piece.data for piece in pieces)
    assert len(data) % tarfile.RECORDSIZE == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert len(tar.getnames()) == 3 * count


def test_tfds_counts_the_bytes_without_frames() -> None:
    export = Tfds("mine", "1.0.0", WNIDS)
    parts: dict[str, list[Written]] = {"train": [], "validation": []}
    expected = dict.fromkeys(parts, 0)
    for number, split in enumerate(("train", "train", "validation")):
        part = ExportPart(split, number, 2, range(3 + number))
        pieces = export.pieces(part, examples(3 + number, 100))
        data = b"".join(piece.data for piece in pieces)
        parts[split].append(Written(3 + number, len(data), 1))
        records = record_files.read_records(io.BytesIO(data), "the part")
        expected[split] += sum(len(record.payload) for record in records)
    info = json.loads(export.beside(parts)["dataset_info.json"])
    assert {split["name"]: int(split["numBytes"]) for split in info["splits"]} == expected


@pytest.mark.parametrize(
    ("official", "edition", "name"),
    [(True, "", "imagenet2012"), (True, "imagenet-blurred", "own"), (False, "", "own")],
)
def test_only_ilsvrc2012_has_the_name_of_tfds(official: bool, edition: str, name: str) -> None:
    """Otherwise, tfds.load would show images of another edition as those of imagenet2012."""
    dataset: Any = SimpleNamespace(
        manifest=SimpleNamespace(classes=SimpleNamespace(official=official), edition=edition),
        classes=SimpleNamespace(wnids=WNIDS),
        tfds_info={"name": "own", "version": "1.0.0"},
    )
    assert Tfds.of(dataset).name == name
