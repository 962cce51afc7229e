"""All ranks of a run read each image once, under each launcher, or nothing is read.

Here, one process acts as all ranks, with the variables of each launcher.
tests/frameworks/test_ranks starts the launchers, PyTorch, Lightning and Accelerate themselves.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.read import Reader, make_dataset
from imagenet_prep.read.order import StepSampler
from imagenet_prep.train import readers
from imagenet_prep.trainer import recipe
from imagenet_prep.trainer.comm import launched
from imagenet_prep.trainer.config import TrainConfig
from tests.kit import columns, dataloader
from tests.kit.launchers import LAUNCHERS, forget_launchers, places
from tests.kit.messages import says
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION

HOSTS = [2, 2]
BATCH = 3


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_launchers(monkeypatch)
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)


def opened(root: Path, split: str) -> Reader:
    return make_dataset(root, split, BATCH, 16, backend="native", fields=("class_index", "mask"))


def shown(batches: Any) -> list[int]:
    """Returns the examples of batches; each example has its own class."""
    found: list[int] = []
    for batch in batches:
        found += batch["class_index"][batch["mask"]].tolist()
    return found


def by_reader(root: Path, split: str) -> list[int]:
    return shown(opened(root, split))


def by_dataloader(root: Path, split: str) -> list[int]:
    reader = opened(root, split)
    return shown(dataloader.batches(reader, reader.sampler(), 0))


def by_train(root: Path, split: str) -> list[int]:
    """Opens readers like `train`."""
    how: dict[str, Any] = {"model": "tiny", "image_size": 16, "batch_size": BATCH}
    config = TrainConfig(data_dir=str(root), framework="pytorch", backend="native", **how)
    open_reader = readers(recipe.settled(config))
    return shown(open_reader(split, split == "train", launched()))


WAYS = {"reader": by_reader, "DataLoader": by_dataloader, "train": by_train}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LAUNCHERS)
def test_ranks_read_each_image_once(
    colours: Path, monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    launcher = LAUNCHERS[name]
    trained: list[int] = []
    evaluated: list[int] = []
    for place in places([1] * sum(HOSTS) if launcher.one_each else HOSTS):
        with monkeypatch.context() as patch:
            for variable, value in launcher.environment(place).items():
                patch.setenv(variable, value)
            trained += WAYS[way](colours, "train")
            evaluated += WAYS[way](colours, "validation")

    full_steps = NUM_TRAIN // (BATCH * sum(HOSTS))
    assert len(trained) == len(set(trained)) == full_steps * BATCH * sum(HOSTS)
    assert sorted(evaluated) == list(range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "NODE_RANK": "0"},  # Lightning's own launcher
        {"PMI_SIZE": "2"},
        {"RANK": "", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "2", "PMI_RANK": "1", "PMI_SIZE": "2"},
    ],
    ids=str,
)
def test_nothing_is_read_without_an_agreed_rank(
    colours: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], way: str
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(ImagenetPrepError, match=says("process-one-several-rank-their")) as caught:
        WAYS[way](colours, "train")

    assert caught.value.exit_code == (1 if way == "train" else 2)


def connect(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    """Stands for init_process_group."""
    made = {"is_available": lambda: True, "is_initialized": lambda: True}
    made |= {"get_rank": lambda: rank, "get_world_size": lambda: size}
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(**made))


def test_processes_connected_only_by_pytorch_share_the_images(
    colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[int] = []
    for rank in range(3):
        connect(monkeypatch, rank, 3)
        evaluated += by_reader(colours, "validation")

    assert sorted(evaluated) == list(range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION))


def test_reader_opened_before_connecting_ranks_is_refused(
    colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = opened(colours, "train")
    sampler = early.sampler()
    position = next(iter(sampler))
    connect(monkeypatch, 0, 2)

    refused = pytest.raises(
        UsageError, match=says("reader-opened-rank-open-readers", "0", "1", "distributed has")
    )
    with refused:
        next(iter(early))
    with refused:
        early[position]
    with refused:
        next(iter(sampler))
    with refused:
        len(sampler)
    assert len(shown(opened(colours, "train"))) == NUM_TRAIN // 2 // BATCH * BATCH


def test_ranks_write_each_row_of_a_column_once(
    colours: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "set"
    shutil.copytree(colours, root)
    written: list[int] = []
    for rank in range(2):
        monkeypatch.setenv("PMI_RANK", str(rank))
        monkeypatch.setenv("PMI_SIZE", "2")
        with columns.begin(root, world=None) as writer:
            for batch in writer:
                written += [number for number in batch["number"].tolist() if number >= 0]
                writer.write(columns.rows_of(batch))

    assert sorted(written) == list(range(NUM_TRAIN))
    assert writer.is_complete
    monkeypatch.delenv("PMI_RANK")
    with pytest.raises(UsageError, match="PMI_SIZE=2"):
        columns.begin(root, world=None)


class DistributedSampler:
    """Stands for the DistributedSampler of PyTorch, which is not installed here."""


def test_sampler_is_a_distributedsampler_if_pytorch_is_loaded(
    colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = opened(colours, "train")
    assert type(reader.sampler()) is StepSampler
    torch = SimpleNamespace(DistributedSampler=DistributedSampler)
    monkeypatch.setitem(sys.modules, "torch.utils.data", torch)
    sampler: Any = reader.sampler()

    assert isinstance(sampler, DistributedSampler)
    assert isinstance(sampler, StepSampler)
    assert list(sampler) == [(0, n, 0) for n in range(0, NUM_TRAIN - BATCH + 1, BATCH)]


def test_sampler_begins_at_the_epoch_of_a_program(colours: Path) -> None:
    """PyTorch's convention; Lightning sets the epoch of a restored position, too."""
    starts = range(0, NUM_TRAIN - BATCH + 1, BATCH)
    reader = opened(colours, "train")
    reader.set_epoch(2)
    sampler = reader.sampler()
    assert sampler.epoch == 2
    for epoch in (0, 3, cast("Any", np.int64(5))):  # a cell of a notebook that runs again
        sampler.set_epoch(epoch)
        assert sampler.epoch == epoch
    for epoch in (5, 6):
        sampler.set_epoch(epoch)
        assert list(sampler) == [(epoch, n, 0) for n in starts]
    steps = iter(sampler)
    for _ in range(2):
        next(steps)
    position = sampler.state_dict()
    assert (position["epoch"], position["examples_read"]) == (7, 2 * BATCH)

    sampler.set_epoch(9)
    assert sampler.epoch == 7
    restored = reader.sampler()
    restored.load_state_dict(position)
    restored.set_epoch(8)
    assert list(restored) == [(7, n, 0) for n in starts[2:]]
    with pytest.raises(UsageError, match=says("epoch-expected-integer-0", "1.0")):
        reader.sampler().set_epoch(cast("Any", 1.0))


def test_restored_position_keeps_its_epoch(colours: Path) -> None:
    """Lightning sets the epoch also after a restored reader, or at the start of an epoch."""
    starts = range(0, NUM_TRAIN - BATCH + 1, BATCH)
    reader = opened(colours, "train")
    sampler = reader.sampler()
    assert len(list(sampler)) == len(starts)
    at_start = sampler.state_dict()
    assert (at_start["epoch"], at_start["examples_read"]) == (1, 0)
    restored = reader.sampler()
    restored.load_state_dict(at_start)
    restored.set_epoch(8)
    assert list(restored) == [(1, n, 0) for n in starts]

    reader.restore(at_start | {"examples_read": 2 * BATCH})
    continued = reader.sampler()
    continued.set_epoch(8)
    assert list(continued) == [(1, n, 0) for n in starts[2:]]


def test_lightning_treats_a_reader_as_an_iterable(colours: Path) -> None:
    """Lightning looks for a batch sampler in an object with a sampler, as in a DataLoader."""
    assert opened(colours, "train").batch_sampler is None
