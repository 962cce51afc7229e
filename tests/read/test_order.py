"""The order of examples, and their division into steps and ranks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.dataset.column import WHOLE, Placement
from imagenet_prep.read.order import (
    Appearances,
    Order,
    Size,
    SizeSchedule,
    Steps,
    mix,
    stream,
    unmix,
)
from tests.kit.bounds import peak_bytes

M64 = (1 << 64) - 1

shards = st.lists(st.integers(1, 40), min_size=1, max_size=24)
worlds = st.sampled_from((1, 2, 7, 8, 24, 32)) | st.integers(1, 40)
batches = st.sampled_from((1, 3, 8, 32)) | st.integers(1, 50)


def splitmix64(state: int) -> int:
    """The published algorithm on Python's integers."""
    state = (state + 0x9E3779B97F4A7C15) & M64
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & M64
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & M64
    return state ^ state >> 31


def read(order: list[int], steps: Steps) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the numbers that each rank reads of an epoch's order, and those of each step."""
    by_rank: list[list[int]] = [[] for _ in range(steps.world_size)]
    by_step = []
    for step in range(steps.count):
        mine = [[order[p] for p in steps.positions(step, rank)] for rank in range(steps.world_size)]
        by_step.append([*itertools.chain.from_iterable(mine)])
        for rank, numbers in enumerate(mine):
            by_rank[rank] += numbers
    return by_rank, by_step


def test_mix_is_splitmix64_as_published() -> None:
    # The first outputs of the reference generator seeded with 1234567.
    states = np.array([1234567 + n * 0x9E3779B97F4A7C15 & M64 for n in range(5)], np.uint64)

    assert mix(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(st.lists(st.integers(0, M64), min_size=1, max_size=20))
def test_mix_agrees_with_integers_of_any_size(values: list[int]) -> None:
    mixed = mix(np.array(values, np.uint64))

    assert mixed.tolist() == [splitmix64(value) for value in values]


def test_order_never_changes_between_versions() -> None:
    # A saved state only resumes correctly in the order in which it was saved.
    orders = [Order((4, 5, 3), seed=42).epoch(epoch).tolist() for epoch in (0, 1)]

    assert orders[0] == [6, 11, 10, 5, 1, 0, 8, 2, 9, 7, 3, 4]
    assert orders[1] == [4, 10, 5, 11, 2, 8, 9, 6, 1, 0, 3, 7]
    assert Order((4, 5, 3), 42, 2).epoch(0).tolist() == [6, 5, 1, 0, 8, 2, 7, 3, 4, 11, 10, 9]
    assert Order((4, 5, 3), seed=None).epoch(7).tolist() == list(range(12))


@given(st.integers(0, M64), st.integers(0, 99))
def test_order_sorts_examples_by_documented_hashes(seed: int, epoch: int) -> None:
    key = splitmix64(splitmix64(splitmix64(seed) ^ epoch) ^ 1)
    expected = sorted(range(12), key=lambda number: splitmix64(number ^ key))

    assert Order((4, 5, 3), seed).epoch(epoch).tolist() == expected


@given(st.lists(st.integers(0, M64), max_size=20))
def test_unmix_is_the_inverse_of_mix(values: list[int]) -> None:
    assert unmix(mix(np.array(values, np.uint64))).tolist() == values
    assert mix(unmix(np.array(values, np.uint64))).tolist() == values


@st.composite
def orders(draw: st.DrawFn) -> Order:
    """Orders with every combination of settings that the reader allows."""
    counts = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=12)))
    numbers = range(sum(counts))
    kind = draw(st.sampled_from(("all", "chosen", "weights", "weights of chosen", "part")))
    chosen = None
    appearances = None
    placement = WHOLE
    if "chosen" in kind and numbers:
        chosen = np.array(sorted(draw(st.sets(st.sampled_from(numbers), min_size=1))), np.int64)
    if "weights" in kind and numbers:
        count = len(numbers) if chosen is None else len(chosen)
        classes = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
        appearances = Appearances((0.5, 1.0, 3.5), np.array(classes, np.int64))
    if kind == "part" and len(numbers) >= 4:
        copies = draw(st.integers(1, 4))
        placement = Placement(draw(st.integers(0, 3)), 4, copies)
    window = draw(st.integers(0, 13))
    return Order(counts, draw(st.integers(0, M64)), window, placement, chosen, appearances)


