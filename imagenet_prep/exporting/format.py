"""Base class of export formats, which define the bytes and the name of each file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from imagenet_prep.exporting.examples import Example, Part, Source
from imagenet_prep.exporting.files import Piece


@dataclass(frozen=True)
class Written:
    """The receipt of an exported part."""

    examples: int
    num_bytes: int
    files: int
    sizes: list[int] = field(default_factory=list)  # of each file, if each file is an image
    keys: dict[str, str] = field(default_factory=dict)  # by place; see `export_keys`


@dataclass(frozen=True)
class Format:
    """Base class of export formats. Picklable; equal formats write the same bytes."""

    whole_splits = False  # a split is a single part, instead of one part per shard
    file_an_image = False  # each piece is a complete file

    def place(self, out: str) -> tuple[str, str]:
        """Returns the folder of an export to `out`, and the prefix of its file names."""
        return out, ""

    def settled(self, source: Source, parts: Sequence[Part]) -> Format:  # noqa: ARG002
        """Returns the format for these parts; raises UsageError if it cannot store the examples."""
        return self

    def pieces(self, part: Part, examples: Iterable[Example]) -> Iterator[Piece]:
        """Yields the names and bytes of the files of a part, in the order of writing."""
        raise NotImplementedError

    def place_of(self, part: Part, position: int, example: Example) -> tuple[str, str]:  # noqa: ARG002
        """Returns the place (see `export_keys`) and the name of the example at a `position`.

        The name is a path below the class folder. The place is "" if the files contain the keys.
        """
        return "", ""

    def beside(self, parts: Mapping[str, Sequence[Written]]) -> dict[str, bytes]:  # noqa: ARG002
        """Returns small additional files by name, such as class lists."""
        return {}
