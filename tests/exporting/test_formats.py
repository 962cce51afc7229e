"""Exported files and their descriptions, without a dataset on the disk."""

from __future__ import annotations

import io
import json
import tarfile
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imagenet_prep.dataset import record_files
from imagenet_prep.exporting.examples import Example, ExportPart, Written
from imagenet_prep.exporting.formats import Tfds, WebDatasetFormat, sample_key

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


@pytest.mark.parametrize("num_bytes", [0, 1, 511, 512, 8**6 - 1])
# A header has names of up to 100 bytes: longer ones are stored in another way.
@pytest.mark.parametrize(
    ("letter", "count"), [("x", 1), ("x", 92), ("x", 93), ("x", 94), ("ö", 46), ("ö", 47)]
)
def test_tars_equal_those_of_pythons_tarfile(letter: str, count: int, num_bytes: int) -> None:
    key = f"n1/{letter * count}.JPEG"
    example = examples(1, num_bytes)[0]._replace(key=key, rows={"a": np.arange(num_bytes % 99)})
    (sample, _) = WebDatasetFormat(()).pieces(ExportPart("train", 0, 1, range(1)), [example])
    files = io.BytesIO(sample.data)
    expected = io.BytesIO()
    with (
        tarfile.open(fileobj=files, format=tarfile.GNU_FORMAT) as tar,
        tarfile.open(fileobj=expected, mode="w", format=tarfile.GNU_FORMAT) as again,
    ):
        for found in tar:
            member = tarfile.TarInfo(found.name)
            member.size = found.size
            again.addfile(member, tar.extractfile(found))
        assert tar.getnames()[1:3] == [f"{sample_key(key)}.jpg", f"{sample_key(key)}.json"]
        assert tar.getmember(f"{sample_key(key)}.jpg").size == num_bytes

    assert expected.getvalue().startswith(sample.data)


def test_first_column_of_texts_gives_the_caption() -> None:
    rows = {"vector": np.zeros(3), "short": ["a cat", "cat"], "long": ["a cat on a sofa"]}
    example = examples(1, 5)[0]._replace(rows=rows)
    (sample, _) = WebDatasetFormat(()).pieces(ExportPart("train", 0, 1, range(1)), [example])
    with tarfile.open(fileobj=io.BytesIO(sample.data)) as tar:
        data = {name.rpartition("/")[2]: tar.extractfile(name) for name in tar.getnames()}
        texts = {name: file.read() for name, file in data.items() if file}
    assert texts["0.txt"] == b"a cat"
    assert json.loads(texts["0.short.json"]) == rows["short"]
    assert json.loads(texts["0.long.json"]) == rows["long"]


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
