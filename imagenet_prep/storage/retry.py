"""How often, and after which pauses, what failed in passing is tried again."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from imagenet_prep.core.errors import IncompleteError
from imagenet_prep.storage.remote import UnavailableError

_FIRST_DELAY_S = 0.2
_MAX_DELAY_S = 60.0
# A server that wants more than this is closed for the day.
_MAX_RETRY_AFTER_S = 900.0
_RESUME = (
    "What was fetched is kept: run the same command again to resume, later or with more --retries "
    "if it repeats."
)

# Its own: who trains with a seeded `random` keeps their sequence while shards are fetched.
_jitter = random.Random()

Answer = TypeVar("Answer")


@dataclass
class RetryBudget:
    """How often and how long failed attempts of one thing are waited for.

    The delay doubles with each failure in a row, with jitter, so that many connections
    do not come back at the same moment.

    Attributes:
      where: what is read, for the message.
      retries: failures allowed.
      ended: set if the run is over anyway.
      remedy: the advice once the budget is spent.
    """

    where: str
    retries: int
    ended: threading.Event = field(default_factory=threading.Event)
    remedy: str = _RESUME
    failures: int = 0
    _in_a_row: int = 0

    def succeeded(self) -> None:
        """Notes that bytes arrived: the next delay is short again."""
        self._in_a_row = 0

    def wait(self, error: UnavailableError) -> None:
        """Waits before the next attempt."""
        self.failures += 1
        self._in_a_row += 1
        delay = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2 ** min(self._in_a_row - 1, 16))
        delay = max(delay * _jitter.uniform(0.5, 1.0), error.retry_after_s)
        if delay > _MAX_RETRY_AFTER_S:
            problem = f"and asks to wait {delay:,.0f} s"
        elif self.failures > self.retries:
            plural = "s" if self.failures > 1 else ""
            problem = f"given up after {self.failures} failed attempt{plural}"
        elif self.ended.wait(delay):
            problem = "and the run is ending"
        else:
            return
        raise IncompleteError(f"{self.where}: {error}, {problem}. {self.remedy}")


def with_retries(attempt: Callable[[], Answer], budget: RetryBudget) -> Answer:
    """Returns what an attempt brings, made again as long as the budget lasts."""
    while True:
        try:
            return attempt()
        except UnavailableError as error:
            budget.wait(error)
