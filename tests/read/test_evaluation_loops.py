"""Evaluation loops of users: without the mask, after a look at a batch, or ended early."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.world import World
from imagenet_prep.read import ColumnWriter, Reader
from tests.kit import dataloader
from tests.kit.reading import (
    NUM_TRAIN,
    NUM_VALIDATION,
    flip,
    on_backends,
    reader_of,
    seen,
    seen_in,
)

ALL = list(range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION))
BATCH = 4
STEPS = -(-NUM_VALIDATION // BATCH)


def opened(root: Path, backend: str = "native", **more: Any) -> Reader:
    return reader_of(root, "validation", BATCH, backend, **more)


# Each way to read an evaluation: the options of make_dataset.
WAYS: dict[str, dict[str, Any]] = {
    "arrays": {},
    "tensors": {"framework": "tensorflow"},
    "remapped": {"classes": list(range(NUM_TRAIN + 2, NUM_TRAIN + 15)), "remap": True},
    "labels only": {"fields": ("class_index", "mask")},
    "labels only, remapped": {
        "fields": ("class_index", "mask"),
        "classes": list(range(NUM_TRAIN + 2, NUM_TRAIN + 15)),
        "remap": True,
    },
    "two ranks": {"world": World(1, 2)},
    "more ranks than examples": {"world": World(6, 7)},
}


@on_backends(["way"], ["arrays", "tensors"], list(WAYS))
def test_padding_has_no_class(
    colours: Path, backend: str, way: str, request: pytest.FixtureRequest
) -> None:
    if way == "tensors":
        request.getfixturevalue("tf")
    padding = 0
    for batch in opened(colours, backend, **WAYS[way]):
        classes = np.asarray(batch["class_index"])
        mask = np.asarray(batch["mask"])
        assert classes.dtype == np.int32
        assert (classes[~mask] == -1).all()
        assert (classes[mask] >= 0).all()
        padding += int((~mask).sum())
    assert padding > 0


def test_skipped_record_has_no_class(damaged: Path, backend: str) -> None:
    flip(4, 200)(damaged)
    reader = reader_of(damaged, "train", BATCH, backend, on_bad_record="skip")
    unmasked: list[int] = []
    for batch in reader:
        unmasked += batch["class_index"][~batch["mask"]].tolist()

    assert len(reader.skipped) == 1
    assert unmasked == [-1]


def test_batches_for_a_loader_have_unlabelled_padding(colours: Path) -> None:
    reader = opened(colours)
    *_, last = dataloader.batches(reader, reader.sampler(), 0)

    assert last["class_index"].tolist() == [ALL[-1], -1, -1, -1]


def test_constant_prediction_gains_nothing_from_padding(colours: Path) -> None:
    """A network that always predicts class 0 was right for every image of padding."""
    labels = np.concatenate([batch["class_index"] for batch in opened(colours)])

    assert len(labels) == STEPS * BATCH
    for predicted in range(NUM_TRAIN + NUM_VALIDATION):
        assert (labels == predicted).sum() == (predicted in ALL)


def test_values_of_a_batch_follow_the_fields(colours: Path) -> None:
    """`for images, labels in reader` would give the names of the fields."""
    reader = opened(colours, fields=("images", "class_index"))
    for images, labels in map(dict.values, reader):  # type: ignore[arg-type]
        assert images.shape == (BATCH, 16, 16, 3)
        assert labels.shape == (BATCH,)


@on_backends(["looked"], [2], range(1, STEPS))
def test_partial_loop_does_not_shorten_the_next_evaluation(
    colours: Path, backend: str, looked: int
) -> None:
    reader = opened(colours, backend)
    first = seen_in(itertools.islice(reader, looked))
    whole = [seen_in(reader) for _ in range(2)]

    assert first == ALL[: looked * BATCH]
    assert whole == [ALL, ALL]
    next(iter(reader))
    assert seen_in(reader) == ALL


def test_two_simultaneous_loops_get_their_own_images(colours: Path, backend: str) -> None:
    """DALI showed the images of one loop with the labels of the other, then failed."""
    reader = opened(colours, backend)
    first = []
    second = []
    outer = iter(reader)
    first += seen(next(outer))
    for batch in reader:
        second += seen(batch)
        if len(second) == 2 * BATCH:
            first += seen(next(outer))
    for batch in outer:
        first += seen(batch)

    assert first == second == ALL
    assert seen_in(reader) == ALL


def test_training_resumes_in_the_middle_of_an_epoch(colours: Path) -> None:
    reader = reader_of(colours, "train", 10, "native")
    first = seen_in(itertools.islice(reader, 2))
    rest = seen_in(reader)

    assert (len(first), len(rest)) == (20, 30)
    assert sorted(first + rest) == list(range(NUM_TRAIN))


class Model:
    """A model of an evaluation reader: the start of its next loop, and its state."""

    def __init__(self) -> None:
        self.start = 0  # of the next loop, in examples
        self.read = 0  # examples that the state counts

    def loop(self, steps: int) -> list[int]:
        """Returns the examples of a loop that ends after `steps` batches, or by itself."""
        first = self.start
        self.start = 0
        end = min(first + steps * BATCH, NUM_VALIDATION)
        self.read = 0 if end == NUM_VALIDATION else end
        return ALL[first:end]

    def restore(self, read: int) -> None:
        self.start = self.read = 0 if read == NUM_VALIDATION else read


def actions(rng: random.Random, count: int) -> Iterator[tuple[str, int]]:
    for _ in range(count):
        name = rng.choice(["loop", "loop", "look", "restore", "own state", "copy", "sampler"])
        yield name, rng.randrange(STEPS)


@pytest.mark.parametrize("seed", range(12))
def test_reader_matches_its_model_for_random_actions(colours: Path, seed: int) -> None:
    rng = random.Random(seed)
    reader = opened(colours)
    model = Model()
    for name, number in actions(rng, 12):
        if name in ("loop", "look"):
            steps = STEPS if name == "loop" else number + 1
            found = seen_in(itertools.islice(reader, steps))
            assert found == model.loop(steps), (name, number)
        elif name == "restore":
            reader.restore(reader.state() | {"examples_read": number * BATCH})
            model.restore(number * BATCH)
        elif name == "own state":
            # As a trainer that resumes: the state of the middle of a loop is used.
            reader.load_state_dict(reader.state_dict())
            model.restore(model.read)
        elif name == "copy":
            reader = rng.choice([copy.copy, lambda each: pickle.loads(pickle.dumps(each))])(reader)
            model.restore(model.start)
        else:
            positions = [position.examples_read for position in reader.sampler()]
            assert positions == list(range(model.start, NUM_VALIDATION, BATCH))
        assert reader.state()["examples_read"] == model.read, (name, number)


def test_sampler_agrees_with_its_reader(colours: Path) -> None:
    """After a partial loop, and after the rest of a restored evaluation, each loop is complete."""
    reader = opened(colours)
    state = reader.state() | {"examples_read": 2 * BATCH}
    sampler = reader.sampler()
    sampler.load_state_dict(state)
    reader.restore(state)
    for steps in (1, STEPS, 2, STEPS):
        positions = list(itertools.islice(sampler, steps))
        found = seen_in(reader[position] for position in positions)
        assert found == seen_in(itertools.islice(reader, steps))


def test_sampler_of_training_repeats_a_restored_rest(colours: Path) -> None:
    sampler = reader_of(colours, "train", 10, "native").sampler()
    sampler.load_state_dict(sampler.state_dict() | {"examples_read": 20})

    assert next(iter(sampler)) == (0, 20, 0)
    assert [place.examples_read for place in sampler] == [20, 30, 40]
    assert [place.examples_read for place in sampler] == [0, 10, 20, 30, 40]


def test_column_continues_after_a_loop_ended_early(damaged: Path) -> None:
    """Its rows are written in order, so the next loop must not start again."""
    with ColumnWriter(damaged, "validation", "number", (), "int64", batch_size=BATCH) as writer:
        for batch in itertools.islice(writer, 2):
            writer.write(batch["number"])
        for batch in writer:
            writer.write(batch["number"])

    assert writer.is_complete
    reader = opened(damaged, fields=("number", "column:number"))
    rows = [(batch["number"].tolist(), batch["column:number"].tolist()) for batch in reader]
    read = itertools.chain.from_iterable(numbers for numbers, _ in rows)
    assert [number for number in read if number >= 0] == list(range(NUM_VALIDATION))
    for numbers, values in rows:
        assert values == [max(n, 0) for n in numbers]
