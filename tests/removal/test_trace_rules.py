"""Rules of the search for traces, with datasets that are written without a command."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from imagenet_prep.core.errors import IncompleteError
from imagenet_prep.core.small_files import MOST_LIST_BYTES
from imagenet_prep.dataset import schema
from imagenet_prep.read import receipt
from imagenet_prep.read.receipt import Use
from imagenet_prep.removal import traces
from imagenet_prep.removal.folders import Folder, hard_links_elsewhere
from imagenet_prep.removal.naming_files import page_text, sums_in
from imagenet_prep.removal.traced_images import stored_images
from imagenet_prep.removal.traces import Holder, Trace, TraceSearch
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import Stat
from imagenet_prep.trainer import checkpoint
from tests.kit.layouts import write
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, write_dataset


def dataset_of(root: Path, numbers: Sequence[int]) -> Path:
    """Writes a dataset of plain images, two in each shard."""
    images = [picture(number, plain(number)) for number in numbers]
    shards = [images[first : first + 2] for first in range(0, len(images), 2)]
    write_dataset(root, {"train": shards}, num_classes=20)
    add_tables(root)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return dataset_of(tmp_path / "world/set", range(6))


def search_of(root: Path, *places: Path, numbers: Sequence[int] = (0,), **more: Any) -> TraceSearch:
    """Returns a search for the images of these numbers."""
    images = map(plain, numbers)
    sizes = {hashlib.sha256(data).hexdigest(): len(data) for data in images}
    return TraceSearch(open_dataset(str(root)), sizes, [*map(str, places)], "NEW", **more)


def found_by(search: TraceSearch) -> dict[str, list[Trace]]:
    """Returns the traces by kind."""
    search.find()
    by_kind: dict[str, list[Trace]] = {}
    for trace in search.traces("NEW"):
        by_kind.setdefault(trace.kind, []).append(trace)
    return by_kind


def test_each_other_dataset_is_compared_once(root: Path) -> None:
    other = dataset_of(root.parent / "other", range(10, 14))
    shutil.copytree(root, root.parent / "copy")
    shutil.copytree(other, root.parent / "other-copy")
    compared: list[str] = []
    search = search_of(root, root.parent, compare=lambda each: compared.append(each.where))
    search.find()
    assert len(compared) == 1
    assert Path(compared[0]).name in ("other", "other-copy")


def test_hashes_of_a_dataset_are_deleted_with_it(root: Path) -> None:
    write(root / ".work/hashes-1/a.rows", b"x")
    write(root.parent / "plain/.work/hashes-2/a.rows", b"x")
    search = search_of(root, root.parent)
    found_by(search)
    assert search.not_opened == [str(root.parent / "plain/.work/hashes-2")]


def test_other_files_next_to_a_dataset_are_kept(root: Path) -> None:
    (found,) = found_by(search_of(root))[traces.DATASET]
    assert not says("delete-files-dataset-not").search(found.action)
    write(root / "photos/1.jpg", b"mine")
    write(root / "mine.tar", b"mine")
    (found,) = found_by(search_of(root))[traces.DATASET]
    assert says("delete-files-dataset-not", root, "mine.tar, photos").search(found.action)


@pytest.mark.parametrize(("where", "is_bucket"), [("s3://bucket/set", True), ("/data/set", False)])
def test_objects_of_a_bucket_are_deleted(root: Path, where: str, is_bucket: bool) -> None:
    search = search_of(root)
    own = search.dataset
    parts = {"store": own.store, "manifest": own.manifest, "placement": own.placement}
    there: Any = SimpleNamespace(where=where, **parts)
    trace = search._of_holder(Holder(there, traces.PARENT, [], ["train:a"]))
    assert bool(says("delete-objects-below", where).search(trace.action)) is is_bucket


def exported(folder: Path, root: Path, to: str) -> Path:
    """Writes an export of the first image as a note, a file and a list of sums."""
    data = plain(0)
    digest = open_dataset(str(root)).manifest.digest
    note = {"dataset": digest, "to": to, "splits": {"train": {}}, "chosen": {}}
    write(folder / "export.json", json.dumps(note).encode())
    write(folder / "train/a.jpg", data)
    line = f"{hashlib.sha256(data).hexdigest()}  train/a.jpg\n"
    write(folder / "SHA256SUMS", line.encode())
    return folder


def test_files_of_an_export_are_named_by_it(root: Path) -> None:
    folder = exported(root.parent / "export", root, "folder")
    write(root.parent / "files/a.jpg", plain(0))
    found = found_by(search_of(root, root.parent))

    (export,) = found[traces.EXPORT]
    assert export.place == str(folder)
    assert "train/a.jpg" in export.content
    assert [each.place for each in found[traces.FILE]] == [str(root.parent / "files/a.jpg")]


@pytest.mark.parametrize(("split", "may_have_it"), [("train", True), ("validation", False)])
def test_exports_of_other_splits_need_no_look(root: Path, split: str, may_have_it: bool) -> None:
    """The bytes of the image are unknown, and its file may have any name."""
    folder = root.parent / "export"
    note = {"dataset": "1" * 64, "to": "folder", "splits": {split: {}}, "chosen": {}}
    write(folder / "export.json", json.dumps(note).encode())
    search = search_of(root, root.parent, numbers=(), lines={("train", "gone.jpg")})
    search.__dict__["_ancestors"] = {"1" * 64}
    found_by(search)
    assert search.not_opened == ([str(folder)] if may_have_it else [])


def test_large_lists_of_sums_are_read() -> None:
    """An export of 14 million images has a list of more than a gigabyte."""
    digest = "a" * 64
    asked: list[Any] = []

    def read(*words: Any, most: int = 0) -> bytes:
        asked.append((*words, most))
        return f"{digest}  train/a.jpg\n{'b' * 64}  train/b.jpg\n".encode()

    store: Any = SimpleNamespace(size=lambda _: 1, read=read)
    listed = [(digest, "train/a.jpg"), ("b" * 64, "train/b.jpg")]
    assert list(sums_in(store, "SHA256SUMS")) == listed
    assert asked == [("SHA256SUMS", MOST_LIST_BYTES)]


@pytest.mark.parametrize(("size", "text"), [(64 << 20, "page"), ((64 << 20) + 1, "")])
def test_files_too_large_for_pages_are_skipped(size: int, text: str) -> None:
    store: Any = SimpleNamespace(read=lambda *_, **__: b"page")
    folder = Folder(store, {"a.html": Stat(size, "", ranges=True)})
    assert page_text(folder, "a.html") == text


@pytest.mark.parametrize(
    ("kind", "is_problem"), [("dataset", False), ("run", False), ("plain", True), ("out", False)]
)
def test_unfinished_work_elsewhere_is_a_problem(root: Path, kind: str, is_problem: bool) -> None:
    """A dataset with the image is deleted with its work; a run has no images there."""
    folder = root if kind == "dataset" else root.parent / kind
    write(folder / ".work/temporary/a", b"x")
    if kind == "run":
        write(folder / schema.TRAINING_LOG, b"")
    search = search_of(root)
    search.out = str(root.parent / "out")
    search.find()

    store = LocalStore(folder)
    refused = pytest.raises(IncompleteError, match=says("unfinished-run-cannot-searched-finish"))
    with refused if is_problem else contextlib.nullcontext():
        search._require_finished(Folder(store, store.stats("")))


class Used:
    """The steps in which a run used the images, by number."""

    split = "train"

    def __init__(self, steps: dict[int, list[tuple[int, str]]]) -> None:
        self.steps = steps

    def uses(self, number: int) -> Iterator[Use]:
        return (Use(step, 0, 0, 0, weights) for step, weights in self.steps.get(number, []))


@pytest.mark.parametrize(
    ("steps", "first", "named"),
    [
        ({0: [(5, receipt.KEPT)], 3: [(2, receipt.KEPT)]}, 2, 2),
        ({0: [(2, receipt.KEPT)], 3: [(5, receipt.KEPT)]}, 2, 2),
        ({0: [(1, receipt.DISCARDED), (3, receipt.KEPT)]}, 3, 1),
        ({3: [(3, receipt.UNSAVED)]}, 3, 1),
        ({0: [(1, receipt.DISCARDED)]}, None, 0),
        ({1: [(1, receipt.KEPT)]}, None, 0),
    ],
)
def test_first_use_decides_which_checkpoints_are_deleted(
    root: Path, steps: Any, first: int | None, named: int
) -> None:
    run = root.parent / "run"
    for step in range(7):
        write(run / checkpoint.name(step), b"")
    search = search_of(root, numbers=(0, 3))
    search.find()
    (holder,) = search.holders
    search._newest = "NEW"

    store = LocalStore(run)
    used = cast("Any", Used(steps))
    found = list(search._of_uses(Folder(store, store.stats("")), holder.digest, used))
    if first is None:
        assert found == []
        return
    (trace,) = found
    assert says("used-first-step", ..., str(first)).search(trace.content)
    images = [image.line for image in holder.images if image.number in steps]
    assert len(images) == named
    seen = [checkpoint.name(step) for step in range(first + 1, 7)]
    for name in seen[:3]:
        assert name in trace.content
    assert checkpoint.name(first) not in trace.content
    # The last checkpoint before the use may be kept.
    assert checkpoint.name(first) in trace.action
    for step in range(first):
        assert checkpoint.name(step) not in trace.action


def test_links_of_all_shards_are_problems(root: Path, tmp_path: Path) -> None:
    """The bytes of an image stay on the disk as long as one link does."""
    search = search_of(root, numbers=(0, 2, 4))
    shards = sorted({image.shard for image in stored_images(search.dataset)})
    for name in shards:
        write(tmp_path / "backup/a", b"")
        os.link(root / name, tmp_path / "backup" / name)
    found_by(search)

    assert len(search.problems) == len(shards) == 3
    for name in shards:
        is_named = says("folders-not-searched-name-folders", root / name).search
        assert any(map(is_named, search.problems))


def test_each_linked_file_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        write(path, b"x")
        os.link(path, tmp_path / f"{path.name}-link")
    assert len(list(hard_links_elsewhere(paths))) == 2


@pytest.mark.parametrize(
    ("kind", "line", "is_named"),
    [
        (traces.VERSION, ("a", "", {}), True),
        (traces.OTHER, ("a", "", {}), False),  # a different image with this key
        (traces.OTHER, ("b", "", {"0" * 64: 1}), True),
        (traces.VERSION, ("b", "", {}), False),
        (traces.VERSION, ("b", "", {"1" * 64: 1}), False),
        (traces.VERSION, ("a", "", {"1" * 64: 1}), True),
        (traces.OTHER, ("a", "", {"1" * 64: 1}), False),
        # A forgotten image has no name.
        (traces.VERSION, ("a", "5a17", {}), False),
        (traces.OTHER, ("a", "5a17", {"0" * 64: 1}), False),
    ],
)
def test_quarantine_names_images_by_key_or_bytes(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    line: tuple[str, str, dict[str, int]],
    is_named: bool,
) -> None:
    key, salt, sizes = line
    incident = SimpleNamespace(split="train", key=key, salt=salt, sizes=sizes)
    monkeypatch.setattr(dataset_store, "incidents", lambda *_: [incident])
    search = search_of(root, lines={("train", "a")})
    search.sizes = {"0" * 64: 1}
    named = list(search._named_lines(search.dataset, kind))
    assert named == ([f"train:{key}"] if is_named else [])
    # Files with these bytes are compared, so that no folder needs a look for this image.
    is_located = kind != traces.OTHER and key == "a" and bool(sizes)
    assert search._located == ({("train", "a")} if is_located else set())


def test_found_part_of_a_parent_tells_its_shards(root: Path) -> None:
    """An image may be in a different shard of the parent; only the others are as in `root`."""
    search = search_of(root, numbers=(0, 2))
    search.find()
    (own,) = search.holders
    first, second = own.images
    parent = "1" * 64
    search.__dict__["_ancestors"] = {parent}
    moved = first._replace(shard="train-00007-of-00008")
    part: Any = SimpleNamespace(manifest=SimpleNamespace(digest=parent))
    search.holders.append(Holder(part, traces.PARENT, [moved], []))
    assert search._images_of == {own.digest: [first, second], parent: [moved, second]}


def test_forgotten_keys_are_sought_in_all_versions(root: Path) -> None:
    search = search_of(root, numbers=(), lines={("train", "gone.jpg")})
    search.find()
    search.__dict__["_ancestors"] = {"1" * 64}
    search.__dict__["_whole"] = {"1" * 64}
    digests = ("1" * 64, search.dataset.manifest.digest)
    assert search._lines_of == {digest: {"train:gone.jpg"} for digest in digests}


def test_sources_of_parents_are_searched(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset may be a version whose parent was made from the source."""
    asked: list[str] = []
    monkeypatch.setattr(traces, "find_source", asked.append)
    search = search_of(root)
    search.__dict__["_ancestors"] = {"1" * 64}
    search.find()
    assert sorted(set(asked)) == sorted(["1" * 64, search.dataset.manifest.digest])
