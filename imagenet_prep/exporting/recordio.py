"""Exports MXNet's RecordIO: a .rec file per split, with .idx and .lst files like im2rec.py's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagenet_prep.dataset import recordio
from imagenet_prep.exporting.examples import Example, Part
from imagenet_prep.exporting.files import Piece
from imagenet_prep.exporting.format import Format, Written
from imagenet_prep.sources.recordio import SYNSET


@dataclass(frozen=True)
class RecordIO(Format):
    """The RecordIO format, see `Format`; without a `prefix`, files are named after the split."""

    prefix: str = ""
    labels: str = ""  # content of labels.txt
    whole_splits = True

    def place(self, out: str) -> tuple[str, str]:
        """Returns the folder and the file name prefix; with a `prefix`, `out` is FOLDER/PREFIX."""
        if not self.prefix:
            return out, ""
        folder, slash, _ = out.rstrip("/").rpartition("/")
        return folder or slash or ".", f"{self.prefix}."

    def pieces(self, part: Part, examples: Iterable[Example]) -> Iterator[Piece]:
        """Yields each record after its lines in .lst and .idx, so that no line can be missing."""
        prefix = self.prefix or part.split
        offset = 0
        for number, example in enumerate(examples):
            record = recordio.frame(number, example.class_index, example.encoded)
            line = f"{number}\t{example.class_index:f}\t{example.wnid}/{example.name}\n"
            yield Piece(f"{prefix}.lst", line.encode())
            yield Piece(f"{prefix}.idx", f"{number}\t{offset}\n".encode())
            yield Piece(f"{prefix}.rec", record)
            offset += len(record)

    def place_of(self, part: Part, position: int, example: Example) -> tuple[str, str]:
        """Returns the record of an image, and its name in the .lst file."""
        return f"{self.prefix or part.split}.rec:{position}", example.name

    def beside(self, parts: Mapping[str, Sequence[Written]]) -> dict[str, bytes]:  # noqa: ARG002
        """Returns the class list, since paths do not name classes without images.

        With a `prefix`, the folder may also have files of other datasets, so there is no list.
        """
        return {} if self.prefix else {SYNSET: self.labels.encode()}
