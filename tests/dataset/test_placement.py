"""Placement of shards on nodes: ranks only read shards of their own node."""

from __future__ import annotations

import dataclasses
import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core.errors import ManifestError, StoreError, UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset import column as module
from imagenet_prep.dataset.column import WHOLE, Placement
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.read.order import Order, Steps
from tests.kit.messages import says
from tests.kit.replicas import make_dataset

shards = st.lists(st.integers(1, 40), min_size=1, max_size=24)
nodes_and_copies = st.integers(1, 12).flatmap(
    lambda nodes: st.tuples(st.just(nodes), st.integers(1, nodes))
)
seeds = st.none() | st.integers(0, 1 << 64)


def orders(counts: list[int], nodes: int, copies: int, seed: int | None, window: int = 0) -> list:
    return [
        Order(tuple(counts), seed, window, Placement(node, nodes, copies)) for node in range(nodes)
    ]


@given(shards, nodes_and_copies, seeds, st.integers(0, 30), st.integers(0, 5))
def test_nodes_read_every_example_once_from_their_shards(
    counts: list[int], cluster: tuple[int, int], seed: int | None, window: int, epoch: int
) -> None:
    shard_of = np.repeat(np.arange(len(counts)), counts)
    parts = []
    for order in orders(counts, *cluster, seed, window):
        numbers = order.epoch(epoch)
        held = order.placement.held(counts)
        parts.append(numbers.tolist())

        assert set(shard_of[numbers]) <= set(held)
        assert sorted(itertools.chain.from_iterable(order.windows(epoch))) == held
        assert numbers.tolist() == order.epoch(epoch).tolist()
    assert sorted(itertools.chain.from_iterable(parts)) == list(range(sum(counts)))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(shards, nodes_and_copies)
def test_every_shard_is_on_enough_nodes(counts: list[int], cluster: tuple[int, int]) -> None:
    nodes, copies = cluster
    held = [Placement(node, nodes, copies).held(counts) for node in range(nodes)]
    share = copies * sum(counts) / nodes

    for shard, count in enumerate(counts):
        assert sum(shard in each for each in held) >= copies, count
    # Beyond its share, a node has the rest of the shards on its two borders.
    assert all(sum(counts[s] for s in each) <= share + 2 * max(counts) for each in held)
    assert WHOLE.held(counts) == list(range(len(counts)))


