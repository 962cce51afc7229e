"""Adoption: foreign shards are renamed or linked as a dataset, or refused; also after a kill."""

from __future__ import annotations

import errno
import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError, IncompleteError, StoreError, UsageError
from imagenet_prep.core.strict_json import Json
from imagenet_prep.dataset import manifest, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import Incident
from imagenet_prep.engine import Workers
from imagenet_prep.preparation import adoption
from imagenet_prep.preparation.existing_set import check_existing_set
from imagenet_prep.shards import commit
from imagenet_prep.sources import shard_files
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit import faults, foreign
from tests.kit.dataset import all_files
from tests.kit.faults import failing
from tests.kit.foreign_datasets import few_images
from tests.kit.messages import says
from tests.kit.receipts import plant_hashes
from tests.kit.samples import add_tables
from tests.kit.system import System
from tests.kit.tfrecords import picture, plain, wnid, write_dataset
from tests.kit.ticks import overwrite

VERSIONS = pytest.mark.parametrize("version", ["0.1.0", "this"])
THREADS = Workers(1, "threads")
NAMES = ["train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"]
BEGUN = ".work/run.json"
BEGUN_BEFORE = ".work/adopt.json"


def write(root: Path, **how: Any) -> LocalStore:
    """Writes three shards as slim does, named from 00000 on unless `how` says otherwise."""
    shards = {"train": 2, "validation": 1}
    foreign.write(root, few_images(), foreign.slim, num_shards=shards, **how)
    return LocalStore(root)


def adopt(source: LocalStore, store: LocalStore | None = None) -> None:
    """Adopts the shards in `source`, in place or into a different store."""
    found = shard_files.find(source)
    into = store or source
    seen = check_existing_set(found, into, THREADS, quiet=True)
    adoption.complete(into, found, seen, THREADS, in_place=store is None, quiet=True)


def note(store: LocalStore, adoption: Json, version: str) -> None:
    """Records an adoption as this version does, or as 0.1.0 did."""
    if version == "0.1.0":
        store.write(BEGUN_BEFORE, strict_json.dumps(adoption))
        store.remove(BEGUN)
    else:
        config = {"verb": "adopt", "splits": {"train": {}, "validation": {}}}
        store.write(
            BEGUN, strict_json.dumps({"config": config, "libraries": {}, "adoption": adoption})
        )


def shards_of(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if schema.looks_like_shard(path.name))


def test_shards_are_renumbered_from_0_without_changing_bytes(tmp_path: Path) -> None:
    store = write(tmp_path / "set", first=1)
    before = {data for name, data in all_files(store.root).items()}
    assert adoption.moves(shard_files.find(store))[0] == ("train-00001-of-00002", NAMES[0])
    adopt(store)

    assert shards_of(store.root) == NAMES
    assert {(store.root / name).read_bytes() for name in NAMES} == before
    made = manifest.loads(store.read(schema.MANIFEST), "here")
    assert (made.subset, made.sources, made.splits["train"].examples) == (True, [], 6)


def test_tables_of_equal_keys_match_the_manifest(tmp_path: Path) -> None:
    """The keys get numbers, so the tables grow after they were written."""

    def writer(image: foreign.Image, label: int) -> Any:
        name = b"same.JPEG" if image.split == "train" else image.filename.encode()
        return {**foreign.slim(image, label), "image/filename": [name]}

    root = tmp_path / "set"
    foreign.write(root, few_images(), writer, num_shards={"train": 2, "validation": 1})
    adopt(LocalStore(root))
    dataset = Dataset.at(LocalStore(root))
    rows = itertools.chain.from_iterable(dataset.rows(dataset.shards("train")))
    assert any("same~2.JPEG" in row.key for row in rows)
    assert dataset.missing_files() == []


def test_quarantined_images_of_the_input_stay_listed(tmp_path: Path) -> None:
    lines = [
        Incident("n1/a.JPEG", "x", 0, 9, 0, "quarantined", "truncated", "ends early"),
        Incident("n1/b.JPEG", "x", 9, 9, 0, "input_quarantined", "truncated", "ends early"),
    ]
    root = tmp_path / "set"
    write_dataset(root, {"train": [[picture(0, plain(0))]]}, num_classes=1)
    draft = replace(add_tables(root), config={"splits": ["train"]})
    classes = ClassList((wnid(0),), ("thing",))
    commit.publish(LocalStore(root), draft, incidents=lines, classes=classes)
    adopt(LocalStore(root), LocalStore(tmp_path / "out"))

    out = Dataset.at(LocalStore(tmp_path / "out"))
    found = [*dataset_store.incidents(out.store, out.manifest)]
    assert {line.key: line.action for line in found} == {
        line.key: "input_quarantined" for line in lines
    }


