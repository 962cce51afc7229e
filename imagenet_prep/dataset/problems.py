"""Collects the problems of the records of one shard, and gives up after a thousand.

A shard of a few megabytes may have millions of damaged records, and each takes as long as ten sound
ones. After a thousand problems, the shard must be fetched again anyway.
"""

from __future__ import annotations

MOST = 1000


class GivenUpError(Exception):
    """A shard has too many problems to continue."""


class Problems(list[str]):
    """The problems of one shard, as text."""

    def add(self, problem: object) -> None:
        """Adds a problem; raises GivenUpError if there are MOST."""
        self.append(str(problem))
        if len(self) == MOST:
            raise GivenUpError

    def listed(self, shard: str) -> list[str]:
        """Returns the problems; a last one is added if the shard was given up."""
        more = f"{shard}: checking stopped after {MOST:,} problems: there may be more"
        return [*self, *([more] if len(self) == MOST else [])]
