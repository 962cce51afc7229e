"""The calls that an interrupted run leaves behind: the next run waits for them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from imagenet_prep.core import threads
from tests.kit.command import PATIENCE_S
from tests.kit.messages import wording


@pytest.fixture(autouse=True)
def _no_call_is_left() -> None:
    """Earlier tests of this process may have left calls that still run."""
    threads.wait_for_left()


def test_next_run_waits_for_running_calls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    begun = threading.Event()
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        may_end.set()

    def call() -> int:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        return 5

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call)
        assert begun.wait(PATIENCE_S)
        waiting = pool.submit(call)
        threads.leave([running, waiting])
        assert waiting.cancelled()
        monkeypatch.setattr(threads, "say", say)
        threads.wait_for_left()
        assert running.result(0) == 5
    assert said == [wording("waiting-last-tasks-run-interrupted")]


def test_finished_calls_are_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(divmod, 7, 0)
        assert done.exception(PATIENCE_S)
        threads.leave([done])
    threads.wait_for_left()
    assert capsys.readouterr().err == ""
