"""The output folder of a run: its owner, the unfinished splits, and the commit."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    ManifestError,
    StoreError,
    UsageError,
)
from imagenet_prep.dataset import class_list, manifest, schema, settings
from imagenet_prep.dataset.class_list import ClassList, Edition
from imagenet_prep.dataset.manifest import Manifest, ManifestSource, Shard, Split
from imagenet_prep.dataset.member import QUARANTINED, REPAIRED, Incident
from imagenet_prep.dataset.settings import DatasetSettings
from imagenet_prep.engine import Stage
from imagenet_prep.preparation.output import Draft, Output
from imagenet_prep.preparation.output_state import BEGUN, WantedDataset
from imagenet_prep.shards import commit
from imagenet_prep.shards.commit import publish
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import committed_dataset, shard_files
from imagenet_prep.storage.folder import TEMPORARY, LocalStore
from imagenet_prep.storage.ledger import SourceLocation, find_source
from tests.kit.dataset import all_files, stamps
from tests.kit.messages import says
from tests.kit.opened import opened
from tests.kit.system import System

CLASSES = ClassList(("n00000001",), ("thing",))
BOTH = ("train", "validation")
LIBRARIES = {"codec": "1"}
DAMAGE = [b"", b"[]", b"{}", b"[" * 100_000, b"9" * 5000, b'{"config": 5, "libraries": {}}']


def resized(*splits: str, size: int = 64, **more: Any) -> WantedDataset:
    return WantedDataset(
        DatasetSettings("resize", {s: {"short_side": size} for s in splits}), LIBRARIES, **more
    )


def prepared(size: int = 64, **more: Any) -> WantedDataset:
    config = {"splits": [*BOTH], "short_side": size}
    return WantedDataset(DatasetSettings("prepare", dict.fromkeys(BOTH, config)), LIBRARIES, **more)


def make(root: Path, wanted: WantedDataset, left: list[str] | None = None) -> list[str]:
    """Acts like a run, each split with one shard of one record; returns the unfinished splits."""
    store = LocalStore(root)
    output = Output(LocalStore(root), wanted)
    if not (found := output.left()):
        return []
    with output.store.lock():
        output.begin(found, [name(split) for split in found])
        for split in found if left is None else left:
            bad = Incident(split, name(split), 0, 1, 0, "quarantined", "odd", "", split)
            draft = Draft(
                splits={split: write(store, split)},
                classes=CLASSES,
                incidents=[bad],
                sources=[ManifestSource(name(split), 5, None, 2)],
            )
            output.commit(draft)
    return found


def name(split: str) -> str:
    return schema.shard_name(split, 0, 1)


def write(store: LocalStore, split: str) -> Split:
    # A record has at least 64 bytes.
    content = split.encode() * 16
    digest = hashlib.sha256(content).hexdigest()
    size = len(content)
    for file in (name(split), schema.index_name(name(split))):
        store.write(file, content)
    return Split(1, size, [1], 0, 1, 1, [Shard(name(split), 1, size, digest, size, digest)])


def load(root: Path) -> Manifest:
    return manifest.loads((root / schema.MANIFEST).read_bytes(), str(root))


def quarantined(root: Path) -> list[str]:
    return [json.loads(line)["key"] for line in (root / schema.QUARANTINE).read_text().splitlines()]


def test_edition_is_recognised_by_its_source_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        class_list, "_OTHERS", (Edition("known", 1, {"train": 2, "validation": 3}),)
    )
    make(tmp_path, resized(*BOTH), ["train"])
    known = load(tmp_path)
    assert (known.edition, known.subset) == ("known", False)
    make(tmp_path, resized(*BOTH))
    both = load(tmp_path)
    assert (both.edition, both.subset) == ("", True)


def test_source_without_edition_gets_none_by_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Excluding 101 images of train and 3 of validation does not give the face-blurred edition."""
    monkeypatch.setattr(class_list, "_OTHERS", (Edition("known", 1, {"train": 1}),))
    output = Output(LocalStore(tmp_path), resized("train"))
    output.begin(output.left(), [name("train")])
    split = write(output.store.local, "train")
    sources = [ManifestSource(name("train"), 5, None, 1)]
    output.commit(Draft(splits={"train": split}, classes=CLASSES, sources=sources, edition=""))
    there = load(tmp_path)
    assert (there.edition, there.subset) == ("", True)


