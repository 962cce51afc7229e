"""column.json: written values are read back, and hostile values are refused."""

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import column
from imagenet_prep.dataset.column import DTYPES, Column, ColumnFile
from imagenet_prep.dataset.manifest import Shard
from tests.kit.messages import says

SHARD = Shard("train-00000-of-00002", 3, 1000, "c" * 64, 10, "d" * 64, 10, "b" * 64)


def made(**fields: Any) -> Column:
    """Returns a column with one file."""
    there = Column("latents", "float16", (4, 2), {"network": "vae"}, **fields)
    rows = ColumnFile(SHARD.name, 3, there.num_bytes(3), "a" * 64, SHARD.samples_sha256)
    return there.with_files("train", [rows])


@pytest.mark.parametrize("shape", [(), (3,), (8, 4, 4)])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_numpy_opens_a_file_with_our_header(dtype: str, shape: tuple[int, ...]) -> None:
    there = Column("latents", dtype, shape)
    data = there.header(3) + bytes(3 * there.row_bytes)
    array = np.load(io.BytesIO(data), allow_pickle=False)
    assert len(there.header(3)) % 64 == 0
    assert len(data) == there.num_bytes(3)
    assert array.shape == (3, *shape)
    assert array.dtype.str == there.descr
    assert not array.flags.f_contiguous or array.ndim < 2


def test_written_column_is_read_back() -> None:
    there = made()
    assert column.loads(there.dumps(), "x", "latents") == there
    assert column.loads(there.begun().dumps(), "x", "latents") == there.begun()
    rows = replace(there.splits["train"][0], missing=(0, 2))
    assert column.loads_receipt(strict_json.dumps(rows), "x") == rows


def test_rows_belong_to_a_shard_by_its_table() -> None:
    there = made()
    other = replace(SHARD, samples_sha256="e" * 64)
    assert there.of("train", [SHARD]) == (there.splits["train"], [])
    assert there.of("train", [other]) == ([], [SHARD.name])
    assert there.of("validation", [SHARD]) == ([], [SHARD.name])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("column_version", 2),
        ("name", "../latents"),
        ("name", ".hidden"),
        ("dtype", "object"),
        ("dtype", "<f4"),
        ("dtype", ["float32"]),
        ("shape", [1 << 40]),
        ("shape", [1 << 20, 1 << 20]),
        ("shape", [0]),
        ("shape", [-1]),
        ("shape", [2.5]),
        ("shape", [1] * 9),
        ("view", "a\nb"),
        ("view", ""),
        ("made_from", "class"),
        ("splits", {"train": []}),
        ("splits", []),
        ("more", 1),
    ],
)
def test_hostile_settings_are_refused(field: str, value: object) -> None:
    refuses({field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shard", "../../etc/passwd"),
        ("shard", "validation-00000-of-00002"),
        ("rows", 1 << 62),
        ("rows", -1),
        ("rows", 4),
        ("num_bytes", 1),
        ("sha256", "A" * 64),
        ("samples_sha256", ""),
        ("missing", [0]),
    ],
)
def test_hostile_files_are_refused(field: str, value: object) -> None:
    content = json.loads(made().dumps())
    refuses({"splits": {"train": [{**content["splits"]["train"][0], field: value}]}})


def test_row_has_at_most_64_mb() -> None:
    assert Column("latents", "float16", (32, 1 << 20)).row_bytes == 64 << 20
    with pytest.raises(ValueError, match=says("shape-row-more-bytes", 67_108_864)):
        Column("latents", "float16", (32, (1 << 20) + 1))


def test_duplicate_shard_is_refused() -> None:
    content = json.loads(made().dumps())
    refuses({"splits": {"train": content["splits"]["train"] * 2}})


def refuses(change: dict[str, Any]) -> None:
    """Tries column.json with a change, both with the right and with a wrong digest."""
    content = json.loads(made().dumps()) | change
    del content["digest"]
    for digest in (strict_json.digest(content), "f" * 64):
        data = json.dumps({**content, "digest": digest}, indent=1, sort_keys=True) + "\n"
        with pytest.raises(DataDamagedError, match=r"x: damaged \("):
            column.loads(data.encode(), "x", "latents")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 5000, b'{"digest": 1}'])
def test_invalid_column_is_refused(data: bytes) -> None:
    with pytest.raises(DataDamagedError):
        column.loads(data, "x", "latents")
    with pytest.raises(DataDamagedError):
        column.loads_receipt(data, "x")


def test_column_of_a_different_folder_is_refused() -> None:
    with pytest.raises(DataDamagedError, match="expected features"):
        column.loads(made().dumps(), "x", "features")


@pytest.mark.parametrize("missing", [(3,), (-1,), (1, 0), (1, 1)])
def test_impossible_missing_rows_are_refused(missing: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=says("numbers-missing-rows-not-sorted")):
        replace(made().splits["train"][0], missing=missing)


@pytest.mark.parametrize(
    "shard",
    [
        replace(SHARD, name="train-00001-of-00002"),
        replace(SHARD, examples=4),
        replace(SHARD, samples_sha256="e" * 64),
    ],
)
def test_rows_match_a_shard_by_three_facts(shard: Shard) -> None:
    rows = made().splits["train"][0]
    assert rows.is_of(SHARD)
    assert not rows.is_of(shard)


