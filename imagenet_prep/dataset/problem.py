"""What is wrong with one file of a replica."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One finding, as a sentence for people and as a value for the program.

    Attributes:
      text: what is wrong, with the file's name.
      is_missing: the file is not there, which running the same command again mends; anything
        else is damage.
    """

    text: str
    is_missing: bool = False

    def __str__(self) -> str:
        return self.text
