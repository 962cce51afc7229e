"""Prefetching of answers: concurrent, bounded and in order."""

from __future__ import annotations

import itertools
import threading

from imagenet_prep.storage.remote import PREFETCHED, prefetch
from tests.kit.command import PATIENCE_S


def test_answers_are_prefetched_concurrently_and_returned_in_order() -> None:
    together = threading.Barrier(PREFETCHED)

    def answer(item: int) -> int:
        together.wait(PATIENCE_S)
        return -item

    found = [(item, reading.result()) for item, reading in prefetch(answer, range(2 * PREFETCHED))]
    assert found == [(item, -item) for item in range(2 * PREFETCHED)]


def test_prefetch_never_exceeds_its_limit() -> None:
    numbers = itertools.count()
    each = prefetch(str, numbers)
    assert [next(each)[0] for _ in range(3)] == [0, 1, 2]
    assert next(numbers) == PREFETCHED + 2


def test_error_only_affects_its_own_item() -> None:
    found = [reading.exception() is None for _, reading in prefetch(int, ["1", "one", "2"])]
    assert found == [True, False, True]


def test_closed_prefetch_does_not_wait_for_answers() -> None:
    never = threading.Event()

    def answer(item: int) -> None:
        if item:
            assert never.wait(PATIENCE_S)

    each = prefetch(answer, range(5))
    next(each)[1].result()
    each.close()
    never.set()
