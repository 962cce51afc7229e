"""Mixes and buckets in forked processes: a new loop reads there, and a running one is refused."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import make_dataset, make_mix
from tests.kit import dataloader
from tests.kit.messages import says
from tests.kit.reading import numbers_of

WAYS = ("new", "after-an-epoch", "in-an-epoch")


def made(colours: Path, homogeneous: bool) -> Any:
    """Returns a mix of two selections of a dataset."""
    how: dict[str, Any] = {"backend": "native", "framework": "numpy", "dtype": "uint8"}
    parts = {
        str(half): make_dataset(
            colours, "train", 4, 16, fold=(half, 2), seed=half, world=World(), **how
        )
        for half in (0, 1)
    }
    return make_mix(parts, homogeneous=homogeneous)


def brought(mix: Any, way: str) -> None:
    """Reads nothing, an epoch, or two batches."""
    loop = iter(mix)
    for _ in range({"new": 0, "after-an-epoch": len(mix), "in-an-epoch": 2}[way]):
        next(loop)


def seen(mix: Any) -> list[tuple[list[int], list[int]]]:
    """Returns the numbers and the parts of the examples of each batch of a loop."""
    return [(numbers_of(batch["images"]), batch["part"].tolist()) for batch in mix]


def in_fork(work: Callable[[], Any]) -> Any:
    """Returns the result of a function in a fork of this process."""
    here, there = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=lambda: there.send(work()), daemon=True
    )
    process.start()
    there.close()
    assert here.poll(300)
    found = here.recv()
    process.join()
    return found


@pytest.mark.parametrize("homogeneous", [False, True])
def test_forks_continue_at_the_position_of_a_mix(colours: Path, homogeneous: bool) -> None:
    """The fork has no threads of the original process, and waited for them."""
    dataloader.in_new_process(compare_loops, colours, homogeneous)


def compare_loops(colours: Path, homogeneous: bool) -> None:
    for way in WAYS:
        mix = made(colours, homogeneous)
        brought(mix, way)
        state = mix.state()
        expected = made(colours, homogeneous)
        expected.restore(state)
        theirs = in_fork(lambda mix=mix: (seen(mix), seen(mix), mix.state()))
        ours = seen(mix), seen(mix), mix.state()
        assert theirs == ours == (seen(expected), seen(expected), expected.state())


@pytest.mark.parametrize("homogeneous", [False, True])
def test_running_loops_of_mixes_end_in_forks(colours: Path, homogeneous: bool) -> None:
    dataloader.in_new_process(continue_in_fork, colours, homogeneous)


def continue_in_fork(colours: Path, homogeneous: bool) -> None:
    mix = made(colours, homogeneous)
    loop = iter(mix)
    next(loop)

    def work() -> str:
        try:
            next(loop)
        except UsageError as error:
            return str(error)
        return ""

    assert says("loop-started-different-process-whose").search(in_fork(work))
    assert len([*loop]) == len(mix) - 1


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda mix: pickle.loads(pickle.dumps(mix))]
)
def test_copies_of_mixes_have_readers_of_their_own(
    colours: Path, homogeneous: bool, way: str, copied: Any
) -> None:
    """Workers of a DataLoader that are spawned get such copies."""
    mix = made(colours, homogeneous)
    brought(mix, way)
    another = copied(mix)
    assert another.state() == mix.state()
    assert seen(another) == seen(mix)
    assert another.state() == mix.state()
    assert {*map(id, another.parts.values())}.isdisjoint(map(id, mix.parts.values()))
