"""The calls that an interrupted run leaves behind: the next run waits for them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from imagenet_prep.core import threads
from tests.kit.command import PATIENCE_S
from tests.kit.messages import wording


def test_next_run_waits_for_running_calls_only(capsys: pytest.CaptureFixture[str]) -> None:
    may_end = threading.Event()
    begun = threading.Event()

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
        threading.Timer(0.01, may_end.set).start()
        threads.wait_for_left()
        assert running.result(0) == 5
    assert wording("waiting-last-tasks-run-interrupted") in capsys.readouterr().err


def test_finished_calls_are_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(divmod, 7, 0)
        assert done.exception(PATIENCE_S)
        threads.leave([done])
    threads.wait_for_left()
    assert capsys.readouterr().err == ""
