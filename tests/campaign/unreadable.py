"""Makes one call, or all later ones, fail that a command makes to read a sound dataset.

A disk or a file server that fails for a moment says nothing about the data. So the command either
succeeds, because it did not need the answer, or fails without blaming the data.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tests.campaign.attempts import Attempt
from tests.campaign.scenes import Theatre
from tests.campaign.story import hold
from tests.campaign.table import Row

CALLS = ("open", "read", "pread", "stat", "list")
ERRORS = ("EIO", "ESTALE", "EACCES", "ENOMEM")
# A message must not use these words, because the state of the data is unknown.
_BLAMES = re.compile(r"damaged|[Dd]elete|truncated|missing|differs|Copy .* again|[Gg]et .* again")


class Case(NamedTuple):
    """The call that fails: the `number`-th of its kind, and perhaps all later ones."""

    call: str
    number: int
    error: str
    goes_on: bool

    @classmethod
    def parse(cls, text: str) -> Case:
        call, number, error, *more = text.split()
        return cls(call, int(number), error, bool(more))

    def __str__(self) -> str:
        later = " on" if self.goes_on else ""
        return f"{self.call} {self.number} {self.error}{later}"


class Unreadable:
    """Fails calls that read; a case is "read 3 EIO", or "read 3 EIO on" for all later calls too."""

    def sample(self, theatre: Theatre, row: Row, rng: random.Random) -> str:
        counts = self._counts(theatre, row)
        call = rng.choice(sorted(counts))
        number = rng.randint(1, counts[call])
        return str(Case(call, number, rng.choice(ERRORS), rng.random() < 0.5))

    def every(self, theatre: Theatre, row: Row) -> Iterable[str]:
        for call, count in self._counts(theatre, row).items():
            for number in range(1, count + 1):
                for error in ERRORS:
                    for goes_on in (False, True):
                        yield str(Case(call, number, error, goes_on))

    def attempt(self, theatre: Theatre, row: Row, case: str) -> Attempt:
        scene = theatre.scene(row.command)
        theatre.reset(scene)
        theatre.start(scene, folder=str(scene.source), fail=Case.parse(case))
        ended = theatre.story.finish(*range(256))
        if not theatre.noted()["failed"]:
            return Attempt([ended.code])
        said = (ended.out + ended.err).decode(errors="replace")
        hold(ended.code in (0, *row.promise.codes), f"exit code {ended.code}: {said[-1500:]}")
        blame = _BLAMES.search(said) if ended.code else None
        hold(blame is None, f"says {blame and blame[0]!r}: {said[-1500:]}")
        theatre.hold_sources(scene)
        return Attempt([ended.code], Counter([Case.parse(case).error]))

    def _counts(self, theatre: Theatre, row: Row) -> dict[str, int]:
        counts = theatre.counts(row.command, folder=str(theatre.scene(row.command).source))
        return {call: counts[call] for call in CALLS if counts[call]}
