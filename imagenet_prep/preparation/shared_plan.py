"""A plan that many workers make together: what each of them does, without Apache Beam.

Whoever deals the members of a class reads them from their lists; the entries of some neighbouring
shards come together in one place, which writes their plan files. So no process holds all members.
The files lie beside the data set, and one note, `plan.json`, completes them. `pipelines/graph`
connects these steps.
"""

from __future__ import annotations

import heapq
import io
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from imagenet_prep.core import canonical
from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.member import Member, dump_member, parse_members
from imagenet_prep.preparation.box_lists import BoxLookup
from imagenet_prep.preparation.chosen_members import ChosenMembers
from imagenet_prep.preparation.dealing import (
    Division,
    Facts,
    Rank,
    check_classes,
    deal_class,
    divide,
    split_plans,
)
from imagenet_prep.preparation.inventory import Inventory, check_counts, md5_of_archives
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.shards import plan, runs
from imagenet_prep.storage import notes
from imagenet_prep.storage.store import Store

_FOLDER = "plan-"
# Bytes of a list that are sorted by class at once.
_PARSED_BYTES = 1 << 20
# Members whose plan files are written by one call: neighbouring shards with so many together.
_BLOCK_MEMBERS = 1 << 14
# Members that are dealt by one call, of neighbouring classes with so many together: entries of 26
# MB, which wait in the memory of a worker, and of what runs it, until all are dealt.
_SHARE_MEMBERS = 1 << 18

# A split of the source and a class index; a split that is made and the number of a block of its
# shards; and such a split and the number of one shard.
OfClass = tuple[str, int]
OfBlock = tuple[str, int]
OfShard = tuple[str, int]
# A split of the source and the number of some neighbouring classes.
OfShare = tuple[str, int]


def lines_by_class(split: str, lines: bytes) -> Iterator[tuple[OfClass, bytes]]:
    """Yields a list of any classes by class, about a megabyte after the other."""
    file = io.BytesIO(lines)
    while piece := file.readlines(_PARSED_BYTES):
        by_class: dict[int, bytearray] = {}
        for member in parse_members(b"".join(piece)):
            by_class.setdefault(member.class_index, bytearray()).extend(dump_member(member))
        for index, of_class in by_class.items():
            yield (split, index), bytes(of_class)


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

    def share_of(self, key: OfClass) -> OfShare:
        """Returns the share of the work that a class belongs to."""
        split, index = key
        before = self.divisions[split].before.values()
        return split, sum(each[index] for each in before) // _SHARE_MEMBERS


def remove_plans(store: Store) -> None:
    """Removes the plans of a finished data set from a bucket, where they cost money."""
    if store.as_folder is None:
        for name in store.list_folder(naming.WORK):
            if name.startswith(_FOLDER):
                store.remove_tree(f"{naming.WORK}/{name}")


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
        divisions = {
            split: divide(wanted, split, counts, lambda: heapq.nsmallest(wanted.holdout, ranks))
            for split, counts in used.items()
        }
        return Census(edition, divisions, md5_of_archives(wanted, tasks, of_tasks))

    def gather(self, key: OfClass, lines: Iterable[bytes]) -> str:
        """Writes the lines of a class that stood in lists of several; returns the list's name."""
        split, index = key
        name = f"{self.folder}/members/{split}-{index}.jsonl"
        self.store.write(name, b"".join(lines))
        return name

    def ranks(self, key: OfClass, lists: Iterable[str]) -> list[Rank]:
        """Returns the first ranks of a class, for `census`; for --holdout."""
        split, seed = key[0], self.selection.seed
        if split != schema.TRAIN or not (members := self._listed(lists)):
            return []
        chosen = self._members[split].chosen(members)
        ranked = ((*plan.rank(member, seed), member.class_index) for member in chosen)
        return heapq.nsmallest(self.selection.holdout, ranked)

    def deal(
        self, lists: Iterable[tuple[OfClass, str]], census: Census
    ) -> tuple[list[Facts], dict[OfBlock, bytes]]:
        """Deals the members of some classes; returns entries of plans, put together by block."""
        of_classes: dict[OfClass, list[str]] = {}
        for key, name in lists:
            of_classes.setdefault(key, []).append(name)
        found, blocks = [], defaultdict[OfBlock, bytearray](bytearray)
        for (source, _), names in of_classes.items():
            division, members = census.divisions[source], self._listed(names)
            if not members:
                continue
            facts, entries = deal_class(self._members[source], members, division)
            found.append(facts)
            for split, of_split in entries.items():
                num_shards, examples = division.num_shards[split], division.before[split][-1]
                size = max(1, _BLOCK_MEMBERS * num_shards // max(1, examples))
                for entry in of_split:
                    blocks[split, plan.shard_of(entry) // size] += entry
        return found, {block: bytes(packed) for block, packed in blocks.items()}

    def write(self, key: OfBlock, entries: Iterable[bytes], census: Census) -> list[OfShard]:
        """Writes the plan files of one block of shards; returns those that have members."""
        split, _ = key
        divisions = census.divisions.values()
        num_shards = next(d.num_shards[split] for d in divisions if split in d.num_shards)
        lines = [line for part in entries for line in part.splitlines(keepends=True)]
        written = []
        for shard, name, data in plan.files(split, num_shards, runs.grouped(lines)):
            self.store.write(f"{self.folder}/{name}", data)
            written.append((split, shard))
        return written

    def complete(
        self, census: Census, facts: Sequence[Facts], filled: Collection[OfShard]
    ) -> Inventory:
        """Proves that the parts fit together, and completes the plan by its note.

        Raises:
          SourceError, UsageError: as for `take_inventory`.
        """
        taken = check_classes(self.selection, facts)
        plans = split_plans(census.divisions, facts, filled, self.store, self.folder)
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

    def _listed(self, lists: Iterable[str]) -> list[Member]:
        return parse_members(b"".join(self.store.read_each(lists)))

    @cached_property
    def _members(self) -> dict[str, ChosenMembers]:
        """What chooses and counts members, by split of the source; `_listed` reads them."""
        wanted = self.selection
        tasks = [(task, Path(task.name)) for task in wanted.index_tasks()]
        found = {}
        for split in wanted.splits:
            of_split = [each for each in tasks if each[0].split == split]
            found[split] = ChosenMembers(wanted, split, of_split, (), self.lookup)
        return found
