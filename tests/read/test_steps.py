"""Steps of an epoch and the sampler of a DataLoader, without a dataset."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset.column import Placement
from imagenet_prep.read.order import (
    Appearances,
    BatchShape,
    DrawnSteps,
    Order,
    Position,
    Size,
    SizeSchedule,
    Steps,
    StepSampler,
    epoch_number,
)


def appearances(*expected: float) -> Appearances:
    """Returns those of one example of each class."""
    return Appearances(expected, np.arange(len(expected)))


@pytest.mark.parametrize(
    ("expected", "total"),
    [([0.7] * 3, 2), ([0.7] * 4, 3), ([0.1] * 30, 3), ([0.3], 0), ([2.9, 0.9], 4)],
)
def test_expected_appearances_are_rounded(expected: list[float], total: int) -> None:
    found = appearances(*expected)
    assert found.total == total
    for epoch in range(5):
        assert found.counts(7, epoch).sum() == total


def test_each_class_appears_in_some_epochs() -> None:
    """Of two classes with half an example each, not always the same one appears."""
    found = appearances(0.5, 0.5)
    first = sum(int(found.counts(7, epoch)[0]) for epoch in range(200))
    assert 70 < first < 130


def test_nodes_with_copies_take_turns() -> None:
    for copies, num_parts in ((1, 1), (2, 2), (3, 3)):
        order = Order((5,) * 8, 7, placement=Placement(0, 4, copies))
        parts = {tuple(sorted(order.epoch(epoch).tolist())) for epoch in range(20)}
        assert len(parts) >= num_parts
        assert {len(part) for part in parts} == {10}


def test_windows_differ_in_each_epoch() -> None:
    order = Order((5,) * 20, 7, window=2)
    windows = [order.windows(epoch) for epoch in range(3)]
    assert windows[0] != windows[1] != windows[2] != windows[0]
    for found in windows:
        assert sorted(itertools.chain.from_iterable(found)) == [*range(20)]


@pytest.mark.parametrize(
    ("rank", "step", "expected"),
    [
        (0, 0, range(2)),
        (1, 0, range(2, 4)),
        (0, 1, range(4, 5)),
        (1, 1, range(5, 5)),
        # The ranks of the second node have the same positions in its own order.
        (2, 0, range(2)),
        (3, 0, range(2, 4)),
        (2, 1, range(4, 5)),
    ],
)
def test_ranks_of_a_node_read_its_order(rank: int, step: int, expected: range) -> None:
    steps = Steps(0, 9, 4, 2, drop_tail=False, nodes=2)
    assert steps.count == 2
    assert steps.positions(step, rank) == expected


@pytest.mark.parametrize(
    ("start", "drop_tail", "count", "dropped", "after"),
    [
        (0, True, 2, 2, [0, 4, 8]),
        (0, False, 3, 0, [0, 4, 8, 10]),
        (3, True, 1, 3, [3, 7]),
        (3, False, 2, 0, [3, 7, 10]),
        (10, False, 0, 0, [10]),
    ],
)
def test_remaining_steps_are_counted(
    start: int, drop_tail: bool, count: int, dropped: int, after: list[int]
) -> None:
    steps = Steps(start, 10, 2, 2, drop_tail)
    assert (steps.count, steps.dropped) == (count, dropped)
    assert [steps.after(number) for number in range(count + 1)] == after


def schedule(*sizes: tuple[int, int]) -> SizeSchedule:
    """Returns sizes, each with its first epoch and its batch size."""
    made = [Size(image_size=100 + batch, epoch=epoch) for epoch, batch in sizes]
    return SizeSchedule(made, [batch for _, batch in sizes], seed=7)


@pytest.mark.parametrize(
    ("epoch", "shape"),
    [
        (0, BatchShape(2, 0)),
        (1, BatchShape(2, 0)),
        (2, BatchShape(3, 1)),
        (4, BatchShape(3, 1)),
        (5, BatchShape(4, 2)),
        (9, BatchShape(4, 2)),
    ],
)
def test_epoch_has_its_size(epoch: int, shape: BatchShape) -> None:
    sizes = schedule((0, 2), (2, 3), (5, 4))
    steps = sizes.steps(epoch, 0, 20, 2, drop_tail=True, nodes=1)
    assert steps.shape_of(0) == shape
    assert steps.count == 20 // (2 * shape.batch_size)


@pytest.mark.parametrize("start", [0, 6, 100, 101, 103])
def test_drawn_steps_read_all_but_dropped(start: int) -> None:
    sizes = schedule((0, 2), (0, 3))
    steps = sizes.steps(0, start, 103, 1, drop_tail=True, nodes=1)
    assert isinstance(steps, DrawnSteps)

    position = start
    for step in range(steps.count):
        assert steps.after(step) == position
        assert steps.positions(step, 0) == range(position, position + steps.shape_of(step)[0])
        position += steps.shape_of(step).batch_size
    assert steps.after(steps.count) == position
    assert steps.dropped == 103 - position < 3


@pytest.mark.parametrize("odd", [True, False, 1.0, -1, "1", None])
def test_epoch_is_a_number_from_0(odd: Any) -> None:
    with pytest.raises(UsageError, match="epoch="):
        epoch_number(odd)


@pytest.mark.parametrize("epoch", [0, np.int64(3)])
def test_epoch_may_be_of_numpy(epoch: Any) -> None:
    assert type(epoch_number(epoch)) is int
    assert epoch_number(epoch) == epoch


def sampler_at(epoch: int, examples_read: int) -> StepSampler:
    """Returns the sampler of a reader with two steps of four examples per epoch."""
    return StepSampler(
        lambda _, start: Steps(start, 10, 1, 4, drop_tail=True),
        lambda state: Position(state["epoch"], state["examples_read"], 0),
        {"epoch": epoch, "examples_read": examples_read},
    )


def places(sampler: StepSampler, most: int = 9) -> list[tuple[int, int]]:
    return [position[:2] for position, _ in zip(sampler, range(most), strict=False)]


def test_length_is_that_of_a_complete_epoch() -> None:
    assert len(sampler_at(0, 0)) == 2
    assert len(sampler_at(1, 4)) == 2


@pytest.mark.parametrize(
    ("steps", "expected"), [(0, (1, 4)), (1, (2, 0)), (None, (2, 0)), (5, (2, 0))]
)
def test_state_follows_the_given_steps(steps: int | None, expected: tuple[int, int]) -> None:
    sampler = sampler_at(1, 4)
    assert places(sampler) == [(1, 4)]
    state = sampler.state_dict(steps)
    assert (state["epoch"], state["examples_read"]) == expected


@pytest.mark.parametrize("most", [0, 1, 2])
def test_loaded_state_replaces_the_position(most: int) -> None:
    sampler = sampler_at(0, 0)
    places(sampler, most)
    sampler.load_state_dict({"epoch": 5, "examples_read": 4})

    assert sampler.epoch == 5
    assert places(sampler) == [(5, 4)]
    assert places(sampler) == [(6, 0), (6, 4)]
