"""The files that a replica in a folder removes, and those from which it resumes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.core.errors import StoreError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.column import WHOLE, Placement
from imagenet_prep.distribute.replica import SPARE_BYTES as SPARE_BYTES
from imagenet_prep.distribute.replica import Replica, incoming_name
from tests.kit.dataset import everything
from tests.kit.messages import says
from tests.kit.replicas import make_dataset
from tests.kit.system import System

SHARD = "train-00000-of-00002"
HALF = incoming_name(SHARD)
OTHER = incoming_name(schema.index_name(SHARD))
LEFT = {HALF: b"half", OTHER: b"half"}


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    make_dataset(tmp_path / "set", shards=2, shard_bytes=1000)
    return (tmp_path / "set" / schema.MANIFEST).read_bytes()


@pytest.fixture
def replica(tmp_path: Path, data: bytes) -> Replica:
    """A replica after a killed run."""
    found = Replica(tmp_path / "replica", data)
    for name, content in LEFT.items():
        path = found.store.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return found


def left(replica: Replica) -> dict[str, bytes]:
    paths = (path for path in replica.store.root.rglob("*") if path.is_file())
    return {str(path.relative_to(replica.store.root)): path.read_bytes() for path in paths}


def test_clear_removes_the_files_of_killed_runs(replica: Replica) -> None:
    replica.clear()

    assert left(replica) == {}


def test_only_needed_partial_files_of_killed_runs_stay(replica: Replica) -> None:
    (lacking,) = (file for file in replica.files if file.name == SHARD)

    assert replica.begun([lacking]) == {SHARD: 4}
    assert left(replica) == {HALF: b"half"}


@pytest.mark.parametrize("part", [WHOLE, Placement(1, 2, 1)])
def test_a_replica_under_repair_has_no_manifest(
    tmp_path: Path, data: bytes, part: Placement, system: System
) -> None:
    replica = Replica(tmp_path / "replica", data, part)
    replica.store.write(schema.PLACEMENT, Placement(0, 2, 1).dumps(replica.manifest.digest))
    replica.commit()
    synced = []

    def fsync(sync: Callable[[int], None], descriptor: int) -> None:
        sync(descriptor)
        synced.append(sorted(everything(replica.store.root)))

    system.instead("fsync", fsync)
    replica.withdraw(replica.files)

    assert schema.MANIFEST not in synced[0], "it cannot come back"
    assert schema.PLACEMENT in synced[0]
    said = {schema.PLACEMENT: part.dumps(replica.manifest.digest)} if part != WHOLE else {}
    assert left(replica) == said


@pytest.mark.parametrize("damage", [b"{", b"{}"])
def test_damaged_manifest_is_no_different_dataset(replica: Replica, damage: bytes) -> None:
    path = replica.store.path(schema.MANIFEST)
    path.write_bytes(damage)
    with pytest.raises(UsageError, match=says("damaged-dataset-unknown-replica-dataset", path)):
        replica.refuse_others()
    path.unlink()
    replica.refuse_others()


def test_too_little_space_is_reported_before_any_transfer(replica: Replica, system: System) -> None:
    needed = sum(file.num_bytes for file in replica.files) + SPARE_BYTES
    system.has_free_bytes(needed)
    replica.require_space(replica.files)
    system.has_free_bytes(needed - 1)
    with pytest.raises(
        StoreError,
        match=says("bytes-needed-free-nothing-copied", ..., f"{needed:,}", ..., f"{needed - 1:,}"),
    ):
        replica.require_space(replica.files)
    replica.require_space([])