def test_second_run_finds_a_finished_dataset(tmp_path: Path, system: System) -> None:
    assert make(tmp_path, resized(*BOTH)) == [*BOTH]
    before = stamps(tmp_path)

    synced = system.noted("fsync", below=tmp_path)
    assert make(tmp_path, resized(*BOTH)) == []
    assert synced == ["fsync ..", "fsync .", "fsync index"]  # a killed run may not have done this
    assert stamps(tmp_path) == before
    assert load(tmp_path).config == {
        "verb": "resize",
        "splits": {"train": {"short_side": 64}, "validation": {"short_side": 64}},
    }
    assert quarantined(tmp_path) == [*BOTH]


def test_unpublished_files_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    LocalStore(tmp_path).temporary().write_bytes(b"half a shard")
    make(tmp_path, resized("train"))

    assert list((tmp_path / TEMPORARY).glob("*")) == []


def test_second_run_adds_a_split_and_keeps_settings(tmp_path: Path) -> None:
    make(tmp_path, resized("validation", size=64))
    make(tmp_path, resized("train", size=50))
    there = load(tmp_path)

    assert list(there.splits) == [*BOTH]
    assert [source.name for source in there.sources] == [name("train"), name("validation")]
    assert settings.parse(there.config).splits["validation"] == {"short_side": 64}
    assert quarantined(tmp_path) == [*BOTH]


def test_killed_run_resumes_with_its_second_split(tmp_path: Path) -> None:
    assert make(tmp_path, resized(*BOTH), left=["train"]) == [*BOTH]
    assert make(tmp_path, resized(*BOTH)) == ["validation"]


@pytest.mark.parametrize("lost", [name("train"), schema.index_name(name("train"))])
def test_split_with_a_missing_file_is_unfinished(tmp_path: Path, lost: str) -> None:
    make(tmp_path, resized(*BOTH))
    (tmp_path / lost).unlink()

    assert make(tmp_path, resized(*BOTH)) == ["train"]


@pytest.mark.parametrize("wanted", [prepared, lambda size: resized(*BOTH, size=size)])
def test_different_settings_are_refused(tmp_path: Path, wanted: Any) -> None:
    make(tmp_path, wanted(64))
    before = stamps(tmp_path)
    with pytest.raises(
        UsageError,
        match="contains a dataset with different settings: short_side is 64 there, 50 here",
    ):
        make(tmp_path, wanted(50))
    (tmp_path / schema.MANIFEST).unlink()
    with pytest.raises(
        UsageError, match="an unfinished dataset with different settings: short_side is 64 there"
    ):
        make(tmp_path, wanted(50))

    del before[schema.MANIFEST]
    assert stamps(tmp_path) == before


def test_force_only_replaces_splits_with_different_settings(tmp_path: Path) -> None:
    make(tmp_path, resized(*BOTH))
    before = stamps(tmp_path)
    assert make(tmp_path, resized("train", size=50, force=True)) == ["train"]
    after = stamps(tmp_path)
    there = settings.parse(load(tmp_path).config).splits

    assert [there[split]["short_side"] for split in BOTH] == [50, 64]
    assert after[name("train")] != before[name("train")]
    assert after[name("validation")] == before[name("validation")]
    with pytest.raises(UsageError, match="or replace .*with --force"):
        make(tmp_path, resized("train", force=False))


def test_force_removes_all_files_of_the_split(tmp_path: Path) -> None:
    """An old shard would be read, and an old receipt would finish a new one of the same size."""
    make(tmp_path, resized(*BOTH))
    store = LocalStore(tmp_path)
    for split in BOTH:
        store.write(f".work/resize-{split}-0/receipts/{name(split)}", b"old")
    shard = schema.shard_name("train", 2, 3)
    for file in (shard, *schema.beside(shard), schema.index_name("train-00000-of-00004")):
        store.write(file, b"old")
    make(tmp_path, resized("train", size=50, force=True))

    files = all_files(tmp_path)
    receipt = f".work/resize-validation-0/receipts/{name('validation')}"
    assert [each for each, data in files.items() if data == b"old"] == [receipt]


