"""One attempt at a row of the table, and the checks that all kinds of faults share."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from tests.campaign.scenes import Scene, Theatre, hold_finished, hold_visible
from tests.campaign.story import Story, hold
from tests.campaign.table import Left, Next, Row
from tests.kit.warm import Ended


@dataclass
class Attempt:
    """The result of one attempt.

    Attributes:
      codes: exit codes of the disturbed command.
      faults: the faults that happened, by kind; none if the command ended before.
      violation: the promise that was broken; "" if none was.
    """

    codes: list[int] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    violation: str = ""


class Kind(Protocol):
    """A kind of fault. A case is a text that repeats an attempt."""

    def sample(self, theatre: Theatre, row: Row, rng: random.Random, /) -> str:
        """Returns a random case."""

    def every(self, theatre: Theatre, row: Row, /) -> Iterable[str]:
        """Returns all cases."""

    def attempt(self, theatre: Theatre, row: Row, case: str, /) -> Attempt:
        """Tries a case; raises ViolationError if a promise is broken."""


def hold_left(scene: Scene, row: Row) -> None:
    """Checks the output that a fault has left."""
    if row.promise.left == Left.COMPLETE:
        hold_finished(scene)
    else:
        hold_visible(scene)


def hold_next(theatre: Theatre, scene: Scene, row: Row) -> None:
    """Runs the same command again, and checks its output."""
    if row.promise.next != Next.COMPLETES:
        return
    story = theatre.story
    story.undisturbed(scene.words, **scene.settings)
    hold_finished(scene)
    theatre.hold_sources(scene)


def hold_tidy(story: Story, scene: Scene) -> None:
    """Checks that the last run has removed the temporary files of all earlier ones."""
    temporary = [*scene.target.rglob("*.partial"), *scene.target.glob(".work/temporary/*")]
    # A run that finds everything done changes nothing, not even that.
    idle = story.ended is not None and b"nothing was left" in story.ended.out
    hold(idle or not temporary, f"temporary files are left: {temporary}")


def hold_message(ended: Ended) -> str:
    """Checks that a failed command ends with a message; returns it."""
    lines = ended.err.decode(errors="replace").strip().splitlines()
    last = lines[-1] if lines else ""
    is_one = last.startswith("imagenet-prep: ") and len(last.split()) > 5
    hold(is_one, f"exit code {ended.code} without a message: {lines}")
    return last


def finish(story: Story, row: Row) -> Ended:
    """Waits for the end of a command, with one of the exit codes of its row."""
    return story.finish(0, *row.promise.codes)
