"""The order of the next epoch is computed by the reading thread before the epoch begins."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.world import World
from imagenet_prep.read import Reader, make_dataset
from imagenet_prep.read.order import Order, WindowedOrder
from tests.kit.reading import TRAIN


@dataclass(frozen=True)
class Recorded(Order):
    """An order that records its epochs, and the threads that computed them."""

    computed: list[tuple[int, str]] = field(default_factory=list)

    def by_window(self, epoch: int) -> WindowedOrder:
        self.computed.append((epoch, threading.current_thread().name))
        return super().by_window(epoch)


def recorded(root: Path, window: int = 0, **how: Any) -> tuple[Reader, list[tuple[int, str]]]:
    """Returns a reader, and the list of epochs whose orders were computed."""
    reader = make_dataset(root, "train", 4, fields=("number",), world=World(), **how)
    order = Recorded(TRAIN, reader.feed.order.seed, window)
    reader.feed.use_order(order)
    return reader, order.computed


def numbers(reader: Reader, most: int | None = None) -> list[int]:
    """Returns the numbers of the examples of a loop, at most of some batches."""
    found: list[int] = []
    for step, batch in enumerate(reader):
        found += batch["number"].tolist()
        if step + 1 == most:
            break
    reader.feed.close()  # waits for the reading thread
    return found


@pytest.mark.parametrize("window", [0, 2])
def test_order_is_computed_before_its_epoch(colours: Path, window: int) -> None:
    reader, computed = recorded(colours, window)
    for epoch in range(3):
        assert numbers(reader) == Order(TRAIN, 0, window).epoch(epoch).tolist()[:48]
        assert computed == [(number, "read") for number in range(epoch + 2)]


def test_epoch_that_ends_early_plans_nothing(colours: Path) -> None:
    reader, computed = recorded(colours)
    first = numbers(reader, 2)
    rest = numbers(reader)

    assert first + rest == Order(TRAIN, 0).epoch(0).tolist()[:48]
    assert [epoch for epoch, _ in computed] == [0, 1]


def test_restored_epoch_and_window_replace_the_plan(colours: Path) -> None:
    reader, computed = recorded(colours)
    numbers(reader)
    reader.restore(reader.state() | {"epoch": 5, "examples_read": 8, "window": 2})

    assert numbers(reader) == Order(TRAIN, 0, 2).epoch(5).tolist()[8:48]
    assert [epoch for epoch, _ in computed[2:]] == [5, 6]
    reader.restore(reader.state() | {"epoch": 1, "examples_read": 0, "window": 0})
    assert numbers(reader) == Order(TRAIN, 0).epoch(1).tolist()[:48]


def test_evaluation_and_workers_plan_no_epoch(colours: Path) -> None:
    evaluated, computed = recorded(colours, training=False)
    assert numbers(evaluated) == [*range(50), -1, -1]
    assert [epoch for epoch, _ in computed] == [0]
    reader, computed = recorded(colours)
    for position in reader.sampler():
        assert len(reader[position]["number"]) == 4
    reader.feed.close()

    assert [epoch for epoch, _ in computed] == [0]


def test_an_order_is_forgotten_after_its_epoch(colours: Path) -> None:
    reader, _ = recorded(colours)
    for _ in range(3):
        numbers(reader)
        assert len(reader.feed._plans) == 2