def receipt(store: LocalStore, stage: str, *files: str) -> None:
    """Writes files and the receipt that names them, as a task does."""
    for file in files:
        store.write(file, b"old")
    outputs = [{"name": file, "num_bytes": 3} for file in files]
    content = {"outputs": outputs, "start_s": 1.0, "seconds": 1.0, "worker": "1"}
    shard = schema.shard_of(files[0])
    store.write(f".work/{stage}/receipts/{shard}.json", json.dumps(content).encode())


def test_unfinished_shards_are_not_mixed_into_a_commit(tmp_path: Path) -> None:
    """The next run would resume them, but until then, readers would read them."""
    shard = name("validation")
    make(tmp_path, resized("validation"), left=[])
    receipt(LocalStore(tmp_path), f"resize-validation-{'0' * 16}", shard)
    with pytest.raises(UsageError, match=says("already-contains-run-not-write", ..., shard)):
        make(tmp_path, resized("train"))
    assert make(tmp_path, resized(*BOTH)) == [*BOTH]
    assert {*load(tmp_path).splits} == {*BOTH}


def test_older_shards_are_removed_before_new_ones(tmp_path: Path) -> None:
    """Otherwise, the disk must have space for both."""
    store = LocalStore(tmp_path)
    make(tmp_path, resized("train"), left=[])
    older = schema.shard_name("train", 0, 2)
    receipt(store, f"resize-train-{'0' * 16}", older)
    output = Output(store, resized("train"))
    output.begin(output.left(), [name("train")])
    assert not (tmp_path / older).exists()


def test_shards_added_during_a_run_are_compared(tmp_path: Path) -> None:
    """A lost worker of a cluster may still publish a shard of an older plan."""
    store = LocalStore(tmp_path)
    old = schema.shard_name("train", 1, 3)
    output = Output(store, resized(*BOTH))
    with store.lock():
        output.begin(output.left(), [*map(name, BOTH)])
        receipt(store, f"resize-train-{'0' * 16}", old, *schema.beside(old))
        receipt(store, f"resize-validation-{'0' * 16}", name("validation"))
        draft = Draft(splits={"train": write(store, "train")}, classes=CLASSES)
        output.commit(draft)
        assert shard_files(store) == [*map(name, BOTH), schema.index_name(name("train"))]

        store.write(schema.index_name(old), b"not ours")
        more = Draft(splits={"validation": write(store, "validation")}, classes=CLASSES)
        with pytest.raises(
            UsageError, match=says("already-contains-run-not-write", ..., f"index/{old}", "resize")
        ):
            output.commit(more)
    assert [*load(tmp_path).splits] == ["train"]


