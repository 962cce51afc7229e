"""Retries failed attempts with increasing pauses, and prints a line for each retry."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from imagenet_prep.core import counter, terminal
from imagenet_prep.core.errors import IncompleteError
from imagenet_prep.storage.remote import UnavailableError

_FIRST_DELAY_S = 0.2
_MAX_DELAY_S = 60.0
# Give up if the server requests a longer pause than this.
_MAX_RETRY_AFTER_S = 900.0
# If many objects fail together, print this many lines at once, then one per interval.
_LINES_AT_ONCE = 5
_LINE_EVERY_S = 2.0
_RESUME = (
    "Fetched data is kept: run the same command again to resume. If it fails again, try later or "
    "with more --retries."
)

# A separate generator, to leave the sequence of a seeded `random` unchanged during training.
_jitter = random.Random()

Answer = TypeVar("Answer")


@dataclass
class RetryBudget:
    """The number of retries and the delays for one operation.

    The delay doubles with each consecutive failure, with jitter to spread reconnects.
    """

    where: str  # the object being read, for messages
    retries: int  # the number of failures allowed
    ended: threading.Event = field(default_factory=threading.Event)
    remedy: str = _RESUME  # the advice once the budget is spent
    failures: int = 0
    _in_a_row: int = 0

    def succeeded(self) -> None:
        """Resets the delay, because bytes have arrived."""
        self._in_a_row = 0

    def wait(self, error: UnavailableError) -> None:
        """Waits before the next attempt; raises IncompleteError if no attempt is left."""
        self.failures += 1
        self._in_a_row += 1
        delay = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2 ** min(self._in_a_row - 1, 16))
        delay = max(delay * _jitter.uniform(0.5, 1.0), error.retry_after_s)
        failure = str(error).rstrip(".")
        failure = failure if self.where in failure else f"{self.where}: {failure}"
        if delay > _MAX_RETRY_AFTER_S:
            problem = f"and asks to wait {delay:,.0f} s"
        elif self.failures > self.retries:
            problem = f"given up after {terminal.counted(self.failures, 'failed attempt')}"
        else:
            of = "" if self.retries == sys.maxsize else f" of {self.retries}"
            if not self.ended.is_set():
                counter.add(0, retries=1)
                line = f"{failure}; retry {self.failures}{of} in {delay:.1f} s"
                _lines.say(line, object=self.where, retry=self.failures, delay_s=round(delay, 1))
            if not self.ended.wait(delay):
                return
            problem = "and the run is ending"
        raise IncompleteError(f"{failure}, {problem}. {self.remedy}", self.remedy)


class _Lines:
    """Prints lines on stderr at a limited rate; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._allowed = float(_LINES_AT_ONCE)
        self._at = 0.0
        self._withheld = 0

    def say(self, line: str, **fields: Any) -> None:
        with self._lock:
            now = time.monotonic()
            earned = (now - self._at) / _LINE_EVERY_S
            self._allowed = min(_LINES_AT_ONCE, self._allowed + earned)
            self._at = now
            if self._allowed < 1:
                self._withheld += 1
                return
            more = f" ({self._withheld:,} more retries not logged)" if self._withheld else ""
            self._allowed = self._allowed - 1
            self._withheld = 0
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed
            terminal.say(line + more, "warning", **fields)


_lines = _Lines()


def with_retries(attempt: Callable[[], Answer], budget: RetryBudget) -> Answer:
    """Returns the result of `attempt`, retried within the budget."""
    while True:
        try:
            return attempt()
        except UnavailableError as error:
            budget.wait(error)
