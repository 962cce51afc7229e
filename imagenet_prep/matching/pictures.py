"""All images of a search, numbered from 0: their table columns, rows of hashes, and bytes."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from imagenet_prep.core import regular_file
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.matching import hashes

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.dataset.samples import Sample

_ROWS_AT_ONCE = 1 << 14  # 18 MB


class Piece(Protocol):
    """Images that are stored together: a shard, or a piece of a source. Picklable."""

    @property
    def split(self) -> str:
        """The split of the images."""

    @property
    def other(self) -> bool:
        """Whether the piece belongs to the dataset given by --against."""

    @property
    def where(self) -> str:
        """The name of the piece in messages."""

    def samples(self) -> Iterator[Sample]:
        """Yields the table entry of each image, in order."""

    def read(self, number: int) -> bytes:
        """Returns the bytes of an image."""


class Columns(NamedTuple):
    """The columns of a piece's table that the search needs; sha256 is [n, 32] bytes."""

    class_index: npt.NDArray[np.int64]
    width: npt.NDArray[np.int64]
    height: npt.NDArray[np.int64]
    sha256: npt.NDArray[np.uint8]


def columns(samples: Iterable[Sample]) -> Columns:
    """Returns the columns of these samples."""
    numbers = array("q")
    digests = bytearray()
    for sample in samples:
        numbers.extend((sample.class_index, sample.width, sample.height))
        digests += bytes.fromhex(sample.sha256)
    table = np.frombuffer(numbers, np.int64).reshape(-1, 3)
    sha256 = np.frombuffer(digests, np.uint8).reshape(-1, 32)
    return Columns._make((*np.ascontiguousarray(table.T), sha256))


def _read(path: Path, num: int) -> Iterator[npt.NDArray[Any]]:
    """Yields the rows of `num` images in blocks; rows of unreadable images are zeros."""
    with open(regular_file.open_to_read(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > num * hashes.ROW.itemsize:
            raise DataDamagedError(
                f"{path}: has {size:,} bytes, too many for {num:,} images. Remove the file, then "
                "run the same command again."
            )
        for start in range(0, max(num, 1), _ROWS_AT_ONCE):
            rows = np.zeros(min(num - start, _ROWS_AT_ONCE), hashes.ROW)
            file.readinto(rows.view(np.uint8).data)
            yield rows


class Pictures:
    """The images of some pieces, numbered from 0.

    `starts` has the number of the first image of each piece, and the total. `sound` marks images
    that could be decoded, `judged` those with enough detail. `means` are digests of
    `likeness.means`. `whole` and `window` are hashes [n, 4], mapped from files.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        tables: Iterable[Columns],
        rows: Sequence[Path],
        scratch: Path,
    ) -> None:
        """Reads all tables and rows; writes the hashes to files in the empty folder `scratch`."""
        self.pieces, self._rows = pieces, rows
        tables_read = []
        rows_read = []
        counts = [0]
        with open(scratch / "whole", "wb") as whole, open(scratch / "window", "wb") as window:
            for table, path in zip(tables, rows, strict=True):
                tables_read.append(table)
                counts.append(len(table.width))
                for block in _read(path, len(table.width)):
                    detail = hashes.judged(block), hashes.judged(block, hashes.LESS)
                    rows_read.append((block["sound"] > 0, *detail, block["means"].copy()))
                    whole.write(block["whole"].tobytes())
                    window.write(block["window"].tobytes())
        self.starts = np.cumsum(counts)
        self.known = Columns._make(
            np.concatenate(parts) for parts in zip(*tables_read, strict=True)
        )
        self.sound, self.judged, self.may_be_judged, self.means = (
            np.concatenate(parts) for parts in zip(*rows_read, strict=True)
        )
        shape = (len(self), *hashes.ROW["whole"].shape)
        self.whole, self.window = (
            # An empty file cannot be mapped.
            np.memmap(scratch / name, np.uint64, "r", shape=shape)
            if len(self)
            else np.empty(shape, np.uint64)
            for name in ("whole", "window")
        )

    def __len__(self) -> int:
        return int(self.starts[-1])

    def place(self, number: int) -> tuple[Piece, int]:
        """Returns the piece of an image, and the number of the image in the piece."""
        piece = int(np.searchsorted(self.starts, number, side="right")) - 1
        return self.pieces[piece], number - int(self.starts[piece])

    @property
    def other(self) -> npt.NDArray[np.bool_]:
        """Whether each image belongs to the dataset given by --against."""
        return np.repeat([piece.other for piece in self.pieces], np.diff(self.starts))

    def read(self, number: int) -> bytes:
        """Returns the bytes of an image."""
        piece, at = self.place(number)
        return piece.read(at)

    def small(self, numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        """Returns the small pictures of these images, [n, 32, 32]."""
        small = np.empty((len(numbers), hashes.SMALL, hashes.SMALL), np.uint8)
        pieces = np.searchsorted(self.starts, numbers, side="right") - 1
        order = np.argsort(pieces, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(pieces[order])) + 1):
            if len(group):
                piece = int(pieces[group[0]])
                rows = np.memmap(self._rows[piece], hashes.ROW, "r")
                small[group] = rows["small"][numbers[group] - self.starts[piece]]
        return small
