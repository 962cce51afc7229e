"""From archives to plans: index the tars, check the counts, deal the members out to shards."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from imagenet_prep import engine
from imagenet_prep.core import canonical, naming, schema
from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.core.image import Member, parse_member
from imagenet_prep.core.store import LocalStore, storage_errors
from imagenet_prep.shards import plan
from imagenet_prep.sources import ilsvrc
from pipelines.tasks import IndexWork, Job

PLAN_FOLDER = f"{naming.WORK}/plan"


def take_inventory(job: Job, store: LocalStore, *, quiet: bool) -> list[plan.SplitPlan]:
    """Writes the plan files of all splits below `store` and returns their summaries.

    Raises:
      SourceError: an archive is damaged, or is not the whole of ILSVRC2012 and no subset
        was asked for.
      UsageError: more shards than images, or no image of the chosen classes.
    """
    wnids = _chosen_wnids(job)
    splits = [split for split in schema.SPLITS if split in job.config.splits]
    tasks = [
        task
        for split in splits
        for task in ilsvrc.index_tasks(job.source, job.reader, split)
        if task.wnid is None or task.wnid in wnids
    ]
    digest = canonical.digest(
        [
            [[n, p.stat().st_size, p.stat().st_mtime_ns] for n, p in job.source.archives.items()],
            job.source.classes.digest,
            job.source.validation_class_index,
        ]
    )
    folder = f"{naming.WORK}/index-{digest[:16]}/members"
    work = IndexWork(job.source, job.reader, store, folder)
    stage = engine.Stage("index", digest, store, work)
    # Reading headers waits for the disk, so threads do; processes would only start twice.
    lanes = dataclasses.replace(job.lanes, kind=engine.THREADS)
    receipts = engine.run(stage, tasks, lanes, title="index", quiet=quiet)
    plan_folder = store.path(PLAN_FOLDER)
    with storage_errors("create", plan_folder):
        plan_folder.mkdir(parents=True, exist_ok=True)
    plans = []
    for split in splits:
        mine = [
            (task, receipt)
            for task, receipt in zip(tasks, receipts, strict=True)
            if task.split == split
        ]
        examples = _count(job, split, [receipt for _, receipt in mine], wnids)
        lists = [store.path(work.member_list(task)) for task, _ in mine]
        plans.append(
            plan.write(
                plan_folder,
                split,
                _by_class(job, lists, wnids),
                num_classes=len(job.source.classes.wnids),
                num_shards=_num_shards(job, split, examples),
                seed=job.config.seed,
            )
        )
    return plans


def _chosen_wnids(job: Job) -> frozenset[str]:
    """Returns the WNIDs that --subset-classes leaves."""
    wnids = job.source.classes.wnids
    chosen = job.config.subset_classes
    if not chosen:
        return frozenset(wnids)
    if len(chosen) == 1 and chosen[0].isdigit():
        return frozenset(wnids[: int(chosen[0])])
    if unknown := sorted(set(chosen) - set(wnids)):
        raise UsageError(f"--subset-classes: {', '.join(unknown)} not in the class list")
    return frozenset(chosen)


def _count(job: Job, split: str, receipts: Sequence[dict[str, Any]], wnids: frozenset[str]) -> int:
    """Returns how many members are used, after checking how many there are."""
    classes = job.source.classes
    counts = [0] * len(classes.wnids)
    for receipt in receipts:
        for index, count in receipt["num_per_class"].items():
            counts[int(index)] += count
    problems = ilsvrc.count_problems(split, classes, counts)
    if problems and not job.config.asks_for_subset:
        raise SourceError(
            f"{job.config.source}: not the whole of ILSVRC2012: {'; '.join(problems)}. "
            "Get the missing part, or pass --allow-subset if this is what you want."
        )
    limit = job.config.subset_per_class
    used = sum(
        min(count, limit or count)
        for wnid, count in zip(classes.wnids, counts, strict=True)
        if wnid in wnids
    )
    if not used:
        raise UsageError(f"{split}: no image of the chosen classes")
    return used


def _by_class(job: Job, lists: Sequence[Path], wnids: frozenset[str]) -> Iterator[list[Member]]:
    """Yields the chosen members of each class in class-index order."""
    # A list holds one class of train, or all of validation: 50,000 members at most.
    for path in sorted(lists):
        by_class: dict[int, list[Member]] = {}
        for line in path.read_bytes().splitlines():
            member = parse_member(line)
            by_class.setdefault(member.class_index, []).append(member)
        for index in sorted(by_class):
            if job.source.classes.wnids[index] in wnids:
                limit = job.config.subset_per_class
                members = by_class[index]
                yield plan.permute(members, job.config.seed)[:limit] if limit else members


def _num_shards(job: Job, split: str, examples: int) -> int:
    """Returns the shards asked for, or as many as keep the official examples a shard."""
    asked: int | None = getattr(job.config, f"{split}_shards")
    official = schema.DEFAULT_NUM_SHARDS[split]
    if asked is None:
        per_shard = -(-schema.OFFICIAL_NUM_EXAMPLES[split] // official)
        return min(official, -(-examples // per_shard))
    if asked > examples:
        raise UsageError(
            f"--{split}-shards {asked}: there are {examples:,} images, and no shard may be empty"
        )
    return asked
