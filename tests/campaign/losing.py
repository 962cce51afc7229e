"""Removes or truncates a file of the complete output, and runs the same command again.

Exit code 0 means that the output is complete at that moment. So the second run makes the file
again, or names it in a message.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

from tests.campaign.attempts import Attempt, finish, hold_message
from tests.campaign.scenes import Theatre, hold_finished
from tests.campaign.story import hold
from tests.campaign.table import Row


class LostFile:
    """Removes one file, or its last byte; the case is the file."""

    def __init__(self, *, is_truncated: bool) -> None:
        self._is_truncated = is_truncated

    def sample(self, theatre: Theatre, row: Row, rng: random.Random) -> str:
        return rng.choice(list(self.every(theatre, row)))

    def every(self, theatre: Theatre, row: Row) -> Iterable[str]:
        """Returns one file of each kind."""
        after = theatre.scene(row.command).after
        kinds = {_kind(file): file for file in sorted(after, reverse=True)}
        return [file for file in kinds.values() if after[file] or not self._is_truncated]

    def attempt(self, theatre: Theatre, row: Row, case: str) -> Attempt:
        scene = theatre.scene(row.command)
        theatre.reset_finished(scene)
        path = scene.target / case
        data = path.read_bytes()
        # Not truncated in place: a second name of the file may be part of the source.
        path.unlink()
        if self._is_truncated:
            path.write_bytes(data[:-1])
        theatre.story.start(scene.words, **scene.settings)
        ended = finish(theatre.story, row)
        if ended.code:
            hold(path.name in hold_message(ended), f"{path.name} is not named: {ended.err!r}")
        else:
            hold_finished(scene)
        theatre.hold_sources(scene)
        return Attempt([ended.code], Counter([row.promise.fault.value]))


def _kind(file: str) -> str:
    """Returns the folder of a file, or its name without numbers."""
    folder, _, name = file.rpartition("/")
    return f"{folder.partition('/')[0]}/" if folder else "".join(c for c in name if not c.isdigit())
