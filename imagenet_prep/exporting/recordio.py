"""MXNet's RecordIO: a file of records per split and its two lists, as written by im2rec.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from imagenet_prep.dataset import recordio
from imagenet_prep.exporting.examples import Example, Part
from imagenet_prep.exporting.files import Piece
from imagenet_prep.exporting.format import Format


@dataclass(frozen=True)
class RecordIO(Format):
    """See `Format`; `prefix` names the files if there is a single split, else it is ""."""

    prefix: str = ""
    whole_splits = True

    def place(self, out: str) -> tuple[str, str]:
        """Returns the folder and the prefix, which is the last part of `out` for a single split."""
        if not self.prefix:
            return out, ""
        folder, slash, _ = out.rstrip("/").rpartition("/")
        return folder or slash or ".", f"{self.prefix}."

    def pieces(self, part: Part, examples: Iterable[Example]) -> Iterator[Piece]:
        """Yields the lines of both lists before their record, so that no record lacks them."""
        prefix, offset = self.prefix or part.split, 0
        for number, example in enumerate(examples):
            record = recordio.frame(number, example.class_index, example.encoded)
            # The line of the .lst file is in the format of im2rec.py.
            line = f"{number}\t{example.class_index:f}\t{example.wnid}/{example.name}\n"
            yield Piece(f"{prefix}.lst", line.encode())
            yield Piece(f"{prefix}.idx", f"{number}\t{offset}\n".encode())
            yield Piece(f"{prefix}.rec", record)
            offset += len(record)
