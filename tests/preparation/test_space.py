"""Forecasts of disk space: a lack is reported before any shard is written."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from imagenet_prep.codec.transform import keep
from imagenet_prep.core.errors import BadImageError, StoreError
from imagenet_prep.core.terminal import human_bytes
from imagenet_prep.dataset.member import Member, dump_member
from imagenet_prep.engine import Workers
from imagenet_prep.preparation import space
from imagenet_prep.preparation.planning import take_inventory
from imagenet_prep.preparation.space import Forecast
from imagenet_prep.preparation.tasks import PLAN_FOLDER, plan_name
from imagenet_prep.shards import plan
from imagenet_prep.shards.plan import SplitPlan
from imagenet_prep.sources.source import IndexTask, Packed, PackedImage, SourcePart
from imagenet_prep.storage.folder import LocalStore
from tests.kit.listed import CLASSES, selection
from tests.kit.messages import says

# 2 shards of 50 images of 10 kB each, and 480 bytes per record in addition.
PLAN = SplitPlan("train", 2, (100,), 1_000_000, "")
NAMES = set(PLAN.shard_names)


class Disk(LocalStore):
    """A folder on a disk with this amount of free space."""

    free = 0

    def free_bytes(self) -> int:
        return self.free


def forecast_of(out: LocalStore, plans: LocalStore, workers: int = 1) -> Forecast:
    """Returns a forecast for shards if images keep their sizes, so that none is read."""
    threads = Workers(workers, "threads")
    return Forecast(selection(), keep, resizes=False, workers=threads, out=out, plans=plans)


@pytest.mark.parametrize(
    ("free", "finished", "fits"),
    [
        (2_100_000, set(), True),  # plenty: no forecast is made
        (1_300_000, set(), True),
        (1_200_000, {"md5-train.tar"}, False),
        (700_000, {PLAN.shard_names[0]}, True),
        (600_000, {PLAN.shard_names[0]}, False),
        (0, NAMES, True),
    ],
)
def test_unfinished_shards_must_fit(
    tmp_path: Path, free: int, finished: set[str], fits: bool
) -> None:
    disk = Disk(tmp_path)
    disk.free = free
    forecast = forecast_of(disk, disk)
    if fits:
        forecast.require_space_for_shards([PLAN], finished)
    else:
        with pytest.raises(StoreError, match=says("about-needed-only-free-free")):
            forecast.require_space_for_shards([PLAN], finished)


UNPACKED = says("since-images-unpacked-first")
TOO_SMALL = pytest.raises(StoreError, match=UNPACKED)


def stored(data: bytes) -> Any:
    """Returns a stored image that has the bytes of the source."""
    return SimpleNamespace(encoded=data)


def never(_: bytes) -> Any:
    raise AssertionError("an image was encoded")


def bucket_beside(disk: Disk, folder: Path) -> LocalStore:
    """Returns a bucket whose temporary files are on `disk`."""

    class Bucket(LocalStore):
        as_folder = None
        local = disk

    return Bucket(folder)


class Packs(Packed):
    """A source of packed files with 1 MB in each: images of 10 kB, of 1 kB in validation."""

    def __init__(self, *names: str) -> None:
        names = names or ("pack",)
        splits = {name: "validation" if name == "validation" else "train" for name in names}
        tasks = tuple(
            IndexTask(name, split, name, num_bytes=1_000_000) for name, split in splits.items()
        )
        parts = tuple(SourcePart(name, 9, 1) for name in names)
        super().__init__(CLASSES, parts, tasks=tasks)

    def images(self, task: IndexTask) -> Iterator[PackedImage]:
        size = 10_000 if task.split == "train" else 1_000
        return (PackedImage(f"{task.name}/{number}", 0, bytes(size)) for number in range(100))


@pytest.mark.parametrize(
    ("free", "finished", "fits"),
    [
        (3_000_001, 0, True),  # plenty
        (2_206_000, 0, True),
        (2_205_000, 0, False),
        (1_631_000, 500_000, True),
        (1_630_000, 500_000, False),
        # More shards than estimated free no space for images.
        (1_000_000, 3_000_000, True),
        (999_999, 3_000_000, False),
    ],
)
def test_unpacked_images_and_shards_must_fit_together(
    tmp_path: Path, free: int, finished: int, fits: bool
) -> None:
    disk = Disk(tmp_path)
    disk.free = free
    disk.write(PLAN.shard_names[0], bytes(finished))
    sampled = []

    def sample(data: bytes) -> Any:
        sampled.append(data)
        return stored(data)

    forecast = replace(
        forecast_of(disk, disk), selection=selection(source=Packs()), transform=sample
    )
    with contextlib.nullcontext() if fits else TOO_SMALL:
        forecast.require_space_to_unpack()
    assert len(sampled) == (0 if free > 3_000_000 else 64)


@pytest.mark.parametrize(("free", "fits"), [(735_067, True), (735_066, False)])
def test_unselected_classes_are_not_unpacked(tmp_path: Path, free: int, fits: bool) -> None:
    """One of three classes needs a third of the space for images and for shards."""
    disk = Disk(tmp_path)
    disk.free = free
    one = selection(source=Packs(), classes=frozenset({1}))
    forecast = replace(forecast_of(disk, disk), selection=one, transform=stored)
    with contextlib.nullcontext() if fits else TOO_SMALL:
        forecast.require_space_to_unpack()


@pytest.mark.parametrize(("free", "fits"), [(1_000_000, True), (999_999, False)])
def test_bucket_needs_disk_for_unpacked_images_only(tmp_path: Path, free: int, fits: bool) -> None:
    disk = Disk(tmp_path)
    disk.free = free
    forecast = forecast_of(bucket_beside(disk, tmp_path / "bucket"), disk)
    packs = replace(forecast, selection=selection(source=Packs()), transform=never)
    with contextlib.nullcontext() if fits else TOO_SMALL:
        packs.require_space_to_unpack()


def test_only_finished_shards_need_no_space(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.free = 2_205_000
    disk.write("labels.txt", bytes(500_000))
    packs = replace(forecast_of(disk, disk), selection=selection(source=Packs()), transform=stored)
    with TOO_SMALL:
        packs.require_space_to_unpack()


@pytest.mark.parametrize(("free", "fits"), [(4_908_000, True), (4_907_000, False)])
def test_images_of_each_split_are_measured(tmp_path: Path, free: int, fits: bool) -> None:
    """480 bytes are added to each record: 4.8 % in train, 48 % in validation."""
    disk = Disk(tmp_path)
    disk.free = free
    both = selection(source=Packs("pack", "validation"), splits=("train", "validation"))
    forecast = replace(forecast_of(disk, disk), selection=both, transform=stored)
    with contextlib.nullcontext() if fits else TOO_SMALL:
        forecast.require_space_to_unpack()


@pytest.mark.parametrize("finished", [set(), {PLAN.shard_names[0]}, NAMES])
@pytest.mark.parametrize("done", [set(), {"a"}, {"b"}, {"c", "a"}, {"a", "b", "c"}])
def test_images_unpacked_before_need_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: set[str], finished: set[str]
) -> None:
    index = SimpleNamespace(receipts=lambda names: {n: "receipt" for n in names if n in done})
    monkeypatch.setattr(space, "index_stage", lambda *_: index)
    disk = Disk(tmp_path)
    packs = replace(forecast_of(disk, disk), selection=selection(source=Packs("a", "b", "c")))
    still = 1_000_000 * (3 - len(done))

    told = packs.content([PLAN], finished)
    of_shards = forecast_of(disk, disk).content([PLAN], finished)["disk_bytes"]
    unpacked = 0 if finished == NAMES else still
    assert told["unpacked_bytes"] == unpacked
    assert bool(UNPACKED.search(str(told["refusal"]))) is bool(unpacked)
    assert told["disk_bytes"] == of_shards + unpacked
    with pytest.raises(StoreError) if still else contextlib.nullcontext():
        packs.require_space_to_unpack()


@pytest.mark.parametrize(("free", "samples"), [(2_096_000, True), (2_096_001, False)])
def test_no_image_is_sampled_if_space_is_plenty(tmp_path: Path, free: int, samples: bool) -> None:
    """Twice the images and the overhead of records is plenty, even if images are resized."""
    disk = Disk(tmp_path)
    disk.free = free
    forecast = replace(forecast_of(disk, disk), resizes=True)
    read = pytest.raises(AssertionError, match="no image is read")
    with read if samples else contextlib.nullcontext():
        forecast.require_space_for_shards([PLAN], set())


def test_complete_bucket_needs_no_space(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    disk.root.mkdir()

    forecast_of(bucket_beside(disk, tmp_path), disk).require_space_for_shards([PLAN], NAMES)


@pytest.mark.parametrize(("free", "fits"), [(1_206_000, True), (1_205_000, False)])
@pytest.mark.parametrize("finished", [set(), {PLAN.shard_names[0]}])
def test_shards_being_uploaded_must_fit_locally(
    tmp_path: Path, free: int, finished: set[str], fits: bool
) -> None:
    """A worker uploads one shard while it makes the next."""
    disk = Disk(tmp_path / "disk")
    disk.root.mkdir()
    disk.free = free

    forecast = forecast_of(bucket_beside(disk, tmp_path), disk)
    if fits:
        forecast.require_space_for_shards([PLAN], finished)
    else:
        with pytest.raises(
            StoreError, match="are needed on this machine while shards are uploaded, .* TMPDIR"
        ):
            forecast.require_space_for_shards([PLAN], finished)
    # Workers on other machines have their own disks.
    remote = cast("Any", SimpleNamespace(remote=True, count=1))
    replace(forecast, workers=remote).require_space_for_shards([PLAN], finished)


def test_each_worker_has_space_for_largest_shards(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    disk.root.mkdir()
    small = SplitPlan("validation", 1, (10,), 20_000, "")
    forecast = forecast_of(bucket_beside(disk, tmp_path), disk, workers=3)

    told = forecast.content([PLAN, small], set())
    assert told["disk_bytes"] == round(1.15 * 2 * 3 * 524_000)


def test_plan_that_does_not_fit_is_refused_first(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    # A line of 41 bytes and its entry of 28, both in joined lists and in a plan file.
    disk.free = 9 * 2 * (40 + 28)
    with pytest.raises(StoreError, match="to assign 9 images to shards, .* or use a larger disk"):
        take_inventory(selection(), disk, Workers(1, "threads"), quiet=True)
    assert not disk.names(PLAN_FOLDER)
    disk.free = 9 * 2 * (42 + 28)
    assert take_inventory(selection(), disk, Workers(1, "threads"), quiet=True).plans


def test_forecast_contains_disk_space_and_workers(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    told = forecast_of(disk, disk, 3).content([PLAN], set())

    assert told["splits"]["train"]["estimated_bytes"] == 1_048_000
    assert told["disk_bytes"] == 1_205_200
    assert (told["unpacked_bytes"], told["workers"]) == (0, "3 threads")


def test_forecast_counts_plans_of_unfinished_shards_twice(tmp_path: Path) -> None:
    """The lists of images are as large as the plan, and both are removed in the end."""
    disk = Disk(tmp_path)
    forecast = forecast_of(disk, disk)
    before = [forecast.content([PLAN], finished)["disk_bytes"] for finished in (set(), NAMES)]
    for name, size in zip(PLAN.shard_names, (300, 7), strict=True):
        disk.write(f"{PLAN_FOLDER}/{plan.file_name(name)}", bytes(size))
    finished = {PLAN.shard_names[0]}

    assert forecast.content([PLAN], set())["disk_bytes"] == before[0] + 2 * 307
    assert forecast.content([PLAN], finished)["disk_bytes"] == round(1.15 * 524_000) + 2 * 7
    assert forecast.content([PLAN], NAMES)["disk_bytes"] == before[1] == 0


@pytest.mark.parametrize("split", ["train", "holdout"])
def test_packed_images_of_each_split_are_sampled(tmp_path: Path, split: str) -> None:
    """The images of a holdout are in the part of train."""
    disk = Disk(tmp_path)

    def halved(data: bytes) -> Any:
        return SimpleNamespace(encoded=data[::2])

    packs = replace(forecast_of(disk, disk), selection=selection(source=Packs()), resizes=True)
    told = replace(packs, transform=halved).content([replace(PLAN, split=split)], set())
    assert told["splits"][split]["estimated_bytes"] == 100 * (5000 + 480)


@pytest.mark.parametrize(
    ("bad", "mean"),
    [
        (0, 5_000),
        (32, 5_000),  # images that are excluded have no part in the mean
        (64, 10_000),  # without a usable image, the source images are counted
    ],
)
def test_estimate_counts_only_usable_images(tmp_path: Path, bad: int, mean: int) -> None:
    disk = Disk(tmp_path)
    seen = itertools.count(1)

    def halved(data: bytes) -> Any:
        if next(seen) <= bad:
            raise BadImageError("decode_failed", "truncated")
        return stored(data[::2])

    packs = replace(forecast_of(disk, disk), selection=selection(source=Packs()), resizes=True)
    told = replace(packs, transform=halved).content([PLAN], set())
    assert told["splits"]["train"]["estimated_bytes"] == 100 * (mean + 480)


@pytest.mark.parametrize("bad", [0, 32])
def test_excluded_images_do_not_change_growth(tmp_path: Path, bad: int) -> None:
    disk = Disk(tmp_path)
    disk.free = 2_205_199
    seen = itertools.count(1)

    def checked(data: bytes) -> Any:
        if next(seen) <= bad:
            raise BadImageError("decode_failed", "truncated")
        return stored(data)

    packs = replace(forecast_of(disk, disk), selection=selection(source=Packs()), transform=checked)
    with TOO_SMALL:
        packs.require_space_to_unpack()
    disk.free = 2_205_201
    packs.require_space_to_unpack()


class ReadPlans(LocalStore):
    """Notes the limit with which each file is read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.most: list[int] = []

    def read(self, name: str, offset: int = 0, size: int | None = None, most: int = 0) -> bytes:
        self.most.append(most)
        return super().read(name, offset, size, most)