def test_commit_lists_names_and_reads_no_data(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    output = Output(LocalStore(tmp_path), resized("train"))
    with store.lock():
        output.begin(output.left(), [name("train")])
        draft = Draft(splits={"train": write(store, "train")}, classes=CLASSES)
        with opened(tmp_path) as seen:
            output.commit(draft)

    assert {".", "index"} <= seen  # listed
    assert not {name("train"), schema.index_name(name("train"))} & seen


@pytest.mark.parametrize("unfinished", [False, True])
def test_prepared_dataset_gets_no_more_splits(tmp_path: Path, unfinished: bool) -> None:
    """CIFAR-10's splits are in one archive, so no other difference distinguishes the two runs."""
    train, validation = (
        WantedDataset(DatasetSettings("prepare", {split: {"splits": [split]}}), LIBRARIES)
        for split in BOTH
    )
    make(tmp_path, train)
    if unfinished:
        (tmp_path / schema.MANIFEST).unlink()
    with pytest.raises(UsageError, match=says("here", "splits", "['train']", "['validation']")):
        make(tmp_path, validation)


@pytest.mark.parametrize("unfinished", [False, True])
def test_dataset_of_a_different_verb_is_not_changed(tmp_path: Path, unfinished: bool) -> None:
    make(tmp_path, prepared())
    if unfinished:
        (tmp_path / schema.MANIFEST).unlink()
    with pytest.raises(UsageError, match=says("contains-dataset-did-not-make", ..., "resize")):
        make(tmp_path, resized(*BOTH, force=True))


@pytest.mark.parametrize("unfinished", [False, True])
def test_part_of_a_dataset_is_not_completed(tmp_path: Path, unfinished: bool) -> None:
    """Readers of the part would then pass over the shards that only a whole dataset has."""
    make(tmp_path, resized(*BOTH))
    if unfinished:
        (tmp_path / schema.MANIFEST).unlink()
    (tmp_path / schema.PLACEMENT).write_text("{}")
    with pytest.raises(UsageError, match=says("one-host-s-part-dataset", tmp_path)):
        make(tmp_path, resized(*BOTH))


@pytest.mark.parametrize("stranger", ["train.txt", "valid", "test-00000-of-00001"])
def test_files_that_look_like_shards_are_refused(tmp_path: Path, stranger: str) -> None:
    (tmp_path / stranger).write_bytes(b"precious")
    if stranger.startswith("test"):
        assert Output(LocalStore(tmp_path), resized(*BOTH)).left() == [*BOTH]
        return
    with pytest.raises(UsageError, match=says("already-contains-run-not-write", ..., stranger)):
        Output(LocalStore(tmp_path), resized(*BOTH)).left()


@pytest.mark.parametrize("wanted", [prepared(), resized(*BOTH)])
@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_damaged_run_json_is_refused(tmp_path: Path, damage: bytes, wanted: WantedDataset) -> None:
    (tmp_path / ".work").mkdir()
    (tmp_path / ".work" / "run.json").write_bytes(damage)

    with pytest.raises(DataDamagedError, match=r"run\.json: "):
        Output(LocalStore(tmp_path), wanted).left()


def test_foreign_settings_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / ".work").mkdir()
    (tmp_path / ".work" / "run.json").write_text('{"config": {"a": 1}, "libraries": {}}')
    with pytest.raises(UsageError, match=says("contains-dataset-did-not-make")):
        Output(LocalStore(tmp_path), prepared()).left()


def test_different_codec_neither_finishes_nor_adds_splits(tmp_path: Path) -> None:
    make(tmp_path, resized("train"))
    newer = dataclasses.replace(resized(*BOTH), libraries={"codec": "2"})
    with pytest.raises(UsageError, match=says("started-codec-run-uses", ..., "1", "2")):
        make(tmp_path, newer)
    (tmp_path / ".work" / "run.json").unlink()
    with pytest.raises(UsageError, match=says("started-codec-run-uses", ..., "1", "2")):
        make(tmp_path, newer)
    # Then no older file remains in the dataset.
    (tmp_path / name("train")).unlink()
    assert make(tmp_path, newer) == [*BOTH]
    assert load(tmp_path).producer.libraries == {"codec": "2"}


def test_force_replaces_splits_of_a_different_codec(tmp_path: Path) -> None:
    make(tmp_path, resized(*BOTH))
    newer = dataclasses.replace(resized(*BOTH, force=True), libraries={"codec": "2"})
    one = dataclasses.replace(resized("train", force=True), libraries={"codec": "2"})
    before = stamps(tmp_path)
    with pytest.raises(UsageError, match="or replace .*with --force"):
        make(tmp_path, dataclasses.replace(newer, force=False))
    for begun in (True, False):
        if not begun:
            (tmp_path / ".work" / "run.json").unlink()
        with pytest.raises(UsageError, match=r"codec 1, .* 2\. .*choose a different folder\.$"):
            make(tmp_path, one)
    assert stamps(tmp_path) == before

    assert make(tmp_path, newer, left=["train"]) == [*BOTH]
    assert load(tmp_path).producer.libraries == {"codec": "2"}
    assert make(tmp_path, newer) == ["validation"]
    assert make(tmp_path, newer) == []
    after = stamps(tmp_path)
    assert all(after[name(split)] != before[name(split)] for split in BOTH)


