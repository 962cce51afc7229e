"""Images of a shard: a damaged record is named, and never replaced by a different one."""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec.transform import upright
from imagenet_prep.core.errors import BusyError, DataDamagedError, StoreError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.example import ShardProblems
from imagenet_prep.engine import Workers
from imagenet_prep.matching import pictures, search
from imagenet_prep.matching.pictures import GivenImage, GivenPiece, ShardPiece, SourcePiece
from imagenet_prep.sources.source import StoredSource
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.faults import flip_bit
from tests.kit.forms import find
from tests.kit.messages import says
from tests.kit.photographs import tagged
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


def test_given_image_is_also_compared_upright() -> None:
    """A dataset may have turned its images, or not."""
    [only] = pictures.looks_of(scene(0))
    assert (only.encoded, only.row) == (scene(0), search.of(scene(0)))
    turned = tagged(scene(0), 6)
    first, second = pictures.looks_of(turned)
    assert first.encoded == turned
    assert second.row == search.of(upright(turned)) != first.row
    given = GivenPiece((first, second))
    assert [each.row for each in given.seen(ShardProblems())] == [first.row, second.row]
    assert [given.read(number) for number in range(2)] == [turned, second.encoded]
    assert [sample.key for sample in given.samples()] == ["0", "1"]
    assert len({given.name, GivenPiece((first,)).name, GivenPiece((second,)).name}) == 3


def test_repaired_shard_is_hashed_again(piece: ShardPiece, tmp_path: Path) -> None:
    """A shard that two datasets have is only hashed once, and its problem is reported once."""
    path = path_of(piece)
    sound = path.read_bytes()
    flip_bit(path, len(sound) // 2)
    kept = LocalStore(tmp_path / "kept")
    workers = Workers(1, "threads")
    pieces = [piece, replace(piece, other=True)]
    assert len(pictures.hash_all(kept, pieces, workers, quiet=True)) == 1
    path.write_bytes(sound)
    assert pictures.hash_all(kept, pieces, workers, quiet=True) == []
    [rows, again] = pictures.rows_of(kept, pieces, tmp_path)
    assert rows == again
    assert [row.tobytes() for row in np.fromfile(rows, search.ROW)] == [*map(search.of, IMAGES)]


def opened(root: Path, *sets: list[int]) -> pictures.Pictures:
    """Returns the pictures of several pieces; those behind the first are of the other dataset."""
    pieces = [
        GivenPiece(
            tuple(GivenImage(scene(n), search.of(scene(n))) for n in numbers), other=place > 0
        )
        for place, numbers in enumerate(sets)
    ]
    kept = LocalStore(root / "kept")
    assert pictures.hash_all(kept, pieces, Workers(1, "threads"), quiet=True) == []
    scratch = root / "scratch"
    scratch.mkdir()
    tables = [pictures.columns(piece.samples()) for piece in pieces]
    return pictures.Pictures(pieces, tables, pictures.rows_of(kept, pieces, root), scratch)


def test_images_of_all_pieces_have_one_number(tmp_path: Path) -> None:
    found = opened(tmp_path, [0, 1], [2], [3, 4])

    assert len(found) == 5
    assert [found.place(number)[1] for number in range(5)] == [0, 1, 0, 0, 1]
    assert [found.read(number) for number in range(5)] == [scene(number) for number in range(5)]
    assert found.other.tolist() == [False, False, True, True, True]
    rows = np.array([np.frombuffer(search.of(scene(n)), search.ROW)[0] for n in range(5)])
    order = np.array([4, 0, 2, 3, 1], np.uint32)
    assert (found.small(order) == rows["small"][order]).all()
    assert (found.whole == rows["whole"]).all()
    assert (found.window == rows["window"]).all()
    sizes = [Image.open(io.BytesIO(scene(number))).size for number in range(5)]
    assert [*zip(found.known.width, found.known.height, strict=True)] == sizes
    digests = [hashlib.sha256(scene(number)).digest() for number in range(5)]
    assert [row.tobytes() for row in found.known.sha256] == digests


@pytest.mark.parametrize(("surplus", "is_refused"), [(1, True), (0, False), (-1, False)])
def test_rows_fit_to_the_number_of_images(
    tmp_path: Path, surplus: int, *, is_refused: bool
) -> None:
    """Missing rows are those of images that could not be read."""
    path = tmp_path / "rows"
    path.write_bytes(bytes([1]) * (2 * search.ROW.itemsize + surplus))
    if is_refused:
        with pytest.raises(DataDamagedError, match=says("bytes-too-many-images-remove", path)):
            [*pictures._read(path, 2)]
    else:
        [rows] = pictures._read(path, 2)
        assert len(rows) == 2


def test_photographs_are_compared_upright(tmp_path: Path) -> None:
    """Those of ImageNet are compared as they are, since `prepare` does not turn them."""
    turned = tagged(scene(0), 6)
    rows = []
    names = set()
    for name in (wnid(0), "cat"):
        folder = tmp_path / name / "train" / name
        folder.mkdir(parents=True)
        (folder / "a.jpg").write_bytes(turned)
        source, _ = find(tmp_path / name, ("train",))
        assert isinstance(source, StoredSource)
        piece = SourcePiece(source, source.index_tasks("train")[0], LocalStore(tmp_path / "kept"))
        rows += [each.row for each in piece.seen(ShardProblems())]
        names.add(piece.name)
    assert rows == [search.of(turned), search.of(upright(turned))]


def test_each_piece_of_sources_has_own_rows(tmp_path: Path) -> None:
    """They depend on its state, its task and the rule for orientations."""
    for name in ("cat", "dog"):
        folder = tmp_path / "train" / name
        folder.mkdir(parents=True)
        (folder / "a.jpg").write_bytes(scene(0))
    source, _ = find(tmp_path, ("train",))
    assert isinstance(source, StoredSource)
    kept = LocalStore(tmp_path / "kept")
    first, second = source.index_tasks("train")
    pieces = [SourcePiece(source, task, kept) for task in (first, second)]
    other = type(type(source).__name__, (type(source),), {"default_orientation": "keep"})
    unturned: Any = other(**{field.name: getattr(source, field.name) for field in fields(source)})
    assert unturned.identity == source.identity
    names = [piece.name for piece in (*pieces, SourcePiece(unturned, first, kept))]
    assert len({*names}) == 3


def test_rows_are_never_kept_on_web_servers(tmp_path: Path) -> None:
    otherwise = LocalStore(tmp_path / "kept")
    for place in ("http://127.0.0.1/set", "https://127.0.0.1/set"):
        assert pictures.store_of_rows(place, otherwise) is otherwise


class Bucket(LocalStore):
    """A store that is treated as remote."""

    as_folder = None  # type: ignore[assignment]


def test_rows_of_buckets_are_kept_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next search, perhaps on a different machine, does not read the images again."""
    bucket = Bucket(tmp_path / "bucket")
    otherwise = LocalStore(tmp_path / "kept")
    monkeypatch.setattr(pictures, "open_store", lambda _: bucket)
    assert pictures.store_of_rows("s3://bucket/set", otherwise) is bucket
    assert bucket.size(f"{pictures.FOLDER}/definition") == 0

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("access denied")

    monkeypatch.setattr(bucket, "write", refuse)
    assert pictures.store_of_rows("s3://bucket/set", otherwise) is otherwise


def test_dataset_without_tables_has_no_pictures(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", {"train": [[picture(0, plain(0))]]}, num_classes=1)
    dataset = open_dataset(LocalStore(tmp_path / "set"))
    with pytest.raises(UsageError, match=says("no-tables-samples-list-images")):
        pictures.of_set(dataset, ["train"])
