"""Shards of amended datasets: the parent's bytes and records must match its manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import example, schema
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.preparation.additions import Additions, read_additions
from imagenet_prep.preparation.changes import AmendWork, ShardChange
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.tfrecords import framed, picture, plain, wnid, write_dataset

NAME = "train-00000-of-00001"
CLASSES = 3
KEYS = [f"{wnid(number)}/{wnid(number)}_{number}.JPEG" for number in range(CLASSES)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset of one shard with three images."""
    images = [picture(number, plain(number)) for number in range(CLASSES)]
    write_dataset(tmp_path / "set", {"train": [images]}, num_classes=CLASSES)
    add_tables(tmp_path / "set")
    return tmp_path / "set"


def amended(
    root: Path, shard: Shard | None = None, add: Additions | None = None, **change: Any
) -> list[Any]:
    """Returns the records and the new images of the shard when it is amended."""
    dataset = open_dataset(LocalStore(root))
    found: list[Any] = []

    def write(_: str, records: Any) -> tuple[Any, Any]:
        found.extend(records)
        raise NotImplementedError

    new = (add.source.images, add.sha256) if add else (None, {})
    writes = cast("Any", {"train": write})
    work = AmendWork(dataset, 0, writes, *new)
    [of_parent] = dataset.manifest.splits["train"].shards
    given: Any = {"excluded": {}, "relabelled": {}, "added": (), **change}
    with pytest.raises(NotImplementedError):
        work(ShardChange(shard or of_parent, **given))
    return found


def payloads(root: Path, changes: Mapping[int, Any] = MappingProxyType({})) -> Shard:
    """Writes the shard again with some changed fields; returns its new description."""
    [shard] = open_dataset(LocalStore(root)).manifest.splits["train"].shards
    images = [picture(number, plain(number)) for number in range(CLASSES)]
    images = [image._replace(**changes.get(n, {})) for n, image in enumerate(images)]
    data = b"".join(framed(example.encode(image)) for image in images)
    (root / NAME).write_bytes(data)
    return replace(shard, num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("change", [{"excluded": {KEYS[0]: ""}}, {"relabelled": {KEYS[0]: 2}}])
def test_shard_that_contradicts_its_manifest_is_refused(root: Path, change: Any) -> None:
    """Its records have the right CRCs: a different program or version wrote it."""
    payloads(root, {1: {"text": "other"}})

    with pytest.raises(
        DataDamagedError, match=says("records-sha256-manifest-lists-records", NAME, "3")
    ):
        amended(root, **change)
    assert not (root.parent / "new").exists()


@pytest.mark.parametrize("change", [{"excluded": {KEYS[0]: ""}}, {"relabelled": {KEYS[0]: 2}}])
@pytest.mark.parametrize(
    "stored",
    [{"encoded": plain(5), "height": 24, "width": 44}, {"stored_label": 2, "wnid": wnid(1)}],
    ids=["image", "label"],
)
def test_record_that_contradicts_its_row_is_refused(root: Path, change: Any, stored: Any) -> None:
    shard = payloads(root, {0: stored})

    with pytest.raises(DataDamagedError, match=says("label-image-differs-row-table", "record 0")):
        amended(root, shard, **change)
    # An unchanged record passes byte for byte.
    [first, *_] = amended(root, shard, relabelled={KEYS[1]: 2})
    assert first.sample.key == KEYS[0]


@pytest.mark.parametrize("rows", [2, 4])
def test_wrong_number_of_records_is_refused(root: Path, rows: int) -> None:
    """The manifest names both files, so each has the right sha256."""
    shard = payloads(root)
    path = root / schema.samples_name(NAME)
    lines = path.read_bytes().splitlines(keepends=True)
    table = b"".join([*lines, lines[-1].replace(KEYS[-1].encode(), b"n/other.JPEG")][: rows + 1])
    path.write_bytes(table)
    digest = hashlib.sha256(table).hexdigest()
    shard = replace(shard, examples=rows, samples_bytes=len(table), samples_sha256=digest)

    with pytest.raises(
        DataDamagedError, match=r"more records than the \d+ in|: 3 records, sha256 "
    ):
        amended(root, shard, excluded={KEYS[0]: ""})


def test_added_image_changed_after_listing_is_refused(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "add" / "train" / wnid(0) / "new.JPEG"
    path.parent.mkdir(parents=True)
    path.write_bytes(plain(7))
    dataset = open_dataset(LocalStore(root))
    add = read_additions(str(tmp_path / "add"), dataset.classes, dataset.manifest.splits)
    new = {"add": add, "added": add.members["train"]}

    assert [each for each in amended(root, **new) if each[1] == plain(7)]
    # Whatever the system reports about the file, its bytes must be those of the new manifest.
    other = replace(add, sha256=dict.fromkeys(add.sha256, "0" * 64))
    with pytest.raises(DataDamagedError, match=says("changed-since-listed-run-same", "new.JPEG")):
        amended(root, **{**new, "add": other})


def test_unreadable_shard_is_named(root: Path) -> None:
    (root / NAME).unlink()
    with pytest.raises(StoreError, match=f"cannot read .*{NAME}: No such file"):
        amended(root)
