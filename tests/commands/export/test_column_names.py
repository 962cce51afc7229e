"""Columns in exports: names and types that their readers understand, or an exit code of 2."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from imagenet_prep import export
from imagenet_prep.core.errors import UsageError
from imagenet_prep.pipelines import prepare
from imagenet_prep.read import ColumnWriter
from tests.kit import columns, layouts
from tests.kit.tfrecords import plain

# `datasets` calls these types as NumPy does (string_to_arrow in features.py).
_TYPES = ("bool", "int8", "uint8", "uint16", "uint64", "float16", "float32", "float64")
_READER = {"backend": "native", "fields": ("width",)}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of four images without columns; tests may add some."""
    root = tmp_path_factory.mktemp("columns")
    for number, name in enumerate(("cat/1.jpg", "cat/2.jpg", "dog/3.jpg", "dog/4.jpg")):
        layouts.write(root / "source" / name, plain(number))
    assert (
        prepare.run(["--source", str(root / "source"), "--out", str(root / "set"), "--json"]) == 0
    )
    return root / "set"


def add(dataset: Path, name: str, dtype: str, shape: Sequence[int]) -> np.ndarray:
    values = np.arange(4 * int(np.prod(shape, dtype=int))).reshape(4, *shape) % 2
    stored = values.astype("uint16" if dtype == "bfloat16" else dtype)
    column = ColumnWriter(dataset, "train", name, tuple(shape), dtype, batch_size=4, reader=_READER)
    with column as writer:
        for batch in writer:
            writer.write(stored[batch["number"]])
    return stored


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)], ids=str)
def test_parquet_keeps_all_column_types(
    dataset: Path, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    import pyarrow.parquet as pq

    values = {}
    for dtype in (*_TYPES, "bfloat16"):
        # A dot, a hyphen, and letters of both cases.
        name = f"A-{dtype}.{len(shape)}"
        values[name] = add(dataset, name, dtype, shape)
    words = [str(dataset), "--to", "parquet", "--out", str(tmp_path / "out")]
    assert export.run([*words, "--columns", ",".join(values)]) == 0

    (file,) = (tmp_path / "out/data").iterdir()
    table = pq.read_table(file)
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    for name, expected in values.items():
        found = np.array(table[name].to_pylist(), expected.dtype)
        np.testing.assert_array_equal(found, expected)
        feature = features[name]
        for side in shape:
            assert feature["length"] == side
            feature = feature["feature"]
        assert feature == {"_type": "Value", "dtype": expected.dtype.name}
    back = ["--source", str(tmp_path / "out"), "--out", str(tmp_path / "back"), "--splits=train"]
    assert prepare.run([*back, "--json"]) == 0


@pytest.mark.parametrize(
    ("to", "names"),
    [
        ("parquet", "label"),
        ("parquet", "image"),
        ("parquet", "Image"),
        ("parquet", "image.bytes"),
        ("parquet", "half,half"),
        ("webdataset", "half,Half"),
        ("webdataset", "__half"),
    ],
)
def test_ambiguous_column_names_are_refused(
    dataset: Path, tmp_path: Path, to: str, names: str
) -> None:
    with pytest.raises(UsageError, match="--columns"):
        export.run([str(dataset), "--to", to, "--out", str(tmp_path / "out"), "--columns", names])
    assert not (tmp_path / "out").exists()


def test_webdataset_allows_names_of_parquet_fields(dataset: Path, tmp_path: Path) -> None:
    columns.make_column(dataset, "label")  # older versions could write this name
    words = [str(dataset), "--to", "webdataset", "--out", str(tmp_path / "out")]
    assert export.run([*words, "--columns", "label"]) == 0
