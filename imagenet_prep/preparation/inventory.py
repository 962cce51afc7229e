"""From a source to plans: lists the images, checks the counts, assigns images to shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from imagenet_prep import engine
from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.preparation.box_lists import read_boxes
from imagenet_prep.preparation.dealing import Dealer
from imagenet_prep.preparation.selection import Selection, index_stage
from imagenet_prep.preparation.space import check_plan
from imagenet_prep.preparation.tasks import PLAN_FOLDER, UNPACKED, IndexWork
from imagenet_prep.shards import plan
from imagenet_prep.shards.commit import num_per_class
from imagenet_prep.sources import editions
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.store import Store

# From so many tars or folders on, processes list them: threads would share one core.
_WORTH_PROCESSES_TASKS = 4000


class Inventory(NamedTuple):
    """What is to be written.

    Attributes:
      plans: of the splits; their files lie in the plan folder.
      taken: images by name of the part they come from; of annotations, images with boxes.
      edition: of ImageNet, which the source is; see `editions.recognised`.
      folder: where the plan files lie, relative to the data set.
      md5: of parts that were read whole while they were listed, by name.
    """

    plans: list[plan.SplitPlan]
    taken: Counter[str]
    edition: str
    folder: str
    md5: dict[str, str]


def take_inventory(
    selection: Selection, out: Store, workers: engine.Workers, *, quiet: bool, unpack: bool = True
) -> Inventory:
    """Writes the plan files of all splits, and unpacks images if necessary, on this machine.

    Args:
      selection: which images are wanted.
      out: the data set.
      workers, quiet: as for `engine.run`.
      unpack: False to look only, so that nothing large is written.

    Raises:
      SourceError: the source is damaged, or incomplete although no subset was asked for.
      StoreError: the plan does not fit on the disk; nothing of it was written.
      UsageError: more shards than images, no image of the chosen classes, none left in train or
        in a shard, or keys to exclude that no image has, or two.
    """
    store = out.local
    # It may hold files of an earlier run, which may have filled the disk, or links of a stranger.
    store.remove_tree(PLAN_FOLDER)
    stage = index_stage(selection, store, unpack=unpack)
    tasks = selection.index_tasks()
    listing = _listing_workers(workers, len(tasks))
    receipts = engine.run(stage, tasks, listing, title="index", quiet=quiet)
    lookup = read_boxes(selection.annotations, store, listing, quiet=quiet)
    store.make_folder(PLAN_FOLDER)
    edition, used = check_counts(selection, tasks, receipts)
    # The list is the last of a task's files.
    num_bytes = sum(receipt["outputs"][-1]["num_bytes"] for receipt in receipts)
    if lookup is not None:
        num_bytes += lookup.num_bytes
    listed = sum(sum(receipt["num_per_class"].values()) for receipt in receipts)
    check_plan(out, sum(map(sum, used.values())), num_bytes / listed)
    work = stage.function
    assert isinstance(work, IndexWork)
    lists = [(task, store.path(work.member_list(task))) for task in tasks]
    plans, taken = Dealer(selection, store, workers, quiet).deal(lists, used, lookup)
    md5 = md5_of_archives(selection, tasks, receipts)
    return Inventory(plans, taken, edition, PLAN_FOLDER, md5)


def _listing_workers(workers: engine.Workers, num_tasks: int) -> engine.Workers:
    """Returns who lists: reading headers waits for the disk, so threads do, and start at once."""
    many = num_tasks >= _WORTH_PROCESSES_TASKS and workers.kind != engine.THREADS
    return engine.Workers(workers.num, engine.PROCESSES if many else engine.THREADS)


def remove_unpacked(store: LocalStore, keep: Selection | None = None) -> None:
    """Removes unpacked images, except those that the selection `keep` reads."""
    kept = keep.index_digest[:16] if keep else ""
    for folder in store.path(UNPACKED).glob("*"):
        if folder.name != kept:
            store.remove_tree(f"{UNPACKED}/{folder.name}")
    if keep is None:
        store.remove_tree(UNPACKED)


def md5_of_archives(
    selection: Selection, tasks: Sequence[IndexTask], receipts: Sequence[dict[str, Any]]
) -> dict[str, str]:
    """Returns the md5 of archives that are one task each, and were read whole for it."""
    files = {part.name for part in selection.source.parts if part.path is not None}
    found = {task.part: r.get("md5") for task, r in zip(tasks, receipts, strict=True)}
    return {name: md5 for name, md5 in found.items() if name in files and isinstance(md5, str)}


def check_counts(
    selection: Selection, tasks: Sequence[IndexTask], receipts: Sequence[dict[str, Any]]
) -> tuple[str, dict[str, list[int]]]:
    """Checks how many members there are; returns the edition, and by split how many are used.

    These are by class index, for all classes.
    """
    classes = selection.source.classes
    counts = {
        split: num_per_class(
            [r for t, r in zip(tasks, receipts, strict=True) if t.split == split],
            len(classes.wnids),
        )
        for split in selection.splits
    }
    edition = editions.recognised(
        classes,
        {split: sum(numbers) for split, numbers in counts.items()},
        [part.name for part in selection.source.parts],
    )
    limit = selection.per_class
    used = {}
    for split, numbers in counts.items():
        problems = [] if edition else selection.source.count_problems(split, numbers)
        if problems and not selection.any_counts:
            raise SourceError(
                f"{selection.where}: not whole: {'; '.join(problems)}. "
                "Get the missing part, or pass --allow-subset if this is what you want."
            )
        used[split] = [
            min(count, limit or count) if index in selection.classes else 0
            for index, count in enumerate(numbers)
        ]
        if not any(used[split]):
            raise UsageError(f"{split}: no image of the chosen classes")
    return edition, used
