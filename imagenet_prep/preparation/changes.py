"""Finds the shards that an amend command changes, by reading only the tables of samples."""

from __future__ import annotations

import csv
import hashlib
import io
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import UsageError, some
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import keys, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.keys import KeyList, Lookup
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.dataset.member import Member
from imagenet_prep.dataset.settings import Listed
from imagenet_prep.shards import plan
from imagenet_prep.shards.samples_root import equal_keys
from imagenet_prep.sources import folder, layout
from imagenet_prep.storage.opened import Dataset

_HEADER = ["key", "class"]


class ShardChange(NamedTuple):
    """The change of one shard: excluded keys, new class indices by key, and images to add."""

    shard: Shard
    excluded: frozenset[str]
    relabelled: Mapping[str, int]
    added: tuple[Member, ...]

    @property
    def name(self) -> str:
        """The shard's name."""
        return self.shard.name


class Relabels(NamedTuple):
    """The images to relabel: the list of their keys, and the new class index by line number."""

    listed: KeyList
    class_of: Mapping[int, int]


@dataclass(frozen=True)
class Additions:
    """Images to add from a folder; `sha256` maps `Member.archive` to the hash of the image file."""

    source: folder.Folder
    members: Mapping[str, tuple[Member, ...]]
    sha256: Mapping[str, str]

    @property
    def summary(self) -> Listed:
        """The entry for these images in the manifest."""
        rows = sorted(
            [split, member.key, member.class_index, self.sha256[member.archive]]
            for split, of_split in self.members.items()
            for member in of_split
        )
        return Listed(len(rows), canonical.digest(rows))


@dataclass(frozen=True)
class Request:
    """All requested changes: images to exclude, relabel or add."""

    exclude: KeyList | None = None
    relabel: Relabels | None = None
    add: Additions | None = None
    splits: tuple[str, ...] | None = None  # the lists are only for these splits; None for all

    def __post_init__(self) -> None:
        for listed in self.lists:
            _refuse(listed.path, listed.named_twice(), "a key that is already on an earlier line")
        for split in self.splits or schema.SPLITS:
            self._refuse_contradictions(split)

    def _refuse_contradictions(self, split: str) -> None:
        """Raises UsageError if two flags name the same image of a split."""
        if self.exclude and self.relabel:
            excluded = self.exclude.named_in(split)
            relabelled = self.relabel.listed
            twice = [n for key, n in relabelled.named_in(split).items() if key in excluded]
            _refuse(relabelled.path, twice, f"a key that is also in {self.exclude.path}")
        for listed in self.lists:
            named = listed.named_in(split)
            for key in self.new.get(split, {}).keys() & named.keys():
                raise UsageError(
                    f"{listed.path}: line {named[key]} lists the key of an image of --add. Run "
                    "amend twice: first without --add, then with --add on the result."
                )

    @property
    def lists(self) -> list[KeyList]:
        """The lists of keys to exclude and to relabel, if given."""
        lists = self.exclude, self.relabel and self.relabel.listed
        return [listed for listed in lists if listed]

    @property
    def narrowing(self) -> tuple[str, ...]:
        """The value of `splits`; () if it changes nothing, since every line names one of them."""
        chosen = self.splits or ()
        for listed in self.lists:
            for split, named in listed.by_split.items():
                if named and split not in chosen:
                    return chosen
        return ()

    @cached_property
    def new(self) -> dict[str, dict[str, Member]]:
        """The images to add, by split and key."""
        of_splits = self.add.members.items() if self.add else ()
        return {split: {member.key: member for member in members} for split, members in of_splits}


def read_relabels(path: str, classes: ClassList) -> Relabels:
    """Reads a CSV file with the header key,class. A class is a name in labels.txt or an index.

    The fields are read exactly as they are, like the lines of `keys.read_list`.
    """
    try:
        text = keys.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (invalid at byte {error.start:,})") from None
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    numbered: dict[str, int] = {}
    class_of: dict[int, int] = {}
    repeated: list[int] = []
    absent: list[int] = []
    try:
        if next(rows, None) != _HEADER:
            raise UsageError(f"{path}: line 1: expected the header {','.join(_HEADER)}")
        for row in filter(None, rows):
            if len(row) != len(_HEADER):
                raise UsageError(f"{path}: line {rows.line_num}: expected two fields: key,class")
            key, name = row
            number = numbered.setdefault(key, rows.line_num)
            if number != rows.line_num:
                repeated.append(rows.line_num)
            index = _index_of(name, classes)
            if index is None:
                absent.append(rows.line_num)
            else:
                class_of[number] = index
    except csv.Error as error:
        raise UsageError(f"{path}: line {rows.line_num}: {error}") from None
    _refuse(path, absent, f"a class that is not among the dataset's {len(classes.wnids):,} classes")
    if not numbered:
        raise UsageError(f"{path}: no key after the header")
    digest = canonical.digest(sorted([key, class_of[number]] for key, number in numbered.items()))
    return Relabels(KeyList(path, numbered, digest, repeated), class_of)


def _index_of(name: str, classes: ClassList) -> int | None:
    # A class name may be a number, as in MNIST. Names take precedence over indices.
    if name in classes.index:
        return classes.index[name]
    if not (name.isascii() and name.isdecimal() and len(name) <= len(str(len(classes.wnids)))):
        return None
    return int(name) if int(name) < len(classes.wnids) else None


