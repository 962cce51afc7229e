"""Each example once, in the order of read.order, and on from anywhere; all backends."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import Reader, make_dataset, selection
from imagenet_prep.read.order import Order, Steps
from imagenet_prep.read.records import Records
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION, TRAIN, on_backends, open_set, same, seen
from tests.kit.tfrecords import picture, plain, wnid, write_set

WORLDS = [(1, 8), (2, 5), (3, 4), (7, 3)]
EMPTY_RANKS = (4, 8)  # the last has none of 21 images


@on_backends(["world", "batch"], [(2, 5)], [*WORLDS, (8, 2)], WORLDS)
def test_training_reads_every_example_once_in_equal_steps(
    colours: Path, backend: str, world: int, batch: int
) -> None:
    readers = [
        open_set(colours, "train", batch, backend, world=World(rank, world), seed=5)
        for rank in range(world)
    ]
    for epoch in range(2):
        order = Order(TRAIN, 5).epoch(epoch).tolist()
        steps = Steps(0, NUM_TRAIN, world, batch, drop_tail=True)
        by_rank = [[seen(b) for b in reader] for reader in readers]

        assert {len(batches) for batches in by_rank} == {steps.count}
        assert by_rank == [
            [[order[p] for p in steps.positions(step, rank)] for step in range(steps.count)]
            for rank in range(world)
        ]
        flat = [n for batches in by_rank for numbers in batches for n in numbers]
        assert len(set(flat)) == len(flat) == NUM_TRAIN - readers[0].dropped_per_epoch
        assert {len(reader) for reader in readers} == {steps.count}


@on_backends(
    ["world", "batch"],
    [EMPTY_RANKS],
    [*WORLDS, EMPTY_RANKS, (8, 2), (32, 8)],
    [*WORLDS, EMPTY_RANKS],
)
def test_evaluation_counts_every_example_exactly_once(
    colours: Path, backend: str, world: int, batch: int
) -> None:
    counted: list[int] = []
    lengths = set()
    padded = 0
    for rank in range(world):
        reader = open_set(colours, "validation", batch, backend, world=World(rank, world))
        batches = list(reader)
        lengths.add(len(batches))
        padded += sum(int((~b["mask"]).sum()) for b in batches)
        counted += [n for b in batches for n in seen(b)]
        assert all(b["images"].shape == (batch, 16, 16, 3) for b in batches)

    assert lengths == {-(-NUM_VALIDATION // (world * batch))}
    assert sorted(counted) == list(range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION))
    assert padded == lengths.pop() * world * batch - NUM_VALIDATION


def test_a_window_of_shards_is_read_in_the_order_of_core_partition(
    colours: Path, backend: str
) -> None:
    reader = open_set(colours, "train", 5, backend, seed=2, shuffle_window=2)
    order = Order(TRAIN, 2, 2).epoch(0).tolist()

    assert [n for batch in reader for n in seen(batch)] == order


def test_evaluation_keeps_the_order_of_the_records(colours: Path, backend: str) -> None:
    reader = open_set(colours, "train", 8, backend, training=False)
    numbers = [n for batch in reader for n in seen(batch)]

    assert numbers == list(range(NUM_TRAIN))
    assert reader.dropped_per_epoch == 0


def test_going_on_anywhere_equals_never_having_stopped(scenes: Path, backend: str) -> None:
    def reader() -> Reader:
        return open_set(scenes, "train", 7, backend, world=World(1, 2), seed=3)

    whole = reader()
    states = [whole.state()]
    batches = []
    for _ in range(2):
        for batch in whole:
            states.append(whole.state())
            batches.append(batch)
    assert len(batches) == 6

    for done in range(0, len(states), 1 if backend == "native" else 5):
        state = states[done]
        again = reader()
        again.restore(json.loads(json.dumps(state)))
        epochs = [list(again) for _ in range(2 - again.epoch)]
        rest = list(itertools.chain(*epochs))
        assert len(json.dumps(state)) < 300
        assert len(rest) == 6 - done
        assert all(map(same, rest, batches[done:]))


def test_the_state_names_the_edition_of_the_data_set(damaged: Path) -> None:
    reader = open_set(damaged, "train", 10, "native")
    assert "edition" not in reader.state()
    object.__setattr__(reader.manifest, "edition", "ImageNet-21K")

    assert reader.state()["edition"] == "ImageNet-21K"


def test_a_state_taken_before_the_last_step_is_trained_on_counts_it_as_read(
    colours: Path, backend: str
) -> None:
    reader = open_set(colours, "train", 10, backend)
    steps = iter(reader)
    first = seen(next(steps))
    state = reader.state()
    second = seen(next(steps))
    other = open_set(colours, "train", 10, backend)
    other.restore(state)

    assert state["examples_read"] == 10
    assert seen(next(iter(other))) == second != first


def test_iterating_anew_goes_on_in_the_middle_of_an_epoch(colours: Path, backend: str) -> None:
    reader = open_set(colours, "train", 10, backend)
    first = [seen(batch) for batch in itertools.islice(reader, 2)]
    rest = [seen(batch) for batch in reader]

    assert (len(first), len(rest), reader.epoch) == (2, 3, 1)
    assert sorted(itertools.chain(*first, *rest)) == list(range(NUM_TRAIN))


@on_backends(["world", "batch"], [(1, 6)], [(1, 6), (3, 5), (5, 2)])
def test_another_number_of_ranks_reads_the_rest_of_the_epoch(
    colours: Path, backend: str, world: int, batch: int
) -> None:
    before: list[int] = []
    states = []
    for rank in range(2):
        reader = open_set(colours, "train", 4, backend, world=World(rank, 2), seed=8)
        before += [n for b in itertools.islice(reader, 2) for n in seen(b)]
        states.append(reader.state())
    assert states[0] == states[1]

    after: list[int] = []
    for rank in range(world):
        reader = open_set(colours, "train", batch, backend, world=World(rank, world), seed=8)
        reader.restore(states[0])
        expected = reader.steps_left
        batches = list(reader)
        assert len(batches) == expected == (NUM_TRAIN - 16) // (world * batch)
        after += [n for b in batches for n in seen(b)]
    tail = (NUM_TRAIN - 16) % (world * batch)

    assert len(before + after) == len(set(before + after)) == NUM_TRAIN - tail
    order = Order(TRAIN, 8).epoch(0).tolist()
    assert set(before + after) == set(order[: NUM_TRAIN - tail])


def test_where_less_than_a_step_is_left_the_epoch_is_the_next_one(colours: Path) -> None:
    """Who loops while reader.epoch < epochs trained on an epoch too many."""
    reader = open_set(colours, "train", 12, "native")
    reader.restore(reader.state() | {"examples_read": 40})

    assert (reader.epoch, reader.steps_left) == (1, 4)
    assert len(list(reader)) == 4
    assert reader.epoch == 2


def test_the_rest_of_an_evaluation_is_counted_exactly(colours: Path, backend: str) -> None:
    reader = open_set(colours, "validation", 4, backend)
    before = [n for batch in itertools.islice(reader, 2) for n in seen(batch)]
    after: list[int] = []
    for rank in range(3):
        other = open_set(colours, "validation", 3, backend, world=World(rank, 3))
        other.restore(reader.state())
        after += [n for batch in other for n in seen(batch)]

    assert sorted(before + after) == list(range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION))


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"split": "validation"}],
    ids=["seed", "split"],
)
def test_the_state_of_another_order_is_refused(
    colours: Path, backend: str, other: dict[str, Any]
) -> None:
    state = open_set(colours, "train", 4, backend).state()
    reader = open_set(colours, **{"split": "train"} | other, batch=4, backend=backend)

    with pytest.raises(UsageError, match="the state has"):
        reader.restore(state)
    assert (reader.epoch, reader.state()["examples_read"]) == (0, 0)


def test_the_state_of_another_version_of_the_program_says_which_to_use(
    colours: Path, backend: str
) -> None:
    reader = open_set(colours, "train", 4, backend)
    state = reader.state()

    with pytest.raises(UsageError, match=r"supports 1\. The version of imagenet-prep that"):
        reader.restore(state | {"version": 2, "dataset": "f" * 64})


def test_the_state_of_another_data_set_is_refused(
    colours: Path, scenes: Path, backend: str
) -> None:
    state = open_set(colours, "train", 4, backend).state()

    with pytest.raises(UsageError, match="dataset"):
        open_set(scenes, "train", 4, backend).restore(state)


def test_all_backends_read_the_same_at_every_step(colours: Path, tf: Any, dali: Any) -> None:
    numbers = []
    states = []
    for name in ("tfdata", "dali", "native"):
        reader = open_set(colours, "train", 6, name, world=World(2, 3), seed=4)
        numbers.append([seen(batch) for _ in range(2) for batch in reader])
        states.append(reader.state())
        if name != "native":
            with pytest.raises(UsageError, match="choose backend='native'"):
                reader.sampler()

    assert numbers[0] == numbers[1] == numbers[2]
    assert states[0] == states[1] == states[2]


def test_a_state_is_understood_by_the_other_backends(colours: Path, tf: Any, dali: Any) -> None:
    state = None
    found = []
    for name, batch, most in (("tfdata", 6, 3), ("native", 5, 2), ("dali", 4, 9)):
        reader = open_set(colours, "train", batch, name, seed=4)
        if state is not None:
            reader.restore(state)
        found += [n for batch in itertools.islice(reader, most) for n in seen(batch)]
        state = reader.state()

    assert found == Order(TRAIN, 4).epoch(0).tolist()[: 18 + 10 + 20]


def test_who_counts_steps_gets_every_epoch_whole(colours: Path, backend: str) -> None:
    reader = open_set(colours, "train", 8, backend, seed=3)
    counted = [[seen(batch) for batch in itertools.islice(reader, len(reader))] for _ in range(2)]
    iterated = open_set(colours, "train", 8, backend, seed=3)

    assert counted == [[seen(batch) for batch in iterated] for _ in range(2)]
    assert reader.epoch == 2
    assert reader.state()["examples_read"] == 0


def test_examples_are_found_by_number_and_by_key(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGENET_PREP_CACHE", str(tmp_path))
    reader = make_dataset(scenes, "train", 4, backend="native", world=World())
    last = reader.num_examples - 1
    example = reader.example(last)
    # The images of a split are 150 GB, and a key is not in them.
    monkeypatch.setattr(Records, "read", None, raising=True)

    assert reader.find(f"{example.wnid}/{example.filename}") == last
    assert reader.find(example.filename) == last
    for nobody in ("n00000000/nobody.JPEG", "nobody.JPEG", "", "/", f"{wnid(0)}/"):
        with pytest.raises(KeyError):
            reader.find(nobody)
    monkeypatch.undo()
    assert reader.example(0) != example
    with pytest.raises(IndexError, match="example 50 of 50"):
        reader.example(last + 1)


def test_hashes_that_are_equal_are_told_apart_and_names_cost_little_memory(
    scenes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "hash", len, raising=False)
    records = Records(open_dataset(str(scenes)), "train")
    finder = selection.Finder(records)

    assert [finder.find(records.name(n)[1]) for n in range(NUM_TRAIN)] == [*range(NUM_TRAIN)]
    arrays = [each for each in vars(finder).values() if isinstance(each, np.ndarray)]
    assert sum(each.nbytes for each in arrays) == 16 * NUM_TRAIN
    assert all(each.base is None for each in arrays)


def test_validation_images_are_found_with_and_without_their_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGENET_PREP_CACHE", str(tmp_path / "kept"))
    name = "ILSVRC2012_val_00000002.JPEG"
    two = [picture(number, plain(number)) for number in range(2)]
    two[1] = two[1]._replace(filename=name)
    write_set(tmp_path / "set", {"validation": [two]}, num_classes=2)
    reader = make_dataset(tmp_path / "set", "validation", 1, backend="native", world=World())

    assert reader.find(name) == reader.find(f"{wnid(1)}/{name}") == 1
    with pytest.raises(KeyError):
        reader.find(f"{wnid(0)}/{name}")


def test_pytorchs_names_for_the_state_are_the_same(scenes: Path) -> None:
    first, second = (
        make_dataset(scenes, "train", 4, backend="native", world=World()) for _ in range(2)
    )
    next(iter(first))
    second.load_state_dict(first.state_dict())

    assert second.state() == first.state() != {}
    assert second.steps_left == first.steps_left == first.steps_per_epoch - 1
