"""Lists the problems of the records of one shard, up to where the shard is given up.

A shard of some megabytes may hold millions of damaged records, and each takes as long as ten sound
ones. After the first thousand it is plain that the shard must be fetched again.
"""

from __future__ import annotations

MOST = 1000


class GivenUpError(Exception):
    """A shard has so many problems that whoever looks for them stops."""


class Problems:
    """The sentences about one shard."""

    def __init__(self) -> None:
        self._kept: list[str] = []

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, problem: object) -> None:
        """Adds a sentence, or the error that says it."""
        self._kept.append(str(problem))
        if len(self._kept) == MOST:
            raise GivenUpError

    def listed(self, shard: str) -> list[str]:
        """Returns the sentences, the last of which says where the shard was given up."""
        more = f"{shard}: was given up after {MOST:,} problems: there may be more"
        return [*self._kept, *([more] if len(self._kept) == MOST else [])]
