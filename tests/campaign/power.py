"""Takes the power away at a moment of a run, and lets the same command run again.

The library of calls.c records the writes, syncs and names of a run. `lost_power` builds the states
of the disk that a crash may leave. In none of them may a file have its final name with other bytes,
or a manifest be there without the files that it names.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tests.campaign.attempts import Attempt, hold_left, hold_next
from tests.campaign.calls import Entry
from tests.campaign.lost_power import VARIANTS, Disk, State
from tests.campaign.scenes import Scene, Theatre
from tests.campaign.story import ViolationError
from tests.campaign.table import Moment, Row


class Case(NamedTuple):
    """A crash after the first `moment` changes, and one of the states that it may leave."""

    moment: int
    variant: int

    @classmethod
    def parse(cls, text: str) -> Case:
        moment, variant = map(int, text.split())
        return cls(moment, variant)

    def __str__(self) -> str:
        return f"{self.moment} {self.variant}"

    def state(self, disk: Disk) -> State:
        names, data = VARIANTS[self.variant]
        return disk.state(names, data, random.Random(str(self)))


class PowerLost:
    """Takes the power away during a run, or after its end; a case is "57 3", see `Case`."""

    def sample(self, theatre: Theatre, row: Row, rng: random.Random) -> str:
        moments = self._moments(theatre, row)
        return str(Case(rng.choice(moments), rng.randrange(len(VARIANTS))))

    def every(self, theatre: Theatre, row: Row) -> Iterable[str]:
        """Returns a case for each different state."""
        disk, record = theatre.recorded(row.command)
        seen: set[str] = set()
        moments = self._moments(theatre, row)
        for moment in range(len(record) + 1):
            for variant in range(len(VARIANTS)):
                case = Case(moment, variant)
                if moment in moments and (digest := case.state(disk).digest()) not in seen:
                    seen.add(digest)
                    yield str(case)
            if moment < len(record):
                disk.goes_on(record[moment])

    def attempt(self, theatre: Theatre, row: Row, case: str) -> Attempt:
        crash = Case.parse(case)
        scene = theatre.scene(row.command)
        disk, record = theatre.recorded(row.command)
        for entry in record[: crash.moment]:
            disk.goes_on(entry)
        state = crash.state(disk)
        state.lay_out(theatre.disk)
        try:
            hold_left(scene, row)
            hold_next(theatre, scene, row)
        except ViolationError as violation:
            last = _described(record[crash.moment - 1], theatre) if crash.moment else "nothing"
            raise ViolationError(f"after {last}: {violation}; {state.story}") from None
        return Attempt([], Counter(["power lost"]))

    def _moments(self, theatre: Theatre, row: Row) -> range:
        number = len(theatre.recorded(row.command)[1])
        if row.promise.moment == Moment.END:
            return range(number, number + 1)
        return range(number)


class PowerLostLater:
    """Kills a run, lets the next one complete the output, and takes the power away then.

    The next run sees what the killed one had not synced. A case is "57": the change after which
    the first run is killed.
    """

    def sample(self, theatre: Theatre, row: Row, rng: random.Random) -> str:
        return str(rng.randint(1, len(theatre.recorded(row.command)[1])))

    def every(self, theatre: Theatre, row: Row) -> Iterable[str]:
        return map(str, range(1, len(theatre.recorded(row.command)[1]) + 1))

    def attempt(self, theatre: Theatre, row: Row, case: str) -> Attempt:
        scene = theatre.scene(row.command)
        disk, record = theatre.recorded(row.command)
        for entry in record[: int(case)]:
            disk.goes_on(entry)
        disk.as_it_is(theatre.disk)
        for entry in theatre.record(scene):
            disk.goes_on(entry)
        attempt = Attempt()
        seen: set[str] = set()
        for variant in range(len(VARIANTS)):
            state = Case(int(case), variant).state(disk)
            if state.digest() not in seen:
                seen.add(state.digest())
                attempt.faults["power lost"] += 1
                _hold(theatre, scene, row, state)
        return attempt


def _hold(theatre: Theatre, scene: Scene, row: Row, state: State) -> None:
    state.lay_out(theatre.disk)
    try:
        hold_left(scene, row)
    except ViolationError as violation:
        raise ViolationError(f"{violation}; {state.story}") from None


def _described(entry: Entry, theatre: Theatre) -> str:
    names = f"{entry.name} {entry.other}".replace(f"{theatre.disk}/", "").strip()
    return f"{entry.change.name} {names or entry.offset}"
