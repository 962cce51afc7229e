"""Images of a shard: a damaged record is named, and never replaced by a different one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from imagenet_prep.core.errors import BusyError, DataDamagedError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.example import ShardProblems
from imagenet_prep.engine import Workers
from imagenet_prep.matching import pictures, search
from imagenet_prep.matching.pictures import ShardPiece, SourcePiece
from imagenet_prep.sources.source import StoredSource
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.faults import flip_bit
from tests.kit.forms import find
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, scene, wnid, write_dataset

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


def test_rows_after_damaged_record_keep_their_numbers(piece: ShardPiece, tmp_path: Path) -> None:
    flip_bit(path_of(piece), os.path.getsize(path_of(piece)) // 2)
    kept = LocalStore(tmp_path / "kept")
    [_] = pictures.hash_all(kept, [piece], Workers(1, "threads"), quiet=True)
    [path] = pictures.rows_of(kept, [piece], tmp_path)
    stored = np.fromfile(path, search.ROW)
    missing = bytes(search.ROW.itemsize)
    expected = [search.of(IMAGES[0]), missing, search.of(IMAGES[2])]
    assert [row.tobytes() for row in stored] == expected


def test_dataset_being_written_is_refused(piece: ShardPiece, tmp_path: Path) -> None:
    root = path_of(piece).parent
    out = LocalStore(tmp_path / "out")
    assert pictures.store_of_rows(str(root), out) is not out
    with LocalStore(root).lock(), pytest.raises(BusyError):
        pictures.store_of_rows(str(root), out)


def source_keys(root: Path, kept: LocalStore) -> list[str]:
    """Hashes the first class of a source, and returns the keys of its table."""
    source, _ = find(root, ("train",))
    assert isinstance(source, StoredSource)
    piece = SourcePiece(source, source.index_tasks("train")[0], kept)
    assert pictures.hash_all(kept, [piece], Workers(1, "threads"), quiet=True) == []
    return [Path(sample.key).name for sample in piece.samples()]


def test_changed_source_is_hashed_again(tmp_path: Path) -> None:
    folder = tmp_path / "source" / "train" / wnid(0)
    folder.mkdir(parents=True)
    (folder / "a.jpg").write_bytes(scene(0))
    kept = LocalStore(tmp_path / "kept")
    assert source_keys(tmp_path / "source", kept) == ["a.jpg"]
    (folder / "b.jpg").write_bytes(scene(1))
    assert source_keys(tmp_path / "source", kept) == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize("lines", [2, 4])
def test_index_with_wrong_number_of_lines_is_damaged(piece: ShardPiece, lines: int) -> None:
    path = path_of(piece).parent / schema.index_name(NAME)
    content = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*content, "0 99\n"][:lines]))
    with pytest.raises(DataDamagedError, match=says("lines-expected", NAME, lines, "3")):
        piece.read(0)
