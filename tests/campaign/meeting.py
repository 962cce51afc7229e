"""Pauses a command at a call, lets a second one run to its end, and continues the first one.

If one of the two ends with exit code 0, the output is complete at that moment.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterable

from tests.campaign.attempts import Attempt, hold_left, hold_message, hold_next, hold_tidy
from tests.campaign.calls import STOP
from tests.campaign.scenes import Theatre
from tests.campaign.table import Row
from tests.kit.command import warm_process

# The calls before which a command is paused.
_CALLS = ("write", "fsync", "rename", "link", "unlink", "create", "mkdir", "open")


class SecondCommand:
    """Pauses the first command before the n-th call of a kind; a case is "rename 3"."""

    def sample(self, theatre: Theatre, row: Row, rng: random.Random) -> str:
        counts = self._counts(theatre, row)
        call = rng.choice(sorted(counts))
        return f"{call} {rng.randint(1, counts[call])}"

    def every(self, theatre: Theatre, row: Row) -> Iterable[str]:
        for call, count in self._counts(theatre, row).items():
            for number in range(1, count + 1):
                yield f"{call} {number}"

    def attempt(self, theatre: Theatre, row: Row, case: str) -> Attempt:
        scene = theatre.scene(row.command)
        story = theatre.story
        call, number = case.split()
        theatre.reset(scene)
        theatre.start(scene, fail=(call, int(number), STOP, False))
        is_paused = story.warm.stopped()
        second = warm_process()
        story.start_beside(second, scene.words, **scene.settings)
        ended = [story.finish_beside(second, 0, *row.promise.codes)]
        if not ended[0].code:
            hold_left(scene, row)
        if is_paused:
            story.warm.send(signal.SIGCONT)
        ended.append(story.finish(0, *row.promise.codes))
        if not ended[1].code:
            hold_left(scene, row)
        for each in ended:
            if each.code:
                hold_message(each)
        # The second of these finds nothing to do.
        for _ in range(2):
            hold_next(theatre, scene, row)
            hold_tidy(story, scene)
        attempt = Attempt([each.code for each in ended])
        if is_paused:
            attempt.faults["second command"] += 1
        return attempt

    def _counts(self, theatre: Theatre, row: Row) -> dict[str, int]:
        counts = theatre.counts(row.command)
        return {call: counts[call] for call in _CALLS if counts.get(call)}
