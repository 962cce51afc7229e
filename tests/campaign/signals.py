"""Ends a command by a signal at one of its changes of files."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable

from tests.campaign.attempts import Attempt, finish, hold_left, hold_next, hold_tidy
from tests.campaign.scenes import Theatre
from tests.campaign.table import Moment, Row


class Signal:
    """Sends a signal before the n-th change of a file; the case is n."""

    def __init__(self, signum: signal.Signals) -> None:
        self._signum = signum

    def sample(self, theatre: Theatre, row: Row, rng: random.Random) -> str:
        return str(rng.choice(self._moments(theatre, row)))

    def every(self, theatre: Theatre, row: Row) -> Iterable[str]:
        return map(str, self._moments(theatre, row))

    def attempt(self, theatre: Theatre, row: Row, case: str) -> Attempt:
        scene = theatre.scene(row.command)
        theatre.reset(scene)
        theatre.story.start(scene.words, at=int(case), signum=int(self._signum), **scene.settings)
        ended = finish(theatre.story, row)
        # Threads change files in a different order in each run, so the manifest may come later.
        is_in_time = row.promise.moment != Moment.AFTER or scene.has_manifest()
        if is_in_time:
            hold_left(scene, row)
        hold_next(theatre, scene, row)
        if row.promise.moment == Moment.BEFORE:
            hold_tidy(theatre.story, scene)
        attempt = Attempt([ended.code])
        if ended.code and is_in_time:
            attempt.faults[self._signum.name] += 1
        return attempt

    def _moments(self, theatre: Theatre, row: Row) -> range:
        scene = theatre.scene(row.command)
        if row.promise.moment == Moment.BEFORE:
            return range(1, scene.manifest_change + 1)
        if row.promise.moment == Moment.AFTER:
            return range(scene.manifest_change + 1, scene.changes + 1)
        return range(1, scene.changes + 1)
