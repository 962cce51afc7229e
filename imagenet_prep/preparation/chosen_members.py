"""The chosen members of a split, from the lists of its pieces; one class at a time in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from imagenet_prep.core.errors import SourceError
from imagenet_prep.dataset.keys import VALIDATION_NAME
from imagenet_prep.dataset.member import NO_BOXES, Boxes, Member, dump_member, parse_members
from imagenet_prep.preparation.box_lists import BoxLookup
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.shards import plan, runs
from imagenet_prep.sources import labels, source
from imagenet_prep.sources.source import IndexTask

# Of a list of all classes, about so many bytes are parsed at once: its 1.28 million members would
# take 730 MB.
_PARSED_BYTES = 1 << 20
# An entry of a list of all classes, which is sorted by class, begins with the class index.
_INDEX_DIGITS = 8


def chosen_of_class(
    members: Iterable[Member],
    *,
    per_class: int | None,
    seed: int,
    boxes: Mapping[str, Boxes] | None,
    where: str,
) -> list[Member]:
    """Returns the members of one class that are taken, with their boxes.

    Args:
      members: all of the class, in any order.
      per_class: how many are taken at most, chosen by the seed; None for all.
      seed: of the selection.
      boxes: by stem of the file name; None where none are wanted.
      where: the source, for messages.

    Raises:
      SourceError: an image comes twice.
    """
    chosen = source.sorted_by_key(members, where)
    if per_class:
        chosen = plan.permute(chosen, seed)[:per_class]
    if boxes is None:
        return chosen
    return [
        member._replace(boxes=boxes.get(member.filename.rpartition(".")[0], NO_BOXES))
        for member in chosen
    ]


class ChosenMembers:
    """The chosen members of one split, class by class in class-index order, with their boxes.

    Attributes:
      taken: images by name of the part that they come from; of annotations, images with boxes.
        Complete after the last class, however often they are read.
      excluded: the keys among them whose images are left out, complete as late.
    """

    def __init__(
        self,
        selection: Selection,
        lists: Sequence[tuple[IndexTask, Path]],
        lookup: BoxLookup | None,
        scratch: Path,
    ) -> None:
        self.taken: Counter[str] = Counter()
        self.excluded: set[str] = set()
        self._selection = selection
        self._lists = lists
        self._split = lists[0][0].split
        self._lookup = lookup if lookup is not None and self._split in lookup.parts else None
        # A file of unpacked images has the name of its task.
        self._part_of = {task.name: task.part for task, _ in lists}
        # Class index by number, for images with names of ILSVRC2012's validation split.
        self._numbers: dict[int, int] = {}
        mixed = (path for task, path in lists if task.class_index is None)
        entries = (
            b"%08d%b" % (member.class_index, dump_member(member))
            for path in mixed
            for member in _members_in(path)
        )
        self._mixed = runs.write(scratch, f"{self._split}.lists", entries)

    def close(self) -> None:
        """Removes the files that lists of several classes were sorted into."""
        for path in self._mixed:
            path.unlink()

    def __iter__(self) -> Iterator[list[Member]]:
        """Yields the members of each chosen class that has some.

        Raises:
          SourceError: an image comes twice, or the validation labels are not ILSVRC2012's.
        """
        where = self._selection.where
        self.taken.clear()
        for index, lines in enumerate(self._lines()):
            members = parse_members(lines)
            self._note_numbers(members)
            if index not in self._selection.classes or not members:
                continue
            chosen = chosen_of_class(
                members,
                per_class=self._selection.per_class,
                seed=self._selection.seed,
                boxes=self._boxes_of(index),
                where=where,
            )
            self._count(chosen)
            yield chosen
        labels.check_validation(self._selection.source.classes, self._numbers, where)

    def _lines(self) -> Iterator[bytes]:
        """Yields the members of each class as lines; only one class is held at a time."""
        one_class = {task.class_index: path for task, path in self._lists}
        mixed = runs.merged(self._mixed)
        waiting = next(mixed, None)
        for index in range(len(self._selection.source.classes.wnids)):
            lines = one_class[index].read_bytes() if index in one_class else b""
            if waiting is not None and waiting[0] == index:
                lines += b"".join(entry[_INDEX_DIGITS:] for entry in waiting[1])
                waiting = next(mixed, None)
            yield lines

    def _note_numbers(self, members: Sequence[Member]) -> None:
        for member in members:
            match = VALIDATION_NAME.match(member.key)
            if match is None:
                continue
            noted = self._numbers.setdefault(int(match[1]), member.class_index)
            if noted != member.class_index:
                raise SourceError(
                    f"{self._selection.where}: {member.key!r} comes twice, in two classes"
                )

    def _count(self, members: Sequence[Member]) -> None:
        default, excluded = self._lists[0][0].part, self._selection.excluded_keys
        kept = [member for member in members if member.key not in excluded]
        self.excluded.update(member.key for member in members if member.key in excluded)
        self.taken.update(self._part_of.get(member.archive, default) for member in kept)
        if self._lookup is not None:
            part = self._lookup.parts[self._split].name
            self.taken[part] += sum(bool(member.boxes.xmin) for member in kept)

    def _boxes_of(self, class_index: int) -> dict[str, Boxes] | None:
        if self._lookup is None:
            return None
        return self._lookup.of(self._split, self._selection.source.classes.wnids[class_index])


def _members_in(path: Path) -> Iterator[Member]:
    with open(path, "rb") as file:
        while lines := file.readlines(_PARSED_BYTES):
            yield from parse_members(b"".join(lines))
