"""The commit of a dataset: counts of classes, bad images, and published files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError, IncompleteError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.dataset.member import QUARANTINED, Incident
from imagenet_prep.shards.commit import publish, refuse_too_many, require_few_bad_images, split_of
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.storage.folder import LocalStore
from tests.kit.messages import says
from tests.kit.replicas import CLASSES, make_dataset
from tests.kit.system import System

SHARD = "train-00000-of-00001"


def receipt(class_index: int) -> WrittenShard:
    left_out = Incident("key", "a.tar", 0, 1, class_index, QUARANTINED, "truncated", "ends early")
    counts = ("examples", "num_bytes", "resized", "max_height", "max_width")
    sizes = ("index_bytes", "samples_bytes", "source_bytes")
    return WrittenShard(
        shard=SHARD,
        **dict.fromkeys((*counts, *sizes), 1),
        **dict.fromkeys(("sha256", "index_sha256", "samples_sha256"), "0" * 64),
        transform_s=0.1,
        incidents=[left_out],
        origins=[],
    )


def test_quarantined_image_is_not_counted() -> None:
    assert split_of([receipt(0)], [3, 4]).examples_per_class == [2, 4]
    assert split_of([receipt(1)], [3, 4]).examples_per_class == [3, 3]


def test_largest_sides_are_of_different_images() -> None:
    wide = dataclasses.replace(receipt(0), max_width=40)
    high = dataclasses.replace(receipt(1), max_height=30)

    for receipts in ([wide, high], [high, wide]):
        made = split_of(receipts, [3, 4])
        assert (made.max_width, made.max_height) == (40, 30)


@pytest.mark.parametrize("class_index", [-1, 2, 1 << 60])
def test_receipt_with_an_impossible_class_is_damage(class_index: int) -> None:
    with pytest.raises(DataDamagedError, match=says("receipt-work-quarantines-image-class", SHARD)):
        split_of([receipt(class_index)], [3, 4])


@pytest.mark.parametrize("allowed", [0, 2])
def test_bad_images_above_the_limit_are_refused(allowed: int) -> None:
    bad = receipt(0).incidents * 3
    for most in (allowed, None):
        refuse_too_many(bad[:allowed], most)
        require_few_bad_images("/out", allowed, most)
    refuse_too_many(bad, None)

    with pytest.raises(DataDamagedError, match=says("bad-images-more-max-bad-last", allowed + 1)):
        refuse_too_many(bad[: allowed + 1], allowed)
    with pytest.raises(
        DataDamagedError, match=says("finished-images-quarantined-doubtful-only", ..., allowed + 1)
    ):
        require_few_bad_images("/out", allowed + 1, allowed)


class Refusing(LocalStore):
    """A store with other files than those that were published."""

    lost: str

    def verify_published(self, files: Iterable[DatasetFile]) -> None:
        names = {file.name for file in files}
        assert all(self.size(name) is not None for name in names)
        if self.lost in names:
            raise IncompleteError("1 object changed during this run")


@pytest.mark.parametrize("lost", [SHARD, schema.index_name(SHARD), schema.LABELS])
def test_manifest_is_only_published_over_its_own_files(tmp_path: Path, lost: str) -> None:
    draft = make_dataset(tmp_path / "set", shards=1)
    store = Refusing(tmp_path / "set")
    store.lost = lost
    store.remove(schema.MANIFEST)

    with pytest.raises(IncompleteError, match="1 object changed during this run"):
        publish(store, draft, incidents=[], classes=CLASSES)
    assert store.size(schema.MANIFEST) is None


def test_names_of_shards_are_synced_before_the_manifest(tmp_path: Path, system: System) -> None:
    """Tasks publish shards, indexes and tables without syncing their names."""
    draft = make_dataset(tmp_path / "set", shards=1)
    store = LocalStore(tmp_path / "set")
    store.remove(schema.MANIFEST)
    events = system.noted("fsync", "replace", below=store.root)
    publish(store, draft, incidents=[], classes=CLASSES)

    first = next(n for n, event in enumerate(events) if event.startswith("replace"))
    assert {"fsync .", "fsync index"} <= {*events[:first]}
    assert events[-2:] == ["replace dataset.json", "fsync ."]


class Watching(LocalStore):
    """A store that records the visible manifests after each removal."""

    def remove(self, *names: str) -> None:
        super().remove(*names)
        self.visible.append(self.size(schema.MANIFEST) is not None)

    visible: list[bool]


@pytest.mark.parametrize("is_same", [True, False])
def test_same_manifest_stays_visible_while_published(tmp_path: Path, *, is_same: bool) -> None:
    """A stalled process of a shared run commits after another one has."""
    draft = make_dataset(tmp_path / "set", shards=1)
    store = Watching(tmp_path / "set")
    store.visible = []
    first = publish(store, draft, incidents=[], classes=CLASSES)
    before = store.read(schema.MANIFEST)
    replaced = first if is_same else dataclasses.replace(first, edition="other")

    assert publish(store, draft, incidents=[], classes=CLASSES, replaced=replaced) == first
    assert all(store.visible) == is_same
    assert store.read(schema.MANIFEST) == before
    assert store.size(schema.REPLACED) is None
