"""The files that a replica in a folder removes, and those from which it resumes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_prep.core.errors import StoreError, UsageError
from imagenet_prep.dataset import column, schema
from imagenet_prep.dataset import settings as dataset_settings
from imagenet_prep.dataset.column import WHOLE, Column, ColumnFile, Placement
from imagenet_prep.dataset.manifest import Manifest, loads
from imagenet_prep.dataset.settings import Amendment
from imagenet_prep.distribute.replica import SPARE_BYTES as SPARE_BYTES
from imagenet_prep.distribute.replica import Replica, incoming_name
from imagenet_prep.storage.folder import LocalStore
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


def amended(manifest: Manifest, *parents: str) -> bytes:
    """Returns the manifest of a later version, with an amendment of each of these versions."""
    steps = [Amendment(parent) for parent in parents]
    settings = dataset_settings.amended(manifest.splits, steps, manifest.config)
    return replace(manifest, config=settings.config).dumps()


@pytest.mark.parametrize("replaces", [False, True])
def test_only_older_versions_are_replaced(tmp_path: Path, data: bytes, *, replaces: bool) -> None:
    """An older version may have images that were removed on request."""
    old = loads(data, "old")
    newer = amended(old, old.digest)
    middle = replace(old, plan_digest="0" * 64).dumps()
    newest = amended(old, old.digest, loads(middle, "middle").digest)
    root = tmp_path / "replica"

    def refused(existing: bytes, given: bytes) -> str:
        root.mkdir(exist_ok=True)
        (root / schema.MANIFEST).write_bytes(existing)
        try:
            Replica(root, given, replaces=replaces).refuse_others()
        except UsageError as error:
            return str(error)
        return ""

    older = says("older-version-dataset-manifest-replace", root)
    for existing, given in ((data, newer), (middle, newest), (data, newest)):
        assert bool(older.search(refused(existing, given))) == (not replaces)
        assert (refused(existing, given) == "") == replaces
        assert says("newer-version-dataset-manifest-replace", root).search(refused(given, existing))
    assert refused(newer, newer) == ""
    assert says("different-dataset-manifest-expected-remove", root).search(refused(middle, newer))


NAME = "marks"


def column_of(manifest: Manifest, *splits: str, about: str = "") -> Column:
    """Returns a column of one byte per record, with the files of these splits."""
    made = Column(NAME, "uint8", (), about)
    for split in splits:
        files = []
        for shard in manifest.splits[split].shards:
            size = made.num_bytes(shard.examples)
            table = shard.samples_sha256
            files.append(ColumnFile(shard.name, shard.examples, size, "a" * 64, table))
        made = made.with_files(split, files)
    return made


@pytest.fixture
def with_tables(tmp_path: Path) -> Manifest:
    return make_dataset(tmp_path / "tables", shards=2, shard_bytes=1000, tables=True)


@pytest.mark.parametrize(
    ("existing", "reason"),
    [
        ("none", None),
        ("same", None),
        ("unfinished", "column-name-unfinished"),
        ("other", "different-column-name"),
        ("more", "column-name-additional-splits"),
    ],
)
def test_columns_of_the_target_are_only_completed(
    tmp_path: Path, with_tables: Manifest, existing: str, reason: str | None
) -> None:
    splits = {**with_tables.splits, "validation": with_tables.splits["train"]}
    ours = column_of(with_tables, "train")
    given = {column.record_name(NAME): ours.dumps()}
    root = tmp_path / "replica"
    target = Replica(root, with_tables.dumps(), columns={NAME: ours.dumps()})
    target.store.write(schema.MANIFEST, with_tables.dumps())
    if existing == "unfinished":
        target.store.write(column.begun_name(NAME), ours.begun().dumps())
    elif existing != "none":
        other = ours if existing == "same" else column_of(with_tables, "train", about="other")
        if existing == "more":
            shards = [
                replace(shard, name=shard.name.replace("train", "validation"))
                for shard in splits["validation"].shards
            ]
            more = replace(splits["train"], shards=shards)
            both = replace(with_tables, splits={**with_tables.splits, "validation": more})
            other = column_of(both, "train", "validation")
        target.store.write(column.record_name(NAME), other.dumps())
    if reason is None:
        target.refuse_others()
    else:
        with pytest.raises(UsageError, match=says(reason)):
            target.refuse_others()
    assert [*given] == [column.record_name(NAME)]


def test_column_is_withdrawn_without_its_dataset(tmp_path: Path, with_tables: Manifest) -> None:
    """Readers of the dataset continue while a file of a column is copied again."""
    ours = column_of(with_tables, "train")
    target = Replica(tmp_path / "replica", with_tables.dumps(), columns={NAME: ours.dumps()})
    target.commit()
    assert target.unfinished() == []
    [first, *_] = ours.files()
    target.withdraw([first])
    assert {*left(target)} == {schema.MANIFEST}
    assert [problem.is_missing for problem in target.unfinished()] == [True]
    target.commit()
    target.withdraw([target.files[-len(ours.files()) - 1]])
    assert {*left(target)} == {column.record_name(NAME)}


def test_finished_replica_has_no_older_files(tmp_path: Path, with_tables: Manifest) -> None:
    """Of an older version, nothing stays that names or shows images: columns, lists, hashes."""
    old = with_tables
    newer = amended(old, old.digest)
    root = tmp_path / "replica"
    store = LocalStore(root)
    store.write(schema.MANIFEST, old.dumps())
    kept = {"notes.txt", f"{schema.WORK}/note.json"}
    gone = {
        schema.SIGNATURE,
        f"{schema.COLUMNS}/{NAME}/column.json",
        f"{schema.WORK}/hashes-0123/receipts/a.json",
        *(file.name for file in old.files_of(old.splits) if file.name not in kept),
    }
    for name in gone | kept:
        store.write(name, b"x")
    target = Replica(root, newer, replaces=True)
    target.withdraw(target.files)
    assert any("older" in problem for problem in target.unfinished())
    again = Replica(root, newer, replaces=True)  # after a kill, by the next run
    again.commit()

    assert again.unfinished() == []
    assert {*left(again)} == {schema.MANIFEST, *kept, *(again.names & gone)}
    assert not (root / schema.COLUMNS / NAME).exists()
    assert not (root / schema.WORK / "hashes-0123").exists()


def test_older_manifest_is_withdrawn_if_no_file_lacks(
    tmp_path: Path, with_tables: Manifest
) -> None:
    """All files of a version without some images may be there, next to files of these images."""
    old = with_tables
    root = tmp_path / "replica"
    LocalStore(root).write(schema.MANIFEST, old.dumps())
    target = Replica(root, amended(old, old.digest), replaces=True)
    target.withdraw([])
    assert {*left(target)} == {f"{schema.WORK}/older.json"}
    target.commit()
    target.withdraw([])
    assert {*left(target)} == {schema.MANIFEST}


def test_partial_files_longer_than_the_file_are_removed(replica: Replica) -> None:
    (lacking,) = (file for file in replica.files if file.name == SHARD)
    for size, stays in ((0, False), (lacking.num_bytes, True), (lacking.num_bytes + 1, False)):
        replica.store.write(HALF, bytes(size))
        assert replica.begun([lacking]) == ({SHARD: size} if stays else {})


def test_only_parts_prevent_a_different_part(tmp_path: Path, data: bytes) -> None:
    root = tmp_path / "replica"
    Replica(root, data).store.write(schema.MANIFEST, data)
    part = Replica(root, data, Placement(0, 2, 1))
    part.refuse_others()  # a complete replica has no surplus shards yet
    digest = part.manifest.digest
    part.store.write(schema.PLACEMENT, Placement(0, 2, 1).dumps(digest))
    part.refuse_others()
    part.store.write(schema.PLACEMENT, Placement(1, 2, 1).dumps(digest))
    with pytest.raises(UsageError, match=says("remove-choose-different-folder")):
        part.refuse_others()


def test_unfinished_copy_keeps_its_part(tmp_path: Path, data: bytes) -> None:
    """A copy has no manifest before all its files are complete."""
    held = Placement(1, 2, 1)
    replica = Replica(tmp_path / "replica", data, held)
    replica.store.write(schema.PLACEMENT, held.dumps(replica.manifest.digest))
    replica.refuse_others()
    for wanted in (WHOLE, Placement(0, 2, 1)):
        other = Replica(replica.store.root, data, wanted)
        with pytest.raises(UsageError, match=says("remove-choose-different-folder", ..., held)):
            other.refuse_others()


@pytest.mark.parametrize("wanted", [WHOLE, Placement(0, 2, 1), Placement(1, 2, 2)])
def test_older_versions_keep_their_part(tmp_path: Path, data: bytes, wanted: Placement) -> None:
    """The whole dataset would fill the disk, and epochs over all parts would repeat its images."""
    old = loads(data, "old")
    newer = amended(old, old.digest)
    held = Placement(1, 2, 1)
    store = Replica(tmp_path / "replica", data).store
    store.write(schema.MANIFEST, data)
    store.write(schema.PLACEMENT, held.dumps(old.digest))
    with pytest.raises(UsageError, match=says("remove-choose-different-folder", store.root, held)):
        Replica(store.root, newer, wanted, replaces=True).refuse_others()
    Replica(store.root, newer, held, replaces=True).refuse_others()


def test_only_complete_files_of_a_parent_are_adopted(tmp_path: Path, data: bytes) -> None:
    parent = LocalStore(tmp_path / "set")
    path = parent.path(schema.shard_name("train", 0, 2))
    path.write_bytes(path.read_bytes()[:-1])
    target = Replica(tmp_path / "replica", data)
    target.adopt_files(parent, target.files)
    assert path.name not in left(target)
    assert schema.shard_name("train", 1, 2) in left(target)


def test_verified_files_are_only_noted_under_the_lock(tmp_path: Path, data: bytes) -> None:
    """`--check` may run next to the run that writes the notes."""
    target = Replica(tmp_path / "replica", data)
    [file, *_] = (file for file in target.files if file.name == SHARD)
    target.put(file, lambda: [(tmp_path / "set" / SHARD).read_bytes()])
    ledger = target.store.path(schema.replica_ledger(target.manifest.digest))
    ledger.unlink()
    target = Replica(tmp_path / "replica", data)
    with target.lock():
        pass
    assert target.problem(file, prove=True) is None
    assert not ledger.exists()
    with target.lock():
        assert target.problem(file, prove=True) is None
    assert ledger.exists()


@pytest.mark.parametrize("note", schema.BEGUN)
def test_unfinished_run_is_never_a_replica(replica: Replica, note: str) -> None:
    replica.store.write(note, b"{}")
    where = str(replica.store.root)
    with pytest.raises(UsageError, match=says("unfinished-run-prepare-resize-adopt", where)):
        replica.refuse_others()
    replica.commit()
    replica.refuse_others()


def test_unreadable_placement_is_a_problem(replica: Replica) -> None:
    replica.commit()
    assert replica.manifest_problem() is None
    replica.store.write(schema.PLACEMENT, b"[]")
    found = replica.manifest_problem()
    assert found is not None
    assert schema.PLACEMENT in str(found)


def test_unfinished_column_is_never_replaced(tmp_path: Path) -> None:
    root = tmp_path / "set"
    make_dataset(root, shards=2, shard_bytes=1000)
    data = (root / schema.MANIFEST).read_bytes()
    ours = Column("latents", "float32", (2,), "made").dumps()
    replica = Replica(tmp_path / "replica", data, columns={"latents": ours})
    replica.commit()
    replica.refuse_others()
    replica.store.write(column.begun_name("latents"), ours)
    with pytest.raises(UsageError, match=says("column-name-unfinished")):
        replica.refuse_others()