def test_shards_in_subfolders_are_moved_up(tmp_path: Path) -> None:
    store = write(tmp_path / "set", below=True)
    adopt(store)

    assert shards_of(store.root) == NAMES
    assert not (store.root / "train").exists()


def test_adoption_into_other_folder_keeps_the_source(tmp_path: Path) -> None:
    source = write(tmp_path / "set", first=1)
    before = all_files(source.root)
    adopt(source, LocalStore(tmp_path / "out"))

    assert all_files(source.root) == before
    link = tmp_path / "out" / NAMES[0]
    original = source.root / "train-00001-of-00002"
    assert link.samefile(original)


def test_different_file_system_is_refused_with_advice(tmp_path: Path, system: System) -> None:
    source = write(tmp_path / "set")
    system.fails("link", errno.EXDEV)

    with pytest.raises(
        UsageError,
        match=says("cannot-create-hard-link-choose", ..., ..., ..., says("copy-shards-rewrite")),
    ):
        adopt(source, LocalStore(tmp_path / "out"))
    assert not (tmp_path / "out" / schema.MANIFEST).exists()


def test_failed_link_is_a_store_error(tmp_path: Path, system: System) -> None:
    source = write(tmp_path / "set")
    system.fails("link", errno.EIO)

    with pytest.raises(StoreError, match="Input/output error"):
        adopt(source, LocalStore(tmp_path / "out"))


@pytest.mark.parametrize("relative", [False, True])
def test_target_of_a_linked_shard_is_linked(tmp_path: Path, relative: bool) -> None:
    write(tmp_path / "real")
    source = tmp_path / "set"
    source.mkdir()
    for name in NAMES:
        (source / name).symlink_to(f"../real/{name}" if relative else tmp_path / "real" / name)
    adopt(LocalStore(source), LocalStore(tmp_path / "out"))

    for name in NAMES:
        assert not (tmp_path / "out" / name).is_symlink()
        assert (tmp_path / "out" / name).samefile(tmp_path / "real" / name)


def test_shard_changed_after_the_check_is_not_linked(tmp_path: Path) -> None:
    source = write(tmp_path / "set")
    store = LocalStore(tmp_path / "out")
    found = shard_files.find(source)
    seen = check_existing_set(found, store, THREADS, quiet=True)
    shard = source.root / NAMES[0]
    data = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    with pytest.raises(IncompleteError, match=says("changed-since-run-began-run", NAMES[0])):
        adoption.complete(store, found, seen, THREADS, in_place=False, quiet=True)
    assert not (store.root / schema.MANIFEST).exists()


def test_shard_of_equal_size_and_time_is_rechecked(tmp_path: Path) -> None:
    source = write(tmp_path / "set")
    store = LocalStore(tmp_path / "out")
    seen = check_existing_set(shard_files.find(source), store, THREADS, quiet=True)
    assert not seen.problems
    shard = source.root / NAMES[0]
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    overwrite(shard, data)

    seen = check_existing_set(shard_files.find(source), store, THREADS, quiet=True)
    assert len(seen.problems) == 1


def test_shard_changed_after_the_check_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "set")
    store = LocalStore(tmp_path / "out")
    found = shard_files.find(source)
    seen = check_existing_set(found, store, THREADS, quiet=True)
    shard = source.root / NAMES[0]
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    # As on a disk that does not report changed files.
    found = shard_files.find(source)
    # Files of other stores are copied, and verified during the copy.
    monkeypatch.setattr(LocalStore, "as_folder", None)

    with pytest.raises(DataDamagedError, match=says("changed-after-checked-sha256-expected")):
        adoption.complete(store, found, seen, THREADS, in_place=False, quiet=True)
    assert not (tmp_path / "out" / NAMES[0]).exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("labels.txt", b"mine\n"),
        ("quarantine.jsonl", b""),
        ("index/train-00000-of-00002", b"0 5\n"),
        ("index/notes", b""),
        ("validate.py", b""),
        ("train/notes.txt", b"mine\n"),
    ],
)
def test_conflicting_file_is_named_and_files_are_kept(
    tmp_path: Path, name: str, content: bytes
) -> None:
    store = write(tmp_path / "set", below=True)
    (store.root / name).parent.mkdir(exist_ok=True)
    (store.root / name).write_bytes(content)
    before = all_files(store.root)

    with pytest.raises(UsageError, match=says("files-way-adopt-not-replace", ..., name)):
        adopt(store)
    after = {name: d for name, d in all_files(store.root).items() if not name.startswith(".work")}
    assert after == before


def test_shards_of_a_linked_folder_are_not_moved(tmp_path: Path) -> None:
    store = write(tmp_path / "set", below=True)
    (store.root / "train").rename(tmp_path / "elsewhere")
    (store.root / "train").symlink_to(tmp_path / "elsewhere")

    with pytest.raises((UsageError, StoreError), match="link"):
        adopt(store)
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2