def test_first_images_of_a_plan_are_sampled(tmp_path: Path) -> None:
    """Other commands have their plans in a different folder; a plan may have a gigabyte."""
    plans = ReadPlans(tmp_path)
    members = [Member(f"a/{number}", "a.tar", 0, 10, 0) for number in range(100)]
    name = plan_name(PLAN.shard_names[0], "elsewhere")
    plans.write(name, b"".join(map(dump_member, members)))
    read: list[Member] = []

    def image(member: Member) -> bytes:
        read.append(member)
        return bytes(7_000)

    reader = SimpleNamespace(read=image)
    source = SimpleNamespace(source=None, images=lambda _: reader)
    disk = Disk(tmp_path / "disk")
    disk.root.mkdir()
    forecast = replace(
        forecast_of(disk, plans),
        selection=cast("Any", source),
        folder="elsewhere",
        resizes=True,
        transform=stored,
    )

    told = forecast.content([PLAN], set())
    assert told["splits"]["train"]["estimated_bytes"] == 100 * (7_000 + 480)
    assert read == members[:64]
    assert plans.most == [plan.MOST_BYTES]


@pytest.mark.parametrize(
    ("finished", "needed"), [(set(), "1.2 MB"), ({PLAN.shard_names[0]}, "602.6 kB"), (NAMES, "")]
)
def test_forecast_and_refusal_have_one_number(
    tmp_path: Path, finished: set[str], needed: str
) -> None:
    disk = Disk(tmp_path)
    forecast = forecast_of(disk, disk)
    told = forecast.content([PLAN], finished)

    if not needed:
        assert (told["disk_bytes"], told["refusal"]) == (0, None)
        return
    assert human_bytes(told["disk_bytes"]) == needed
    assert says("about-needed-only-free-free", ..., needed).search(told["refusal"])
    with pytest.raises(StoreError, match=re.escape(told["refusal"])):
        forecast.require_space_for_shards([PLAN], finished)
