"""Unpacked images and shared plans: made if they are needed, and removed without other files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.keys import KeyList, ListedFile
from imagenet_prep.preparation.planning import remove_unpacked, take_inventory
from imagenet_prep.preparation.tasks import SHARED_PLANS
from imagenet_prep.sources.source import IndexTask, Packed, PackedImage, SourcePart
from imagenet_prep.storage.folder import LocalStore
from tests.kit.listed import CLASSES, WORKERS, selection
from tests.kit.messages import says

FORMER = f"{CLASSES.wnids[0]}/former name.JPEG"


class Packs(Packed):
    """A packed file with three images of one class."""

    def __init__(self) -> None:
        task = IndexTask("pack", "train", "pack", num_bytes=30)
        super().__init__(CLASSES, (SourcePart("pack", 9, 1),), tasks=(task,))

    def images(self, task: IndexTask) -> Iterator[PackedImage]:
        assert task.name == "pack"
        for number in range(3):
            yield PackedImage(f"{CLASSES.wnids[0]}/{number}.JPEG", 0, data_of(number))


def data_of(number: int) -> bytes:
    return bytes([number]) * 10


def excluding_bytes(number: int, **more: Any) -> Any:
    """Returns a selection without the image that has these bytes, under a former name."""
    files = {hashlib.sha256(data_of(number)).hexdigest(): ListedFile(10, FORMER)}
    listed = KeyList("list", {FORMER: 1}, "its digest", files=files)
    return selection(source=Packs(), excluded=listed, num_shards={}, any_counts=True, **more)


@pytest.mark.parametrize("unpack", [False, True])
def test_listed_bytes_are_compared_with_packed_images(tmp_path: Path, *, unpack: bool) -> None:
    """A dry run unpacks them, too: it could not tell the excluded images otherwise."""
    wanted = excluding_bytes(1)
    store = LocalStore(tmp_path)
    inventory = take_inventory(wanted, store, WORKERS, quiet=True, unpack=unpack)

    [(split, members)] = inventory.excluded_members(store)
    assert (split, [member.key for member in members]) == ("train", [f"{CLASSES.wnids[0]}/1.JPEG"])


def test_bytes_of_unselected_images_name_nothing(tmp_path: Path) -> None:
    """Of one class, the images differ in whether the first image has the listed bytes."""
    accepted = []
    for number in range(3):
        wanted = excluding_bytes(number, per_class=2)
        store = LocalStore(tmp_path / str(number))
        try:
            accepted.append(take_inventory(wanted, store, WORKERS, quiet=True).examples)
        except UsageError as error:
            assert says("no-such-key-write-one", "list").search(str(error))
    assert accepted == [1, 1]


class Bucket(LocalStore):
    """A store that is treated as remote."""

    as_folder = None  # type: ignore[assignment]


def test_only_shared_plans_are_removed(tmp_path: Path) -> None:
    """Receipts stay, so that the next run does not write all shards again."""
    store = Bucket(tmp_path)
    kept = f"{schema.WORK}/receipts/train-00000.json"
    for name in (kept, f"{schema.WORK}/{SHARED_PLANS}0123/plan.json"):
        store.write(name, b"{}")
    remove_unpacked(store)

    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [str(path.relative_to(tmp_path)) for path in files] == [kept]
