"""Hosts that are folders: a local `ssh` runs their commands here, each with its own home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.fake_hosts import Hosts, make_hosts
from tests.kit.replicas import make_dataset


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Four hosts; remaining processes fail the test."""
    made = make_hosts(tmp_path)
    addresses = made.addresses
    yield made
    for address in addresses:
        made.kill(address)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Six shards of 40 kB."""
    make_dataset(tmp_path / "dataset")
    return tmp_path / "dataset"


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight shards of 500 kB, so that a limit of 4 MB/s leaves time for faults; read-only."""
    root = tmp_path_factory.mktemp("large") / "dataset"
    make_dataset(root, shards=8, shard_bytes=500_000)
    return root
