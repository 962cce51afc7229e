"""Names of examples are read without their images, and damage is named."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import example, manifest, schema
from imagenet_prep.read import records
from imagenet_prep.read.reader import open_records
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.messages import says
from tests.kit.system import System
from tests.kit.tfrecords import framed, picture, plain, wnid, write_dataset

NAME = "train-00000-of-00001"
IMAGES = [picture(number, plain(number)) for number in range(3)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "set", {"train": [IMAGES]}, num_classes=3)
    return tmp_path / "set"


def test_record_without_a_valid_example_has_no_name(root: Path) -> None:
    payloads = [example.encode(image) for image in IMAGES]
    payloads[1] = bytes(len(payloads[1]))
    payloads[2] = example.encode(IMAGES[2]._replace(stored_label=9))
    (root / NAME).write_bytes(b"".join(map(framed, payloads)))

    with contextlib.closing(open_records(open_dataset(LocalStore(root)), "train")) as records:
        assert records.name(0) == (0, f"{wnid(0)}/{IMAGES[0].filename}")
        for number in (1, 2):
            with pytest.raises(DataDamagedError, match=says("record-byte", NAME, number)):
                records.name(number)


@pytest.mark.parametrize("lacks", [{}, {schema.SYNSET: schema.ABSENT}], ids=str)
@pytest.mark.parametrize("label", [0, 4])
def test_label_outside_the_classes_is_damage(root: Path, lacks: dict[str, str], label: int) -> None:
    """Labels start at 1. If records lack synsets, only the label has the class."""
    path = root / schema.MANIFEST
    made = manifest.loads(path.read_bytes(), str(path))
    path.write_bytes(dataclasses.replace(made, lacks=lacks).dumps())
    wrong = IMAGES[2]._replace(stored_label=label)
    payloads = [example.encode(image) for image in (*IMAGES[:2], wrong)]
    (root / NAME).write_bytes(b"".join(map(framed, payloads)))

    with contextlib.closing(open_records(open_dataset(LocalStore(root)), "train")) as records:
        assert records.name(0)[0] == 0
        with pytest.raises(DataDamagedError, match=says("record-byte", NAME, 2)):
            records.name(2)


def test_failing_disk_is_not_called_damage(root: Path, system: System) -> None:
    with contextlib.closing(open_records(open_dataset(LocalStore(root)), "train")) as records:
        records.name(0)
        system.fails("pread", errno.EIO)
        for read in (records.name, records.read):
            with pytest.raises(StoreError, match=says("cannot-read", NAME, "record 1", "Input/")):
                read(1)


@pytest.mark.parametrize("name", [NAME, f"index/{NAME}"])
@pytest.mark.parametrize("change", [-1, 1])
def test_file_of_a_different_size_is_named(root: Path, name: str, change: int) -> None:
    data = (root / name).read_bytes()
    (root / name).write_bytes((data + b"\0")[: len(data) + change])
    with pytest.raises(
        DataDamagedError, match=says("bytes-instead", name, len(data) + change, len(data))
    ):
        open_records(open_dataset(LocalStore(root)), "train")


def test_impossible_number_of_examples_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(LocalStore(root))

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(records.np, "zeros", fail)
        wanted = says("not-enough-memory-positions-number", root, "3 examples", "train")
        with pytest.raises(StoreError, match=wanted):
            records.Records(dataset, "train")
