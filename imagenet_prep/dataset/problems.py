"""Collects up to a thousand problems with the records of one shard.

A shard of a few megabytes may have millions of damaged records, and a damaged record takes ten
times as long to check as a sound one. A shard with a thousand problems must be fetched again.
"""

from __future__ import annotations

MOST = 1000


class GivenUpError(Exception):
    """A shard has too many problems, so its check stops."""


class Problems(list[str]):
    """The problems with one shard, as texts."""

    def add(self, problem: object) -> None:
        """Adds a problem; raises GivenUpError if there are MOST problems."""
        self.append(str(problem))
        if len(self) == MOST:
            raise GivenUpError

    def listed(self, shard: str) -> list[str]:
        """Returns the problems, with a note at the end if the check stopped early."""
        more = f"{shard}: checking stopped after {MOST:,} problems: there may be more"
        return [*self, *([more] if len(self) == MOST else [])]
