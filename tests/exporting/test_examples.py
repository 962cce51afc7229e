"""Exported examples are those that the table of samples names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import example
from imagenet_prep.exporting.examples import ExportPart, ExportSource
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.tfrecords import framed, picture, plain, wnid, write_dataset

NAME = "train-00000-of-00001"
IMAGES = [picture(number, plain(number)) for number in range(3)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "set", {"train": [IMAGES]}, num_classes=3)
    add_tables(tmp_path / "set")
    return tmp_path / "set"


def exported(root: Path) -> list[tuple[str, int, str]]:
    source = ExportSource(str(root))
    try:
        found = source.read(ExportPart("train", 0, 1, range(3)))
        return [(each.key, each.class_index, each.wnid) for each in found]
    finally:
        source.close()


def test_examples_have_the_tables_keys_and_classes(root: Path) -> None:
    expected = [(f"{wnid(n)}/{wnid(n)}_{n}.JPEG", n, wnid(n)) for n in range(3)]
    assert exported(root) == expected


@pytest.mark.parametrize("name", ["../x.JPEG", "x\x1b.JPEG", ""])
def test_names_that_leave_the_export_are_refused(tmp_path: Path, name: str) -> None:
    images = [*IMAGES[:2], IMAGES[2]._replace(filename=name)]
    write_dataset(tmp_path / "set", {"train": [images]}, num_classes=3)

    with pytest.raises(DataDamagedError, match=r"record 2 .*: its name "):
        exported(tmp_path / "set")


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize(
    "change",
    [{"stored_label": 1, "wnid": wnid(0)}, {"stored_label": 2, "wnid": wnid(1)}, {"encoded": b""}],
    ids=["class 0", "class 1", "image"],
)
def test_records_that_contradict_the_table_are_refused(
    root: Path, number: int, change: dict[str, Any]
) -> None:
    """Its CRCs are right, and its label agrees with its synset."""
    images = list(IMAGES)
    if "encoded" in change:
        encoded = bytearray(images[number].encoded)
        encoded[-5] ^= 1
        change = {"encoded": bytes(encoded)}
    images[number] = images[number]._replace(**change)
    (root / NAME).write_bytes(b"".join(framed(example.encode(each)) for each in images))

    if images == IMAGES:
        assert len(exported(root)) == 3
    else:
        with pytest.raises(
            DataDamagedError, match=says("image-label-differs-table-samples", f"record {number}")
        ):
            exported(root)
