"""Exports Parquet files as on the Hugging Face Hub: columns image {bytes, path} and label."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.installed import demand
from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.column import Column
from imagenet_prep.exporting.examples import Example, Part, Source
from imagenet_prep.exporting.files import Piece
from imagenet_prep.exporting.format import Format

_GROUP_ROWS = 100  # as in `datasets` for images: to read one row, its group is read


@dataclass(frozen=True)
class Parquet(Format):
    """The Parquet format, see `Format`; rows of dataset columns become fixed-length lists."""

    wnids: tuple[str, ...]
    columns: tuple[Column, ...] = ()

    def settled(self, source: Source, parts: Sequence[Part]) -> Parquet:  # noqa: ARG002
        """Raises UsageError if pyarrow is not installed."""
        demand("parquet", "--to parquet", "pyarrow")
        return self

    def pieces(self, part: Part, examples: Iterable[Example]) -> Iterator[Piece]:
        """Yields the bytes that pyarrow writes for each group of rows."""
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        name = f"data/{naming.shard_name(part.split, part.number, part.total)}.parquet"
        columns: Json = {
            schema.PARQUET_IMAGE: pa.struct({"bytes": pa.binary(), "path": pa.string()}),
            schema.PARQUET_LABEL: pa.int64(),
        }
        features: Json = {
            schema.PARQUET_IMAGE: {"_type": "Image"},
            schema.PARQUET_LABEL: {"names": self.wnids, "_type": "ClassLabel"},
        }
        for column in self.columns:
            dtype = np.dtype(column.descr)
            values = pa.from_numpy_dtype(dtype)
            feature: Json = {"_type": "Value", "dtype": dtype.name}
            for side in reversed(column.shape):
                values = pa.list_(values, side)
                feature = {"_type": "Sequence", "length": side, "feature": feature}
            columns[column.name], features[column.name] = values, feature
        metadata = {
            "huggingface": json.dumps({"info": {"features": features}}),
            schema.PARQUET_KEYS: "image.path",
        }
        table = pa.schema(columns, metadata)
        sink = _Sink()
        # JPEGs cannot be compressed further, and no two are the same.
        options = {"compression": "none", "use_dictionary": False, "write_statistics": ["label"]}
        with pq.ParquetWriter(sink, table, **options) as writer:
            remaining = iter(examples)
            while rows := list(itertools.islice(remaining, _GROUP_ROWS)):
                images = [{"bytes": row.encoded, "path": row.key} for row in rows]
                labels = [row.class_index for row in rows]
                values = [
                    pa.array([row.rows[column.name].tolist() for row in rows], columns[column.name])
                    for column in self.columns
                ]
                writer.write_batch(pa.record_batch([images, labels, *values], schema=table))
                yield from (Piece(name, data) for data in sink.taken())
        yield from (Piece(name, data) for data in sink.taken())


class _Sink(io.RawIOBase):
    """A file in memory for pyarrow; `taken` returns the bytes written since its last call."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pending.append(bytes(data))  # the memory belongs to pyarrow
        self._position += len(self._pending[-1])
        return len(self._pending[-1])

    def tell(self) -> int:
        return self._position

    def taken(self) -> list[bytes]:
        pending = self._pending
        self._pending = []
        return pending