def test_partly_replaced_dataset_keeps_its_codec_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, resized(*BOTH))
    newer = dataclasses.replace(resized(*BOTH, force=True), libraries={"codec": "2"})
    seen: list[Manifest] = []

    def published(store: LocalStore, draft: Manifest, **more: Any) -> Manifest:
        seen.append(draft)
        return publish(store, draft, **more)

    monkeypatch.setattr("imagenet_prep.preparation.output.publish", published)
    make(tmp_path, newer)

    assert [(*draft.splits, draft.producer.libraries["codec"]) for draft in seen] == [
        ("validation", "1"),
        ("train", "2"),
        ("train", "validation", "2"),
    ]


def test_libraries_of_kept_splits_stay_named(tmp_path: Path) -> None:
    make(tmp_path, resized("train"))
    make(tmp_path, dataclasses.replace(resized("validation"), libraries={}))
    assert load(tmp_path).producer.libraries == LIBRARIES


def knows(root: Path, wanted: WantedDataset) -> bool:
    output = Output(LocalStore(root), wanted)
    output.left()
    return not output.is_doubted


def test_source_is_recorded_separately_per_split(tmp_path: Path) -> None:
    def of(split: str, identity: str) -> WantedDataset:
        return resized(split, identities={split: identity})

    make(tmp_path, of("train", "a"))
    make(tmp_path, of("validation", "b"))
    assert knows(tmp_path, of("train", "a"))
    assert knows(tmp_path, of("validation", "b"))
    assert not knows(tmp_path, of("train", "b"))
    output = Output(LocalStore(tmp_path), of("train", "c"))
    output.left()
    output.note_source()
    assert knows(tmp_path, of("train", "c"))
    assert knows(tmp_path, of("validation", "b"))


