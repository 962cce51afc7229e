"""What a format is: which bytes go into which file, and what its readers would not find."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from imagenet_prep.exporting.examples import Example, Part, Source
from imagenet_prep.exporting.files import Piece


@dataclass(frozen=True)
class Written:
    """What the receipt of a part says.

    Attributes:
      examples: images in it.
      num_bytes: of its files.
      files: how many they are.
      sizes: of its files, if each is an image, in the order of their sums.
    """

    examples: int
    num_bytes: int
    files: int
    sizes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Format:
    """A format; picklable, and equal ones write equal bytes.

    Attributes:
      whole_splits: a split is one part; else each of its shards is one.
      file_an_image: each piece is a whole file.
    """

    whole_splits = False
    file_an_image = False

    def place(self, out: str) -> tuple[str, str]:
        """Returns the folder of an export to `out`, and how the names of its files begin there."""
        return out, ""

    def refuse(self, source: Source, parts: Sequence[Part]) -> None:
        """Raises UsageError where readers would not find these examples as they are."""

    def pieces(self, part: Part, examples: Iterable[Example]) -> Iterator[Piece]:
        """Yields the bytes of the files of a part, in order, each with the name of its file."""
        raise NotImplementedError

    def beside(self, parts: Mapping[str, Sequence[Written]]) -> dict[str, bytes]:  # noqa: ARG002
        """Returns the small files that belong to the parts of each split, by name."""
        return {}
