"""A plan that many workers make together: what each of them does, without Apache Beam.

The members of each class come together in one place and are dealt out to shards; the members of
some neighbouring shards come together in another, which writes their plan files. So no process
holds all members. The files lie beside the data set, and one note, `plan.json`, completes them.
`pipelines/graph` connects these steps.
"""

from __future__ import annotations

import hashlib
import heapq
import io
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import SourceError
from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.keys import VALIDATION_NAME
from imagenet_prep.dataset.member import Member, dump_member, parse_members
from imagenet_prep.preparation.box_lists import BoxLookup
from imagenet_prep.preparation.chosen_members import ChosenMembers
from imagenet_prep.preparation.dealing import Division, divide, held_out
from imagenet_prep.preparation.inventory import Inventory, check_counts, md5_of_archives
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.shards import plan
from imagenet_prep.sources import labels
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage import notes
from imagenet_prep.storage.store import Store

_FOLDER = "plan-"
# Bytes of a list that travel as one descriptor.
_PACKED_BYTES = 1 << 20
# Members whose plan files are written by one call: neighbouring shards with so many together.
_BLOCK_MEMBERS = 1 << 16
_READ_AT_ONCE = 64

# A split of the source and a class index; and a split and the number of a block of its shards.
OfClass = tuple[str, int]
OfBlock = tuple[str, int]
# What decides who is held out, and the class index.
Rank = tuple[int, str, int]


def lines_by_class(task: IndexTask, lines: bytes) -> Iterator[tuple[OfClass, bytes]]:
    """Yields the list of an index task class by class, in pieces of about a megabyte."""
    file = io.BytesIO(lines)
    while piece := file.readlines(_PACKED_BYTES):
        if task.class_index is not None:
            yield (task.split, task.class_index), b"".join(piece)
            continue
        by_class: dict[int, bytearray] = {}
        for member in parse_members(b"".join(piece)):
            by_class.setdefault(member.class_index, bytearray()).extend(dump_member(member))
        for index, of_class in by_class.items():
            yield (task.split, index), bytes(of_class)


class Census(NamedTuple):
    """How many images there are, which every worker must know before it deals.

    Attributes:
      edition: of ImageNet; see `editions.recognised`.
      divisions: by split of the source.
      md5: of archives that were read whole while they were listed, by name.
    """

    edition: str
    divisions: dict[str, Division]
    md5: dict[str, str]

    def num_shards(self, split: str) -> int:
        """Returns the shards of a split that is made."""
        return next(d.num_shards[split] for d in self.divisions.values() if split in d.counts)


def remove_plans(store: Store) -> None:
    """Removes the plans of a finished data set from a bucket, where they cost money."""
    if store.as_folder is None:
        for name in store.list_folder(naming.WORK):
            if name.startswith(_FOLDER):
                store.remove_tree(f"{naming.WORK}/{name}")


