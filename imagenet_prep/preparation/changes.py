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
from imagenet_prep.dataset.keys import KeyList
from imagenet_prep.dataset.manifest import Shard, Split
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
    """The images to relabel: the list of their keys, and the new class index by key."""

    listed: KeyList
    class_of: Mapping[str, int]


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

    def __post_init__(self) -> None:
        for listed in self.lists:
            _refuse(listed.path, listed.repeated, "a key that is already on an earlier line")
        if self.exclude and self.relabel:
            others = self.relabel.listed
            twice = [line for key, line in others.keys.items() if key in self.exclude.keys]
            _refuse(others.path, twice, f"a key that is also in {self.exclude.path}")
        for key in (key for of_split in self.new.values() for key in of_split):
            for listed in self.lists:
                if (line := listed.keys.get(key)) is not None:
                    raise UsageError(
                        f"{listed.path}: line {line} lists the key of an image of --add. Run amend "
                        "twice: first without --add, then with --add on the result."
                    )

    @property
    def lists(self) -> list[KeyList]:
        """The lists of keys to exclude and to relabel, if given."""
        lists = self.exclude, self.relabel and self.relabel.listed
        return [listed for listed in lists if listed]

    @cached_property
    def new(self) -> dict[str, dict[str, Member]]:
        """The images to add, by split and key."""
        of_splits = self.add.members.items() if self.add else ()
        return {split: {member.key: member for member in members} for split, members in of_splits}


def read_relabels(path: str, classes: ClassList) -> Relabels:
    """Reads a CSV file with the header key,class. A class is a name in labels.txt or an index."""
    try:
        text = keys.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (invalid at byte {error.start:,})") from None
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    numbered: dict[str, int] = {}
    class_of: dict[str, int] = {}
    repeated, absent = [], []
    try:
        if next(rows, None) != _HEADER:
            raise UsageError(f"{path}: line 1: expected the header {','.join(_HEADER)}")
        for row in filter(None, rows):
            if len(row) != len(_HEADER):
                raise UsageError(f"{path}: line {rows.line_num}: expected two fields: key,class")
            key, name = (part.strip(keys.BLANKS) for part in row)
            if numbered.setdefault(key, rows.line_num) != rows.line_num:
                repeated.append(rows.line_num)
            if (index := _index_of(name, classes)) is None:
                absent.append(rows.line_num)
            else:
                class_of[key] = index
    except csv.Error as error:
        raise UsageError(f"{path}: line {rows.line_num}: {error}") from None
    _refuse(path, absent, f"a class that is not among the dataset's {len(classes.wnids):,} classes")
    if not numbered:
        raise UsageError(f"{path}: no key after the header")
    digest = canonical.digest(sorted([key, index] for key, index in class_of.items()))
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
    changes: list[ShardChange] = []
    split_of: dict[str, str] = {}
    for name, split in dataset.manifest.splits.items():
        of_split = list(_changes_in(request, name, split, dataset, seed))
        named = {key for _, keys in of_split for key in keys}
        for listed in request.lists:
            listed.refuse_ambiguous(named & split_of.keys() & listed.keys.keys())
        split_of |= dict.fromkeys(named, name)
        changes += [change for change, _ in of_split if any(change[1:])]
    for listed in request.lists:
        unknown = [line for key, line in listed.keys.items() if key not in split_of]
        _refuse(listed.path, unknown, f"a key that no image of {dataset.where} has")
    return changes


def _changes_in(
    request: Request, name: str, split: Split, dataset: Dataset, seed: int
) -> Iterable[tuple[ShardChange, set[str]]]:
    """Yields each shard's change, perhaps empty, and the shard's keys that the request names."""
    excluded = request.exclude.keys if request.exclude else {}
    class_of = request.relabel.class_of if request.relabel else {}
    new = request.new.get(name, {})
    listed = excluded.keys() | class_of.keys() | new.keys()
    added = defaultdict[int, list[Member]](list)
    for member in new.values():
        added[plan.keyed_hash(seed, "add", member.key) % len(split.shards)].append(member)
    taken, emptied, seen = [], [], set[str]()
    tables = dataset.heads(split.shards)
    for number, (shard, heads) in enumerate(zip(split.shards, tables, strict=True)):
        named: dict[str, int] = {}
        for class_index, key, _ in heads:
            if key in listed:
                if key in seen or key in named:
                    raise equal_keys(dataset.store, split.shards, key)
                named[key] = class_index
        seen |= named.keys()
        taken += [key for key in named if key in new]
        change = ShardChange(
            shard,
            frozenset(named.keys() & excluded.keys()),
            {key: class_of[key] for key in named if class_of.get(key, named[key]) != named[key]},
            tuple(added[number]),
        )
        if len(change.excluded) == shard.examples and not change.added:
            emptied.append(shard.name)
        yield change, named.keys() - new.keys()
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


def _refuse(path: str, lines: Collection[int], problem: str) -> None:
    """Raises UsageError if `lines` is not empty. The message has a line number but no key."""
    if lines:
        count = counted(len(lines), "line")
        raise UsageError(f"{path}: {count} with {problem}; the first is line {min(lines):,}.")
