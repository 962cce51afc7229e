"""Retries of requests: delays, the budget, and their log lines, without a real clock."""

from __future__ import annotations

import random

import pytest

from imagenet_prep.core.errors import IncompleteError
from imagenet_prep.storage import remote
from imagenet_prep.storage.remote import RetryBudget, TransientError
from tests.kit.clock import Clock
from tests.kit.messages import says


def test_delays_double_up_to_a_minute_and_vary() -> None:
    clock = Clock()
    budget = RetryBudget("x", 20, clock)
    for _ in range(20):
        budget.wait(TransientError("no"))

    bounds = [min(60.0, 0.2 * 2**n) for n in range(20)]
    for delay, bound in zip(clock.waits, bounds, strict=True):
        assert bound / 2 <= delay <= bound
    with pytest.raises(IncompleteError, match="x: no, given up after 21 failed attempts"):
        budget.wait(TransientError("no"))


def test_waiting_leaves_global_random_numbers_unchanged() -> None:
    state = random.getstate()
    RetryBudget("x", 1, Clock()).wait(TransientError("no"))

    assert random.getstate() == state


def test_success_shortens_the_delay_but_keeps_the_budget() -> None:
    clock = Clock()
    budget = RetryBudget("x", 10, clock)
    for _ in range(10):
        budget.wait(TransientError("no"))
        budget.succeeded()

    assert max(clock.waits) <= 0.2
    with pytest.raises(IncompleteError):
        budget.wait(TransientError("no"))


def test_server_may_request_a_longer_but_bounded_delay() -> None:
    clock = Clock()
    budget = RetryBudget("x", 10, clock)
    budget.wait(TransientError("no", retry_after_s=100.0))

    assert clock.waits == [100.0]
    with pytest.raises(IncompleteError, match=says("asks-wait-s", 86_400)):
        budget.wait(TransientError("no", retry_after_s=86_400.0))


def test_ending_run_does_not_wait() -> None:
    clock = Clock()
    clock.set()
    with pytest.raises(IncompleteError, match=says("run-ending")):
        RetryBudget("x", 10, clock).wait(TransientError("no"))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test sets; no line was printed before."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(remote, "_lines", remote._Lines())
    return now


@pytest.mark.usefixtures("lines")
def test_each_retry_prints_its_reason_and_the_pause(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    budget = RetryBudget("s3://b/x", 2, clock)
    budget.wait(TransientError("no data came"))
    budget.wait(TransientError("s3://b/x: the server answers 404.", retry_after_s=30.0))
    with pytest.raises(IncompleteError, match="^s3://b/x: no, given up after 3 failed"):
        budget.wait(TransientError("no"))

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"imagenet-prep: s3://b/x: no data came; retry 1 of 2 in {clock.waits[0]:.1f} s",
        "imagenet-prep: s3://b/x: the server answers 404; retry 2 of 2 in 30.0 s",
    ]


def test_thousand_simultaneous_retries_print_few_lines(
    lines: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1000):
        RetryBudget(f"x{number}", 1, Clock()).wait(TransientError("no"))
    assert len(capsys.readouterr().err.splitlines()) == 5
    lines[0] += 2.0
    RetryBudget("y", 1, Clock()).wait(TransientError("no"))

    said = capsys.readouterr().err
    assert said.startswith("imagenet-prep: y: no; retry 1 of 1 in 0.")
    assert said.endswith(" (995 more retries not logged)\n")
    lines[0] += 2.0
    RetryBudget("z", 1, Clock()).wait(TransientError("no"))
    assert "not logged" not in capsys.readouterr().err


def test_ending_run_prints_no_retry(lines: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    assert lines
    clock = Clock()
    clock.set()
    with pytest.raises(IncompleteError):
        RetryBudget("x", 1, clock).wait(TransientError("no"))

    assert capsys.readouterr().err == ""
