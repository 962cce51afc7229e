"""Readers in a DataLoader of PyTorch: each step by one of its workers, and a state."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import Reader
from imagenet_prep.read.order import Order
from tests.kit import dataloader
from tests.kit.http_server import serve
from tests.kit.messages import says
from tests.kit.reading import (
    NUM_TRAIN,
    NUM_VALIDATION,
    SHARD,
    TRAIN,
    flip,
    reader_of,
    same,
    seen,
    seen_in,
)


def opened(root: Path, batch: int = 4, split: str = "train", **more: Any) -> Reader:
    return reader_of(root, split, batch, "native", **more)


@pytest.mark.parametrize(("workers", "method"), [(0, ""), (1, "spawn"), (2, "forkserver")])
def test_workers_give_the_batches_of_the_reader(scenes: Path, workers: int, method: str) -> None:
    compare(scenes, workers, method)


def test_forked_workers_give_the_batches_of_the_reader(scenes: Path) -> None:
    dataloader.in_new_process(compare, scenes, 3, "fork")


def compare(scenes: Path, workers: int, method: str) -> None:
    how: dict[str, Any] = {
        "world": World(1, 2),
        "seed": 3,
        "views": 2,
        "fields": ("images", "mask", "key"),
    }
    reader, alone = (opened(scenes, 7, **how) for _ in range(2))
    next(iter(reader))  # a fork does not have the threads of this reader
    sampler = opened(scenes, 7, **how).sampler()
    for _ in range(2):
        expected = list(alone)
        found = list(dataloader.batches(reader, sampler, workers, method))

        assert len(found) == len(expected) == len(sampler) == 3
        assert all(map(same, found, expected))
    assert sampler.epoch == 2


def test_evaluation_by_workers_counts_every_example_once(colours: Path) -> None:
    counted: list[int] = []
    for rank in range(3):
        reader = opened(colours, 4, "validation", world=World(rank, 3))
        found = list(dataloader.batches(reader, reader.sampler(), 0))
        counted += seen_in(found)

        assert len(found) == 2

    assert sorted(counted) == list(range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION))


def test_state_excludes_steps_prefetched_by_workers(colours: Path) -> None:
    before: list[int] = []
    reader = opened(colours, 3, seed=6)
    sampler = reader.sampler()
    batches = dataloader.batches(reader, sampler, 2)
    for steps, batch in enumerate(itertools.islice(batches, 9), 1):  # noqa: B007
        before += seen(batch)
    state = sampler.state_dict(steps)
    batches.close()
    ahead = sampler.state_dict()["examples_read"]
    after: list[int] = []
    for rank in range(2):
        other = opened(colours, 4, seed=6, world=World(rank, 2))
        going_on = other.sampler()
        going_on.load_state_dict(state)
        after += seen_in(other[position] for position in going_on)

    assert (state["examples_read"], ahead) == (27, 27 + 3 * 2 * dataloader.PREFETCH)
    assert sorted(before + after) == sorted(Order(TRAIN, 6).epoch(0).tolist()[: 27 + 16])


def test_only_an_abandoned_epoch_is_started_again(colours: Path) -> None:
    sampler = opened(colours, 10).sampler()
    assert list(itertools.islice(sampler, 3)) == [(0, 0, 0), (0, 10, 0), (0, 20, 0)]
    assert sampler.state_dict()["examples_read"] == 30
    # A loop that counts steps never requests one more.
    assert len(list(itertools.islice(sampler, 5))) == 5
    assert (sampler.epoch, sampler.state_dict()["examples_read"]) == (1, 0)

    assert len(list(sampler)) == 5
    assert sampler.state_dict(5) == sampler.state_dict()
    assert sampler.state_dict(2)["epoch"] == 1


def test_next_epoch_starts_if_less_than_step_remains(colours: Path) -> None:
    reader = opened(colours, 12)
    sampler = reader.sampler()
    sampler.load_state_dict(reader.state() | {"examples_read": 40})

    assert sampler.epoch == 1
    assert next(iter(sampler)) == (1, 0, 0)
    with pytest.raises(UsageError, match=says("state-reader-use-same-dataset", "seed", "1", "0")):
        sampler.load_state_dict(reader.state() | {"seed": 1})


def test_sampler_starts_at_the_position_of_its_reader(colours: Path) -> None:
    reader = opened(colours, 10)
    next(iter(reader))

    assert list(reader.sampler()) == [(0, read, 0) for read in (10, 20, 30, 40)]
    assert reader.state()["examples_read"] == 10


@pytest.mark.parametrize(
    "odd",
    [
        5,
        None,
        [0, 0, 0],
        (0,),
        (0, 1),
        (0, 0, 0, 0),
        ("0", 0, 0),
        (0, 0.5, 0),
        (0, 0, None),
        (0, 0, True),
        (-1, 0, 0),
        (0, -4, 0),
        (0, 0, -1),
        (0, 49, 0),
        (0, 10**9, 0),
    ],
    ids=str,
)
def test_invalid_position_is_a_usage_error(colours: Path, odd: Any) -> None:
    with pytest.raises(UsageError, match=says("reader-dataloader-over-reader-needs")):
        opened(colours, 4)[odd]


def test_pickled_reader_is_reopened_at_its_position(scenes: Path) -> None:
    reader = opened(scenes, 4, seed=9, world=World(1, 2))
    next(iter(reader))
    before = set(threading.enumerate())
    again = pickle.loads(pickle.dumps(reader))
    third = copy.copy(reader)

    # Threads start only when the readers are read. Threads of earlier tests may end meanwhile.
    assert set(threading.enumerate()) <= before
    assert again.state() == third.state() == reader.state()
    assert all(map(same, list(again), list(reader)))


def test_forked_reader_has_its_own_threads(colours: Path) -> None:
    """The fork has no threads of the original process, and waited for them."""
    dataloader.in_new_process(fork, colours)


def fork(colours: Path) -> None:
    reader = opened(colours, 8, seed=9)
    first = next(iter(reader))
    here, there = multiprocessing.get_context("fork").Pipe()

    def work() -> None:
        reader.close()
        numbers = seen_in(reader)
        there.send((numbers, reader.find(reader.example(49).filename), reader.epoch))

    process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    process.start()
    there.close()
    assert here.poll(300)
    found = here.recv()
    process.join()

    expected = seen_in(reader)
    assert found == (expected, 49, 1)
    assert len(seen(first) + expected) == 48


def test_running_loop_ends_in_a_forked_process(colours: Path) -> None:
    """The threads that decode its batches are not there, so it would wait for ever."""
    dataloader.in_new_process(continue_in_fork, colours)


def continue_in_fork(colours: Path) -> None:
    reader = opened(colours, 8, seed=9)
    loop = iter(reader)
    next(loop)
    here, there = multiprocessing.get_context("fork").Pipe()

    def work() -> None:
        try:
            next(loop)
        except UsageError as error:
            there.send(str(error))

    process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    process.start()
    there.close()
    assert here.poll(300)
    assert says("loop-started-different-process-whose").search(here.recv())
    process.join()
    assert len(seen_in(reader)) > 0


def test_workers_read_a_remote_dataset_through_one_cache(colours: Path, tmp_path: Path) -> None:
    files = (path for path in colours.rglob("*") if path.is_file())
    content = {str(path.relative_to(colours)): path.read_bytes() for path in files}
    how: dict[str, Any] = {"batch": 5, "seed": 2, "shuffle_window": 2}
    with serve(content) as server:
        reader = opened(server.url, **how, cache_dir=tmp_path)  # type: ignore[arg-type]
        next(iter(reader))
        sampler = opened(colours, **how).sampler()
        found = [seen(batch) for batch in dataloader.batches(reader, sampler, 2)]
        reader.close()

    assert found == [seen(batch) for batch in opened(colours, **how)]


def test_damage_in_a_worker_is_named_or_masked(damaged: Path) -> None:
    flip(3, 200)(damaged)
    reader = opened(damaged)
    with pytest.raises(DataDamagedError, match=says("record-byte", SHARD, "3")):
        list(dataloader.batches(reader, reader.sampler(), 1))
    reader = opened(damaged, 5, on_bad_record="skip")
    masks = [batch["mask"] for batch in dataloader.batches(reader, reader.sampler(), 0)]

    assert len(masks) == 10
    assert np.concatenate(masks).sum() == NUM_TRAIN - 1
    assert len(reader.skipped) == 1


def test_wrong_use_in_a_dataloader_is_refused(colours: Path) -> None:
    with pytest.raises(UsageError, match=says("reader-dataloader-over-reader-needs")):
        opened(colours)[0]  # type: ignore[index]
    with pytest.raises(UsageError, match="pin_memory=True"):
        opened(colours, framework=None, out=lambda: np.empty(0)).sampler()


def test_running_workers_follow_the_loaded_window(colours: Path) -> None:
    """Persistent workers have the window with which their reader was opened."""
    state = opened(colours, 5, seed=2, shuffle_window=2).state()
    state |= {"epoch": 1, "examples_read": 10}
    expected = opened(colours, 5, seed=2, shuffle_window=2)
    expected.restore(state)
    reader = opened(colours, 5, seed=2)
    sampler = reader.sampler()
    worker = pickle.loads(pickle.dumps(reader))
    own = worker.state()
    first = [seen(worker[position]) for position in sampler]

    sampler.load_state_dict(state)
    assert [seen(worker[position]) for position in sampler] == [seen(batch) for batch in expected]
    # Neither the worker's nor the reader's own loop has changed.
    assert worker.state() == own == reader.state()
    assert [seen(batch) for batch in worker] == first
    sampler.load_state_dict(own)
    assert [seen(reader[position]) for position in sampler] == first
