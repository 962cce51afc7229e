"""The steps from image lists to plans, for one machine or a cluster.

First, all images are counted. Then the images of each class are selected and assigned to shards,
independently of other classes. Finally, the results of all classes are checked together.
`inventory` runs these steps on this machine and `shared_plan` on a cluster. The two modules only
differ in the way they group plan entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import editions, keys, naming
from imagenet_prep.dataset.member import Member, damaged_list, dump_member, parse_members
from imagenet_prep.preparation.dealing import ChosenMembers, Division, Facts, ShardKey, divide
from imagenet_prep.preparation.tasks import Listed, hash_of, plan_name
from imagenet_prep.shards import plan
from imagenet_prep.shards.commit import num_per_class
from imagenet_prep.shards.plan import SplitPlan
from imagenet_prep.sources.labels import check_validation
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.store import Store

# Parse a list of several classes in parts: all 1.28 million members at once would take 730 MB.
_PARSED_BYTES = 1 << 20
_READ_AT_ONCE = 64


class ClassKey(NamedTuple):
    """One class of a source split."""

    split: str
    class_index: int


class Inventory(NamedTuple):
    """The plan of the shards to be written; its files are in `folder` of the dataset."""

    plans: list[SplitPlan]
    taken: Counter[str]  # number of images by source part; for annotations, of images with boxes
    edition: str
    folder: str
    md5: dict[str, str]  # of parts that were read completely to list them, by name
    excluded: dict[str, list[Member]]  # the members that --exclude lists, by split

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards of all splits."""
        return [name for split in self.plans for name in split.shard_names]

    @property
    def examples(self) -> int:
        """The number of images in all shards."""
        return sum(split.examples for split in self.plans)


class Census(NamedTuple):
    """Facts about all images, which a worker needs to assign the images of any class to shards."""

    edition: str
    used: dict[str, list[int]]  # numbers of selected images by class index, by source split
    md5: dict[str, str]
    divisions: dict[str, Division]

    @property
    def num_shards(self) -> dict[str, int]:
        """The number of shards by output split."""
        of_sources = (division.num_shards.items() for division in self.divisions.values())
        return {split: num for items in of_sources for split, num in items}