def _block_size(num_shards: int, examples: int) -> int:
    """Returns how many neighbouring shards are planned by one call."""
    return max(1, _BLOCK_MEMBERS * num_shards // max(1, examples))


class Facts(NamedTuple):
    """What the one who completes the plan has to know of a class.

    Attributes:
      source: the split of the source.
      class_index: of the class.
      kept: members by split that are not excluded.
      taken: as in `Inventory`.
      excluded: keys that are left out.
      numbers: those of images with names of ILSVRC2012's validation split.
    """

    source: str
    class_index: int
    kept: dict[str, int]
    taken: Counter[str]
    excluded: frozenset[str]
    numbers: tuple[int, ...]


class Block(NamedTuple):
    """Some neighbouring shards of a split whose plan files are written.

    Attributes:
      split: made.
      source_bytes: by shard index.
    """

    split: str
    source_bytes: dict[int, int]


@dataclass(frozen=True)
class SharedPlan:
    """The steps of making one plan together; picklable.

    Attributes:
      selection: the images, and how they are assigned to shards.
      store: the data set, where lists, boxes and plans lie.
      lookup: of boxes; None if none are wanted.
    """

    selection: Selection
    store: Store
    lookup: BoxLookup | None

    @cached_property
    def folder(self) -> str:
        """Where the plan files go, relative to the data set."""
        wanted = self.selection
        annotations = wanted.annotations
        digest = canonical.digest(
            [
                wanted.index_digest,
                annotations.identity if annotations else None,
                [wanted.splits, sorted(wanted.classes), wanted.per_class, wanted.any_counts],
                [wanted.num_shards, wanted.seed, wanted.holdout, wanted.holdout_per_class],
                wanted.excluded.summary if wanted.excluded else None,
            ]
        )
        return f"{naming.WORK}/{_FOLDER}{digest[:16]}"

    def census(self, receipts: Mapping[str, dict[str, Any]], ranks: Iterable[Rank] = ()) -> Census:
        """Checks how many images there are.

        Args:
          receipts: of all index tasks, by task.
          ranks: of all classes of train, where `ranks` is asked.

        Raises:
          SourceError, UsageError: as for `take_inventory`.
        """
        wanted = self.selection
        tasks = wanted.index_tasks()
        of_tasks = [receipts[task.name] for task in tasks]
        edition, used = check_counts(wanted, tasks, of_tasks)
        divisions = {}
        for split, counts in used.items():
            last, out = None, [0] * len(counts)
            if split == schema.TRAIN and wanted.holdout:
                for place, key, index in heapq.nsmallest(held_out(wanted, counts), ranks):
                    last = (place, key)
                    out[index] += 1
            divisions[split] = divide(wanted, split, counts, last, out)
        return Census(edition, divisions, md5_of_archives(wanted, tasks, of_tasks))

    def ranks(self, key: OfClass, lines: Iterable[bytes]) -> list[Rank]:
        """Returns the first ranks of a class, for `census`; for --holdout."""
        wanted = self.selection
        members = self._chosen(key[0], lines)[0] if key[0] == schema.TRAIN else []
        ranked = ((*plan.rank(m, wanted.seed), m.class_index) for m in members)
        return heapq.nsmallest(wanted.holdout, ranked)

    def deal(
        self, key: OfClass, lines: Iterable[bytes], census: Census
    ) -> tuple[Facts, dict[OfBlock, bytes]]:
        """Deals the members of one class; returns entries of plans, put together by block."""
        source, index = key
        chosen, numbers = self._chosen(source, lines)
        excluded, seed = self.selection.excluded_keys, self.selection.seed
        kept: dict[str, int] = {}
        blocks: dict[OfBlock, bytearray] = {}
        division = census.divisions[source]
        for name, of_split in division.of(chosen, seed).items():
            kept[name] = 0
            counts, num_shards = division.counts[name], division.num_shards[name]
            size = _block_size(num_shards, sum(counts))
            for shard, member in plan.deal_class(of_split, sum(counts[:index]), num_shards, seed):
                if member.key in excluded:
                    continue
                kept[name] += 1
                block = blocks.setdefault((name, shard // size), bytearray())
                block += plan.entry(shard, member, seed)
        facts = Facts(
            source,
            index,
            kept,
            self._members[source].taken([m for m in chosen if m.key not in excluded]),
            excluded.intersection(member.key for member in chosen),
            numbers,
        )
        return facts, {block: bytes(entries) for block, entries in blocks.items()}

    def write(self, key: OfBlock, entries: Iterable[bytes], census: Census) -> Block:
        """Writes the plan files of one block of shards."""
        split, _ = key
        num_shards = census.num_shards(split)
        lines = sorted(line for part in entries for line in part.splitlines(keepends=True))
        source_bytes = {}
        for shard, of_shard in itertools.groupby(lines, plan.shard_of):
            content = plan.content(of_shard)
            source_bytes[shard] = sum(member.size for member in parse_members(content))
            name = plan.file_name(naming.shard_name(split, shard, num_shards))
            self.store.write(f"{self.folder}/{name}", content)
        return Block(split, source_bytes)

    def complete(
        self, census: Census, facts: Sequence[Facts], blocks: Sequence[Block]
    ) -> Inventory:
        """Proves that the parts fit together, and completes the plan by its note.

        Raises:
          SourceError, UsageError: as for `take_inventory`.
        """
        taken: Counter[str] = Counter()
        excluded, unknown = self.selection.excluded, set(self.selection.excluded_keys)
        for split in self.selection.splits:
            of_split = [each for each in facts if each.source == split]
            self._check_numbers(of_split)
            taken.update(sum((each.taken for each in of_split), Counter()))
            if excluded:
                keys = frozenset().union(*(each.excluded for each in of_split))
                excluded.refuse_ambiguous(keys - unknown)
                unknown -= keys
        if excluded:
            excluded.refuse_unknown(unknown, f"what is taken from {self.selection.where}")
        plans = [
            self._summary(split, census.num_shards(split), facts, blocks)
            for division in census.divisions.values()
            for split in division.counts
        ]
        content = {
            "plans": [asdict(each) for each in plans],
            "taken": taken,
            "edition": census.edition,
            "md5": census.md5,
        }
        self.store.write(f"{self.folder}/plan.json", canonical.dumps(content))
        return Inventory(plans, taken, census.edition, self.folder, census.md5)

    def found(self) -> Inventory | None:
        """Returns the plan if it is complete; its files are beside the data set."""
        there = set(self.store.names(self.folder))
        if "plan.json" not in there:
            return None
        content = notes.read(
            self.store, f"{self.folder}/plan.json", plans=list, taken=dict, edition=str, md5=dict
        )
        plans = [
            plan.SplitPlan(**{**each, "num_per_class": tuple(each["num_per_class"])})
            for each in content["plans"]
        ]
        if not there.issuperset(plan.file_name(n) for each in plans for n in each.shard_names):
            return None
        taken = Counter(content["taken"])
        return Inventory(plans, taken, content["edition"], self.folder, content["md5"])

    def _chosen(self, source: str, lines: Iterable[bytes]) -> tuple[list[Member], tuple[int, ...]]:
        """Returns the chosen members of a class, and the numbers in the names of all."""
        members = parse_members(b"".join(lines))
        found = (VALIDATION_NAME.match(member.key) for member in members)
        numbers = tuple(int(match[1]) for match in found if match)
        return self._members[source].chosen(members), numbers

    @cached_property
    def _members(self) -> dict[str, ChosenMembers]:
        """What chooses and counts members, by split of the source; their lists come from Beam."""
        found = {}
        for split in self.selection.splits:
            tasks = [(t, Path(t.name)) for t in self.selection.index_tasks() if t.split == split]
            lookup = self.lookup if self.lookup and split in self.lookup.parts else None
            found[split] = ChosenMembers(self.selection, split, tasks, (), lookup)
        return found

    def _check_numbers(self, facts: Sequence[Facts]) -> None:
        where = self.selection.where
        numbers: dict[int, int] = {}
        for each in facts:
            for number in each.numbers:
                if numbers.setdefault(number, each.class_index) != each.class_index:
                    raise SourceError(f"{where}: image {number} comes twice, in two classes")
        labels.check_validation(self.selection.source.classes, numbers, where)

    def _summary(
        self, split: str, num_shards: int, facts: Sequence[Facts], blocks: Sequence[Block]
    ) -> plan.SplitPlan:
        kept = [0] * len(self.selection.source.classes.wnids)
        for each in facts:
            kept[each.class_index] += each.kept.get(split, 0)
        sizes = {n: size for b in blocks if b.split == split for n, size in b.source_bytes.items()}
        plan.refuse_empty(split, num_shards, sizes)
        names = [naming.shard_name(split, n, num_shards) for n in range(num_shards)]
        whole = hashlib.sha256()
        files = [f"{self.folder}/{plan.file_name(name)}" for name in names]
        # A bucket reads all of a call at once.
        for start in range(0, len(files), _READ_AT_ONCE):
            for content in self.store.read_each(files[start : start + _READ_AT_ONCE]):
                whole.update(content)
        return plan.SplitPlan(
            split=split,
            num_shards=num_shards,
            num_per_class=tuple(kept),
            source_bytes=sum(sizes.values()),
            digest=whole.hexdigest(),
        )
