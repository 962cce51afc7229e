"""All pictures of a search: what is known of each by its number, and who reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.matching import hashes, in_file

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.dataset.samples import Sample

# Pages of files stay in memory until this many pictures have been looked at.
_LOOKED_AT = 1 << 16


class Piece(Protocol):
    """Pictures that lie together: a shard of a set, or a class of a source. Picklable."""

    @property
    def name(self) -> str:
        """A digest of what they are; their rows are kept by it."""

    @property
    def split(self) -> str:
        """The split that they belong to."""

    @property
    def other(self) -> bool:
        """Whether they are of the set that --against names."""

    @property
    def where(self) -> str:
        """How messages call it."""

    def samples(self) -> Iterator[Sample]:
        """Yields the line of each picture, in order."""

    def read(self, number: int) -> bytes:
        """Returns the image of a picture."""


class Columns(NamedTuple):
    """What the table of a piece says, by picture.

    Attributes:
      class_index: of the class list of its set.
      width, height: pixels.
      sha256: [n, 32] bytes.
    """

    class_index: npt.NDArray[np.int64]
    width: npt.NDArray[np.int64]
    height: npt.NDArray[np.int64]
    sha256: npt.NDArray[np.uint8]


def columns(samples: Iterable[Sample]) -> Columns:
    """Returns what the search needs of a table."""
    rows = [(each.class_index, each.width, each.height, each.sha256) for each in samples]
    numbers = np.array([each[:3] for each in rows], np.int64).reshape(-1, 3)
    digests = np.frombuffer(bytes.fromhex("".join(each[3] for each in rows)), np.uint8)
    return Columns._make((*np.ascontiguousarray(numbers.T), digests.reshape(-1, 32)))


class Pictures:
    """The pictures of some pieces, numbered through.

    Attributes:
      pieces: where they lie.
      starts: the number of the first picture of each piece, and of one behind the last.
      known: their columns.
      sound: whether it could be decoded.
      judged, may_be_judged: whether there is enough to see, see `hashes`.
      means: digests; equal for pictures of equal pixels.
      whole, window: [n, 4], their hashes, in files.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        tables: Iterable[Columns],
        rows: Sequence[Path],
        scratch: Path,
    ) -> None:
        """Reads all tables and rows.

        Args:
          pieces: in the order of `tables` and `rows`.
          tables: of each piece.
          rows: files of `hashes.ROW`, one a piece.
          scratch: an empty folder for what does not stay in memory.

        Raises:
          DataDamagedError: a file of rows has another length than its table.
        """
        self.pieces, self._rows = pieces, rows
        found, others, counts = [], [], [0]
        with open(scratch / "whole", "wb") as whole, open(scratch / "window", "wb") as window:
            for piece, table, path in zip(pieces, tables, rows, strict=True):
                kept = np.fromfile(path, hashes.ROW)
                if len(kept) != len(table.width):
                    raise DataDamagedError(
                        f"{path}: {len(kept):,} rows, {piece.where} has {len(table.width):,} "
                        "images. Remove that file, then run the same command again."
                    )
                found.append(table)
                shown = (hashes.judged(kept), hashes.may_be_judged(kept))
                others.append((kept["sound"] > 0, *shown, kept["means"].copy()))
                counts.append(len(kept))
                whole.write(kept["whole"].tobytes())
                window.write(kept["window"].tobytes())
        self.starts = np.cumsum(counts)
        self.known = Columns._make(np.concatenate(each) for each in zip(*found, strict=True))
        self.sound, self.judged, self.may_be_judged, self.means = (
            np.concatenate(each) for each in zip(*others, strict=True)
        )
        self.whole, self.window = (
            in_file.opened(scratch / name, (len(self), hashes.ROW["whole"].shape[0]))
            for name in ("whole", "window")
        )
        self._small: dict[int, npt.NDArray[Any]] = {}
        self._looked_at = 0

    def __len__(self) -> int:
        return int(self.starts[-1])

    def place(self, number: int) -> tuple[Piece, int]:
        """Returns the piece of a picture, and its number there."""
        piece = int(np.searchsorted(self.starts, number, side="right")) - 1
        return self.pieces[piece], number - int(self.starts[piece])

    def of(self, wanted: Callable[[Piece], bool]) -> npt.NDArray[np.bool_]:
        """Returns which pictures lie in pieces that are wanted."""
        return np.repeat([wanted(each) for each in self.pieces], np.diff(self.starts))

    def read(self, number: int) -> bytes:
        """Returns the image of a picture."""
        piece, at = self.place(number)
        return piece.read(at)

    def small(self, numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        """Returns [n, 32, 32], the small pictures."""
        found = np.empty((len(numbers), hashes.SMALL, hashes.SMALL), np.uint8)
        pieces = np.searchsorted(self.starts, numbers, side="right") - 1
        order = np.argsort(pieces, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(pieces[order])) + 1):
            if len(group):
                piece = int(pieces[group[0]])
                if piece not in self._small:
                    self._small[piece] = np.memmap(self._rows[piece], hashes.ROW, "r")
                found[group] = self._small[piece]["small"][numbers[group] - self.starts[piece]]
        self._looked_at += len(numbers)
        if self._looked_at > _LOOKED_AT:
            self._looked_at = 0
            for each in (*self._small.values(), self.whole, self.window):
                in_file.forget(each)
        return found
