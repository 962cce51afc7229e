"""The steps from image lists to plans, for one machine or a cluster.

Each class is read, selected and assigned to shards independently, in any order. Images are
counted before this, and the combined result is checked after it. `inventory` runs these steps with
local workers, `shared_plan` on a cluster; they only differ in the way they group entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import editions
from imagenet_prep.dataset.member import Member, damaged_list, dump_member, parse_members
from imagenet_prep.preparation.dealing import (
    ChosenMembers,
    Division,
    Facts,
    ShardKey,
    check_classes,
    deal_class,
    divide,
    split_plans,
)
from imagenet_prep.preparation.tasks import Listed
from imagenet_prep.shards.commit import num_per_class
from imagenet_prep.shards.plan import SplitPlan
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.store import Store

# Parse a list of several classes in parts: all 1.28 million members at once would take 730 MB.
_PARSED_BYTES = 1 << 20


class ClassKey(NamedTuple):
    """One class of a source split."""

    split: str
    class_index: int


class Inventory(NamedTuple):
    """The plan of the shards to be written.

    Attributes:
      taken: images by name of their part; for annotations, images with boxes.
      edition: the edition of ImageNet in the source; see `editions.recognised`.
      folder: of the plan files, relative to the dataset.
      md5: of parts that were read completely for listing, by name.
      excluded: the members that a list of keys excludes.
    """

    plans: list[SplitPlan]
    taken: Counter[str]
    edition: str
    folder: str
    md5: dict[str, str]
    excluded: list[Member]

    @property
    def shard_names(self) -> list[str]:
        """Names of the shards of all splits."""
        return [name for split in self.plans for name in split.shard_names]

    @property
    def examples(self) -> int:
        """Images in all shards."""
        return sum(split.examples for split in self.plans)


class Counts(NamedTuple):
    """Image counts of the source; `used` has the selected images by split and class index."""

    edition: str
    used: dict[str, list[int]]
    md5: dict[str, str]


class Census(NamedTuple):
    """Facts about all images that a worker needs before it assigns those of a class."""

    counts: Counts
    divisions: dict[str, Division]

    @property
    def num_shards(self) -> dict[str, int]:
        """The number of shards by output split."""
        of_each = (division.num_shards.items() for division in self.divisions.values())
        return {split: num for items in of_each for split, num in items}


@dataclass(frozen=True)
class Planning(ChosenMembers):
    """The steps of making one plan in `folder` of the dataset `store`; picklable."""

    store: Store
    folder: str

    def count(self, tasks: Sequence[IndexTask], listed: Sequence[Listed]) -> Counts:
        """Counts the listed images; raises SourceError if any are missing."""
        wanted = self.selection
        classes, parts = wanted.source.classes, wanted.source.parts
        lists = list(zip(tasks, listed, strict=True))
        counts = {
            split: num_per_class(
                [each.num_per_class for task, each in lists if task.split == split],
                len(classes.wnids),
            )
            for split in wanted.splits
        }
        totals = {split: sum(numbers) for split, numbers in counts.items()}
        edition = editions.recognised(classes, totals, [part.name for part in parts])
        used = {}
        for split, numbers in counts.items():
            problems = [] if edition else wanted.source.count_problems(split, numbers)
            if problems and not wanted.any_counts:
                raise SourceError(
                    f"{wanted.where}: not whole: {'; '.join(problems)}. "
                    "Get the missing part, or pass --allow-subset if this is what you want."
                )
            used[split] = [
                min(count, wanted.per_class or count) if index in wanted.classes else 0
                for index, count in enumerate(numbers)
            ]
            if not any(used[split]):
                raise UsageError(f"{split}: no image of the chosen classes")
        # A part that is not a file has no md5.
        files = {part.name for part in parts if part.path is not None}
        md5 = {task.part: each.md5 for task, each in lists if each.md5 and task.part in files}
        if wanted.source.evaluation is not None:
            edition = wanted.source.evaluation.edition.name
        return Counts(edition, used, md5)

    def census(self, counts: Counts) -> Census:
        """Divides the images among the splits."""
        used = counts.used.items()
        return Census(counts, {split: divide(self.selection, split, each) for split, each in used})

    def deal(
        self, key: ClassKey, lines: bytes, census: Census
    ) -> tuple[Facts, dict[str, list[bytes]]]:
        """Assigns a class to shards from the lines of its lists; returns as `deal_class`."""
        members = _members(key, lines)
        return deal_class(self, key.split, members, census.divisions[key.split])

    def complete(
        self, census: Census, facts: Sequence[Facts], filled: Collection[ShardKey]
    ) -> Inventory:
        """Checks and completes the plan once the files of the `filled` shards are written."""
        taken, excluded = check_classes(self.selection, facts)
        plans = split_plans(census.divisions, facts, filled, self.store, self.folder)
        counts = census.counts
        return Inventory(plans, taken, counts.edition, self.folder, counts.md5, excluded)


def _members(key: ClassKey, lines: bytes) -> list[Member]:
    members = parse_members(lines)
    if any(member.class_index != key.class_index for member in members):
        raise damaged_list("it holds an image of another class")
    return members


def lines_by_class(split: str, file: BinaryIO) -> Iterator[tuple[ClassKey, bytes]]:
    """Yields a list's lines grouped by class, for about one megabyte of the list at a time."""
    while lines := file.read(_PARSED_BYTES):
        by_class: dict[int, bytearray] = {}
        # Also read the rest of the last line, which is far shorter than this limit.
        for member in parse_members(lines + file.readline(_PARSED_BYTES)):
            by_class.setdefault(member.class_index, bytearray()).extend(dump_member(member))
        for index, of_class in by_class.items():
            yield ClassKey(split, index), bytes(of_class)
