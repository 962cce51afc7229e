"""Parquet files with the columns of the Hugging Face Hub: image {bytes, path} and label."""

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

# As in `datasets` for images: reading one row reads its group.
_GROUP_ROWS = 100


@dataclass(frozen=True)
class Parquet(Format):
    """The Parquet format, see `Format`; rows of columns become lists of fixed lengths."""

    wnids: tuple[str, ...]
    columns: tuple[Column, ...] = ()

    def settled(self, source: Source, parts: Sequence[Part]) -> Parquet:  # noqa: ARG002
        """Raises UsageError if pyarrow is not installed."""
        demand("parquet", "--to parquet", "pyarrow")
        return self

    def pieces(self, part: Part, examples: Iterable[Example]) -> Iterator[Piece]:
        """Yields the bytes from pyarrow for each group of rows."""
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        name = f"data/{naming.shard_name(part.split, part.number, part.total)}.parquet"
        columns: Json = {
            "image": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
            "label": pa.int64(),
        }
        features: Json = {
            "image": {"_type": "Image"},
            "label": {"names": self.wnids, "_type": "ClassLabel"},
        }
        for each in self.columns:
            values = pa.from_numpy_dtype(np.dtype(each.descr))
            said: Json = {"_type": "Value", "dtype": str(values)}
            for side in reversed(each.shape):
                values = pa.list_(values, side)
                said = {"_type": "Sequence", "length": side, "feature": said}
            columns[each.name], features[each.name] = values, said
        metadata = {
            "huggingface": json.dumps({"info": {"features": features}}),
            schema.PARQUET_NAMES: "below the class",
        }
        table, sink = pa.schema(columns, metadata), _Sink()
        # JPEGs cannot be compressed further, and all are different.
        how = {"compression": "none", "use_dictionary": False, "write_statistics": ["label"]}
        with pq.ParquetWriter(sink, table, **how) as writer:
            coming = iter(examples)
            while rows := list(itertools.islice(coming, _GROUP_ROWS)):
                images = [{"bytes": row.encoded, "path": row.name} for row in rows]
                labels = [row.class_index for row in rows]
                values = [
                    pa.array([row.rows[each.name].tolist() for row in rows], columns[each.name])
                    for each in self.columns
                ]
                writer.write_batch(pa.record_batch([images, labels, *values], schema=table))
                yield from (Piece(name, data) for data in sink.taken())
        yield from (Piece(name, data) for data in sink.taken())


class _Sink(io.RawIOBase):
    """The file for pyarrow: keeps the written bytes until they are taken."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._place = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._kept.append(bytes(data))  # the memory belongs to pyarrow
        self._place += len(self._kept[-1])
        return len(self._kept[-1])

    def tell(self) -> int:
        return self._place

    def taken(self) -> list[bytes]:
        kept, self._kept = self._kept, []
        return kept
