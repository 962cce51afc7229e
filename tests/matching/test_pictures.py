"""Images of a shard: a damaged record is named, and never replaced by a different one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.example import ShardProblems
from imagenet_prep.matching import pictures
from imagenet_prep.matching.pictures import ShardPiece
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.faults import flip_bit
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, write_dataset

NAME = "train-00000-of-00001"
IMAGES = [plain(number) for number in range(3)]


@pytest.fixture
def piece(tmp_path: Path) -> ShardPiece:
    """A shard of three images."""
    images = [picture(number, data) for number, data in enumerate(IMAGES)]
    write_dataset(tmp_path / "set", {"train": [images]}, num_classes=3)
    add_tables(tmp_path / "set")
    dataset = open_dataset(LocalStore(tmp_path / "set"))
    with pytest.raises(UsageError, match=says("no-split-only", ..., "'test'", "train")):
        pictures.of_set(dataset, ["test"])
    [found] = pictures.of_set(dataset, ["train"])
    assert isinstance(found, ShardPiece)
    return found


def path_of(piece: ShardPiece) -> Path:
    folder = piece.store.as_folder
    assert folder is not None
    return folder.root / NAME


def seen(piece: ShardPiece) -> tuple[list[int], list[str]]:
    problems = ShardProblems()
    numbers = [each.number for each in piece.seen(problems)]
    return numbers, problems.listed(NAME)


def test_each_record_is_listed_and_read(piece: ShardPiece) -> None:
    assert seen(piece) == ([0, 1, 2], [])
    assert [piece.read(number) for number in range(3)] == IMAGES


def test_surplus_records_are_not_listed(piece: ShardPiece) -> None:
    """Their rows would be those of the next shard."""
    numbers, [problem] = seen(replace(piece, shard=replace(piece.shard, examples=2)))
    assert numbers == [0, 1]
    assert says("record-byte", ..., "2").search(problem)
    assert says("more-records-manifest").search(problem)


def test_damaged_record_is_named_with_its_place(piece: ShardPiece) -> None:
    flip_bit(path_of(piece), os.path.getsize(path_of(piece)) // 2)
    numbers, [problem] = seen(piece)
    assert numbers == [0, 2]
    assert says("record-byte", NAME, "1").search(problem)
    assert piece.read(2) == IMAGES[2]
    with pytest.raises(DataDamagedError, match=says("record-byte-3", NAME, "1", ..., "data CRC")):
        piece.read(1)


@pytest.mark.parametrize("lines", [2, 4])
def test_index_with_wrong_number_of_lines_is_damaged(piece: ShardPiece, lines: int) -> None:
    path = path_of(piece).parent / schema.index_name(NAME)
    content = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*content, "0 99\n"][:lines]))
    with pytest.raises(DataDamagedError, match=says("lines-expected", NAME, lines, "3")):
        piece.read(0)