def require_sorted(order: Order, epoch: int) -> list[int]:
    """Asserts that an order sorts its numbers by window and hash; returns them."""
    assert order.seed is not None
    key = splitmix64(splitmix64(splitmix64(order.seed) ^ epoch) ^ 1)
    shard_of = np.repeat(np.arange(len(order.examples_per_shard)), order.examples_per_shard)
    windows = order.windows(epoch)

    def place(number: int) -> tuple[int, int]:
        shard = shard_of[number % order.num_records]
        (window,) = (w for w, shards in enumerate(windows) if shard in shards)
        return window, splitmix64(number ^ key)

    numbers: list[int] = order.epoch(epoch).tolist()
    unshuffled = replace(order, window=0).epoch(epoch).tolist()
    assert numbers == sorted(unshuffled, key=place)
    assert len(set(numbers)) == len(numbers)
    return numbers


@pytest.mark.parametrize("node", range(4))
def test_part_that_passes_the_end_has_windows(node: int) -> None:
    order = Order((3, 4, 5, 2, 6, 3, 4), 7, 2, Placement(node, 4, 3))
    for epoch in range(12):
        assert len(require_sorted(order, epoch)) in (6, 7)


@given(orders(), st.integers(0, 3), st.data())
def test_order_sorts_by_window_and_hash(order: Order, epoch: int, data: st.DataObject) -> None:
    numbers = require_sorted(order, epoch)
    # Reading parts of the order, in any sequence, gives the same.
    by_window = order.by_window(epoch)
    assert len(by_window) == len(numbers)
    for _ in range(3):
        first = data.draw(st.integers(0, len(numbers)))
        stop = data.draw(st.integers(first, len(numbers) + 2))
        assert by_window.numbers(first, stop).tolist() == numbers[first:stop]
    for number in numbers[:3]:
        record = number % order.num_records
        places = [p for p, other in enumerate(numbers) if other % order.num_records == record]
        assert order.positions(epoch, record) == places


def test_order_needs_memory_for_numbers_only() -> None:
    whole = Order((10_000,) * 100, 3)
    chosen = replace(whole, chosen=np.arange(0, 1_000_000, 2))
    before = chosen.chosen.copy() if chosen.chosen is not None else None

    assert peak_bytes(lambda: whole.epoch(0)) < 8_000_000 * 1.2
    assert peak_bytes(lambda: replace(whole, window=2).by_window(0).numbers(9, 30)) < 1_000_000
    by_window = replace(whole, window=2).by_window(0)
    # The window in memory is not sorted again for each batch.
    assert np.shares_memory(by_window.numbers(0, 9), by_window.numbers(8, 30))
    chosen.epoch(0)
    assert before is not None
    assert chosen.chosen is not None
    assert (chosen.chosen == before).all()


@given(st.integers(-(1 << 63), M64 - 1), st.integers(0, 1000), st.integers(1, 5))
def test_streams_of_a_seed_are_different(seed: int, epoch: int, part: int) -> None:
    here = stream(seed, epoch, part)

    assert here == stream(seed, epoch, part)
    assert here not in (
        stream(seed, epoch + 1, part),
        stream(seed, epoch, part + 1),
        stream(seed + 1, epoch, part),
        stream(seed, part, epoch) if part != epoch else None,
    )


@given(shards, st.none() | st.integers(0, M64), st.integers(0, 30), st.integers(0, 5))
def test_epoch_contains_every_example_once(
    counts: list[int], seed: int | None, window: int, epoch: int
) -> None:
    order = Order(tuple(counts), seed, window)
    numbers = order.epoch(epoch)

    assert order.num_examples == sum(counts)
    assert sorted(numbers.tolist()) == list(range(sum(counts)))
    assert numbers.tolist() == order.epoch(epoch).tolist()


def test_weighted_epochs_have_equal_numbers_of_examples() -> None:
    """The weights add up to 1.5, which is rounded to 2."""
    appearances = Appearances((0.5, 1.0), np.array([0, 1]))
    order = Order((2,), 5, appearances=appearances)
    assert order.num_examples == 2
    assert [len(order.epoch(epoch)) for epoch in range(20)] == [2] * 20