@VERSIONS
@pytest.mark.parametrize("after", [0, 1, 2])
def test_interrupted_renames_are_finished_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, version: str
) -> None:
    whole = write(tmp_path / "whole", first=1)
    adopt(whole)
    store = write(tmp_path / "set", first=1)
    rename = LocalStore.rename
    done = []

    def break_off(self: LocalStore, before: str, name: str) -> None:
        if len(done) == after:
            raise StoreError("the power is gone")
        done.append(name)
        rename(self, before, name)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "rename", break_off)
        with pytest.raises(StoreError):
            adopt(store)
    note(store, json.loads(store.read(BEGUN))["adoption"], version)
    adoption.finish_renames(store)

    assert shards_of(store.root) == NAMES
    adopt(store)
    assert store.read(schema.MANIFEST) == whole.read(schema.MANIFEST)


@VERSIONS
def test_duplicate_name_after_a_crash_is_removed(tmp_path: Path, version: str) -> None:
    store = write(tmp_path / "set", below=True)
    (store.root / NAMES[2]).hardlink_to(store.root / "validation" / NAMES[2])
    begun = {"renames": [[f"validation/{NAMES[2]}", NAMES[2]]], "shards": [[NAMES[2], "sha"]]}
    note(store, begun, version)
    adoption.finish_renames(store)

    assert (store.root / NAMES[2]).is_file()
    assert not (store.root / "validation").exists()


def test_renames_are_synced_before_the_folder_goes(tmp_path: Path, system: System) -> None:
    """A run that was killed after its last rename may not have synced the folder."""
    store = write(tmp_path / "set", below=True)
    renames = [[f"validation/{NAMES[2]}", NAMES[2]]]
    note(store, {"renames": renames, "shards": [[NAMES[2], "sha"]]}, "this")
    (store.root / renames[0][0]).rename(store.root / NAMES[2])
    calls = system.noted("fsync", below=store.root)
    adoption.finish_renames(store)

    assert "fsync validation" in calls
    assert not (store.root / "validation").exists()


def test_finish_renames_without_a_record_changes_nothing(tmp_path: Path) -> None:
    store = write(tmp_path / "set", first=1)
    before = all_files(store.root)
    adoption.finish_renames(store)

    assert all_files(store.root) == before


@VERSIONS
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"renames": [["../outside", NAMES[0]]]}, says("adopt-would-never-rename")),
        ({"renames": [["train-00001-of-00002", "../outside"]]}, says("adopt-would-never-rename")),
        ({"renames": [[".bashrc", NAMES[0]]]}, says("adopt-would-never-rename")),
        ({"renames": [[NAMES[0], "train-00009-of-00010"]]}, says("adopt-would-never-rename")),
        ({"renames": [["a"]]}, "renames"),
        ({"shards": [[1, 2]]}, "shards"),
        ({"shards": None}, "shards"),
    ],
    ids=str,
)
def test_forged_records_are_damage_and_move_nothing(
    tmp_path: Path, change: dict[str, Any], match: str, version: str
) -> None:
    (tmp_path / "outside").write_text("mine")
    store = write(tmp_path / "set", first=1)
    begun = {"renames": [], "shards": [[name, "sha"] for name in NAMES]} | change
    note(store, begun, version)
    before = all_files(tmp_path)

    with pytest.raises(DataDamagedError, match=match):
        adoption.finish_renames(store)
    assert {k: v for k, v in all_files(tmp_path).items() if "lock" not in k} == before


@VERSIONS
def test_second_dataset_is_not_mixed_into_unfinished_one(tmp_path: Path, version: str) -> None:
    out = LocalStore(tmp_path / "out")
    adopt(write(tmp_path / "one"), out)
    note(out, json.loads(out.read(BEGUN))["adoption"], version)
    other = write(tmp_path / "other")
    name = other.root / NAMES[0]
    name.write_bytes((other.root / NAMES[0]).read_bytes() * 2)

    with pytest.raises(UsageError, match=says("different-dataset-adopted-here-shards")) as refused:
        adopt(other, out)
    # The remedy works.
    assert f"remove everything in {out.root}" in str(refused.value)
    shutil.rmtree(out.root)
    adopt(other, out)


@VERSIONS
def test_shard_replaced_during_adoption_is_refused(tmp_path: Path, version: str) -> None:
    """The shards stay in the folder: only the files of `adopt` are removed."""
    store = write(tmp_path / "set")
    adopt(store)
    note(store, json.loads(store.read(BEGUN))["adoption"], version)
    (store.root / schema.MANIFEST).unlink()
    shard = store.root / NAMES[0]
    data = shard.read_bytes() * 2
    shard.unlink()
    shard.write_bytes(data)

    with pytest.raises(UsageError, match=says("different-dataset-adopted-here-shards")) as refused:
        adopt(store)
    advice = str(refused.value).rpartition(" or remove ")[2].partition(";")[0]
    listed = advice.replace(" and adopt's files:", ",").split(", ")
    assert {"index/", schema.LABELS} < {*listed}
    for name in listed:
        path = store.root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    adopt(store)
    assert shard.read_bytes() == data


