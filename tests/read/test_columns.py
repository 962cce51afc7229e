"""Columns: written by batches, joined to their records, refused if they are of other records."""

from __future__ import annotations

import hashlib
import json
import os
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
from imagenet_prep.dataset import column
from imagenet_prep.dataset.column import Column, ColumnFile
from imagenet_prep.read import ColumnWriter, make_dataset
from imagenet_prep.read.cache import only_one
from imagenet_prep.storage.folder import LocalStore
from tests.kit.columns import NAME, NATIVE, SHARD, begin, change, mark, record_of, rows_of, write
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION, TRAIN, open_set


@pytest.fixture(scope="session")
def marked(colours: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`colours` with a column of both splits; read-only."""
    root = Path(shutil.copytree(colours, tmp_path_factory.mktemp("marked") / "set"))
    write(root)
    write(root, "validation")
    return root


@pytest.fixture
def copy(marked: Path, tmp_path: Path) -> Path:
    """A copy of `marked`, to be changed."""
    return Path(shutil.copytree(marked, tmp_path / "set"))


def read(root: Path, split: str = "train", **more: Any) -> list[Any]:
    fields = ("number", "class_index", f"column:{NAME}")
    return list(open_set(root, split, 8, "native", **{"fields": fields} | more))


@pytest.mark.parametrize("images", [False, True])
def test_rows_are_those_of_their_records_in_any_order(
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


def test_a_complete_column_has_only_its_files(marked: Path) -> None:
    there = record_of(marked)
    names = {path.name for path in (marked / column.folder_name(NAME)).iterdir()}
    assert names == {"column.json", *(Path(file.name).name for file in there.files())}
    assert there.about == {"made": "in a test"}
    assert there.view == "image"
    assert there.made_from == "image"


def test_without_images_no_record_is_read(copy: Path) -> None:
    """Latents of a read cost as much as all the images before."""
    expected = read(copy, fields=("key", "width", "height", "class_index", "mirrored"))
    for shard in copy.glob("*-000*-of-*"):
        shard.write_bytes(bytes(shard.stat().st_size))
    found = read(copy, fields=("key", "width", "height", "class_index", "mirrored"))
    for one, other in zip(found, expected, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    with pytest.raises(DataDamagedError):
        read(copy, fields=("boxes",))


def test_tables_and_records_say_the_same(colours: Path) -> None:
    fields = ("key", "width", "height", "class_index", "number", "mirrored")
    with_records = read(colours, fields=(*fields, "images"), views=2)
    without = read(colours, fields=fields, views=2)
    for one, other in zip(without, with_records, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in fields)
        assert one["mirrored"].shape == (8, 2)


# What is refused when a reader is opened.


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


def of_another_split(root: Path) -> None:
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
        (short, DataDamagedError, f"{SHARD}.npy: missing, or the size differs"),
        (absent, DataDamagedError, f"{SHARD}.npy: missing, or the size differs"),
        (of_other_records, UsageError, "no rows for the records of train-00000.*: it was made for"),
        (of_other_shards, UsageError, "no rows for the records of train-00004"),
        (of_another_split, UsageError, "no rows for the records of train-00000"),
        (unknown, UsageError, "there is no such column. Columns of this dataset: none"),
        (unfinished, IncompleteError, "the column is not complete yet"),
        (edited, DataDamagedError, "its digest does not match its content"),
        (hostile, DataDamagedError, r"column.json: damaged \(shape"),
        (linked, DataDamagedError, "column.json: the file, or a folder above it, is a link"),
        (a_link, DataDamagedError, f"{SHARD}.npy: the file, or a folder above it, is a link"),
    ],
)
def test_a_column_that_does_not_fit_is_refused_before_the_first_batch(
    copy: Path, spoil: Callable[[Path], None], error: type[ImagenetPrepError], said: str
) -> None:
    spoil(copy)
    with pytest.raises(error, match=said):
        open_set(copy, "train", 8, "native", fields=("class_index", f"column:{NAME}"))


@pytest.mark.parametrize("name", ["../labels", "", ".work", "a/b", "a" * 101])
def test_a_name_that_leads_elsewhere_is_refused(marked: Path, name: str) -> None:
    with pytest.raises(UsageError, match="a column name has up to 100"):
        open_set(marked, "train", 8, "native", fields=("number", f"column:{name}"))


# What is refused when a file is used first.


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


def of_another_shape(root: Path) -> None:
    disguised(root, Column(NAME, "int32", (1, 3)).header(TRAIN[1]))


def disguised(root: Path, head: bytes) -> None:
    """Puts another header into a file, and its right sha256 into column.json."""
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
        (reversed_rows, f"{SHARD}.npy: sha256 .*, column.json says"),
        (shuffled_rows, f"{SHARD}.npy: sha256 .*, column.json says"),
        (pickled, f"{SHARD}.npy: is not a .npy file of 9 rows of marks"),
        (of_another_shape, f"{SHARD}.npy: is not a .npy file of 9 rows of marks"),
    ],
)
def test_no_row_of_a_wrong_file_is_delivered(
    copy: Path, spoil: Callable[[Path], None], said: str
) -> None:
    read(copy)  # its files are noted as verified
    spoil(copy)
    seen = []
    with pytest.raises(DataDamagedError, match=said):
        for batch in open_set(
            copy, "train", 4, "native", fields=("number", f"column:{NAME}"), training=False
        ):
            seen += batch["number"].tolist()
    assert max(seen) < TRAIN[0]


def test_a_file_is_read_once_for_its_sha256_and_the_ledger_remembers(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(copy)
    monkeypatch.delattr("imagenet_prep.storage.ledger.hashlib.file_digest")
    assert len(read(copy)) == NUM_TRAIN // 8
    (copy / column.file_name(NAME, SHARD)).touch()
    with pytest.raises(AttributeError):
        read(copy)


# Views.


def test_rows_of_a_crop_are_not_joined_to_other_crops(damaged: Path) -> None:
    write(damaged, reader=NATIVE | {"fields": ("images",)})
    assert record_of(damaged).view == "evaluation crop, recipe resnet, 16 px"
    joined: dict[str, Any] = {"fields": ("images", f"column:{NAME}")}

    assert len(read(damaged, training=False, **joined)) == -(-NUM_TRAIN // 8)
    assert read(damaged)
    for other in (
        {},
        {"training": False, "recipe": "tutorial"},
        {"training": False, "antialias": False},
    ):
        with pytest.raises(UsageError, match="column marks was made from this view: evaluation"):
            read(damaged, **joined, **other)


def test_rows_that_are_true_of_every_crop_are_joined_to_any(damaged: Path) -> None:
    write(damaged, reader=NATIVE | {"fields": ("images",)}, view="image")
    assert read(damaged, fields=("images", f"column:{NAME}"))


def test_pictures_that_may_be_mirrored_are_joined_with_the_field_that_says_so(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from imagenet_prep.read.augment import RECIPES

    monkeypatch.setitem(RECIPES, "mnist", replace(RECIPES["mnist"], mirrors=True))
    options: dict[str, Any] = {"recipe": "mnist"}
    write(damaged, reader=NATIVE | options | {"fields": ("images",)})
    joined = ("images", f"column:{NAME}")
    with pytest.raises(UsageError, match="made from images that are not mirrored, but half"):
        read(damaged, fields=joined, **options)
    mirrored = [b["mirrored"] for b in read(damaged, fields=(*joined, "mirrored"), **options)]
    assert np.concatenate(mirrored).any()
    assert not np.concatenate(mirrored).all()


@pytest.mark.parametrize("recipe", ["adm", "mnist"])
def test_training_with_the_evaluation_crop_reads_columns_of_that_crop(
    damaged: Path, recipe: str
) -> None:
    """By default; an image that is not mirrored has the pixels of its row."""
    made = NATIVE | {"recipe": recipe, "fields": ("images",), "originals": False}
    with ColumnWriter(
        damaged, "train", NAME, (16, 16, 3), "uint8", batch_size=8, reader=made, world=World()
    ) as writer:
        for batch in writer:
            writer.write(batch["images"])
    assert record_of(damaged).view == f"evaluation crop, recipe {recipe}, 16 px"

    fields = ("images", "mirrored", f"column:{NAME}")
    seen = 0
    for images, mirrored, rows in (
        batch.values() for batch in read(damaged, fields=fields, recipe=recipe)
    ):
        assert np.array_equal(images[mirrored], rows[mirrored][:, :, ::-1])
        assert np.array_equal(images[~mirrored], rows[~mirrored])
        seen += len(images)
    assert seen == NUM_TRAIN // 8 * 8


def test_other_filters_are_refused_next_to_a_column(damaged: Path) -> None:
    write(damaged, reader=NATIVE | {"recipe": "mnist", "fields": ("images",)})
    fields = ("images", f"column:{NAME}")
    assert read(damaged, fields=fields, recipe="mnist", antialias=True)
    with pytest.raises(UsageError, match=r"evaluation crop, recipe mnist, 16 px, not antialiased"):
        read(damaged, fields=fields, recipe="mnist", antialias=False)
    for antialias in (True, False):
        with pytest.raises(UsageError, match=r"recipe='adm' .* only with antialias=None"):
            read(damaged, fields=fields, recipe="adm", antialias=antialias)


def test_mirrored_says_what_is_seen(scenes: Path) -> None:
    def pictures(**more: Any) -> Any:
        fields = ("images", "mirrored", "number")
        return list(open_set(scenes, "train", 10, "native", fields=fields, **more))

    whole = {"recipe": "cifar10", "antialias": False}
    fields = {
        int(n): bool(m)
        for b in pictures(**whole)
        for n, m in zip(b["number"], b["mirrored"], strict=True)
    }
    reader = open_set(scenes, "train", 10, "native", **whole)
    for batch in reader.encoded_batches():
        for number, mirrored in zip(
            batch.numbers.tolist(), batch.views[0].mirrored.tolist(), strict=True
        ):
            assert fields[number] == mirrored
    assert set(fields.values()) == {True, False}
    assert not any(b["mirrored"].any() for b in pictures(training=False))


def test_a_column_made_from_classes_or_columns_says_so(damaged: Path) -> None:
    write(damaged, reader=NATIVE | {"fields": ("class_index",)})
    assert record_of(damaged).made_from == "image+class"
    fields = {"fields": (f"column:{NAME}",), "backend": "native"}
    with ColumnWriter(damaged, "train", "more", (3,), "int32", batch_size=8, reader=fields) as made:
        batch: Any
        for batch in made:
            made.write(batch[f"column:{NAME}"])
    assert made.column.made_from == "image+class"
    assert made.column.view == "image"


def test_a_column_made_from_a_column_of_a_crop_is_of_the_same_crop(damaged: Path) -> None:
    write(damaged, view=None, reader=NATIVE)
    view = record_of(damaged).view
    fields = {**NATIVE, "fields": (f"column:{NAME}",)}
    with ColumnWriter(damaged, "train", "more", (3,), "int32", batch_size=8, reader=fields) as made:
        assert (made.column.view, made.column.made_from) == (view, "image")
    assert view.startswith("evaluation crop")


# Types.


@pytest.mark.parametrize("dtype", sorted(column.DTYPES))
def test_values_of_every_type_come_back(damaged: Path, dtype: str) -> None:
    kind = np.dtype(column.DTYPES[dtype][0])
    values = (np.arange(NUM_TRAIN) % 2 if dtype == "bool" else np.arange(NUM_TRAIN)).astype(kind)
    with ColumnWriter(damaged, "train", "v", (), dtype, batch_size=8, reader=NATIVE) as made:
        for batch in made:
            made.write(values[batch["number"][batch["number"] >= 0]])
    reader = open_set(
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
        (np.zeros((8, 3), np.int64), r"expected int32 \[8, 3\], got int64 \[8, 3\]"),
        (np.zeros((8, 4), np.int32), r"got int32 \[8, 4\]"),
        (np.zeros((7, 3), np.int32), r"got int32 \[7, 3\]"),
        (np.zeros((9, 3), np.int32), r"got int32 \[9, 3\]"),
        (np.zeros((8, 3), ">i4"), r"got >i4 \[8, 3\]"),
        ([[0, 0, 0]] * 8, "not an array in CPU memory"),
    ],
)
def test_rows_that_do_not_fit_are_refused(damaged: Path, rows: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said), begin(damaged) as writer:
        for _ in writer:
            writer.write(rows)
    assert not list((damaged / column.folder_name(NAME)).glob("*.npy"))


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_values_that_are_not_finite_are_refused_unless_they_are_wanted(
    damaged: Path, dtype: str
) -> None:
    rows = np.full(8, 0x7FC0, np.uint16) if dtype == "bfloat16" else np.full(8, np.nan, dtype)

    def written(finite: bool) -> bool:
        settings: dict[str, Any] = {"batch_size": 8, "finite": finite, "reader": NATIVE}
        with ColumnWriter(damaged, "train", "v", (), dtype, **settings) as made:
            for _ in made:
                made.write(rows)
        return made.is_complete

    with pytest.raises(UsageError, match="infinite or not a number"):
        written(finite=True)
    assert written(finite=False)


# The writer.


def test_each_batch_needs_one_write(damaged: Path) -> None:
    with pytest.raises(UsageError, match="was not called for a batch"), begin(damaged) as writer:
        for _ in writer:
            pass
    with (
        pytest.raises(UsageError, match="called twice or too early"),
        begin(damaged) as writer,
    ):
        for batch in writer:
            writer.write(rows_of(batch))
            writer.write(rows_of(batch))


def test_a_loop_that_is_left_goes_on_with_the_next_file(damaged: Path) -> None:
    with begin(damaged) as writer:
        for batch in writer:
            writer.write(rows_of(batch))
            if batch["number"][0] >= TRAIN[0]:
                break
    assert not writer.is_complete
    assert not list((damaged / column.folder_name(NAME)).glob(".*"))
    with pytest.raises(IncompleteError, match="not complete yet"):
        read(damaged)
    left = NUM_TRAIN - sum(TRAIN[:2])
    assert write(damaged) == left
    assert write(damaged) == 0
    assert len(read(damaged)) == NUM_TRAIN // 8


def test_only_a_file_that_was_removed_is_made_again(marked: Path, copy: Path) -> None:
    (copy / column.file_name(NAME, SHARD)).unlink()
    assert write(copy) == TRAIN[1]
    assert record_of(copy) == record_of(marked)


def test_ranks_share_the_shards_and_make_the_same_files(marked: Path, damaged: Path) -> None:
    computed = [write(damaged, world=World(rank, 3)) for rank in (2, 0, 1)]
    assert computed == [TRAIN[2], TRAIN[0] + TRAIN[3], TRAIN[1] + TRAIN[4]]
    write(damaged, "validation")
    assert record_of(damaged) == record_of(marked)


def test_another_split_is_added_while_the_first_is_written(marked: Path, damaged: Path) -> None:
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
        ({"about": {"made": "otherwise"}}, "started with a different about"),
        ({"reader": NATIVE | {"fields": ("images",)}}, "started with a different view"),
        ({"reader": NATIVE | {"fields": ("key",)}}, "started with a different made_from"),
    ],
)
@pytest.mark.parametrize("is_complete", [True, False])
def test_a_column_that_was_begun_otherwise_is_refused(
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
        ({"reader": {"classes": [1]}}, r"reader=\['classes'\]: expected some of antialias"),
        ({"view": "mine"}, "view='mine': expected 'image'"),
        ({"about": object()}, "column 'marks': "),
        ({"about": float("nan")}, "column 'marks': "),
    ],
)
def test_settings_that_cannot_be_are_refused(
    damaged: Path, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        begin(damaged, **more)
    assert not (damaged / "columns").exists()


def test_a_dataset_elsewhere_is_refused() -> None:
    with pytest.raises(UsageError, match="can only be written in a local folder"):
        ColumnWriter("s3://bucket/set", "train", NAME, (), "int32", batch_size=8)


def test_two_processes_that_write_the_same_shard_are_told(damaged: Path) -> None:
    name = column.file_name(NAME, "train-00000-of-00005")
    with (
        only_one(LocalStore(damaged), name),
        pytest.raises(BusyError, match="Give each rank a different"),
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
    with pytest.raises(IncompleteError, match="not complete yet"):
        read(copy)
    assert write(copy) == len(missing) + 1
    write(copy, "validation")
    assert record_of(copy) == record_of(marked)


def test_rows_that_are_not_those_of_the_receipt_are_not_carried(copy: Path) -> None:
    with_gaps(copy, {SHARD: (3,)})
    reversed_rows(copy)
    with pytest.raises(
        DataDamagedError, match=f"{SHARD}.npy: its sha256 differs from that in its receipt"
    ):
        write(copy)
    assert not (copy / column.record_name(NAME)).exists()


def test_a_writer_that_ends_before_the_receipt_of_carried_rows_can_go_on(
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


def test_a_file_that_a_different_process_has_finished_is_not_written_again(copy: Path) -> None:
    with_gaps(copy, {SHARD: (3,)})
    with pytest.raises(BusyError, match="has written it since"), begin(copy) as writer:
        write(copy)
        for batch in writer:
            writer.write(rows_of(batch))
    write(copy, "validation")
    assert len(read(copy)) == NUM_TRAIN // 8


def test_a_receipt_of_another_table_counts_for_nothing(copy: Path) -> None:
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
