"""A retry budget without a clock, ranges at their place, and a hash that follows them."""

from __future__ import annotations

import random

import pytest

from imagenet_prep.core.errors import IncompleteError
from imagenet_prep.storage.remote import UnavailableError
from imagenet_prep.storage.retry import RetryBudget
from tests.kit.clock import Clock


def test_delays_double_up_to_a_minute_and_vary() -> None:
    clock = Clock()
    budget = RetryBudget("x", 20, clock)
    for _ in range(20):
        budget.wait(UnavailableError("no"))

    bounds = [min(60.0, 0.2 * 2**n) for n in range(20)]
    for delay, bound in zip(clock.waits, bounds, strict=True):
        assert bound / 2 <= delay <= bound
    with pytest.raises(IncompleteError, match="x: no, given up after 21 failed attempts"):
        budget.wait(UnavailableError("no"))


def test_waiting_draws_nothing_from_the_random_numbers_of_who_reads() -> None:
    state = random.getstate()
    RetryBudget("x", 1, Clock()).wait(UnavailableError("no"))

    assert random.getstate() == state


def test_a_success_makes_the_next_delay_short_but_the_budget_no_larger() -> None:
    clock = Clock()
    budget = RetryBudget("x", 10, clock)
    for _ in range(10):
        budget.wait(UnavailableError("no"))
        budget.succeeded()

    assert max(clock.waits) <= 0.2
    with pytest.raises(IncompleteError):
        budget.wait(UnavailableError("no"))


def test_the_server_may_ask_for_a_longer_delay_but_not_for_a_day() -> None:
    clock = Clock()
    budget = RetryBudget("x", 10, clock)
    budget.wait(UnavailableError("no", retry_after_s=100.0))

    assert clock.waits == [100.0]
    with pytest.raises(IncompleteError, match="asks to wait 86,400 s"):
        budget.wait(UnavailableError("no", retry_after_s=86_400.0))


def test_nobody_waits_when_the_run_has_ended() -> None:
    clock = Clock()
    clock.set()
    with pytest.raises(IncompleteError, match="run is ending"):
        RetryBudget("x", 10, clock).wait(UnavailableError("no"))