def test_future_file_time_is_recorded_as_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise later changes of the source would look older than the record."""
    monkeypatch.setattr(time, "time", lambda: 1.5e9)
    for newest, noted in ((1_500_000_001_000_000_000, 1_500_000_000_000_000_000), (7, 7)):
        wanted = resized(*BOTH, identities=dict.fromkeys(BOTH, "a"), newest=newest)
        make(tmp_path, wanted)
        for _ in range(2):
            output = Output(LocalStore(tmp_path), wanted)
            output.left()
            output.note_source()
        assert output.seen.noted.newest == noted


@pytest.mark.parametrize("damage", [None, *DAMAGE])
def test_invalid_or_missing_source_record_is_ignored(tmp_path: Path, damage: bytes | None) -> None:
    wanted = resized("train", identities={"train": "a"})
    out = tmp_path / "out"
    note = out / ".work/source.json"
    make(tmp_path / "other", resized("train", size=9, identities={"train": "a"}))
    make(out, wanted)
    assert knows(out, wanted)
    content = note.read_bytes()
    for other in (
        (tmp_path / "other/.work/source.json").read_bytes(),
        content.replace(b'"train"', b'"test"'),
    ):
        note.write_bytes(other)
        assert not knows(out, wanted)
    if damage is None:
        note.unlink()
    else:
        note.write_bytes(damage)
    assert not knows(out, wanted)


def test_keys_absent_in_replaced_split_are_undeclared(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for split, size, lacks in (
        ("train", 64, {"image/colorspace": "untrue"}),
        ("validation", 64, {}),
        ("train", 32, {}),
    ):
        wanted = resized(split, size=size, identities={split: split}, force=True)
        output = Output(store, wanted)
        output.begin(output.left(), [name(split)])
        output.commit(Draft(splits={split: write(store, split)}, classes=CLASSES, lacks=lacks))
        expected = {} if size == 32 else {"image/colorspace": "untrue"}
        assert load(tmp_path).lacks == expected


def test_receipts_of_a_different_digest_are_removed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    output = Output(store, prepared())
    stages = [Stage("write", digest * 64, store, print, WrittenShard) for digest in "ab"]
    for stage in stages:
        stage.clear()
    store.write(".work/write-archive-0123456789abcdef/kept", b"")
    output.forget_others(stages[1])
    there = [name for name in store.list_folder(".work") if name.startswith("write")]
    assert there == ["write-archive-0123456789abcdef", f"write-{'b' * 16}"]


def test_finished_dataset_is_compared_with_max_bad(tmp_path: Path) -> None:
    make(tmp_path, resized(*BOTH))
    assert make(tmp_path, resized(*BOTH, allowed_bad_images=2)) == []
    with pytest.raises(
        DataDamagedError, match=says("finished-images-quarantined-doubtful-only", ..., "2", "1")
    ):
        make(tmp_path, resized(*BOTH, allowed_bad_images=1))


def test_end_of_a_run_records_the_source_location(tmp_path: Path) -> None:
    origin = SourceLocation("/in", {"a.tar": "/elsewhere/a.tar"})
    wanted = resized(*BOTH, origin=origin)
    make(tmp_path, wanted)
    assert find_source(load(tmp_path).digest) is None
    Output(LocalStore(tmp_path), wanted).end()

    assert find_source(load(tmp_path).digest) == origin
    assert not list(tmp_path.glob(".work/origin*"))


@pytest.mark.parametrize("cut", [0, 1, -1])
def test_lost_quarantine_list_is_written_again(tmp_path: Path, cut: int) -> None:
    make(tmp_path, resized(*BOTH))
    before = all_files(tmp_path)
    path = tmp_path / schema.QUARANTINE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(path.read_bytes()[:-2] if cut < 0 else lines[0])
    if not cut:
        path.unlink()
    with pytest.raises(
        DataDamagedError,
        match=says("missing-truncated-needed-images-write", ..., ..., "train, validation"),
    ):
        make(tmp_path, resized("train"))

    assert make(tmp_path, resized(*BOTH)) == [*BOTH]
    after = all_files(tmp_path)
    assert {**after, ".work/lock": b""} == {**before, ".work/lock": b""}


def test_manifest_stays_until_the_next_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, resized("train"))
    with_root = commit.with_root
    seen = []

    def looked(store: LocalStore, split: Split) -> Split:
        seen.append((tmp_path / schema.MANIFEST).exists())
        return with_root(store, split)

    monkeypatch.setattr(commit, "with_root", looked)
    make(tmp_path, resized("validation"))
    assert seen == [True, True]


def test_manifest_and_small_files_always_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that adds a split is killed at each of its changes; the next one completes it."""
    whole = tmp_path / "whole"
    make(whole, resized(*BOTH))
    publish = LocalStore.publish
    changes = 0
    at = 0

    def killed(store: LocalStore, *given: Any, **options: Any) -> None:
        nonlocal changes
        changes += 1
        if changes == at:
            raise KeyboardInterrupt
        publish(store, *given, **options)
        if (store.root / schema.MANIFEST).exists():
            there = load(store.root)
            for file in there.files:
                assert store.size(file.name) == file.num_bytes
                assert hashlib.sha256(store.read(file.name)).hexdigest() == file.sha256

    seen = set()
    for at in range(1, 100):
        root = tmp_path / str(at)
        make(root, resized("train"))
        with monkeypatch.context() as patched:
            patched.setattr(LocalStore, "publish", killed)
            changes = 0
            try:
                make(root, resized("validation"))
                break
            except KeyboardInterrupt:
                seen.add((root / schema.MANIFEST).exists())
        make(root, resized("validation"))
        assert set(load(root).splits) == {*BOTH}
        assert load(root).files == load(whole).files
        assert not (root / schema.REPLACED).exists()
    assert seen == {True, False}


def test_quarantine_lines_are_read_individually(tmp_path: Path) -> None:
    make(tmp_path, resized(*BOTH))
    there = load(tmp_path)
    store = LocalStore(tmp_path)
    assert [each.key for each in dataset_store.incidents(store, there)] == [*BOTH]
    path = tmp_path / schema.QUARANTINE
    lines = path.read_bytes()
    for data, manifest_of in ((lines[:-2], there), (lines * 2, there), (b"{}\n", None)):
        path.write_bytes(data)
        with pytest.raises(ManifestError, match=schema.QUARANTINE):
            [*dataset_store.incidents(store, manifest_of)]
    path.write_bytes(lines * 2)
    assert len([*dataset_store.incidents(store)]) == 4


