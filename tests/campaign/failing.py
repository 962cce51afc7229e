"""Makes one call that a command makes of the system fail.

A run of a small scene has some hundreds of calls that write, sync, name or read files. Whatever
fails, the command must not succeed with a wrong output, nor give a file with other bytes its name.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from imagenet_prep.dataset import schema
from tests.campaign.attempts import Attempt, finish, hold_left, hold_message, hold_next
from tests.campaign.calls import SHORT
from tests.campaign.scenes import Theatre, hold_finished
from tests.campaign.story import hold
from tests.campaign.table import Row

_WRITING = ("EIO", "ENOSPC", "EDQUOT")
# The errors of each call.
ERRORS = {
    "write": (*_WRITING, "EINTR", SHORT),
    "pwrite": (*_WRITING, "EINTR", SHORT),
    "fsync": (*_WRITING, "EINTR"),
    "fdatasync": (*_WRITING, "EINTR"),
    "rename": _WRITING,
    "link": _WRITING,
    "unlink": ("EIO",),
    "fallocate": (*_WRITING, "EINTR"),
    "open": ("EIO", "EINTR"),
    "create": (*_WRITING, "EINTR"),
    "read": ("EIO", "EINTR", SHORT),
    "pread": ("EIO", "EINTR", SHORT),
    "ftruncate": ("EIO", "EINTR"),
    "mkdir": _WRITING,
    "syncfs": _WRITING,
    "stat": ("EIO",),
    "list": ("EIO",),
}
_SYNCS = ("fsync", "fdatasync", "syncfs")
# A full disk stays full. A broken disk may fail once.
_STAYS = "ENOSPC"
_HARMLESS = ("EINTR", SHORT)


class Case(NamedTuple):
    """The call that fails: the `number`-th of its kind."""

    call: str
    number: int
    error: str

    @classmethod
    def parse(cls, text: str) -> Case:
        call, number, error = text.split()
        return cls(call, int(number), error)

    def __str__(self) -> str:
        return f"{self.call} {self.number} {self.error}"


class FailingCall:
    """Fails one call with one of some errors; a case is "write 3 EIO"."""

    def __init__(self, *errors: str) -> None:
        self._errors = errors

    def sample(self, theatre: Theatre, row: Row, rng: random.Random) -> str:
        counts = self._counts(theatre, row)
        call = rng.choice(sorted(counts))
        error = rng.choice([each for each in self._errors if each in ERRORS[call]])
        return str(Case(call, rng.randint(1, counts[call]), error))

    def every(self, theatre: Theatre, row: Row) -> Iterable[str]:
        for call, count in self._counts(theatre, row).items():
            for error in self._errors:
                if error in ERRORS[call]:
                    for number in range(1, count + 1):
                        yield str(Case(call, number, error))

    def attempt(self, theatre: Theatre, row: Row, case: str) -> Attempt:
        scene = theatre.scene(row.command)
        failure = Case.parse(case)
        theatre.reset(scene)
        theatre.start(scene, fail=(*failure, failure.error == _STAYS))
        ended = finish(theatre.story, row)
        if not theatre.noted()["failed"]:
            # Threads that wait for each other do not always make the same number of calls.
            return Attempt([ended.code])
        if ended.code:
            hold(failure.error not in _HARMLESS, f"exit code {ended.code}: {ended.err[-500:]!r}")
            hold_message(ended)
            hold_left(scene, row)
        else:
            hold_finished(scene)
            is_told = failure.error in _HARMLESS or failure.call not in _SYNCS
            is_told = is_told or _is_of_note(theatre, row, failure)
            hold(is_told, "a failed sync was not reported")
        hold_next(theatre, scene, row)
        return Attempt([ended.code], Counter([f"{failure.call}: {failure.error}"]))

    def _counts(self, theatre: Theatre, row: Row) -> dict[str, int]:
        """Returns the number of calls of each kind that can end with one of the errors."""
        counts = theatre.counts(row.command)
        return {
            call: count
            for call, count in counts.items()
            if count and not set(ERRORS[call]).isdisjoint(self._errors)
        }


def _is_of_note(theatre: Theatre, row: Row, failure: Case) -> bool:
    """Whether a call syncs the note of the source: without it, the next run compares more."""
    noted = f"{schema.WORK}/source.json"
    number = theatre.counts(row.command)[failure.call]
    # The last two are those of the note and of its folder.
    is_last = failure.number > number - 2
    return (theatre.scene(row.command).target / noted).exists() and is_last
