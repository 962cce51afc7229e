"""A shard of an amended dataset: its parent's bytes and records are those that the parent names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import example, naming
from imagenet_prep.dataset.keys import KeyList
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.dataset.member import Member
from imagenet_prep.preparation.amended_shard import AmendWork
from imagenet_prep.preparation.changes import Relabels, Request, ShardChange, changes_of
from imagenet_prep.shards.writer import Stored
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.opened import open_dataset
from tests.kit.samples import add_tables
from tests.kit.tfrecords import framed, picture, plain, wnid, write_set

NAME = "train-00000-of-00001"
CLASSES = 3
KEYS = [f"{wnid(number)}/{wnid(number)}_{number}.JPEG" for number in range(CLASSES)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A dataset of one shard with three images."""
    images = [picture(number, plain(number)) for number in range(CLASSES)]
    write_set(tmp_path / "set", {"train": [images]}, num_classes=CLASSES)
    add_tables(tmp_path / "set")
    return tmp_path / "set"


def amended(root: Path, shard: Shard | None = None, **change: Any) -> list[Stored]:
    """Returns the records that stay when the shard is amended."""
    dataset, stay = open_dataset(LocalStore(root)), []

    def write(_: str, records: Any) -> tuple[Any, Any]:
        stay.extend(records)
        raise NotImplementedError

    work = AmendWork(
        dataset.store, {}, 1, dataset.classes, 0, cast("Any", {"train": write}), None, {}
    )
    [of_parent] = dataset.manifest.splits["train"].shards
    given = {"excluded": frozenset(), "relabelled": {}, "added": (), **change}
    with pytest.raises(NotImplementedError):
        work(ShardChange(shard or of_parent, **given))
    return stay


def payloads(root: Path, changes: Mapping[int, Any] = {}) -> Shard:  # noqa: B006
    """Writes the shard again with some fields changed; returns its new description."""
    [shard] = open_dataset(LocalStore(root)).manifest.splits["train"].shards
    images = [picture(number, plain(number)) for number in range(CLASSES)]
    images = [image._replace(**changes.get(n, {})) for n, image in enumerate(images)]
    data = b"".join(framed(example.encode(image)) for image in images)
    (root / NAME).write_bytes(data)
    return replace(shard, num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("change", [{"excluded": frozenset(KEYS[:1])}, {"relabelled": {KEYS[0]: 2}}])
def test_a_shard_with_other_bytes_than_its_manifest_names_is_refused(
    root: Path, change: Any
) -> None:
    """Its records have the right CRCs: another program, or another version, wrote it."""
    payloads(root, {1: {"text": "other"}})

    with pytest.raises(DataDamagedError, match=f"{NAME}: 3 records, sha256 .*Run verify"):
        amended(root, **change)
    assert not (root.parent / "new").exists()


@pytest.mark.parametrize("change", [{"excluded": frozenset(KEYS[:1])}, {"relabelled": {KEYS[0]: 2}}])
@pytest.mark.parametrize(
    "stored",
    [{"encoded": plain(5), "height": 24, "width": 44}, {"stored_label": 2, "wnid": wnid(1)}],
    ids=["image", "label"],
)
def test_a_record_that_contradicts_its_row_is_neither_excluded_nor_relabelled(
    root: Path, change: Any, stored: Any
) -> None:
    shard = payloads(root, {0: stored})

    with pytest.raises(DataDamagedError, match=r"record 0: .* table of samples"):
        amended(root, shard, **change)
    # Records that stay pass byte for byte, so only `verify` compares these with the table.
    [first, *_] = amended(root, shard, relabelled={KEYS[1]: 2})
    assert first.sample.key == KEYS[0]