@dataclass(frozen=True)
class Planning(ChosenMembers):
    """The steps to make one plan in `folder` of the dataset `store`; picklable."""

    store: Store
    folder: str

    def count(self, tasks: Sequence[IndexTask], listed: Sequence[Listed]) -> Census:
        """Counts the listed images; raises SourceError if images are missing."""
        wanted = self.selection
        classes, parts = wanted.source.classes, wanted.source.parts
        lists = list(zip(tasks, listed, strict=True))
        counts = {}
        for split in wanted.splits:
            pieces = (piece.num_per_class for task, piece in lists if task.split == split)
            counts[split] = num_per_class(pieces, len(classes.wnids))
        totals = {split: sum(numbers) for split, numbers in counts.items()}
        edition = editions.recognised(classes, totals, [part.name for part in parts])
        used = {}
        for split, numbers in counts.items():
            problems = [] if edition else wanted.source.count_problems(split, numbers)
            if problems and not wanted.any_counts:
                remedy = (
                    "Get the missing part, or pass --allow-subset to prepare an incomplete dataset."
                )
                if wanted.source.if_own:
                    remedy += f" {wanted.source.if_own}"
                raise SourceError(f"{wanted.where}: incomplete: {'; '.join(problems)}. {remedy}")
            most = wanted.recipe.subset_per_class
            used[split] = [
                min(count, most or count) if index in wanted.classes else 0
                for index, count in enumerate(numbers)
            ]
            if not any(used[split]):
                raise UsageError(f"{split}: has no images of the selected classes")
        # A part that is not a file has no md5.
        files = {part.name for part in parts if part.path is not None}
        md5 = {task.part: piece.md5 for task, piece in lists if piece.md5 and task.part in files}
        if wanted.source.evaluation is not None:
            edition = wanted.source.evaluation.edition.name
        divisions = {split: divide(wanted, split, numbers) for split, numbers in used.items()}
        return Census(edition, used, md5, divisions)

    def deal(
        self, key: ClassKey, listed: bytes, census: Census
    ) -> tuple[Facts, dict[str, list[bytes]]]:
        """Assigns the images of a class to shards, then drops excluded ones without moving others.

        `listed` has the lines of the image lists. Returns facts, and plan entries by output split.
        """
        seed = self.selection.recipe.seed
        members = parse_members(listed)
        if any(member.class_index != key.class_index for member in members):
            raise damaged_list("it lists an image of a different class")
        chosen = self.among(key.split, members)
        division = census.divisions[key.split]
        excluded, recognised = self._excluded(key.split, chosen)
        kept: dict[str, tuple[int, int]] = {}
        entries: dict[str, list[bytes]] = {}
        of_excluded: dict[str, list[str]] = {}
        for split, part in division.of(chosen, seed).items():
            first, num_shards = division.before[split][key.class_index], division.num_shards[split]
            dealt = [
                (shard, member)
                for shard, member in plan.deal_class(part, first, num_shards, seed)
                if member.key not in excluded
            ]
            entries[split] = [plan.entry(shard, member, seed) for shard, member in dealt]
            kept[split] = len(dealt), sum(member.size for _, member in dealt)
            lines = [dump_member(member).decode() for member in part if member.key in excluded]
            if lines:
                of_excluded[split] = lines
        # One key per number, because ImageNet-C has each image 95 times.
        labelled: dict[int, str] = {}
        for member in members:
            number = keys.validation_number(member.key)
            if number is not None:
                labelled[number] = member.key
        facts = Facts(
            key.split,
            key.class_index,
            kept,
            self.taken(key.split, [member for member in chosen if member.key not in excluded]),
            of_excluded,
            recognised,
            [*labelled.values()],
        )
        return facts, entries

    def _excluded(self, split: str, members: Sequence[Member]) -> tuple[set[str], list[str]]:
        """Returns the keys of the members to exclude, and the lines of images found by bytes.

        Only files of a listed size are read.
        """
        exclusions = self.selection.exclusions
        if exclusions is None:
            return set(), []
        listed = exclusions.listed
        named = exclusions.named[split]
        excluded = {member.key for member in members if member.key in named}
        recognised = []
        sizes = {file.num_bytes for file in listed.files.values()}
        images = self.selection.images(self.store.local) if sizes else None
        for member in members:
            if images and member.size in sizes and member.key not in excluded:
                file = listed.files.get(hash_of(member, images))
                if file is not None:
                    excluded.add(member.key)
                    recognised.append(file.line)
        return excluded, recognised

    def complete(
        self, census: Census, facts: Sequence[Facts], filled: Collection[ShardKey]
    ) -> Inventory:
        """Checks and completes the plan once the files of the `filled` shards are written."""
        taken, excluded = self._checked(facts)
        plans = self._plans(census, facts, filled)
        return Inventory(plans, taken, census.edition, self.folder, census.md5, excluded)

    def _checked(self, facts: Sequence[Facts]) -> tuple[Counter[str], dict[str, list[Member]]]:
        """Checks the facts of all classes; returns total `Facts.taken` and the excluded images."""
        where = self.selection.where
        exclusions = self.selection.exclusions
        taken = Counter[str]()
        excluded: dict[str, list[Member]] = {}
        for split in self.selection.splits:
            class_of: dict[str, int] = {}
            for of_class in (fact for fact in facts if fact.source == split):
                taken.update(of_class.taken)
                for output_split, lines in of_class.excluded.items():
                    members = parse_members("".join(lines).encode())
                    excluded.setdefault(output_split, []).extend(members)
                    if exclusions:
                        exclusions.lines(split, [member.key for member in members])
                if exclusions:
                    exclusions.recognised.update(of_class.recognised)
                for key in of_class.labelled:
                    if class_of.setdefault(key, of_class.class_index) != of_class.class_index:
                        raise SourceError(f"{where}: the image {key!r} is in two classes")
            if not self.selection.source.is_export:
                check_validation(self.selection.source.classes, class_of, where)
        if exclusions:
            exclusions.check(f"the images selected from {where}")
        return taken, excluded

    def _plans(
        self, census: Census, facts: Sequence[Facts], filled: Collection[ShardKey]
    ) -> list[SplitPlan]:
        plans = []
        for source, division in census.divisions.items():
            of_source = [fact for fact in facts if fact.source == source]
            for split, num in division.num_shards.items():
                plan.refuse_empty(split, num, {s.number for s in filled if s.split == split})
                counts = [0] * len(division.counts[split])
                source_bytes = 0
                for fact in of_source:
                    counts[fact.class_index], num_bytes = fact.kept[split]
                    source_bytes += num_bytes
                names = [
                    plan_name(naming.shard_name(split, i, num), self.folder) for i in range(num)
                ]
                # In a bucket, the files of one call are fetched in parallel.
                batches = (names[i : i + _READ_AT_ONCE] for i in range(0, num, _READ_AT_ONCE))
                files = (
                    data for of in batches for data in self.store.read_each(of, plan.MOST_BYTES)
                )
                digest = plan.digest(files)
                plans.append(SplitPlan(split, num, tuple(counts), source_bytes, digest))
        return plans


def lines_by_class(split: str, file: BinaryIO) -> Iterator[tuple[ClassKey, bytes]]:
    """Yields the lines of a list, grouped by class; reads about one megabyte at a time."""
    while lines := file.read(_PARSED_BYTES):
        by_class: dict[int, bytearray] = {}
        # Also read the rest of the last line, which is far shorter than this limit.
        for member in parse_members(lines + file.readline(_PARSED_BYTES)):
            by_class.setdefault(member.class_index, bytearray()).extend(dump_member(member))
        for index, of_class in by_class.items():
            yield ClassKey(split, index), bytes(of_class)