@given(shards, st.integers(0, M64), st.integers(1, 30), st.integers(0, 5))
def test_window_reads_its_shards_before_the_next_ones(
    counts: list[int], seed: int, window: int, epoch: int
) -> None:
    shard_of = np.repeat(np.arange(len(counts)), counts)
    seen = shard_of[Order(tuple(counts), seed, window).epoch(epoch)].tolist()
    first = {shard: seen.index(shard) for shard in seen}
    last = {shard: len(seen) - 1 - seen[::-1].index(shard) for shard in seen}

    # At any place, the number of started and unfinished shards is at most a window's.
    for place in range(len(seen)):
        begun = [s for s in first if first[s] <= place <= last[s]]
        assert len(begun) <= window or window >= len(counts)


@given(shards, worlds, batches, st.booleans(), st.data())
def test_ranks_read_every_example_once_in_equal_steps(
    counts: list[int], world: int, batch: int, drop_tail: bool, data: st.DataObject
) -> None:
    order = Order(tuple(counts), 3).epoch(0).tolist()
    start = data.draw(st.integers(0, len(order)))
    steps = Steps(start, len(order), world, batch, drop_tail)
    by_rank, by_step = read(order, steps)
    left = order[start:]
    taken = left[: len(left) - steps.dropped]

    assert [*itertools.chain.from_iterable(by_step)] == taken
    assert sorted(itertools.chain.from_iterable(by_rank)) == sorted(taken)
    assert 0 <= steps.dropped < steps.global_batch
    if drop_tail:
        assert all(len(numbers) == batch * steps.count for numbers in by_rank)
    else:
        assert steps.dropped == 0
        assert all(len(numbers) <= batch * steps.count for numbers in by_rank)
        assert 0 <= steps.count * steps.global_batch - len(left) < steps.global_batch
    assert [steps.after(n) - start for n in range(steps.count + 1)] == [
        sum(map(len, by_step[:n])) for n in range(steps.count + 1)
    ]


@given(shards, st.lists(st.tuples(worlds, batches, st.integers(0, 5)), max_size=4), st.booleans())
def test_run_may_resume_repeatedly_with_other_ranks(
    counts: list[int], parts: list[tuple[int, int, int]], drop_tail: bool
) -> None:
    order = Order(tuple(counts), 9, 4).epoch(2).tolist()
    start = 0
    seen = []
    for world, batch, wanted in parts:
        steps = Steps(start, len(order), world, batch, drop_tail)
        done = min(wanted, steps.count)
        _, by_step = read(order, steps)
        seen += itertools.chain.from_iterable(by_step[:done])
        start = steps.after(done)
    rest = Steps(start, len(order), 1, 1, drop_tail=False)
    seen += itertools.chain.from_iterable(read(order, rest)[1])

    assert seen == order


@given(shards, worlds, batches, st.booleans(), st.integers(0, 5))
def test_resumed_run_equals_an_uninterrupted_one(
    counts: list[int], world: int, batch: int, drop_tail: bool, done: int
) -> None:
    order = list(range(sum(counts)))
    whole = Steps(0, len(order), world, batch, drop_tail)
    done = min(done, whole.count)
    rest = Steps(whole.after(done), len(order), world, batch, drop_tail)

    assert whole.count == done + rest.count
    assert read(order, whole)[1][done:] == read(order, rest)[1]


def test_50000_validation_images_are_padded_to_equal_steps() -> None:
    counted = {}
    for world in (1, 7, 8, 24, 32, 256):
        steps = Steps(0, 50_000, world, 256, drop_tail=False)
        places = itertools.product(range(steps.count), range(world))
        counted[world] = sum(len(steps.positions(step, rank)) for step, rank in places)

    assert set(counted.values()) == {50_000}
    assert Steps(0, 50_000, 256, 256, drop_tail=False).count == 1
    # The last ranks have no examples left and still take part in the step.
    assert len(Steps(0, 50_000, 256, 256, drop_tail=False).positions(0, 255)) == 0


def test_dropped_tail_differs_in_each_epoch() -> None:
    order = Order((100,) * 10, 0)
    steps = Steps(0, 1000, 7, 16, drop_tail=True)
    tails = [set(order.epoch(epoch)[-steps.dropped :].tolist()) for epoch in range(3)]

    assert (steps.count, steps.dropped) == (8, 104)
    assert all(len(a & b) < 30 for a, b in pairwise(tails))  # 11 are expected


