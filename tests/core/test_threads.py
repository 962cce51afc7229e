"""Threads of a run that has failed or was interrupted: none goes on when the next run starts."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from imagenet_prep.core import threads
from imagenet_prep.core.threads import StoppableThreads, Stopped
from tests.kit.command import PATIENCE_S


@pytest.fixture
def pool() -> Iterator[StoppableThreads]:
    pool = StoppableThreads(2, "test")
    yield pool
    pool.stop()


class Endless:
    """A call that counts until it is ended."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cleaned = False
        self.count = 0

    def __call__(self) -> None:
        try:
            for self.count in itertools.count():
                self.begun.set()
        finally:
            self.cleaned = True


def test_running_calls_end_with_their_cleanup(pool: StoppableThreads) -> None:
    calls = [Endless(), Endless()]
    running = [pool.submit(call) for call in calls]
    waiting = pool.submit(Endless())
    assert all(call.begun.wait(PATIENCE_S) for call in calls)

    pool.stop()
    counts = [call.count for call in calls]
    assert all(isinstance(future.exception(PATIENCE_S), Stopped) for future in running)
    assert waiting.cancelled()
    assert all(call.cleaned for call in calls)
    assert counts == [call.count for call in calls]


def test_finished_calls_keep_their_results(pool: StoppableThreads) -> None:
    done = pool.submit(divmod, 7, 2)
    failed = pool.submit(divmod, 7, 0)
    assert done.result(PATIENCE_S) == (3, 1)
    assert isinstance(failed.exception(PATIENCE_S), ZeroDivisionError)

    pool.stop()
    pool.stop()
    assert done.result() == (3, 1)


def test_stop_waits_only_briefly_for_a_blocked_call(
    pool: StoppableThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that waits for a server gets the exception when it continues."""
    monkeypatch.setattr(threads, "_PATIENCE_S", 0.01)
    answer = threading.Lock()
    begun = threading.Event()

    def blocked() -> None:
        begun.set()
        with answer:
            pass

    with answer:
        running = pool.submit(blocked)
        assert begun.wait(PATIENCE_S)
        pool.stop()
        assert running.running()
    assert isinstance(running.exception(PATIENCE_S), Stopped)


def test_cancel_waits_for_running_calls() -> None:
    pool = StoppableThreads(1, "test")
    may_end = threading.Event()
    begun = threading.Event()

    def call() -> int:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        return 5

    running = pool.submit(call)
    waiting = pool.submit(call)
    assert begun.wait(PATIENCE_S)
    threading.Timer(0.01, may_end.set).start()
    pool.cancel()
    assert running.result(0) == 5
    assert waiting.cancelled()
