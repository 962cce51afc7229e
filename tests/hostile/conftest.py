"""An arena per worker, and a small valid dataset from which hostile ones are made."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.arena import Arena
from tests.kit.miniature import Miniature, miniature_for_tests
from tests.kit.shared import in_memory
from tests.kit.tfrecords import picture, plain, wnid, write_dataset
from tests.kit.warm import Warm


@pytest.fixture(scope="session")
def warm() -> Warm:
    """The process that forks all commands of this worker."""
    return command.warm_process()


@pytest.fixture(scope="session")
def memory() -> Iterator[Path]:
    """A folder for repeated writes; all of it is on one file system."""
    with tempfile.TemporaryDirectory(dir=in_memory()) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def arena_of_worker(warm: Warm, memory: Path) -> Arena:
    (memory / "arena").mkdir()
    return Arena(memory / "arena", warm)


@pytest.fixture
def arena(arena_of_worker: Arena) -> Arena:
    """An arena with an empty given folder."""
    arena_of_worker.clear()
    return arena_of_worker


@pytest.fixture(scope="session")
def sound(memory: Path) -> Path:
    """A dataset of two classes, four images of train in two shards and two of validation."""
    root = memory / "sound" / "set"
    images = [
        picture(number % 2, plain(number))._replace(filename=f"{wnid(number % 2)}_{number}.JPEG")
        for number in range(6)
    ]
    splits = {"train": [images[:2], images[2:4]], "validation": [images[4:]]}
    write_dataset(root, splits, num_classes=2)
    return root


@pytest.fixture(scope="session")
def tiny(shared_cache: Path) -> Miniature:
    """20 + 8 images of 4 classes; read-only."""
    return miniature_for_tests(
        shared_cache, num_classes=4, num_train=20, num_validation=8, size=(48, 36)
    )
