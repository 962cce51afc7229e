"""A format: the bytes of each file, and the names that its readers would not find."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from imagenet_prep.exporting.examples import Example, Part, Source
from imagenet_prep.exporting.files import Piece


@dataclass(frozen=True)
class Written:
    """The receipt of a part.

    Attributes:
      files: their number.
      sizes: of its files, if each is an image, in the order of their sums.
    """

    examples: int
    num_bytes: int
    files: int
    sizes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Format:
    """A format; picklable, and equal formats write equal bytes.

    Attributes:
      whole_splits: a split is one part; else each of its shards is one.
      file_an_image: each piece is a complete file.
    """

    whole_splits = False
    file_an_image = False

    def place(self, out: str) -> tuple[str, str]:
        """Returns the folder of an export to `out`, and how the names of its files begin there."""
        return out, ""

    def settled(self, source: Source, parts: Sequence[Part]) -> Format:  # noqa: ARG002
        """Returns the format for these examples; UsageError if readers would not find them."""
        return self

    def pieces(self, part: Part, examples: Iterable[Example]) -> Iterator[Piece]:
        """Yields the bytes of the files of a part, in order, each with the name of its file."""
        raise NotImplementedError

    def beside(self, parts: Mapping[str, Sequence[Written]]) -> dict[str, bytes]:  # noqa: ARG002
        """Returns the small files that belong to the parts of each split, by name."""
        return {}