INDEX = schema.index_name(NAMES[0])
SHARD = NAMES[0]


@pytest.fixture
def finished(tmp_path: Path) -> LocalStore:
    """A finished dataset of three shards, with tables."""
    adopt(store := write(tmp_path / "set"))
    return store


def restore(store: LocalStore) -> None:
    dataset = Dataset.at(store)
    adoption.restore(store, dataset.manifest, dataset.missing_files(), THREADS, quiet=True)


def test_lost_files_are_restored(finished: LocalStore) -> None:
    before = {name: data for name, data in all_files(finished.root).items() if ".work" not in name}
    for name in (INDEX, schema.samples_name(SHARD), schema.LABELS):
        (finished.root / name).unlink()
    restore(finished)

    after = {name: data for name, data in all_files(finished.root).items() if ".work" not in name}
    assert after == before


def test_damaged_shards_restore_no_files(finished: LocalStore) -> None:
    data = finished.read(SHARD)
    (finished.root / INDEX).unlink()
    faults.flip_bit(finished.root / SHARD, len(data) - 2)
    with pytest.raises(
        DataDamagedError,
        match=says("nothing-changed-run-imagenet-prep-verify", "1 problem", SHARD, "record"),
    ):
        restore(finished)
    assert not (finished.root / INDEX).exists()
    faults.cut(finished.root / SHARD, len(data) - 1)
    with pytest.raises(
        DataDamagedError, match=says("missing-different-size-manifest-copy", ..., ..., SHARD)
    ):
        restore(finished)
    assert not (finished.root / INDEX).exists()


def test_file_that_contradicts_the_manifest_is_not_restored(finished: LocalStore) -> None:
    """The dataset of a different program may have an index in a different form."""
    there = Dataset.at(finished).manifest
    train = there.splits["train"]
    first = replace(train.shards[0], index_sha256="0" * 64)
    splits = {**there.splits, "train": replace(train, shards=[first, *train.shards[1:]])}
    (finished.root / schema.MANIFEST).write_bytes(replace(there, splits=splits).dumps())
    (finished.root / INDEX).unlink()
    with pytest.raises(
        DataDamagedError, match=says("missing-different-size-manifest-cannot", ..., ..., INDEX)
    ):
        restore(finished)
    assert not (finished.root / INDEX).exists()


@pytest.mark.parametrize("is_planted", [False, True])
def test_changed_work_file_is_not_published(finished: LocalStore, is_planted: bool) -> None:
    (finished.root / INDEX).unlink()
    restore(finished)
    sound = finished.read(INDEX)
    (finished.root / INDEX).unlink()
    [made] = (finished.root / ".work").glob(f"tables-*/{INDEX}")
    made.write_bytes(b"1" * len(sound))
    if not is_planted:
        # After a loss of power, for example: the file was not synced.
        restore(finished)
        assert finished.read(INDEX) == sound
        return
    [stage] = (finished.root / ".work").glob("check-*")
    plant_hashes(finished, str(stage.relative_to(finished.root)))
    with pytest.raises(DataDamagedError, match=says("changed-since-written-remove-dataset", INDEX)):
        restore(finished)
    assert not (finished.root / INDEX).exists()


def test_tables_are_added_only_if_they_are_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [picture(number, plain(number)) for number in range(3)]
    write_dataset(tmp_path / "set", {"train": [images]}, num_classes=3)
    store = LocalStore(tmp_path / "set")
    before = store.read(schema.MANIFEST)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "verify_published", failing(errno.EIO))
        with pytest.raises(OSError, match="Input/output error"):
            restore(store)
        assert store.read(schema.MANIFEST) == before
    restore(store)
    assert Dataset.at(store).manifest.has_samples


def test_damaged_shards_get_no_tables(tmp_path: Path) -> None:
    images = [picture(number, plain(number)) for number in range(3)]
    write_dataset(tmp_path / "set", {"train": [images]}, num_classes=3)
    store = LocalStore(tmp_path / "set")
    shard = tmp_path / "set" / schema.shard_name("train", 0, 1)
    faults.flip_bit(shard, shard.stat().st_size - 2)
    with pytest.raises(
        DataDamagedError, match=says("nothing-changed-run-imagenet-prep-verify", "1 problem")
    ):
        restore(store)
    assert not Dataset.at(store).manifest.has_samples