@pytest.mark.parametrize("gone", [schema.MANIFEST, schema.REPLACED])
def test_manifest_replaced_by_other_run_means_busy(
    tmp_path: Path, system: System, gone: str
) -> None:
    """Two equal commands: the first commits after the second has listed the folder."""
    make(tmp_path, resized("train"))
    (tmp_path / schema.MANIFEST).rename(tmp_path / gone)
    names = LocalStore(tmp_path).list_folder(), LocalStore(tmp_path).list_folder(schema.WORK)
    listed = {*itertools.chain(*names)}
    (tmp_path / gone).unlink()
    with pytest.raises(BusyError, match=says("different-run-replacing-wait-end", gone)):
        committed_dataset(LocalStore(tmp_path), {gone} & {*listed, f"{schema.WORK}/replaced.json"})
    with pytest.raises(BusyError, match=says("different-run-replacing-wait-end")):
        Output(LocalStore(tmp_path), resized("train")).end()
    system.fails("open", errno.EIO)
    with pytest.raises(StoreError, match=os.strerror(errno.EIO)):
        committed_dataset(LocalStore(tmp_path), {gone})


def test_dropping_the_last_split_removes_both_manifests(tmp_path: Path) -> None:
    make(tmp_path, resized("train"))
    store = LocalStore(tmp_path)
    store.write(schema.REPLACED, (tmp_path / schema.MANIFEST).read_bytes())
    output = Output(store, resized("train"))
    output.left()
    output.commit(Draft(splits={}, classes=CLASSES), dropped="train")
    assert not (tmp_path / schema.MANIFEST).exists()
    assert not (tmp_path / schema.REPLACED).exists()
    assert committed_dataset(store, store.list_folder()) is None


@pytest.mark.parametrize("action", [QUARANTINED, REPAIRED])
def test_lists_without_repaired_images_are_truncated(tmp_path: Path, action: str) -> None:
    """The next commit would lose their lines."""
    store = LocalStore(tmp_path)
    output = Output(store, resized("train"))
    with store.lock():
        output.begin(output.left(), [name("train")])
        bad = [Incident(key, name("train"), 0, 1, 0, action, "odd", "", "train") for key in "ab"]
        split = write(store, "train")
        output.commit(Draft(splits={"train": split}, classes=CLASSES, incidents=bad))
    there = load(tmp_path)
    assert (there.quarantined, there.repaired)[action == REPAIRED] == {"odd": 2}
    path = tmp_path / schema.QUARANTINE
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(DataDamagedError) as refused:
        make(tmp_path, resized("validation"))
    assert str(path) in str(refused.value)


def test_metrics_count_quarantined_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr("imagenet_prep.core.monitoring.quarantined", counts.append)
    make(tmp_path, resized("train"))
    Output(LocalStore(tmp_path), resized("train")).end()
    assert counts[-1] == sum(load(tmp_path).quarantined.values()) == 1


class Kept:
    """A bucket's folder: it keeps an existing file, as a conditional write does."""

    as_folder = None

    def __init__(self, root: Path) -> None:
        self.local = LocalStore(root)

    def write_if_absent(self, name: str, data: bytes) -> bytes:
        if self.local.size(name) is None:
            self.local.write(name, data)
        return self.local.read(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.local, name)


def test_claims_in_a_bucket_name_all_splits(tmp_path: Path) -> None:
    """Two runs for different splits that start at once must not forget each other's settings."""
    store: Any = Kept(tmp_path)
    first = Output(store, resized("train"))
    second = Output(store, resized("validation"))
    left = [first.left(), second.left()]
    first.begin(left[0], [name("train")])
    second.begin(left[1], [name("validation")])
    begun = json.loads((tmp_path / BEGUN).read_bytes())
    assert {*begun["config"]["splits"]} == {*BOTH}
