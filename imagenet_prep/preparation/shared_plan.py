"""The steps by which the workers of a cluster make a plan together.

Each worker reads the members of some classes and assigns them to shards. Then one worker collects
the entries of a block of neighbouring shards and writes their plan files. No process has all
members in memory. The files are in the `.work` folder of the dataset. The note `plan.json` is
written last and marks the plan as complete. `pipelines/graph` calls these steps from Apache Beam.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from imagenet_prep.core import canonical
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.member import dump_member, parse_members
from imagenet_prep.preparation.box_lists import BoxLookup
from imagenet_prep.preparation.dealing import Facts, ShardKey
from imagenet_prep.preparation.planning import Census, ClassKey, Inventory, Planning
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.preparation.tasks import SHARED_PLANS
from imagenet_prep.shards import plan, runs
from imagenet_prep.storage.store import Store, read_note

_NOTE = "plan.json"
# Target number of members in a block: one call writes the plan files of its shards.
_BLOCK_MEMBERS = 1 << 14
# Target number of members in a share: neighbouring classes that one call assigns. Their
# entries take 26 MB of memory in a worker and its runner until all are assigned.
_SHARE_MEMBERS = 1 << 18


@dataclass(frozen=True)
class _Note:
    """The content of plan.json; `Inventory` explains the fields."""

    plans: list[plan.SplitPlan]
    taken: dict[str, int]
    edition: str
    md5: dict[str, str]
    excluded: list[str]  # the splits that have excluded images, each with its list


class GroupKey(NamedTuple):
    """The number of a share (neighbouring classes) or a block (neighbouring shards) of a split."""

    split: str
    number: int


def share_of(key: ClassKey, census: Census) -> GroupKey:
    """Returns the share (a group of neighbouring classes) to which a class belongs."""
    before = census.divisions[key.split].before.values()
    return GroupKey(key.split, sum(counts[key.class_index] for counts in before) // _SHARE_MEMBERS)


@dataclass(frozen=True)
class SharedPlan(Planning):
    """The steps of workers that make a plan together in the dataset's `.work` folder; picklable."""

    @classmethod
    def of(cls, wanted: Selection, store: Store, lookup: BoxLookup | None) -> SharedPlan:
        """Returns the plan for a selection; different plans have different folders."""
        digest = canonical.digest(
            [
                wanted.index_digest,
                wanted.identity,
                wanted.recipe,
                wanted.any_counts,
            ]
        )
        return cls(wanted, lookup, store, f"{naming.WORK}/{SHARED_PLANS}{digest[:16]}")

    def gather(self, key: ClassKey, lines: Iterable[bytes]) -> str:
        """Writes the list of a class from the `lines` of its images; returns the list's name."""
        name = f"{self.folder}/members/{key.split}-{key.class_index}.jsonl"
        self.store.write(name, b"".join(lines))
        return name

    def deal_share(
        self, lists: Iterable[tuple[ClassKey, str]], census: Census
    ) -> tuple[list[Facts], dict[GroupKey, bytes]]:
        """Assigns images of some classes to shards; returns facts, and plan entries by block."""
        lists_of = defaultdict[ClassKey, list[str]](list)
        for key, name in lists:
            lists_of[key].append(name)
        facts = []
        blocks = defaultdict[GroupKey, bytearray](bytearray)
        for key, names in lists_of.items():
            if not (lines := b"".join(self.store.read_each(names, plan.MOST_BYTES))):
                continue
            division = census.divisions[key.split]
            of_class, entries = self.deal(key, lines, census)
            facts.append(of_class)
            for split, of_split in entries.items():
                num_shards, examples = division.num_shards[split], division.before[split][-1]
                size = max(1, _BLOCK_MEMBERS * num_shards // max(1, examples))
                for entry in of_split:
                    blocks[GroupKey(split, plan.shard_of(entry) // size)] += entry
        return facts, {block: bytes(packed) for block, packed in blocks.items()}

    def write(self, block: GroupKey, entries: Iterable[bytes], census: Census) -> list[ShardKey]:
        """Writes the plan files of a block of shards; returns the shards that have members."""
        num_shards = census.num_shards[block.split]
        lines = [line for part in entries for line in part.splitlines(keepends=True)]
        written = []
        for shard, name, data in plan.files(block.split, num_shards, runs.grouped(lines)):
            self.store.write(f"{self.folder}/{name}", data)
            written.append(ShardKey(block.split, shard))
        return written

    def complete(
        self, census: Census, facts: Sequence[Facts], filled: Collection[ShardKey]
    ) -> Inventory:
        """Completes the plan and writes its note; see `Planning.complete`."""
        inventory = super().complete(census, facts, filled)
        for split, members in inventory.excluded.items():
            self.store.write(self._excluded_name(split), b"".join(map(dump_member, members)))
        content = _Note(
            inventory.plans,
            inventory.taken,
            inventory.edition,
            inventory.md5,
            [*inventory.excluded],
        )
        self.store.write(f"{self.folder}/{_NOTE}", canonical.dumps(content))
        return inventory

    def _excluded_name(self, split: str) -> str:
        return f"{self.folder}/excluded-{split}.jsonl"

    def found(self) -> Inventory | None:
        """Returns the stored plan if it is complete."""
        files = set(self.store.names(self.folder))
        if _NOTE not in files:
            return None
        note = read_note(self.store, f"{self.folder}/{_NOTE}", _Note)
        names = (name for split in note.plans for name in split.shard_names)
        if not files.issuperset(map(plan.file_name, names)):
            return None
        excluded = {
            split: parse_members(self.store.read(self._excluded_name(split), most=plan.MOST_BYTES))
            for split in note.excluded
        }
        taken = Counter(note.taken)
        return Inventory(note.plans, taken, note.edition, self.folder, note.md5, excluded)