# Quality of mixing: 64 shards of 320 examples of 100 classes. Each shard is a fair sample of all
# classes, as shards/plan distributes them.
SHARDS = 64
PER_SHARD = 320
CLASSES = 100


def labels() -> np.ndarray:
    line = np.arange(SHARDS * PER_SHARD)
    return (line * CLASSES // len(line))[np.argsort(line % SHARDS, kind="stable")]


def order_of(window: int, epoch: int) -> np.ndarray:
    return Order((PER_SHARD,) * SHARDS, 1, window).epoch(epoch)


@pytest.mark.parametrize("window", [0, 8, 16])
def test_consecutive_epochs_are_independent_permutations(window: int) -> None:
    for epoch in range(4):
        before = np.argsort(order_of(window, epoch))
        after = np.argsort(order_of(window, epoch + 1))
        distance = np.abs(before - after) / len(before)

        # Two independent uniform places are 1/3 apart, and within 0.01 of each other in 2 %.
        assert distance.mean() == pytest.approx(1 / 3, abs=0.01 if window == 0 else 0.12)
        assert (distance < 0.01).mean() < 0.06
        if window == 0:
            assert abs(np.corrcoef(before, after)[0, 1]) < 0.03


@pytest.mark.parametrize("window", [0, 8, 16])
def test_batches_have_the_classes_of_a_random_permutation(window: int) -> None:
    batch = 64
    rng = np.random.default_rng(0)

    def mixed(order: np.ndarray) -> float:
        rows = labels()[order].reshape(-1, batch)
        return float(np.mean([len(np.unique(row)) for row in rows]))

    expected = mixed(rng.permutation(SHARDS * PER_SHARD))
    found = [mixed(order_of(window, epoch)) for epoch in range(3)]

    # A window of stratified shards is drawn without replacement from fair samples.
    assert min(found) > expected * 0.99
    assert max(found) < expected * 1.05


def test_order_without_a_window_hides_the_shards() -> None:
    shard_of = np.repeat(np.arange(SHARDS), PER_SHARD)
    same = (np.diff(shard_of[order_of(0, 0)]) == 0).mean()

    assert same == pytest.approx(1 / SHARDS, abs=0.005)


@pytest.mark.parametrize(
    ("start", "num_examples", "count", "dropped"),
    [(0, 8, 2, 0), (0, 9, 2, 1), (0, 7, 1, 3), (4, 8, 1, 0), (8, 8, 0, 0), (6, 9, 0, 3)],
)
def test_steps_of_drawn_sizes_fill_the_epoch(
    start: int, num_examples: int, count: int, dropped: int
) -> None:
    """A last step that is complete is not dropped."""
    sizes = [Size(image_size=128), Size(image_size=160)]
    schedule = SizeSchedule(sizes, [2, 2], 0)
    steps = schedule.steps(0, start, num_examples, 2, drop_tail=True, nodes=1)
    assert (steps.count, steps.dropped) == (count, dropped)
    assert [steps.after(step) for step in range(count + 1)] == [
        start + 4 * step for step in range(count + 1)
    ]
    pairs = itertools.product(range(count), range(2))
    positions = itertools.chain.from_iterable(itertools.starmap(steps.positions, pairs))
    assert [*positions] == [*range(start, start + 4 * count)]


@pytest.mark.parametrize("window", [0, 1, 2, 3])
@pytest.mark.parametrize("chosen", [[0], [2], [3], [2, 3], [4, 5], [6], [0, 3, 5]])
def test_windows_have_the_shards_of_chosen_examples(chosen: list[int], window: int) -> None:
    """The first and the last example of a shard are at its borders."""
    shard_of = [0, 0, 0, 1, 1, 2, 2]
    for seed in (None, 0, 1):
        order = Order((3, 2, 2), seed, window, chosen=np.array(chosen, np.int64))
        by_window = order.by_window(4)
        assert sorted(itertools.chain.from_iterable(by_window.shards)) == sorted(
            {shard_of[number] for number in chosen}
        )
        assert sorted(order.epoch(4).tolist()) == chosen
