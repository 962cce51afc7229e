"""The steps from lists of images to plans, wherever they are taken.

The members of a class are read, chosen and dealt by themselves, in any order; what must be known of
all classes is counted before and checked after. `inventory` takes these steps with the workers of
one machine, `shared_plan` with those of a cluster: they differ in how what belongs together comes
together.
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

# About so many bytes of a list of several classes are parsed at once: the 1.28 million members of a
# list of all classes would take 730 MB.
_PARSED_BYTES = 1 << 20


class ClassKey(NamedTuple):
    """One class of a split of the source."""

    split: str
    class_index: int


class Inventory(NamedTuple):
    """What is to be written.

    Attributes:
      plans: of the splits; their files are in the plan folder.
      taken: images by name of the part they come from; of annotations, images with boxes.
      edition: of ImageNet, which the source is; see `editions.recognised`.
      folder: of the plan files, relative to the dataset.
      md5: of parts that were completely read while they were listed, by name.
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
    """How many images the source has.

    Attributes:
      used: chosen members by class index, for all classes, by split of the source.
      edition, md5: as in `Inventory`.
    """

    edition: str
    used: dict[str, list[int]]
    md5: dict[str, str]


class Census(NamedTuple):
    """What every worker must know of all images before it deals those of a class."""

    counts: Counts
    divisions: dict[str, Division]

    @property
    def num_shards(self) -> dict[str, int]:
        """By split that is made, how many shards it has."""
        of_each = (division.num_shards.items() for division in self.divisions.values())
        return {split: num for items in of_each for split, num in items}


@dataclass(frozen=True)
class Planning(ChosenMembers):
    """The steps of making one plan; picklable.

    Attributes:
      store: the dataset, where lists, boxes and plans are.
      folder: of the plan files, relative to the dataset.
    """

    store: Store
    folder: str

    def count(self, tasks: Sequence[IndexTask], listed: Sequence[Listed]) -> Counts:
        """Checks how many images the tasks have listed."""
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
        # A part that is no file has no md5.
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
        """Deals the members of a class, from the lines of its lists; as `deal_class`."""
        members = _members(key, lines)
        return deal_class(self, key.split, members, census.divisions[key.split])

    def complete(
        self, census: Census, facts: Sequence[Facts], filled: Collection[ShardKey]
    ) -> Inventory:
        """Checks that the parts fit together, once the files of the `filled` shards are written."""
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
    """Yields the lines of a list of any classes by class, about a megabyte after the other."""
    while lines := file.read(_PARSED_BYTES):
        by_class: dict[int, bytearray] = {}
        # With the rest of the last line, unless that is longer than any of ours.
        for member in parse_members(lines + file.readline(_PARSED_BYTES)):
            by_class.setdefault(member.class_index, bytearray()).extend(dump_member(member))
        for index, of_class in by_class.items():
            yield ClassKey(split, index), bytes(of_class)