@pytest.mark.parametrize(
    ("shape", "is_sound"),
    [
        ((), True),
        ((1,) * 8, True),
        ((1,) * 9, False),
        ((0,), False),
        ((2, 0), False),
        ((-1, -1), False),
        ((64 << 20,), True),
        (((64 << 20) + 1,), False),
        ((0, 1 << 31), False),
    ],
)
def test_shapes_have_up_to_eight_sides(shape: tuple[int, ...], is_sound: bool) -> None:
    if is_sound:
        assert Column("c", "uint8", shape).shape == shape
    else:
        with pytest.raises(ValueError, match="shape"):
            Column("c", "uint8", shape)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("name", "others"),
        ("dtype", "float32"),
        ("shape", (4, 3)),
        ("about", {"network": "other"}),
        ("view", "a crop"),
        ("made_from", column.OF_CLASS),
    ],
)
def test_each_setting_of_a_column_can_differ(setting: str, value: Any) -> None:
    other = replace(made().begun(), **{setting: value})
    assert made().differing(other) == [setting]
    assert made().differing(made().begun()) == []


@pytest.mark.parametrize("view", ["x" * 201, "", "a\tb"])
def test_views_are_one_short_line(view: str) -> None:
    assert Column("c", "uint8", (1,), view="x" * 200).view == "x" * 200
    with pytest.raises(ValueError, match="view"):
        Column("c", "uint8", (1,), view=view)


@pytest.mark.parametrize(
    ("name", "is_allowed"),
    [
        ("a", True),
        ("a" * 100, True),
        ("a" * 101, False),
        ("1.5-x_y", True),
        ("-a", False),
        (".a", False),
        ("a/b", False),
        ("a\n", False),
        ("", False),
    ],
)
def test_names_of_columns_fit_into_paths(name: str, is_allowed: bool) -> None:
    if is_allowed:
        assert column.require_name(name) == name
        assert column.folder_name(name).endswith(f"/{name}")
    else:
        with pytest.raises(ValueError, match="name"):
            column.require_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "all",
        "none",
        "Key",
        "split",
        "image.mine",
        "jpg",
        "cls",
        "__key__",
        "__x",
        *column.CONDITIONS,
    ],
)
def test_new_columns_have_no_names_of_exports(name: str) -> None:
    assert column.require_name(name) == name
    with pytest.raises(ValueError, match="name"):
        column.require_new_name(name)
    assert column.require_new_name(f"my_{name}") == f"my_{name}"


def test_files_of_columns_are_in_shard_order() -> None:
    there = made()
    first = there.splits["train"][0]
    second = replace(first, shard="train-00001-of-00002")
    assert there.with_files("train", [first, second]).files() == [
        there.file(first),
        there.file(second),
    ]
    for files in ([second, first], [first, first], []):
        with pytest.raises(ValueError, match="splits"):
            there.with_files("train", files)
    with pytest.raises(ValueError, match="splits"):
        there.with_files("train", [replace(first, missing=(0,))])
    with pytest.raises(ValueError, match="splits"):
        there.with_files("train", [replace(first, num_bytes=first.num_bytes + 1)])


def test_paths_of_columns() -> None:
    assert column.record_name("c") == "columns/c/column.json"
    assert column.begun_name("c") == "columns/c/begun.json"
    assert column.file_name("c", "s") == "columns/c/s.npy"
    assert column.receipt_name("c", "s") == "columns/c/s.json"


TYPES = {
    "bool": ("|b1", 1),
    "int8": ("|i1", 1),
    "int16": ("<i2", 2),
    "int32": ("<i4", 4),
    "int64": ("<i8", 8),
    "uint8": ("|u1", 1),
    "uint16": ("<u2", 2),
    "uint32": ("<u4", 4),
    "uint64": ("<u8", 8),
    "float16": ("<f2", 2),
    "float32": ("<f4", 4),
    "float64": ("<f8", 8),
    "bfloat16": ("<u2", 2),
}


def test_each_type_has_its_code_and_size() -> None:
    assert {name: tuple(DTYPES[name][:2]) for name in DTYPES} == TYPES
    for name, (code, size) in TYPES.items():
        assert Column("c", name, (3,)).descr == code
        assert Column("c", name, (3,)).row_bytes == 3 * size


@pytest.mark.parametrize(
    ("file", "is_own"),
    [
        ("train-00000-of-00002.npy", True),
        ("train-00000-of-00002.jsonl", True),
        ("train-00000-of-00002.json", True),
        ("begun.json", True),
        ("anything.partial", True),
        ("train-00000-of-00002.txt", False),
        ("notes.json", False),
        ("train-00000-of-00002", False),
    ],
)
def test_only_files_of_the_writer_are_its_own(file: str, is_own: bool) -> None:
    path = f"{column.folder_name('latents')}/{file}"

    assert column.is_own_file("latents", path) == is_own


@pytest.mark.parametrize(("more", "is_sound"), [(0, True), (-1, False), (7, True)])
def test_rows_of_texts_have_a_least_size(more: int, *, is_sound: bool) -> None:
    """A truncated file is found by its size."""
    there = Column("captions", column.TEXT, (), column_version=column.TEXT_VERSION)
    num_bytes = 3 * len(there.empty_row) + more
    rows = ColumnFile(SHARD.name, 3, num_bytes, "a" * 64, SHARD.samples_sha256)
    if is_sound:
        assert there.with_files("train", [rows]).is_text
    else:
        with pytest.raises(ValueError, match=says("splits-size-file-not-match")):
            there.with_files("train", [rows])
