"""Columns: written by batches, joined to their records, refused for different records."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    UsageError,
)
from imagenet_prep.core.world import World
from imagenet_prep.dataset import column, schema
from imagenet_prep.dataset.column import Column, ColumnFile, Placement
from imagenet_prep.read import ColumnWriter, make_dataset
from imagenet_prep.read.cache import only_one
from imagenet_prep.storage import columns
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.columns import NAME, NATIVE, SHARD, begin, change, mark, record_of, rows_of, write
from tests.kit.messages import says
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION, TRAIN, reader_of
from tests.kit.tfrecords import picture, plain, write_dataset


def read(root: Path, split: str = "train", **more: Any) -> list[Any]:
    fields = ("number", "class_index", f"column:{NAME}")
    return list(reader_of(root, split, 8, "native", **{"fields": fields} | more))


@pytest.mark.parametrize("images", [False, True])
def test_rows_belong_to_their_records_in_any_order(
    marked: Path, backend: Any, images: bool
) -> None:
    more = {"fields": ("images", "number", f"column:{NAME}"), "image_size": 16} if images else {}
    for split, count in (("train", NUM_TRAIN), ("validation", NUM_VALIDATION)):
        seen: list[int] = []
        settings: dict[str, Any] = {
            "framework": "numpy",
            "dtype": "uint8",
            "seed": 3,
            "world": World(),
        }
        settings |= {"fields": ("number", "class_index", f"column:{NAME}")} | more
        batch: Any
        for batch in make_dataset(marked, split, 8, backend=backend, **settings):
            numbers = batch["number"].tolist()
            expected = [mark(n) if n >= 0 else [0, 0, 0] for n in numbers]
            assert batch[f"column:{NAME}"].tolist() == expected
            seen += [n for n in numbers if n >= 0]
            if not images:
                first = 0 if split == "train" else NUM_TRAIN
                assert batch["class_index"].tolist() == [
                    n + first if n >= 0 else -1 for n in numbers
                ]
        assert len(set(seen)) == len(seen) == count - count % 8 * (split == "train")


def test_numpy_opens_a_file_of_a_column(marked: Path) -> None:
    rows = np.load(marked / column.file_name(NAME, SHARD), mmap_mode="r")
    assert rows.tolist() == [mark(n) for n in range(TRAIN[0], TRAIN[0] + TRAIN[1])]


def test_complete_column_has_only_its_files(marked: Path) -> None:
    there = record_of(marked)
    names = {path.name for path in (marked / column.folder_name(NAME)).iterdir()}
    assert names == {"column.json", *(Path(file.name).name for file in there.files())}
    assert there.about == {"made": "in a test"}
    assert there.view == "image"
    assert there.made_from == "image"


def test_records_are_not_read_if_tables_suffice(copy: Path) -> None:
    """Reading latents cost as much as reading all the images."""
    expected = read(copy, fields=("key", "width", "height", "class_index", "mirrored"))
    for shard in copy.glob("*-000*-of-*"):
        shard.write_bytes(bytes(shard.stat().st_size))
    found = read(copy, fields=("key", "width", "height", "class_index", "mirrored"))
    for one, other in zip(found, expected, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    with pytest.raises(DataDamagedError):
        read(copy, fields=("boxes",))


def test_tables_and_records_give_the_same_fields(colours: Path) -> None:
    fields = ("key", "width", "height", "class_index", "number", "mirrored")
    with_records = read(colours, fields=(*fields, "images"), views=2)
    without = read(colours, fields=fields, views=2)
    for one, other in zip(without, with_records, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in fields)
        assert one["mirrored"].shape == (8, 2)


# Refusals when a reader is opened.


def short(root: Path) -> None:
    path = root / column.file_name(NAME, SHARD)
    path.write_bytes(path.read_bytes()[:-12])


def absent(root: Path) -> None:
    (root / column.file_name(NAME, SHARD)).unlink()


def of_other_records(root: Path) -> None:
    there = record_of(root)
    files = [replace(rows, samples_sha256="e" * 64) for rows in there.splits["train"]]
    change(root, there.with_files("train", files))


def of_other_shards(root: Path) -> None:
    there = record_of(root)
    change(root, there.with_files("train", there.splits["train"][:-1]))


def of_a_different_split(root: Path) -> None:
    there = record_of(root)
    change(root, there.begun().with_files("validation", there.splits["validation"]))


def unknown(root: Path) -> None:
    shutil.rmtree(root / column.folder_name(NAME))


def unfinished(root: Path) -> None:
    os.rename(root / column.record_name(NAME), root / column.begun_name(NAME))


def edited(root: Path) -> None:
    path = root / column.record_name(NAME)
    path.write_text(path.read_text().replace("in a test", "by a thief"))


def hostile(root: Path) -> None:
    content = json.loads((root / column.record_name(NAME)).read_bytes()) | {"shape": [1 << 60]}
    (root / column.record_name(NAME)).write_text(json.dumps(content))


def linked(root: Path) -> None:
    path = root / column.record_name(NAME)
    os.rename(path, root / "elsewhere.json")
    path.symlink_to(root / "elsewhere.json")


def a_link(root: Path) -> None:
    path = root / column.file_name(NAME, SHARD)
    os.rename(path, root / "elsewhere.npy")
    path.symlink_to(root / "elsewhere.npy")


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (
            short,
            DataDamagedError,
            says("missing-size-differs-column.json-copy", ..., f"{SHARD}.npy"),
        ),
        (
            absent,
            DataDamagedError,
            says("missing-size-differs-column.json-copy", ..., f"{SHARD}.npy"),
        ),
        (of_other_records, UsageError, says("column-no-rows-records-made", ..., "train-00000")),
        (of_other_shards, UsageError, says("column-no-rows-records-made", ..., "train-00004")),
        (
            of_a_different_split,
            UsageError,
            says("column-no-rows-read-export", ..., "train", "validation"),
        ),
        (unknown, UsageError, says("no-such-column-columns-dataset", ..., "none")),
        (unfinished, IncompleteError, says("column-not-complete-yet-rerun")),
        (edited, DataDamagedError, says("digest-not-match-content")),
        (hostile, DataDamagedError, r"column.json: damaged \(shape"),
        (linked, DataDamagedError, says("file-folder-above-link-wrong", "column")),
        (a_link, DataDamagedError, says("file-folder-above-link-wrong", "npy")),
    ],
)
def test_wrong_column_is_refused_before_the_first_batch(
    copy: Path, spoil: Callable[[Path], None], error: type[ImagenetPrepError], said: str
) -> None:
    spoil(copy)
    with pytest.raises(error, match=said):
        reader_of(copy, "train", 8, "native", fields=("class_index", f"column:{NAME}"))


@pytest.mark.parametrize("name", ["../labels", "", ".work", "a/b", "a" * 101])
def test_column_name_that_is_a_path_is_refused(marked: Path, name: str) -> None:
    with pytest.raises(UsageError, match=says("column-name-up-100-letters")):
        reader_of(marked, "train", 8, "native", fields=("number", f"column:{name}"))


# Refusals when a file is first used.


def rows_changed(root: Path, order: Callable[[Any], Any]) -> None:
    path = root / column.file_name(NAME, SHARD)
    rows = np.load(path)
    np.save(path, order(rows))


def reversed_rows(root: Path) -> None:
    rows_changed(root, lambda rows: rows[::-1].copy())


def shuffled_rows(root: Path) -> None:
    rows_changed(root, lambda rows: np.roll(rows, 1, axis=0))


def pickled(root: Path) -> None:
    disguised(
        root, b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (9,), }"
    )


def of_a_different_shape(root: Path) -> None:
    disguised(root, Column(NAME, "int32", (1, 3)).header(TRAIN[1]))


def disguised(root: Path, head: bytes) -> None:
    """Puts a different header into a file, and its right sha256 into column.json."""
    path = root / column.file_name(NAME, SHARD)
    there = record_of(root)
    data = head + path.read_bytes()[len(head) :]
    path.write_bytes(data)
    files = there.splits["train"]
    files[1] = replace(files[1], sha256=hashlib.sha256(data).hexdigest())
    change(root, there.with_files("train", files))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (reversed_rows, says("sha256-column.json-says", "npy")),
        (shuffled_rows, says("sha256-column.json-says", "npy")),
        (pickled, says("not-npy-file-rows", "npy", "9", "marks")),
        (of_a_different_shape, says("not-npy-file-rows", "npy", "9", "marks")),
    ],
)
def test_rows_of_a_wrong_file_are_not_delivered(
    copy: Path, spoil: Callable[[Path], None], said: str
) -> None:
    read(copy)  # its files are recorded as verified
    spoil(copy)
    seen = []
    with pytest.raises(DataDamagedError, match=said):
        for batch in reader_of(
            copy, "train", 4, "native", fields=("number", f"column:{NAME}"), training=False
        ):
            seen += batch["number"].tolist()
    assert max(seen) < TRAIN[0]


def test_file_is_hashed_once_and_recorded_as_verified(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(copy)
    monkeypatch.delattr("imagenet_prep.storage.ledger.hashlib.file_digest")
    assert len(read(copy)) == NUM_TRAIN // 8
    (copy / column.file_name(NAME, SHARD)).touch()
    with pytest.raises(AttributeError):
        read(copy)


# Types.


@pytest.mark.parametrize("dtype", sorted(column.DTYPES))
def test_values_of_every_type_are_read_back(damaged: Path, dtype: str) -> None:
    kind = np.dtype(column.DTYPES[dtype][0])
    values = (np.arange(NUM_TRAIN) % 2 if dtype == "bool" else np.arange(NUM_TRAIN)).astype(kind)
    with ColumnWriter(damaged, "train", "v", (), dtype, batch_size=8, reader=NATIVE) as made:
        for batch in made:
            made.write(values[batch["number"][batch["number"] >= 0]])
    reader = reader_of(
        damaged, "train", 8, "native", fields=("number", "column:v"), framework="dlpack"
    )
    found: Any
    for found in reader:
        numbers, found = found["number"], found["column:v"]
        bits = found.bits if dtype == "bfloat16" else found
        assert bits.dtype == kind
        assert np.array_equal(bits, values[numbers])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            np.zeros((8, 3), np.int64),
            says("write-expected-got", "int32", "[8, 3]", "int64", "[8, 3]"),
        ),
        (np.zeros((8, 4), np.int32), r"got int32 \[8, 4\]"),
        (np.zeros((7, 3), np.int32), r"got int32 \[7, 3\]"),
        (np.zeros((9, 3), np.int32), r"got int32 \[9, 3\]"),
        (np.zeros((8, 3), ">i4"), r"got >i4 \[8, 3\]"),
        ([[0, 0, 0]] * 8, says("write-not-array-cpu-memory")),
    ],
)
def test_rows_of_wrong_shape_or_type_are_refused(damaged: Path, rows: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said), begin(damaged) as writer:
        for _ in writer:
            writer.write(rows)
    assert not list((damaged / column.folder_name(NAME)).glob("*.npy"))


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_values_that_are_not_finite_are_refused(damaged: Path, dtype: str) -> None:
    rows = np.full(8, 0x7FC0, np.uint16) if dtype == "bfloat16" else np.full(8, np.nan, dtype)

    def written(finite: bool) -> bool:
        settings: dict[str, Any] = {"batch_size": 8, "finite": finite, "reader": NATIVE}
        with ColumnWriter(damaged, "train", "v", (), dtype, **settings) as made:
            for _ in made:
                made.write(rows)
        return made.is_complete

    with pytest.raises(UsageError, match=says("write-value-infinite-not-number")):
        written(finite=True)
    assert written(finite=False)


# The writer.


def test_each_batch_needs_one_write(damaged: Path) -> None:
    with (
        pytest.raises(UsageError, match=says("write-not-called-batch-call")),
        begin(damaged) as writer,
    ):
        for _ in writer:
            pass
    with (
        pytest.raises(UsageError, match=says("write-called-twice-too-early")),
        begin(damaged) as writer,
    ):
        for batch in writer:
            writer.write(rows_of(batch))
            writer.write(rows_of(batch))


def test_second_batch_of_a_file_needs_a_write(damaged: Path) -> None:
    with begin(damaged) as writer:
        batches = iter(writer)
        writer.write(rows_of(next(batches)))
        next(batches)
        with pytest.raises(UsageError, match=says("write-not-called-batch-call")):
            next(batches)


def test_interrupted_loop_continues_with_the_next_file(damaged: Path) -> None:
    with begin(damaged) as writer:
        for batch in writer:
            writer.write(rows_of(batch))
            if batch["number"][0] >= TRAIN[0]:
                break
    assert not writer.is_complete
    assert not list((damaged / column.folder_name(NAME)).glob(".*"))
    with pytest.raises(IncompleteError, match=says("column-not-complete-yet-rerun")):
        read(damaged)
    left = NUM_TRAIN - sum(TRAIN[:2])
    assert write(damaged) == left
    assert write(damaged) == 0
    assert len(read(damaged)) == NUM_TRAIN // 8


def test_kept_rows_are_reported(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(damaged, world=World(0, 2))
    assert not caplog.messages
    write(damaged, world=World(1, 2))
    assert not caplog.messages
    write(damaged)
    said = says("exist-already-stay-compute-them", damaged, NUM_TRAIN, NUM_TRAIN, "train", NAME)
    (line,) = caplog.messages
    assert re.search(said, line)


def test_only_a_removed_file_is_computed_again(marked: Path, copy: Path) -> None:
    (copy / column.file_name(NAME, SHARD)).unlink()
    assert write(copy) == TRAIN[1]
    assert record_of(copy) == record_of(marked)


def test_ranks_share_the_shards_and_write_equal_files(marked: Path, damaged: Path) -> None:
    computed = [write(damaged, world=World(rank, 3)) for rank in (2, 0, 1)]
    assert computed == [TRAIN[2], TRAIN[0] + TRAIN[3], TRAIN[1] + TRAIN[4]]
    write(damaged, "validation")
    assert record_of(damaged) == record_of(marked)


def test_second_split_is_added_while_writing_the_first(marked: Path, damaged: Path) -> None:
    with begin(damaged) as writer:
        for batch in writer:
            writer.write(rows_of(batch))
            if batch["number"][0] == 8:
                write(damaged, "validation")
                assert list(record_of(damaged).splits) == ["validation"]
    assert record_of(damaged) == record_of(marked)
    assert not (damaged / column.begun_name(NAME)).exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"about": {"made": "otherwise"}}, says("column-started-different-use-same", ..., "about")),
        (
            {"reader": NATIVE | {"fields": ("images",)}},
            says("column-started-different-use-same", ..., "view"),
        ),
        (
            {"reader": NATIVE | {"fields": ("key",)}},
            says("column-started-different-use-same", ..., "made_from"),
        ),
    ],
)
@pytest.mark.parametrize("is_complete", [True, False])
def test_column_with_different_settings_is_refused(
    copy: Path, more: dict[str, Any], said: str, is_complete: bool
) -> None:
    if not is_complete:
        unfinished(copy)
        there = column.loads((copy / column.begun_name(NAME)).read_bytes(), "", NAME)
        (copy / column.begun_name(NAME)).write_bytes(there.begun().dumps())
    with pytest.raises(UsageError, match=said):
        begin(copy, **more)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"reader": {"classes": [1]}}, says("reader-expected-some", "['classes']", "antialias")),
        ({"view": "mine"}, says("view-expected-none", "'mine'", "'image'")),
        ({"about": object()}, says("column-about-expected-dicts-lists", "'marks'")),
        ({"about": float("nan")}, says("column-about-expected-dicts-lists", "'marks'", "nan")),
    ],
)
def test_invalid_settings_are_refused(damaged: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        begin(damaged, **more)
    assert not (damaged / "columns").exists()


def test_remote_dataset_is_refused() -> None:
    with pytest.raises(UsageError, match=says("column-only-written-local-folder")):
        ColumnWriter("s3://bucket/set", "train", NAME, (), "int32", batch_size=8)


def test_two_writers_of_a_shard_are_refused(damaged: Path) -> None:
    name = column.file_name(NAME, "train-00000-of-00005")
    with (
        only_one(LocalStore(damaged), name),
        pytest.raises(BusyError, match=says("another-process-writing-file-written")),
    ):
        write(damaged)


def with_gaps(root: Path, gaps: dict[str, tuple[int, ...]]) -> None:
    """Makes the column incomplete: without some rows, as amend leaves it."""
    there = record_of(root)
    folder = root / column.folder_name(NAME)
    for rows in there.splits["train"]:
        path = folder / f"{rows.shard}.npy"
        if missing := gaps.get(rows.shard, ()):
            values = np.load(path)
            values[list(missing)] = 0
            np.save(path, values)
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            rows = replace(rows, sha256=sha256, missing=missing)
        (folder / f"{rows.shard}.json").write_bytes(strict_json.dumps(rows))
    (folder / "column.json").unlink()
    (folder / "begun.json").write_bytes(there.begun().dumps())


@pytest.mark.parametrize("missing", [(0,), (8,), (3, 4, 7), tuple(range(9))])
def test_only_missing_rows_are_computed(marked: Path, copy: Path, missing: tuple[int, ...]) -> None:
    with_gaps(copy, {SHARD: missing, "train-00004-of-00005": (2,)})
    with pytest.raises(IncompleteError, match=says("column-not-complete-yet-rerun")):
        read(copy)
    assert write(copy) == len(missing) + 1
    write(copy, "validation")
    assert record_of(copy) == record_of(marked)


def test_rows_that_contradict_their_receipt_are_not_copied(copy: Path) -> None:
    with_gaps(copy, {SHARD: (3,)})
    reversed_rows(copy)
    with pytest.raises(DataDamagedError, match=says("sha256-differs-receipt-remove-file", "npy")):
        write(copy)
    assert not (copy / column.record_name(NAME)).exists()


def test_writer_resumes_after_a_failed_receipt(
    marked: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gaps(copy, {SHARD: (3,)})
    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write(copy)
    assert write(copy) == TRAIN[1]
    write(copy, "validation")
    assert record_of(copy) == record_of(marked)


def test_file_finished_by_other_process_is_not_rewritten(copy: Path) -> None:
    with_gaps(copy, {SHARD: (3,)})
    with (
        pytest.raises(BusyError, match=says("another-process-writing-file-written")),
        begin(copy) as writer,
    ):
        write(copy)
        for batch in writer:
            writer.write(rows_of(batch))
    write(copy, "validation")
    assert len(read(copy)) == NUM_TRAIN // 8


def test_receipt_of_a_different_table_is_ignored(copy: Path) -> None:
    with_gaps(copy, {})
    path = copy / column.receipt_name(NAME, SHARD)
    rows: ColumnFile = column.loads_receipt(path.read_bytes(), "")
    path.write_bytes(strict_json.dumps(replace(rows, samples_sha256="0" * 64)))
    assert write(copy) == TRAIN[1]


@pytest.mark.tf
def test_tensorflow_gets_tensors(damaged: Path, tf: Any) -> None:
    for dtype in ("uint16", "bfloat16"):
        with ColumnWriter(
            damaged, "train", dtype, (2,), dtype, batch_size=8, reader=NATIVE
        ) as made:
            for _ in made:
                made.write(np.full((8, 2), 16256, np.uint16))
    settings: dict[str, Any] = {"fields": ("column:uint16", "column:bfloat16"), "backend": "native"}
    batch: Any = next(iter(make_dataset(damaged, "train", 8, framework="tensorflow", **settings)))
    assert batch["column:uint16"].dtype == tf.uint16
    assert batch["column:uint16"].numpy().tolist() == [[16256] * 2] * 8
    bits = batch["column:bfloat16"]
    assert bits.dtype == tf.bfloat16
    assert tf.cast(bits, tf.float32).numpy().tolist() == [[1.0] * 2] * 8


def test_truncated_files_are_written_again(marked: Path, damaged: Path) -> None:
    with begin(damaged) as writer:
        for batch in writer:
            writer.write(rows_of(batch))
            if batch["number"][0] >= TRAIN[0]:
                break
    path = damaged / column.file_name(NAME, "train-00000-of-00005")
    complete = path.read_bytes()
    path.write_bytes(complete[:-4])
    assert write(damaged) == NUM_TRAIN - TRAIN[1]
    assert path.read_bytes() == complete
    write(damaged, "validation")
    assert record_of(damaged) == record_of(marked)


def test_longer_files_are_written_again(marked: Path, copy: Path) -> None:
    with open(copy / column.file_name(NAME, SHARD), "ab") as file:
        file.write(bytes(4))
    assert write(copy) == TRAIN[1]
    assert record_of(copy) == record_of(marked)


def test_settings_stay_while_another_split_is_unfinished(marked: Path, damaged: Path) -> None:
    with begin(damaged) as writer:
        for batch in writer:
            writer.write(rows_of(batch))
            if batch["number"][0] >= TRAIN[0]:
                break
    begun = damaged / column.begun_name(NAME)
    write(damaged, "validation")
    assert begun.exists()
    write(damaged)
    assert not begun.exists()
    assert record_of(damaged) == record_of(marked)


def test_files_of_killed_writers_are_removed(damaged: Path) -> None:
    folder = damaged / column.folder_name(NAME)
    folder.mkdir(parents=True)
    # A writer of a file only removes partial files of this file.
    (folder / f".train-00000-of-00009.npy.{'0' * 32}.partial").write_bytes(b"half")
    write(damaged)
    assert not [path.name for path in folder.iterdir() if path.name.endswith(".partial")]


@pytest.mark.parametrize(
    ("dtype", "rows", "is_accepted"),
    [
        ("uint16", np.zeros((8, 2), "uint16"), True),
        ("uint16", np.zeros((8, 2), "int16"), False),
        ("bfloat16", np.zeros((8, 2), "uint16"), True),
        ("bfloat16", np.zeros((8, 2), "float32"), False),
    ],
)
def test_rows_have_the_type_of_the_column(
    damaged: Path, dtype: str, rows: Any, is_accepted: bool
) -> None:
    with ColumnWriter(damaged, "train", "v", (2,), dtype, batch_size=8, reader=NATIVE) as writer:
        next(iter(writer))
        if is_accepted:
            writer.write(rows)
        else:
            with pytest.raises(UsageError):
                writer.write(rows)


def test_loop_outside_a_with_statement_is_refused(damaged: Path) -> None:
    """Its column would never be complete, not even if the script runs again."""
    with pytest.raises(UsageError, match=says("columnwriter-completes-column-end-statement")):
        next(iter(begin(damaged)))


class Bfloat16(np.ndarray):
    """An array of bfloat16, as frameworks give it: NumPy knows only its bits."""

    dtype = "bfloat16"  # type: ignore[assignment]


def test_bfloat16_is_not_a_number_of_16_bits(damaged: Path) -> None:
    """The bits of 1.0 would be stored as 16256."""
    rows = np.full((8, 2), 16256, np.uint16).view(Bfloat16)
    with ColumnWriter(damaged, "train", "v", (2,), "uint16", batch_size=8, reader=NATIVE) as writer:
        next(iter(writer))
        with pytest.raises(UsageError):
            writer.write(rows)


def test_parts_of_datasets_get_no_columns(damaged: Path) -> None:
    digest = open_dataset(str(damaged)).manifest.digest
    (damaged / schema.PLACEMENT).write_bytes(Placement(0, 2, 1).dumps(digest))
    with pytest.raises(UsageError) as refused:
        begin(damaged)
    assert str(damaged) in str(refused.value)
    assert not (damaged / "columns").exists()


def test_datasets_without_tables_get_no_columns(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write_dataset(root, {"train": [[picture(0, plain(0))]]}, num_classes=1)
    with pytest.raises(UsageError) as refused:
        begin(root)
    assert str(root) in str(refused.value)
    assert not (root / "columns").exists()


def test_one_writer_at_a_time_reads_the_record(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the splits of one of two writers that end together would be lost."""
    found = columns.find
    held: list[bool] = []

    def checked(*args: Any, **more: Any) -> Any:
        try:
            with only_one(LocalStore(copy), column.folder_name(NAME), fcntl.LOCK_NB):
                held.append(False)
        except BlockingIOError:
            held.append(True)
        return found(*args, **more)

    monkeypatch.setattr(columns, "find", checked)
    writer = begin(copy)
    in_begin = len(held)
    writer.finish()
    assert 0 < in_begin < len(held)
    assert all(held)
