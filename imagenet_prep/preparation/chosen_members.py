"""The chosen members of a split, from the lists of its pieces; one class at a time in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from imagenet_prep.dataset.member import NO_BOXES, Member, dump_member, parse_members
from imagenet_prep.preparation.box_lists import BoxLookup
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.shards import plan, runs
from imagenet_prep.sources import source
from imagenet_prep.sources.source import IndexTask

# Of a list of all classes, about so many bytes are parsed at once: its 1.28 million members would
# take 730 MB.
_PARSED_BYTES = 1 << 20
# The pieces of a source, each with the path of its list.
Lists = Sequence[tuple[IndexTask, Path]]
# An entry of such a list, sorted by class, begins with the class index.
_INDEX_DIGITS = 8


@dataclass(frozen=True)
class ChosenMembers:
    """The members of one split of the source, class by class. Picklable.

    Attributes:
      selection: which of them are chosen.
      split: of the source.
      lists: of its pieces, each with the path of its list.
      mixed: the runs that the lists of several classes were sorted into, by `entries_by_class`.
      lookup: finds boxes; None where none are wanted.
    """

    selection: Selection
    split: str
    lists: Lists
    mixed: Sequence[Path]
    lookup: BoxLookup | None

    def of_classes(self, start: int, stop: int) -> Iterator[list[Member]]:
        """Yields the members of each class of [start, stop) that has some, chosen or not."""
        one_class = {task.class_index: path for task, path in self.lists}
        mixed = runs.read(self.mixed, start, stop)
        waiting = next(mixed, None)
        for index in range(start, stop):
            lines = one_class[index].read_bytes() if index in one_class else b""
            if waiting is not None and waiting[0] == index:
                lines += b"".join(entry[_INDEX_DIGITS:] for entry in waiting[1])
                waiting = next(mixed, None)
            if lines:
                yield parse_members(lines)

    def chosen(self, members: Sequence[Member]) -> list[Member]:
        """Returns the chosen ones among all members of a class, with their boxes.

        Raises:
          SourceError: an image comes twice.
        """
        selection, index = self.selection, members[0].class_index
        if index not in selection.classes:
            return []
        chosen = source.sorted_by_key(members, selection.where)
        if selection.per_class:
            chosen = plan.permute(chosen, selection.seed)[: selection.per_class]
        if self._boxes is None:
            return chosen
        boxes = self._boxes.of(self.split, selection.source.classes.wnids[index])
        return [
            member._replace(boxes=boxes.get(member.filename.rpartition(".")[0], NO_BOXES))
            for member in chosen
        ]

    def ranked(self, parts: int, start: int, stop: int) -> Iterator[bytes]:
        """Yields the entries of `plan.entry_by_rank` for the chosen members of [start, stop)."""
        for members in self.of_classes(start, stop):
            for member in self.chosen(members):
                yield plan.entry_by_rank(member, parts, self.selection.seed)

    def taken(self, members: Sequence[Member]) -> Counter[str]:
        """Counts members by name of the part that they come from, and boxes by that of theirs."""
        default = self.lists[0][0].part
        found = Counter(self._part_of.get(member.archive, default) for member in members)
        if self._boxes is not None:
            found[self._boxes.parts[self.split].name] += sum(bool(m.boxes.xmin) for m in members)
        return found

    @cached_property
    def _boxes(self) -> BoxLookup | None:
        has_some = self.lookup is not None and self.split in self.lookup.parts
        return self.lookup if has_some else None

    @cached_property
    def _part_of(self) -> dict[str, str]:
        # A file of unpacked images has the name of its task; other members lie in the part itself,
        # or in one of the archives that are the only part of their split.
        return {name: task.part for task, _ in self.lists for name in (task.name, task.part)}


def entries_by_class(lists: Sequence[Path], start: int, stop: int) -> Iterator[bytes]:
    """Yields the members that the lists of [start, stop) hold, as entries of runs."""
    for path in lists[start:stop]:
        with open(path, "rb") as file:
            while lines := file.readlines(_PARSED_BYTES):
                for member in parse_members(b"".join(lines)):
                    yield b"%08d%b" % (member.class_index, dump_member(member))
