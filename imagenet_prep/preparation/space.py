"""Checks whether the disk has enough space; estimates the output size from some images."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagenet_prep import engine
from imagenet_prep.core.errors import BadImageError, StoreError
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.example import RECORD_OVERHEAD_BYTES
from imagenet_prep.dataset.member import PreparedImage, parse_members
from imagenet_prep.preparation.selection import Selection, index_stage
from imagenet_prep.preparation.tasks import PLAN_FOLDER, plan_name
from imagenet_prep.shards import plan
from imagenet_prep.shards.plan import SplitPlan
from imagenet_prep.sources.source import IndexTask, Packed
from imagenet_prep.storage.free_space import require_space
from imagenet_prep.storage.store import Store

# Images sampled per split; with 64, the error is about 10 %.
_SAMPLE_IMAGES = 64
_MARGIN = 1.15  # of the space that is needed
# If this multiple of the source size is free, no estimate is made, since images rarely grow.
_PLENTY = 2
_UNPACKED = ", since images are unpacked first"


def require_space_for_plan(out: Store, images: int, needed: float) -> None:
    """Checks that the disk has the bytes that a plan of these images needs."""
    why = f" to assign {counted(images, 'image')} to shards"
    require_space(out, needed, why, "or use a larger disk")


@dataclass(frozen=True)
class Forecast:
    """Estimates the size of shards from some images of each split; plan files are in `folder`."""

    selection: Selection
    transform: Callable[[bytes], PreparedImage]
    resizes: bool
    workers: engine.Workers
    out: Store
    plans: Store
    folder: str = PLAN_FOLDER

    def require_space_to_unpack(self) -> None:
        """Checks that unpacked images and shards together fit on the disk."""
        source, out = self.selection.source, self.out
        if not isinstance(source, Packed):
            return
        share = self._selected_share(source)
        tasks = self.selection.index_tasks()
        unpacked = self._unpacked_bytes()
        free = out.local.free_bytes()
        if not unpacked or free > (1 + _PLENTY) * share * sum(task.num_bytes for task in tasks):
            return
        shards = 0.0
        # For a bucket, few shards are on this disk at a time; `require_space_for_shards` counts.
        if out.as_folder:
            for split in self.selection.splits:
                of_split = [task for task in tasks if task.split == split]
                num_bytes = share * sum(task.num_bytes for task in of_split)
                before, after = self._mean_bytes(_packed_sample(source, of_split))
                shards += num_bytes * (after + RECORD_OVERHEAD_BYTES) / before if before else 0
            names = filter(schema.looks_like_shard, out.names(""))
            shards = max(0, shards - sum(out.sizes(names).values()))
        require_space(self.out, unpacked + _MARGIN * shards, _UNPACKED, free=free)

    def require_space_for_shards(
        self, plans: Sequence[SplitPlan], finished: Container[str]
    ) -> None:
        """Checks that the unfinished shards fit on the disk."""
        free = self.out.local.free_bytes()
        overhead = RECORD_OVERHEAD_BYTES * sum(split.examples for split in plans)
        enough = _PLENTY * (sum(split.source_bytes for split in plans) + overhead)
        pending = [split for split in plans if _unfinished(split, finished)]
        if free <= enough and pending:
            sizes = {split.split: self._split_bytes(split) for split in pending}
            require_space(self.out, self._needed_bytes(pending, finished, sizes), free=free)

    def content(self, plans: Sequence[SplitPlan], finished: Container[str]) -> Json:
        """Returns the output location and the estimated sizes of a run, for --dry-run.

        `disk_bytes` are needed in addition to the finished shards. If the disk is too small,
        `refusal` says so.
        """
        out = self.out
        sizes = {split.split: self._split_bytes(split) for split in plans}
        estimated = {name: round(size) for name, size in sizes.items()}
        pending = [split for split in plans if _unfinished(split, finished)]
        unpacked = round(self._unpacked_bytes()) if pending else 0
        names = itertools.chain.from_iterable(_unfinished(split, finished) for split in pending)
        # The image lists are as large as the plan and are removed with it.
        planned = 2 * sum(self.plans.sizes(map(plan_name, names)).values())
        needed = round(self._needed_bytes(pending, finished, sizes)) + planned + unpacked
        free = out.local.free_bytes()
        refusal = None
        try:
            require_space(out, needed, _UNPACKED if unpacked else "", free=free)
        except StoreError as error:
            refusal = str(error)
        return {
            "out": out.where(),
            "splits": {
                split.split: {
                    "examples": split.examples,
                    "shards": split.num_shards,
                    "source_bytes": split.source_bytes,
                    "estimated_bytes": estimated[split.split],
                }
                for split in plans
            },
            "unpacked_bytes": unpacked,
            "estimated_bytes": sum(estimated.values()) + unpacked,
            "disk": str(out.local.root),
            "disk_bytes": needed,
            "free_bytes": free,
            "refusal": refusal,
            "workers": f"{self.workers.count} {self.workers.resolved_kind}",
        }

    def _selected_share(self, source: Packed) -> float:
        """Returns the share of a source's classes that are selected, and so unpacked."""
        return len(self.selection.classes) / len(source.classes.wnids)

    def _unpacked_bytes(self) -> float:
        """Returns the size of the images that are not unpacked yet."""
        source = self.selection.source
        if not isinstance(source, Packed):
            return 0.0
        tasks = self.selection.index_tasks()
        done = index_stage(self.selection, self.out.local).receipts(task.name for task in tasks)
        num_bytes = sum(task.num_bytes for task in tasks if task.name not in done)
        return self._selected_share(source) * num_bytes

    def _needed_bytes(
        self, pending: Sequence[SplitPlan], finished: Container[str], sizes: Mapping[str, float]
    ) -> float:
        """Returns the bytes on the local disk that unfinished shards need, with a margin.

        `sizes` has the bytes of all shards of each split.
        """
        by_shard = {split: sizes[split.split] / split.num_shards for split in pending}
        if self.out.as_folder is not None:
            counts = {split: len(_unfinished(split, finished)) for split in pending}
            return _MARGIN * sum(by_shard[split] * counts[split] for split in pending)
        # Workers on other machines have their own disks, which are not checked here.
        if self.workers.remote or not pending:
            return 0.0
        # A worker makes a shard while it uploads the previous one.
        return _MARGIN * 2 * self.workers.count * max(by_shard.values())

    def _split_bytes(self, split: SplitPlan) -> float:
        overhead = RECORD_OVERHEAD_BYTES * split.examples
        if not self.resizes:
            return split.source_bytes + overhead
        _, mean = self._mean_bytes(self._sample(split))
        return (mean or split.source_bytes / split.examples) * split.examples + overhead

    def _mean_bytes(self, sample: Iterator[bytes]) -> tuple[float, float]:
        """Returns the mean size of images before and after encoding; 0 if no image is usable."""
        before = []
        after = []
        for data in sample:
            with contextlib.suppress(BadImageError):
                after.append(len(self.transform(data).encoded))
                before.append(len(data))
        number = max(1, len(before))
        return sum(before) / number, sum(after) / number

    def _sample(self, split: SplitPlan) -> Iterator[bytes]:
        source = self.selection.source
        if isinstance(source, Packed):
            # In the source, images that are moved out of train are still in its part.
            of = split.split if split.split in self.selection.splits else schema.TRAIN
            return _packed_sample(source, source.index_tasks(of))
        images = self.selection.images(self.plans.local)
        name = plan_name(split.shard_names[0], self.folder)
        members = parse_members(self.plans.read(name, most=plan.MOST_BYTES))
        return map(images.read, members[:_SAMPLE_IMAGES])


def _unfinished(split: SplitPlan, finished: Container[str]) -> list[str]:
    return [name for name in split.shard_names if name not in finished]


def _packed_sample(source: Packed, tasks: Sequence[IndexTask]) -> Iterator[bytes]:
    images = itertools.chain.from_iterable(map(source.images, tasks))
    return (bytes(image.data) for image in itertools.islice(images, _SAMPLE_IMAGES))