def read_additions(where: str, classes: ClassList, splits: Collection[str]) -> Additions:
    """Lists and hashes the images in train/CLASS (or just CLASS) and val/CLASS."""
    root = Path(where).expanduser()
    if not root.is_dir():
        raise UsageError(f"--add {where}: no such folder. Expected a folder of class folders.")
    split_folders = layout.split_folders(root)
    if not split_folders.folders:
        raise UsageError(
            f"--add {where}: no images found. Expected train/CLASS/*, val/CLASS/* or CLASS/*."
        )
    base, folders = split_folders[:2]
    if unread := layout.unread(split_folders):
        raise UsageError(
            f"--add {where}: the images in {some([*unread])} would not be read. Move them away, or "
            "into the folder of a split of the dataset."
        )
    if absent := sorted(set(folders) - set(splits)):
        raise UsageError(f"--add {where}: has the split {some(absent)}, which the dataset lacks")
    paths = (base / path for path in folders.values())
    names = {name for path in paths for name in layout.class_folders(path, classes)}
    if absent := sorted(name for name in names if classes.of_folder(name) is None):
        raise UsageError(
            f"--add {where}: {len(absent):,} of its classes are not in the dataset: "
            f"{some(absent)}. amend cannot add classes: labels are positions in the class list."
        )
    source = folder.find(root, [s for s in schema.SOURCE_SPLITS if s in folders], classes=classes)
    reader, members, sha256 = source.images, dict[str, tuple[Member, ...]](), {}
    for task in source.tasks:
        of_task = source.index(task)
        members[task.split] = (*members.get(task.split, ()), *of_task)
        for member in of_task:
            sha256[member.archive] = hashlib.sha256(reader.read(member)).hexdigest()
    return Additions(source, members, sha256)


def changes_of(request: Request, dataset: Dataset, seed: int) -> list[ShardChange]:
    """Returns the change of each changed shard; `seed` decides the shard of each new image."""
    splits = dataset.manifest.splits
    chosen = [name for name in splits if request.splits is None or name in request.splits]

    def lookup_of(listed: KeyList | None) -> Lookup | None:
        return None if listed is None else Lookup(listed, splits, chosen)

    exclude = lookup_of(request.exclude)
    relabel = lookup_of(request.relabel and request.relabel.listed)
    changes: list[ShardChange] = []
    for name in splits:
        of_split = _changes_in(request, exclude, relabel, name, dataset, seed)
        changes += [change for change in of_split if any(change[1:])]
    for lookup in (exclude, relabel):
        if lookup:
            lookup.check(f"{' and '.join(splits)} of {dataset.where}")
    return changes


def _changes_in(
    request: Request,
    exclude: Lookup | None,
    relabel: Lookup | None,
    name: str,
    dataset: Dataset,
    seed: int,
) -> Iterable[ShardChange]:
    """Yields the change of each shard of a split, which may be empty."""
    split = dataset.manifest.splits[name]
    new = request.new.get(name, {})
    listed = set(new)
    for lookup in (exclude, relabel):
        if lookup:
            listed |= lookup.named[name].keys()
    added = defaultdict[int, list[Member]](list)
    for member in new.values():
        added[plan.keyed_hash(seed, "add", member.key) % len(split.shards)].append(member)
    taken: list[str] = []
    emptied: list[str] = []
    seen: set[str] = set()
    tables = dataset.heads(split.shards)
    for number, (shard, heads) in enumerate(zip(split.shards, tables, strict=True)):
        class_of: dict[str, int] = {}
        for class_index, key, _ in heads:
            if key in listed:
                if key in seen or key in class_of:
                    raise equal_keys(dataset.store, split.shards, key)
                class_of[key] = class_index
        seen |= class_of.keys()
        taken += [key for key in class_of if key in new]
        relabelled: dict[str, int] = {}
        for key, line in _lines_by_key(relabel, name, class_of).items():
            assert request.relabel is not None
            new_class = request.relabel.class_of[line]
            if new_class != class_of[key]:
                relabelled[key] = new_class
        excluded = frozenset(_lines_by_key(exclude, name, class_of))
        if len(excluded) == shard.examples and not added[number]:
            emptied.append(shard.name)
        yield ShardChange(shard, excluded, relabelled, tuple(added[number]))
    if taken:
        raise UsageError(
            f"--add: {len(taken):,} of its images have keys that already exist in {name}; the "
            f"first is {min(taken)}. Rename these files, or exclude the existing images first."
        )
    if emptied:
        raise UsageError(
            f"--exclude leaves no image in {some(emptied)}, and no shard may be empty. Keep at "
            "least one image in each shard, or prepare the dataset again with fewer shards."
        )


def _lines_by_key(lookup: Lookup | None, split: str, keys: Collection[str]) -> dict[str, int]:
    """Returns the keys of a split that a list names, with the numbers of its lines."""
    if lookup is None:
        return {}
    lines = lookup.lines(split, keys)
    return {key: line for key, line in zip(keys, lines, strict=True) if line}


def _refuse(path: str, lines: Collection[int], problem: str) -> None:
    """Raises UsageError if `lines` is not empty. The message has a line number but no key."""
    if lines:
        count = counted(len(lines), "line")
        raise UsageError(f"{path}: {count} with {problem}; the first is line {min(lines):,}.")
