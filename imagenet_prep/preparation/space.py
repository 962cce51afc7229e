"""Does it fit: what a run will write, foretold from a sample run through the codec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from imagenet_prep import engine
from imagenet_prep.codec.transform import transform
from imagenet_prep.core import cli
from imagenet_prep.core.errors import BadImageError, StoreError
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.member import MAX_IMAGE_BYTES
from imagenet_prep.preparation.job import Job
from imagenet_prep.preparation.tasks import plan_name
from imagenet_prep.shards import plan
from imagenet_prep.sources.source import IndexTask, Packed
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.store import Store

# Images sampled a split to foresee the output's size; 64 keep the error near 10 %.
_SAMPLE_IMAGES = 64
_MARGIN = 1.15
# With this many times the source's size free, nothing needs to be foreseen: shrinking makes
# images smaller, and those that are only repaired are few.
_PLENTY = 2
# Keys, names and framing of a record, without the image: 330...480 bytes as measured.
_RECORD_OVERHEAD_BYTES = 480


def check_unpacking(
    job: Job, out: Store, stage: engine.Stage[IndexTask], tasks: Sequence[IndexTask]
) -> None:
    """Refuses to unpack what the disk cannot hold beside the shards.

    Raises:
      StoreError: too little space; the message says how much is missing.
    """
    if not isinstance(job.source, Packed):
        return
    # Only images of the chosen classes are unpacked.
    share = len(job.chosen) / len(job.source.classes.wnids)
    done = stage.receipts(task.name for task in tasks)
    pending = [task for task in tasks if task.name not in done]
    unpacked = share * sum(map(job.source.unpacked_bytes, pending))
    free = out.local.free_bytes()
    if not pending or free > (1 + _PLENTY) * share * sum(map(job.source.unpacked_bytes, tasks)):
        return
    shards = 0.0
    # Shards that go to a bucket are on this disk a few at a time: `check_shards` looks at that.
    if out is out.local:
        for split in {task.split for task in tasks}:
            mine = [task for task in tasks if task.split == split]
            num_bytes = share * sum(map(job.source.unpacked_bytes, mine))
            before, after = _mean_bytes(job, _packed_sample(job.source, mine))
            shards += num_bytes * (after + _RECORD_OVERHEAD_BYTES) / before if before else 0
        names = filter(naming.looks_like_shard, out.names(""))
        shards = max(0, shards - sum(out.sizes(names).values()))
    _refuse(out, unpacked + _MARGIN * shards, free, "; images are unpacked first")


def check_shards(job: Job, out: Store, plans: Sequence[plan.SplitPlan], pending: set[str]) -> None:
    """Refuses to start what the disk cannot hold, before any of it is written.

    Raises:
      StoreError: too little space; the message says how much is missing.
    """
    store = out.local
    free = store.free_bytes()
    overhead = _RECORD_OVERHEAD_BYTES * sum(split.examples for split in plans)
    if free > _PLENTY * (sum(split.source_bytes for split in plans) + overhead):
        return
    left = [split for split in plans if not pending.isdisjoint(split.shard_names)]
    if store is not out:
        # What a worker on another machine has free shows there.
        needed = 0.0 if job.workers.remote else _MARGIN * _passing_bytes(job, store, left)
        _refuse(out, needed, free, " here while shards are sent")
        return
    needed = _MARGIN * sum(
        _foreseen_bytes(job, store, split)
        * sum(name in pending for name in split.shard_names)
        / split.num_shards
        for split in left
    )
    _refuse(out, needed, free)


def foresee(
    job: Job, store: LocalStore, plans: Sequence[plan.SplitPlan], out: Store
) -> dict[str, Any]:
    """Returns what a run would write to `out`, from plans that lie in `store`."""
    foreseen = {split.split: round(_foreseen_bytes(job, store, split)) for split in plans}
    packed = isinstance(job.source, Packed)
    unpacked = sum(split.source_bytes for split in plans) if packed else 0
    shards = sum(foreseen.values())
    on_disk = shards if out is out.local else round(_passing_bytes(job, store, plans))
    return {
        "out": out.where(),
        "splits": {
            split.split: {
                "examples": split.examples,
                "shards": split.num_shards,
                "source_bytes": split.source_bytes,
                "estimated_bytes": foreseen[split.split],
            }
            for split in plans
        },
        "unpacked_bytes": unpacked,
        "estimated_bytes": shards + unpacked,
        "disk": str(out.local.root),
        "disk_bytes": on_disk + unpacked,
        "free_bytes": out.local.free_bytes(),
        "workers": f"{job.workers.count} {job.workers.resolved_kind}",
    }


def _refuse(out: Store, needed: float, free: int, why: str = "") -> None:
    if needed > free:
        elsewhere = (
            "choose another --out or a smaller --short-side"
            if out is out.local
            else "or set TMPDIR to a folder on a larger disk"
        )
        raise StoreError(
            f"{out.local.root}: about {cli.human_bytes(needed)} are still to be written{why}, "
            f"{cli.human_bytes(free)} are free. Free {cli.human_bytes(needed - free)}, {elsewhere}."
        )


def _passing_bytes(job: Job, store: LocalStore, plans: Sequence[plan.SplitPlan]) -> float:
    """Returns about how many bytes are on this disk while shards go to a bucket."""
    largest = max(_foreseen_bytes(job, store, split) / split.num_shards for split in plans)
    # A worker sends a shard while it makes the next.
    return 2 * job.workers.count * largest


def _foreseen_bytes(job: Job, store: LocalStore, split: plan.SplitPlan) -> float:
    """Returns about how many bytes a split's shards take."""
    overhead = _RECORD_OVERHEAD_BYTES * split.examples
    if job.policy.short_side is None:
        return split.source_bytes + overhead
    _, mean = _mean_bytes(job, _sample(job, store, split))
    return (mean or split.source_bytes / split.examples) * split.examples + overhead


def _sample(job: Job, store: LocalStore, split: plan.SplitPlan) -> Iterator[bytes]:
    if isinstance(job.source, Packed):
        yield from _packed_sample(job.source, job.source.index_tasks(split.split))
        return
    reader = job.reader(store)
    members = plan.parse(store.read(plan_name(split.shard_names[0])))
    for member in members[:_SAMPLE_IMAGES]:
        size = min(member.size, MAX_IMAGE_BYTES + 1)
        yield reader.read(member.archive, member.offset, size)


def _packed_sample(source: Packed, tasks: Sequence[IndexTask]) -> Iterator[bytes]:
    images = (image.data for task in tasks for image in source.images(task))
    yield from islice(images, _SAMPLE_IMAGES)


def _mean_bytes(job: Job, sample: Iterator[bytes]) -> tuple[float, float]:
    """Returns mean bytes before and after the codec; 0 where no image is usable."""
    before, after = [], []
    for data in sample:
        try:
            after.append(len(transform(data, job.policy).encoded))
        except BadImageError:
            continue
        before.append(len(data))
    number = max(1, len(before))
    return sum(before) / number, sum(after) / number