@given(
    shards,
    nodes_and_copies,
    st.integers(1, 4),
    st.integers(1, 12),
    st.booleans(),
    st.integers(0, 3),
    st.integers(1, 4),
    st.integers(1, 12),
)
def test_ranks_take_equal_steps_and_resume_as_others(
    counts: list[int],
    cluster: tuple[int, int],
    ranks: int,
    batch: int,
    drop_tail: bool,
    done: int,
    other_ranks: int,
    other_batch: int,
) -> None:
    nodes = cluster[0]
    total = sum(counts)
    lines = [order.epoch(3) for order in orders(counts, *cluster, 7 if drop_tail else None)]
    seen: list[int] = []

    def read(start: int, ranks: int, batch: int, wanted: int | None) -> int:
        steps = Steps(start, total, nodes * ranks, batch, drop_tail, nodes)
        for step in range(steps.count)[:wanted]:
            for rank in range(nodes * ranks):
                positions = steps.positions(step, rank)
                mine = lines[rank // ranks][positions.start : positions.stop].tolist()
                assert len(mine) == batch or not drop_tail
                seen.extend(mine)
        return steps.after(min(steps.count, steps.count if wanted is None else wanted))

    start = read(0, ranks, batch, done)
    assert len(seen) == start
    read(start, other_ranks, other_batch, None)

    assert len(set(seen)) == len(seen)
    last = Steps(start, total, nodes * other_ranks, other_batch, drop_tail, nodes)
    assert total - len(seen) == last.dropped < max(1, last.global_batch)
    assert (
        Steps(0, total, nodes * ranks, batch, drop_tail, nodes).count
        == Steps(0, total, nodes * ranks, batch, drop_tail).count
    )


def test_one_node_reads_as_without_a_placement() -> None:
    counts = (4, 5, 3)

    assert Order(counts, 42, 0, WHOLE).epoch(0).tolist() == Order(counts, 42).epoch(0).tolist()


def test_partitioned_order_never_changes_between_versions() -> None:
    parts = [order.epoch(1).tolist() for order in orders([4, 5, 3], 3, 2, 42)]

    assert parts == [[4, 2, 1, 3], [5, 8, 6, 7], [10, 11, 9, 0]]


def test_imagenet_on_300_nodes_is_balanced() -> None:
    counts = [1251 + (n < 1_281_167 % 1024) for n in range(1024)]
    held = [len(Placement(node, 300).held(counts)) for node in range(300)]
    read = {len(order.epoch(0)) for order in orders(counts, 300, 1, 0)[::50]}

    assert set(held) <= {4, 5}
    assert read <= {4270, 4271}


@pytest.mark.parametrize(("nodes", "copies", "stays"), [(4, 1, 1.0), (4, 2, 0.67), (4, 4, 0.25)])
def test_more_copies_move_examples_between_nodes(nodes: int, copies: int, stays: float) -> None:
    counts = [100] * 64
    found = []
    for epoch in range(40):
        where = np.empty((2, 6400), int)
        for later in (0, 1):
            for node, order in enumerate(orders(counts, nodes, copies, 5)):
                where[later, order.epoch(epoch + later)] = node
        found.append((where[0] == where[1]).mean())

    assert np.mean(found) == pytest.approx(stays, abs=0.12)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return make_dataset(tmp_path_factory.mktemp("manifest") / "set")


def test_placement_is_read_back(manifest: Manifest, tmp_path: Path) -> None:
    there = Placement(2, 4, 3)
    assert module.load(tmp_path, manifest) == WHOLE
    (tmp_path / "placement.json").write_bytes(there.dumps(manifest.digest))

    assert module.load(tmp_path, manifest) == there
    assert [shard.name[:11] for shard in there.shards(manifest, "train")] == [
        f"train-0000{n}" for n in (0, 3, 4, 5)
    ]
    with pytest.raises(ManifestError, match=says("belongs-dataset-manifest-folder")):
        module.load(tmp_path, dataclasses.replace(manifest, subset=False))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"dataset": "x", "node": 4, "nodes": 4, "copies": 1}',
        b'{"dataset": "x", "node": 0, "nodes": 4, "copies": 5}',
        b'{"dataset": "x", "node": 0, "nodes": 4, "copies": 0}',
        b'{"dataset": "x", "node": 0, "nodes": 1000000000, "copies": 1}',
        b'{"dataset": "x", "node": 0, "nodes": 4.0, "copies": 1}',
        b'{"dataset": "x", "node": "0", "nodes": 4, "copies": 1}',
        b'{"dataset": "x", "node": 0, "nodes": 4, "copies": 1, "more": 1}',
        b'{"dataset": "x", "node": 1%b, "nodes": 2%b, "copies": 1}' % (b"0" * 30, b"0" * 30),
    ],
)
def test_damaged_placement_is_refused(data: bytes, manifest: Manifest, tmp_path: Path) -> None:
    (tmp_path / "placement.json").write_bytes(data)

    with pytest.raises(ManifestError, match="damaged"):
        module.load(tmp_path, manifest)


def test_pipe_or_folder_as_placement_is_named(manifest: Manifest, tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    os.mkfifo(path)
    with pytest.raises(ManifestError, match=r"placement\.json: is a named pipe"):
        module.load(tmp_path, manifest)
    path.unlink()
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(ManifestError, match=r"placement\.json: has 1,099,511,627,776 bytes"):
        module.load(tmp_path, manifest)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match=says("cannot-read-2", "placement.json", "Is a directory")):
        module.load(tmp_path, manifest)


@pytest.mark.parametrize("node", range(3))
@pytest.mark.parametrize("host", range(3))
def test_part_is_only_read_by_its_host(node: int, host: int) -> None:
    ranks = [World(2 * host + local, 6, local, 2) for local in range(2)]
    for world in ranks:
        if host == node:
            Placement(node, 3).require_whole_ranks(world, "set")
        else:
            with pytest.raises(UsageError, match=says("host-number-hosts-train-start", ..., host)):
                Placement(node, 3).require_whole_ranks(world, "set")
        WHOLE.require_whole_ranks(world, "set")


@pytest.mark.parametrize("num_hosts", [1, 2, 4])
def test_part_is_not_read_by_other_hosts(num_hosts: int) -> None:
    with pytest.raises(UsageError, match=says("must-read-hosts-equal-numbers", ..., 3)):
        Placement(0, 3).require_whole_ranks(World(0, 2 * num_hosts, 0, 2), "set")


@pytest.mark.parametrize(
    ("node", "nodes", "copies", "is_sound"),
    [
        (0, 1 << 20, 1, True),
        (0, (1 << 20) + 1, 1, False),
        (2, 3, 3, True),
        (3, 3, 1, False),
        (-1, 3, 1, False),
        (0, 3, 0, False),
        (0, 3, 4, False),
    ],
)
def test_numbers_of_a_placement_have_bounds(
    node: int, nodes: int, copies: int, *, is_sound: bool
) -> None:
    if is_sound:
        assert Placement(node, nodes, copies).nodes == nodes
    else:
        with pytest.raises(ValueError):
            Placement(node, nodes, copies)
