"""column.json: what is written is read again, and hostile values are refused."""

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


def test_what_is_written_is_read_again() -> None:
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
def test_refuses_hostile_settings(field: str, value: object) -> None:
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
def test_refuses_hostile_files(field: str, value: object) -> None:
    content = json.loads(made().dumps())
    refuses({"splits": {"train": [{**content["splits"]["train"][0], field: value}]}})


def test_a_row_has_at_most_64_mb() -> None:
    assert Column("latents", "float16", (32, 1 << 20)).row_bytes == 64 << 20
    with pytest.raises(ValueError, match="a row has more than 67,108,864 bytes"):
        Column("latents", "float16", (32, (1 << 20) + 1))


def test_refuses_the_same_shard_twice() -> None:
    content = json.loads(made().dumps())
    refuses({"splits": {"train": content["splits"]["train"] * 2}})


def refuses(change: dict[str, Any]) -> None:
    """Tries column.json with a change whose digest is right, and a change whose digest is not."""
    content = json.loads(made().dumps()) | change
    del content["digest"]
    for digest in (strict_json.digest(content), "f" * 64):
        data = json.dumps({**content, "digest": digest}, indent=1, sort_keys=True) + "\n"
        with pytest.raises(DataDamagedError, match=r"x: damaged \("):
            column.loads(data.encode(), "x", "latents")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 5000, b'{"digest": 1}'])
def test_refuses_what_is_no_column(data: bytes) -> None:
    with pytest.raises(DataDamagedError):
        column.loads(data, "x", "latents")
    with pytest.raises(DataDamagedError):
        column.loads_receipt(data, "x")


def test_refuses_the_column_of_another_folder() -> None:
    with pytest.raises(DataDamagedError, match="expected features"):
        column.loads(made().dumps(), "x", "features")


@pytest.mark.parametrize("missing", [(3,), (-1,), (1, 0), (1, 1)])
def test_refuses_missing_rows_that_cannot_be(missing: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="missing rows"):
        replace(made().splits["train"][0], missing=missing)
