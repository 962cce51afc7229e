from __future__ import annotations

import itertools
import threading

from imagenet_prep.storage.remote import PREFETCHED, prefetch
from tests.kit.command import PATIENCE_S


def test_as_many_answers_as_it_says_are_under_way_at_once_and_come_in_order() -> None:
    together = threading.Barrier(PREFETCHED)

    def answer(item: int) -> int:
        together.wait(PATIENCE_S)
        return -item

    found = [(item, reading.result()) for item, reading in prefetch(answer, range(2 * PREFETCHED))]
    assert found == [(item, -item) for item in range(2 * PREFETCHED)]


def test_no_more_are_asked_for_than_it_says() -> None:
    numbers = itertools.count()
    each = prefetch(str, numbers)
    assert [next(each)[0] for _ in range(3)] == [0, 1, 2]
    assert next(numbers) == PREFETCHED + 2


def test_an_error_belongs_to_its_item_alone() -> None:
    found = [reading.exception() is None for _, reading in prefetch(int, ["1", "one", "2"])]
    assert found == [True, False, True]


def test_whoever_has_seen_enough_waits_for_no_answer() -> None:
    never = threading.Event()

    def answer(item: int) -> None:
        if item:
            assert never.wait(PATIENCE_S)

    each = prefetch(answer, range(5))
    next(each)[1].result()
    each.close()
    never.set()
