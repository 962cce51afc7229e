"""Nodes that hold parts of a set: each example once over all of them, from their own disks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import Reader, make_dataset
from imagenet_prep.read.receipt import KEPT, Receipt, Use, parse
from tests.kit import command
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION, TRAIN, on_backends
from tests.kit.tfrecords import numbers_of

NODES = 3
COPIES = (1, 2)
# Ranks of a node, images of a batch, copies of a shard. In short, each number of ranks with each
# number of copies in training or in evaluation.
TRAINED = list(itertools.product([(1, 4), (2, 3), (4, 4)], COPIES))
EVALUATED = list(itertools.product([(1, 4), (2, 3), (2, 8), (8, 8)], COPIES))

Nodes = Callable[[int], list[Path]]


@pytest.fixture(scope="session")
def nodes(colours: Path, tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    """The folders of three nodes, by copies; read-only."""
    made: dict[int, list[Path]] = {}

    def folders(copies: int) -> list[Path]:
        if copies not in made:
            home = tmp_path_factory.mktemp("nodes")
            made[copies] = [home / str(node) for node in range(NODES)]
            for node, folder in enumerate(made[copies]):
                flags = ("--mode", "partition", f"--part={node}/{NODES}", "--copies", str(copies))
                done = command.run("replicate", colours, "--to", folder, *flags)
                assert done.code == 0, done
        return made[copies]

    return folders


def open_all(folders: list[Path], split: str, ranks: int, batch: int, **more: Any) -> list[Reader]:
    """Returns the reader of each rank, node by node."""
    worlds = [World(rank, NODES * ranks, rank % ranks, ranks) for rank in range(NODES * ranks)]
    return [open_one(folders[world.cross_rank], split, world, batch, **more) for world in worlds]


def open_one(folder: Path, split: str, world: World, batch: int, **more: Any) -> Reader:
    settings: dict[str, Any] = {"framework": "numpy", "dtype": "uint8", "seed": 5}
    settings |= {"backend": "native", **more}
    return make_dataset(folder, split, batch, 16, world=world, **settings)


def seen(batch: dict[str, Any]) -> list[int]:
    return numbers_of(batch["images"][batch["mask"]])


@on_backends(["sizes", "copies"], [((1, 4), 2)], TRAINED, [((1, 4), 1), ((2, 3), 2), ((4, 4), 2)])
def test_training_reads_every_example_once_in_equal_steps(
    nodes: Nodes, backend: str, copies: int, sizes: tuple[int, int]
) -> None:
    ranks, batch = sizes
    readers = open_all(nodes(copies), "train", ranks, batch, backend=backend)
    for _ in range(2):
        by_rank = [[seen(b) for b in reader] for reader in readers]
        flat = [number for batches in by_rank for numbers in batches for number in numbers]

        assert {len(batches) for batches in by_rank} == {NUM_TRAIN // (NODES * ranks * batch)}
        assert {len(numbers) for batches in by_rank for numbers in batches} <= {batch}
        assert len(set(flat)) == len(flat) == NUM_TRAIN - readers[0].dropped_per_epoch


# With (2, 8) and more ranks some have no image.
@on_backends(["sizes", "copies"], [((1, 4), 2)], EVALUATED, [((1, 4), 2), ((2, 3), 1), ((2, 8), 2)])
def test_evaluation_counts_every_example_exactly_once(
    nodes: Nodes, backend: str, copies: int, sizes: tuple[int, int]
) -> None:
    ranks, batch = sizes
    readers = open_all(nodes(copies), "validation", ranks, batch, backend=backend)
    by_rank = [list(reader) for reader in readers]
    counted = [number for batches in by_rank for b in batches for number in seen(b)]

    assert len({len(batches) for batches in by_rank}) == 1
    assert sorted(counted) == list(range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION))


def test_other_ranks_of_the_same_nodes_go_on_where_a_run_stopped(nodes: Nodes) -> None:
    before = open_all(nodes(2), "train", 1, 5)
    first = [seen(next(iter(reader))) for reader in before]
    states = {json.dumps(reader.state()) for reader in before}
    assert len(states) == 1
    after = open_all(nodes(2), "train", 2, 2)
    for reader in after:
        reader.restore(json.loads(states.copy().pop()))
    rest = [seen(b) for reader in after for b in reader]
    flat = [number for numbers in [*first, *rest] for number in numbers]

    assert len(set(flat)) == len(flat) == 15 + (NUM_TRAIN - 15) // 12 * 12


def test_a_state_of_another_partition_is_refused(nodes: Nodes, colours: Path) -> None:
    whole = open_one(colours, "train", World(), 4).state()
    one, two = (open_all(nodes(copies), "train", 1, 4)[0] for copies in COPIES)
    for reader, state in ((one, whole), (one, two.state()), (two, one.state())):
        with pytest.raises(UsageError, match="the state has (nodes|copies)"):
            reader.restore(state)


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (
            World(),
            "it must be read by 3 hosts with equal numbers of ranks, but this run has 1 rank",
        ),
        (World(0, 6, 0, 3), "this run has 6 ranks, 3 of them on this host"),
        (World(0, 3, 0, 1), "this host is number 0 of the hosts that train"),
        (World(5, 6, 1, 2), "this host is number 2 of the hosts that train"),
    ],
)
def test_ranks_of_other_hosts_are_told_so(nodes: Nodes, world: World, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_one(nodes(1)[1], "train", world, 4)


def test_one_host_measures_and_proves_its_part(nodes: Nodes) -> None:
    flags = ("--seconds", "0.1", "--batch-size", "2", "--image-size", "16", "--json")
    flags += ("--backend", "native")
    measured = command.run("bench-read", nodes(1)[1], *flags)
    verified = command.run("verify", nodes(1)[1], "--level", "decode")

    assert (measured.code, verified.code) == (0, 0), (measured, verified)
    assert "(part 1 of 3, copies: 1)" in verified.out


@pytest.mark.parametrize("copies", COPIES)
def test_the_receipt_lists_what_the_ranks_of_all_nodes_have_read(nodes: Nodes, copies: int) -> None:
    readers = open_all(nodes(copies), "train", 2, 3)
    start = {"kind": "start", "step": 0, "receipt": readers[0].receipt()}
    read = [[seen(batch) for _ in range(2) for batch in reader] for reader in readers]
    steps = len(read[0])
    saved = {"kind": "saved", "step": steps, "receipt": readers[0].state()}
    receipt = Receipt(parse([json.dumps(row).encode() for row in (start, saved)], "log"), TRAIN)

    for step in range(steps):
        assert list(receipt.step(step)) == [
            (Use(step, step * 2 // steps, 1, rank, KEPT), number)
            for rank, batches in enumerate(read)
            for number in batches[step]
        ]
    assert receipt.faults() == (steps * 18, [])
    uses = list(receipt.uses(7))
    assert [use.rank for use in uses] == [
        next(rank for rank, batches in enumerate(read) if 7 in batches[use.step]) for use in uses
    ]
