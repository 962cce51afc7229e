"""Signals that ask a process to end, and their handlers."""

from __future__ import annotations

import signal

from imagenet_prep.core import program


def test_signal_ignored_at_the_start_stays_ignored() -> None:
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with program.handled(lambda number, _: came.append(number), signal.SIGUSR1):
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
                signal.raise_signal(number)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        for number, answer in before.items():
            signal.signal(number, answer)
    assert came == [signal.SIGHUP, signal.SIGUSR1]


def test_only_the_first_lost_terminal_is_handled() -> None:
    """Linux sends SIGHUP twice, and the second one must not end the cleanup after the first."""
    came: list[int] = []
    with program.handled(lambda number, _: came.append(number)):
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)

    assert came == [signal.SIGHUP, signal.SIGTERM, signal.SIGTERM]
