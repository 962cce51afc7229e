"""Nodes with parts of a dataset: each example once over all nodes, from their own disks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import report, show
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import Reader, Size, catalogue, make_dataset
from imagenet_prep.read.receipt import KEPT, Receipt, Use, parse
from imagenet_prep.read.source import require_random_access
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import command
from tests.kit.messages import says
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION, TRAIN, on_backends
from tests.kit.tfrecords import numbers_of

NODES = 3
COPIES = (1, 2)
# Ranks of a node, images of a batch, copies of a shard. The short run has each number of ranks with
# each number of copies, in training or in evaluation.
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
        steps = [*itertools.chain.from_iterable(by_rank)]
        flat = [*itertools.chain.from_iterable(steps)]

        assert {len(batches) for batches in by_rank} == {NUM_TRAIN // (NODES * ranks * batch)}
        assert {*map(len, steps)} <= {batch}
        assert len(set(flat)) == len(flat) == NUM_TRAIN - readers[0].dropped_per_epoch


# With (2, 8) and more ranks, some have no image.
@on_backends(["sizes", "copies"], [((1, 4), 2)], EVALUATED, [((1, 4), 2), ((2, 3), 1), ((2, 8), 2)])
def test_evaluation_counts_every_example_exactly_once(
    nodes: Nodes, backend: str, copies: int, sizes: tuple[int, int]
) -> None:
    ranks, batch = sizes
    readers = open_all(nodes(copies), "validation", ranks, batch, backend=backend)
    by_rank = [list(reader) for reader in readers]
    counted = [*itertools.chain.from_iterable(map(seen, itertools.chain.from_iterable(by_rank)))]

    assert len({len(batches) for batches in by_rank}) == 1
    assert sorted(counted) == list(range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION))


def test_different_ranks_of_the_same_nodes_resume(nodes: Nodes) -> None:
    before = open_all(nodes(2), "train", 1, 5)
    first = [seen(next(iter(reader))) for reader in before]
    states = {json.dumps(reader.state()) for reader in before}
    assert len(states) == 1
    after = open_all(nodes(2), "train", 2, 2)
    for reader in after:
        reader.restore(json.loads(states.copy().pop()))
    rest = [*map(seen, itertools.chain.from_iterable(after))]
    flat = [*itertools.chain(*first, *rest)]

    assert len(set(flat)) == len(flat) == 15 + (NUM_TRAIN - 15) // 12 * 12


def test_state_of_a_different_partition_is_refused(nodes: Nodes, colours: Path) -> None:
    whole = open_one(colours, "train", World(), 4).state()
    one, two = (open_all(nodes(copies), "train", 1, 4)[0] for copies in COPIES)
    for reader, state in ((one, whole), (one, two.state()), (two, one.state())):
        with pytest.raises(UsageError, match=says("state-reader-use-same-dataset")):
            reader.restore(state)


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (
            World(),
            says("must-read-hosts-equal-numbers", ..., "3", "1 rank"),
        ),
        (World(0, 6, 0, 3), says("must-read-hosts-equal-numbers", ..., ..., "6 ranks", "3")),
        (World(0, 3, 0, 1), says("host-number-hosts-train-start", ..., "0")),
        (World(5, 6, 1, 2), says("host-number-hosts-train-start", ..., "2")),
    ],
)
def test_wrong_number_of_hosts_is_refused(nodes: Nodes, world: World, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_one(nodes(1)[1], "train", world, 4)


@pytest.mark.parametrize(
    "more", [{"weights": {}}, {"sizes": [Size(image_size=(8, 8))]}], ids=["weights", "sizes"]
)
def test_parts_have_no_weights_or_sizes(nodes: Nodes, more: dict[str, Any]) -> None:
    world = World(0, NODES, 0, 1)
    with pytest.raises(UsageError, match=says("one-host-s-part-partitioned")):
        open_one(nodes(1)[0], "train", world, 4, training=True, **more)


def test_single_examples_need_a_complete_copy(nodes: Nodes, colours: Path) -> None:
    part = open_one(nodes(1)[0], "train", World(0, NODES, 0, 1), 4)
    with pytest.raises(UsageError, match=says("host-only-part-partitioned-dataset")):
        require_random_access(part, ())
    require_random_access(open_one(colours, "train", World(), 4), ())


def test_step_of_a_run_needs_the_complete_dataset(
    nodes: Nodes, colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = open_one(colours, "train", World(), 4)
    rows: list[dict[str, Any]] = [{"kind": "start", "step": 0, "receipt": reader.receipt()}]
    rows += [{"kind": "train", "step": step} for step in range(len(reader))]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "train.jsonl").write_text(lines)
    words = [str(tmp_path), "--json", "--trained-on"]
    lacking = 0
    for step in range(len(reader)):
        assert show.run([*words, str(colours), "--step", str(step)]) == 0
        used = {json.loads(line)["number"] for line in capsys.readouterr().out.splitlines()}
        here = used & numbers_here(nodes(1)[0])
        lacking += len(used - here)
        if used == here:
            continue
        wanted = says("only-part-dataset-lacks-step", ..., f"{len(used - here)} image")
        with pytest.raises(UsageError, match=wanted):
            show.run([*words, str(nodes(1)[0]), "--step", str(step)])
    assert lacking


def numbers_here(part: Path) -> set[int]:
    """Returns the numbers of the training examples that a part stores."""
    found = catalogue.Catalogue(open_dataset(str(part), parts=True), ("train",))
    return {entry.number for entry in found.entries()}


@pytest.mark.parametrize("node", range(NODES))
def test_keys_of_a_part_are_found_in_it(nodes: Nodes, colours: Path, node: int) -> None:
    whole = open_one(colours, "train", World(), 4)
    part = nodes(1)[node]
    reader = open_one(part, "train", World(node, NODES, 0, 1), 4)
    here = numbers_here(part)
    assert 0 < len(here) < whole.num_examples
    found = catalogue.Catalogue(open_dataset(str(part), parts=True), ("train",))
    for number in range(whole.num_examples):
        example = whole.example(number)
        entries = found.find({example.filename}).get(example.filename, [])
        assert [entry.number for entry in entries] == ([number] if number in here else [])
        if number in here:
            assert reader.find(example.filename) == number
        else:
            with pytest.raises(KeyError):
                reader.find(example.filename)


@pytest.mark.parametrize("flag", ["--compare", "--compare with", "--predictions"])
def test_pages_that_need_all_images_refuse_parts(
    nodes: Nodes, colours: Path, tmp_path: Path, flag: str
) -> None:
    """Otherwise, the images of the other nodes would seem to be missing."""
    part = str(nodes(1)[0])
    (tmp_path / "said.csv").write_text("key,class_index,top1,p1\n")
    words = {
        "--compare": ["--compare", part, str(colours)],
        "--compare with": ["--compare", str(colours), part],
        "--predictions": [part, "--predictions", str(tmp_path / "said.csv")],
    }[flag]
    with pytest.raises(UsageError, match=says("command-needs-complete-dataset-use", part)):
        report.run([*words, "--out", str(tmp_path / "page.html")])
    assert not (tmp_path / "page.html").exists()


def test_one_host_measures_and_verifies_its_part(nodes: Nodes) -> None:
    flags = ("--seconds", "0.1", "--batch-size", "2", "--image-size", "16", "--json")
    flags += ("--backend", "native")
    measured = command.run("bench-read", nodes(1)[1], *flags)
    assert measured.code == 0, measured
    for node, part in enumerate(nodes(1)):
        verified = command.run("verify", part, "--level", "decode")
        assert verified.code == 0, verified
        assert says("part-copies", node, 3, 1).search(verified.out)


@pytest.mark.parametrize("copies", COPIES)
def test_receipt_lists_the_examples_of_all_nodes(nodes: Nodes, copies: int) -> None:
    readers = open_all(nodes(copies), "train", 2, 3)
    start = {"kind": "start", "step": 0, "receipt": readers[0].receipt()}
    read = [[*map(seen, itertools.chain(reader, reader))] for reader in readers]
    steps = len(read[0])
    saved = {"kind": "saved", "step": steps, "receipt": readers[0].state()}
    receipt = Receipt(parse([json.dumps(row).encode() for row in (start, saved)], "log"), TRAIN)

    for step in range(steps):
        expected = []
        for rank, batches in enumerate(read):
            use = Use(step, step * 2 // steps, 1, rank, KEPT)
            expected += [(use, number) for number in batches[step]]
        assert list(receipt.step(step)) == expected
    assert receipt.faults() == (steps * 18, [])
    uses = list(receipt.uses(7))
    assert [use.rank for use in uses] == [
        next(rank for rank, batches in enumerate(read) if 7 in batches[use.step]) for use in uses
    ]


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize(("ranks", "batch"), [(1, 4), (2, 3)])
def test_receipts_of_resumed_epochs_name_their_images(
    nodes: Nodes, copies: int, ranks: int, batch: int
) -> None:
    """The position in an epoch counts the images of all nodes."""
    first = open_all(nodes(copies), "train", ranks, batch)
    rows = [{"kind": "start", "step": 0, "receipt": first[0].receipt()}]
    read = [[seen(next(iter(reader)))] for reader in first]
    rows.append({"kind": "saved", "step": 1, "receipt": first[0].state()})
    resumed = open_all(nodes(copies), "train", ranks, batch)
    for reader in resumed:
        reader.restore(first[0].state())
    rows.append({"kind": "start", "step": 1, "receipt": resumed[0].receipt()})
    for batches, reader in zip(read, resumed, strict=True):
        batches += (seen(each) for each in [*reader, *reader])
    steps = len(read[0])
    rows.append({"kind": "saved", "step": steps, "receipt": resumed[0].state()})
    receipt = Receipt(parse([json.dumps(row).encode() for row in rows], "log"), TRAIN)

    for step in range(steps):
        found = [(use.rank, number) for use, number in receipt.step(step)]
        assert found == [
            (rank, number) for rank, batches in enumerate(read) for number in batches[step]
        ]
        for rank, number in found:
            assert (step, rank) in [(use.step, use.rank) for use in receipt.uses(number)]
    assert receipt.faults()[1] == []
