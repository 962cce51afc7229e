"""Handles the signals for a graceful shutdown: SIGTERM, and SIGHUP from a lost terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


def handle(handler: Handler, *more: signal.Signals) -> dict[signal.Signals, Any]:
    """Installs `handler` for SIGTERM, SIGHUP and `more`; returns the previous handlers.

    SIGTERM or SIGHUP stays ignored if it was already ignored, e.g. because of nohup.
    """

    def hung_up(signum: int, frame: FrameType | None) -> None:
        _leave_terminal()
        handler(signum, frame)

    asked: dict[signal.Signals, Handler] = {signal.SIGHUP: hung_up, signal.SIGTERM: handler}
    heard = {n: act for n, act in asked.items() if signal.getsignal(n) is not signal.SIG_IGN}
    acts = heard | dict.fromkeys(more, handler)
    return {number: signal.signal(number, act) for number, act in acts.items()}


@contextlib.contextmanager
def handled(handler: Handler, *more: signal.Signals) -> Iterator[dict[signal.Signals, Any]]:
    """Installs `handler` as `handle` does, but only for the block; yields the previous handlers."""
    before = handle(handler, *more)
    try:
        yield before
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _leave_terminal() -> None:
    """Redirects the output to /dev/null, because writing to a lost terminal would fail."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            with contextlib.suppress(OSError):
                if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                    os.dup2(null, number)
        os.close(null)
