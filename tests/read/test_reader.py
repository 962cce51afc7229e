"""Readers: each example once, in the order of read.order, resumable anywhere; all backends."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import Reader, make_dataset, make_mix, selection
from imagenet_prep.read.decode_steps import Diagnosis
from imagenet_prep.read.order import Order, Steps
from imagenet_prep.read.records import Records
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit.messages import says
from tests.kit.reading import (
    NUM_TRAIN,
    NUM_VALIDATION,
    TRAIN,
    on_backends,
    reader_of,
    same,
    seen,
    seen_in,
)
from tests.kit.tfrecords import picture, plain, wnid, write_dataset

WORLDS = [(1, 8), (2, 5), (3, 4), (7, 3)]
EMPTY_RANKS = (4, 8)  # the last has none of 21 images


@on_backends(["world", "batch"], [(2, 5)], [*WORLDS, (8, 2)], WORLDS)
def test_training_reads_every_example_once_in_equal_steps(
    colours: Path, backend: str, world: int, batch: int
) -> None:
    readers = [
        reader_of(colours, "train", batch, backend, world=World(rank, world), seed=5)
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
        flat = [*itertools.chain.from_iterable(itertools.chain.from_iterable(by_rank))]
        assert len(set(flat)) == len(flat) == NUM_TRAIN - readers[0].dropped_per_epoch
        assert {len(reader) for reader in readers} == {steps.count}


def test_notebook_names_the_reader_of_a_cell(colours: Path) -> None:
    reader = reader_of(colours, "validation", 4, "native")

    assert repr(reader) == (
        f"Reader({str(colours)!r}, 'validation': {NUM_VALIDATION} examples, batch_size=4, "
        f"fields={tuple(next(iter(reader)))})"
    )


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
        reader = reader_of(colours, "validation", batch, backend, world=World(rank, world))
        batches = list(reader)
        lengths.add(len(batches))
        padded += sum(int((~b["mask"]).sum()) for b in batches)
        counted += seen_in(batches)
        assert all(b["images"].shape == (batch, 16, 16, 3) for b in batches)

    assert lengths == {-(-NUM_VALIDATION // (world * batch))}
    assert sorted(counted) == list(range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION))
    assert padded == lengths.pop() * world * batch - NUM_VALIDATION


def test_shuffle_window_follows_its_documented_order(colours: Path, backend: str) -> None:
    reader = reader_of(colours, "train", 5, backend, seed=2, shuffle_window=2)
    order = Order(TRAIN, 2, 2).epoch(0).tolist()

    assert seen_in(reader) == order


def test_evaluation_keeps_the_order_of_the_records(colours: Path, backend: str) -> None:
    reader = reader_of(colours, "train", 8, backend, training=False)
    numbers = seen_in(reader)

    assert numbers == list(range(NUM_TRAIN))
    assert reader.dropped_per_epoch == 0


def test_resumed_reader_equals_an_uninterrupted_one(scenes: Path, backend: str) -> None:
    def reader() -> Reader:
        return reader_of(scenes, "train", 7, backend, world=World(1, 2), seed=3)

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


@pytest.mark.parametrize("read", [0, 2])
def test_set_epoch_begins_this_epoch(colours: Path, read: int) -> None:
    """Programs that store only the number of the epoch must not repeat the order of the first."""
    whole = reader_of(colours, "train", 4, "native")
    expected = [[seen(batch) for batch in whole] for _ in range(3)]
    reader = reader_of(colours, "train", 4, "native")
    assert len([*itertools.islice(reader, read)]) == read
    reader.set_epoch(cast("Any", np.int64(2)))
    assert (type(reader.epoch), reader.epoch) == (int, 2)
    assert [seen(batch) for batch in reader] == expected[2]
    reader.set_epoch(1)
    assert seen(next(iter(reader))) == expected[1][0]
    reader.set_epoch(1)
    assert [seen(batch) for batch in reader] == expected[1][1:]


@pytest.mark.parametrize("epoch", [-1, 1.0, True, "1", None])
def test_set_epoch_refuses_values_that_are_no_epoch(colours: Path, epoch: Any) -> None:
    with pytest.raises(UsageError, match=says("epoch-expected-integer-0")):
        reader_of(colours, "train", 4, "native").set_epoch(epoch)


def test_state_names_the_edition_of_the_dataset(damaged: Path) -> None:
    reader = reader_of(damaged, "train", 10, "native")
    assert "edition" not in reader.state()
    object.__setattr__(reader.manifest, "edition", "ImageNet-21K")

    assert reader.state()["edition"] == "ImageNet-21K"


def test_state_counts_the_last_yielded_step_as_read(colours: Path, backend: str) -> None:
    reader = reader_of(colours, "train", 10, backend)
    steps = iter(reader)
    first = seen(next(steps))
    state = reader.state()
    second = seen(next(steps))
    other = reader_of(colours, "train", 10, backend)
    other.restore(state)

    assert state["examples_read"] == 10
    assert seen(next(iter(other))) == second != first


def test_second_loop_continues_an_unfinished_epoch(colours: Path, backend: str) -> None:
    reader = reader_of(colours, "train", 10, backend)
    first = [seen(batch) for batch in itertools.islice(reader, 2)]
    rest = [seen(batch) for batch in reader]

    assert (len(first), len(rest), reader.epoch) == (2, 3, 1)
    assert sorted(itertools.chain(*first, *rest)) == list(range(NUM_TRAIN))


def test_two_training_loops_do_not_repeat_images(colours: Path) -> None:
    """As in zip(reader, reader), or in a cell of a notebook that uses an older iterator."""
    reader = reader_of(colours, "train", 10, "native")
    parts = {name: reader_of(colours, "train", 10, "native", seed=1) for name in "ab"}
    others = {name: reader_of(colours, "train", 10, "native", seed=1) for name in "ab"}
    for several in (reader, make_mix(parts), make_mix(others, homogeneous=True)):
        first = iter(several)
        next(first)
        second = iter(several)
        next(second)
        with pytest.raises(UsageError, match=says("newer-loop-over-reader-begun")):
            next(first)
        next(second)


def test_set_position_ends_a_running_loop(colours: Path) -> None:
    """The loop would go on at its own position, and the state would be that of neither."""
    reader = reader_of(colours, "train", 10, "native")
    parts = {name: reader_of(colours, "train", 10, "native", seed=1) for name in "ab"}
    others = {name: reader_of(colours, "train", 10, "native", seed=1) for name in "ab"}
    for several in (reader, make_mix(parts), make_mix(others, homogeneous=True)):
        running = iter(several)
        next(running)
        several.restore(several.state())
        with pytest.raises(UsageError, match=says("newer-loop-over-reader-begun")):
            next(running)

    running = iter(reader)
    next(running)
    reader.set_epoch(0)  # the current epoch, as some programs set it in each step
    next(running)
    reader.set_epoch(2)
    with pytest.raises(UsageError, match=says("newer-loop-over-reader-begun")):
        next(running)
    assert reader.state()["epoch"] == 2


def test_loops_of_an_evaluation_are_independent(colours: Path) -> None:
    reader = reader_of(colours, "validation", 10, "native", fields=("number",))
    alone = [batch["number"].tolist() for batch in reader]
    both = [
        (a["number"].tolist(), b["number"].tolist()) for a, b in zip(reader, reader, strict=True)
    ]
    assert both == [*zip(alone, alone, strict=True)]


@pytest.mark.parametrize("state", [None, [], {"model": 1}])
def test_values_that_are_no_state_are_refused(colours: Path, state: Any) -> None:
    reader = reader_of(colours, "train", 10, "native")
    mix = make_mix({name: reader_of(colours, "train", 10, "native") for name in "ab"})
    for restore in (reader.restore, mix.restore, reader.sampler().load_state_dict):
        with pytest.raises(UsageError, match=says("state-expected-dict-state-returned", state)):
            restore(state)


@on_backends(["world", "batch"], [(1, 6)], [(1, 6), (3, 5), (5, 2)])
def test_different_number_of_ranks_reads_the_epochs_rest(
    colours: Path, backend: str, world: int, batch: int
) -> None:
    before: list[int] = []
    states = []
    for rank in range(2):
        reader = reader_of(colours, "train", 4, backend, world=World(rank, 2), seed=8)
        before += seen_in(itertools.islice(reader, 2))
        states.append(reader.state())
    assert states[0] == states[1]

    after: list[int] = []
    for rank in range(world):
        reader = reader_of(colours, "train", batch, backend, world=World(rank, world), seed=8)
        reader.restore(states[0])
        expected = reader.steps_left
        batches = list(reader)
        assert len(batches) == expected == (NUM_TRAIN - 16) // (world * batch)
        after += seen_in(batches)
    tail = (NUM_TRAIN - 16) % (world * batch)

    assert len(before + after) == len(set(before + after)) == NUM_TRAIN - tail
    order = Order(TRAIN, 8).epoch(0).tolist()
    assert set(before + after) == set(order[: NUM_TRAIN - tail])


def test_next_epoch_starts_if_less_than_step_remains(colours: Path) -> None:
    """A loop over `reader.epoch < epochs` trained an epoch too many."""
    reader = reader_of(colours, "train", 12, "native")
    reader.restore(reader.state() | {"examples_read": 40})

    assert (reader.epoch, reader.steps_left) == (1, 4)
    assert len(list(reader)) == 4
    assert reader.epoch == 2


def test_rest_of_an_evaluation_is_counted_exactly(colours: Path, backend: str) -> None:
    reader = reader_of(colours, "validation", 4, backend)
    before = seen_in(itertools.islice(reader, 2))
    after: list[int] = []
    for rank in range(3):
        other = reader_of(colours, "validation", 3, backend, world=World(rank, 3))
        other.restore(reader.state())
        after += seen_in(other)

    assert sorted(before + after) == list(range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION))


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"split": "validation"}],
    ids=["seed", "split"],
)
def test_state_of_a_different_order_is_refused(
    colours: Path, backend: str, other: dict[str, Any]
) -> None:
    state = reader_of(colours, "train", 4, backend).state()
    reader = reader_of(colours, **{"split": "train"} | other, batch=4, backend=backend)

    with pytest.raises(UsageError, match=says("state-reader-use-same-dataset")):
        reader.restore(state)
    assert (reader.epoch, reader.state()["examples_read"]) == (0, 0)


def test_state_beyond_the_chosen_examples_is_refused(colours: Path) -> None:
    reader = reader_of(colours, "train", 4, "native", fraction=0.5)
    assert reader.num_examples < NUM_TRAIN
    reader.restore(reader.state() | {"examples_read": reader.num_examples})
    with pytest.raises(UsageError, match=says("state-damaged-epoch-examples_read-window")):
        reader.restore(reader.state() | {"examples_read": reader.num_examples + 1})


def test_state_of_a_different_version_names_that_version(colours: Path, backend: str) -> None:
    reader = reader_of(colours, "train", 4, backend)
    state = reader.state()

    with pytest.raises(UsageError, match=says("state-version-reader-supports-version", ..., "1")):
        reader.restore(state | {"version": 2, "dataset": "f" * 64})


def test_state_of_a_different_dataset_is_refused(colours: Path, scenes: Path, backend: str) -> None:
    state = reader_of(colours, "train", 4, backend).state()

    with pytest.raises(UsageError, match="dataset"):
        reader_of(scenes, "train", 4, backend).restore(state)


def test_all_backends_read_the_same_at_every_step(colours: Path, tf: Any, dali: Any) -> None:
    numbers = []
    states = []
    for name in ("tfdata", "dali", "native"):
        how: dict[str, Any] = {"world": World(2, 3), "seed": 4, "antialias": True}
        reader = reader_of(colours, "train", 6, name, **how)
        numbers.append([*map(seen, itertools.chain(reader, reader))])
        states.append(reader.state())
        if name != "native":
            with pytest.raises(UsageError, match=says("backend-cannot-run-workers-dataloader")):
                reader.sampler()

    assert numbers[0] == numbers[1] == numbers[2]
    assert states[0] == states[1] == states[2]


def test_state_can_be_restored_by_other_backends(colours: Path, tf: Any, dali: Any) -> None:
    state = None
    found = []
    for name, batch, most in (("tfdata", 6, 3), ("native", 5, 2), ("dali", 4, 9)):
        # Without it, tf.data uses a different filter, so native and DALI refuse its states.
        reader = reader_of(colours, "train", batch, name, seed=4, antialias=True)
        if state is not None:
            reader.restore(state)
        found += seen_in(itertools.islice(reader, most))
        state = reader.state()

    assert found == Order(TRAIN, 4).epoch(0).tolist()[: 18 + 10 + 20]


def test_loop_that_counts_steps_gets_complete_epochs(colours: Path, backend: str) -> None:
    reader = reader_of(colours, "train", 8, backend, seed=3)
    counted = [[seen(batch) for batch in itertools.islice(reader, len(reader))] for _ in range(2)]
    iterated = reader_of(colours, "train", 8, backend, seed=3)

    assert counted == [[seen(batch) for batch in iterated] for _ in range(2)]
    assert reader.epoch == 2
    assert reader.state()["examples_read"] == 0


@pytest.mark.parametrize("training", [True, False])
def test_states_of_training_and_evaluation_differ(scenes: Path, training: bool) -> None:
    """An evaluation would pass over the images that the training has read."""
    readers = [
        make_dataset(scenes, "train", 4, backend="native", world=World(), training=is_training)
        for is_training in (training, not training)
    ]
    state = readers[0].state()
    readers[0].restore(state)
    with pytest.raises(UsageError, match=says("state-reader-use-same-dataset", "training")):
        readers[1].restore(state)
    # States of earlier versions do not tell it.
    del state["training"]
    readers[1].restore(state)


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


def test_hash_collisions_are_resolved_with_little_memory(
    scenes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "hash", len, raising=False)
    records = Records(open_dataset(str(scenes)), "train")
    finder = selection.Finder(records)

    assert [finder.find(records.name(n)[1]) for n in range(NUM_TRAIN)] == [*range(NUM_TRAIN)]
    arrays = [each for each in vars(finder).values() if isinstance(each, np.ndarray)]
    assert sum(each.nbytes for each in arrays) == 16 * NUM_TRAIN
    assert all(each.base is None for each in arrays)


def test_validation_images_are_found_without_their_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGENET_PREP_CACHE", str(tmp_path / "kept"))
    name = "ILSVRC2012_val_00000002.JPEG"
    two = [picture(number, plain(number)) for number in range(2)]
    two[1] = two[1]._replace(filename=name)
    write_dataset(tmp_path / "set", {"validation": [two]}, num_classes=2)
    reader = make_dataset(tmp_path / "set", "validation", 1, backend="native", world=World())

    assert reader.find(name) == reader.find(f"{wnid(1)}/{name}") == 1
    with pytest.raises(KeyError):
        reader.find(f"{wnid(0)}/{name}")


def test_pytorch_state_methods_are_aliases(scenes: Path) -> None:
    first, second = (
        make_dataset(scenes, "train", 4, backend="native", world=World()) for _ in range(2)
    )
    next(iter(first))
    second.load_state_dict(first.state_dict())

    assert second.state() == first.state() != {}
    assert second.steps_left == first.steps_left == first.steps_per_epoch - 1


def test_error_without_a_damaged_image_is_raised() -> None:
    """A backend may fail before it takes a batch, for example for lack of GPU memory."""
    diagnosis = Diagnosis(iter(()), lambda _: False)
    error = MemoryError("GPU")
    with pytest.raises(MemoryError) as raised:
        diagnosis.explain(error)
    assert raised.value is error


@pytest.mark.parametrize("data_dir", [None, b"set", 3])
def test_only_a_path_or_an_address_is_opened(data_dir: Any) -> None:
    with pytest.raises(
        UsageError,
        match=says("expected-8", "data_dir", ..., says("data_dir-expected-path-address")),
    ):
        make_dataset(data_dir, "train", 8)


@pytest.mark.parametrize("address", ["s3:/bucket/set", "https:/host/set"])
def test_addresses_with_one_slash_get_advice(address: str) -> None:
    with pytest.raises(UsageError, match=says("address-no-host-bucket")):
        make_dataset(address, "train", 8)
