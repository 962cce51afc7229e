"""Resolves the changes requested from `amend` using only sample tables; reads no shard."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import UsageError, some
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
    """New classes of images: the keys, and the class index by key."""

    listed: KeyList
    class_of: Mapping[str, int]


@dataclass(frozen=True)
class Additions:
    """Images of a folder to add; `sha256` has the hash of each image file by `Member.archive`."""

    source: folder.Folder
    members: Mapping[str, tuple[Member, ...]]
    sha256: Mapping[str, str]

    @property
    def summary(self) -> Listed:
        """The entry of these images in the manifest."""
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
        """Raises UsageError if a key is named twice."""
        for listed in self.lists:
            _refuse(listed.path, listed.repeated, "a key that an earlier line names")
        left_out = self.exclude.keys if self.exclude else {}
        if self.exclude and self.relabel:
            others = self.relabel.listed
            twice = [line for key, line in others.keys.items() if key in left_out]
            _refuse(others.path, twice, f"a key that {self.exclude.path} names too")
        for member in (each for of_split in self.new.values() for each in of_split.values()):
            for listed in self.lists:
                if (line := listed.keys.get(member.key)) is not None:
                    raise UsageError(
                        f"{listed.path}: line {line} names a key that --add brings. Amend twice: "
                        "each time makes a set of its own."
                    )

    @property
    def lists(self) -> list[KeyList]:
        """The lists of keys that were given."""
        return [each for each in (self.exclude, self.relabel and self.relabel.listed) if each]

    @cached_property
    def new(self) -> dict[str, dict[str, Member]]:
        """The images to add, by split and key."""
        of_splits = self.add.members.items() if self.add else ()
        return {split: {each.key: each for each in of_split} for split, of_split in of_splits}


def read_relabels(path: str, classes: ClassList) -> Relabels:
    """Reads a CSV file with header key,class; a class is its name in labels.txt or its index."""
    try:
        text = keys.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8: byte {error.start:,}") from None
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    numbered: dict[str, int] = {}
    class_of: dict[str, int] = {}
    repeated, absent = [], []
    try:
        if next(rows, None) != _HEADER:
            raise UsageError(f"{path}: line 1: expected the header {','.join(_HEADER)}")
        for row in filter(None, rows):
            if len(row) != len(_HEADER):
                raise UsageError(f"{path}: line {rows.line_num}: expected a key and a class")
            key, name = (part.strip(keys.BLANKS) for part in row)
            if numbered.setdefault(key, rows.line_num) != rows.line_num:
                repeated.append(rows.line_num)
            if (index := _index_of(name, classes)) is None:
                absent.append(rows.line_num)
            else:
                class_of[key] = index
    except csv.Error as error:
        raise UsageError(f"{path}: line {rows.line_num}: {error}") from None
    _refuse(path, absent, f"a class that is not one of the {len(classes.wnids):,}")
    if not numbered:
        raise UsageError(f"{path}: lists no key below its header")
    digest = canonical.digest(sorted([key, index] for key, index in class_of.items()))
    return Relabels(KeyList(path, numbered, digest, repeated), class_of)


def _index_of(name: str, classes: ClassList) -> int | None:
    # A class name may itself be a number, as in MNIST; the name takes precedence.
    if (index := classes.index.get(name)) is not None:
        return index
    if not (name.isascii() and name.isdecimal() and len(name) <= len(str(len(classes.wnids)))):
        return None
    return int(name) if int(name) < len(classes.wnids) else None


def read_additions(where: str, classes: ClassList, splits: Collection[str]) -> Additions:
    """Lists and hashes images: train/CLASS/* and val/CLASS/*, or CLASS/* for train."""
    root = Path(where).expanduser()
    if not root.is_dir():
        raise UsageError(f"--add {where}: no such folder. It takes a folder of class folders.")
    there = layout.split_folders(root)
    if not there.folders:
        raise UsageError(
            f"--add {where}: holds no images of classes: train/CLASS/*, val/CLASS/*, or CLASS/*."
        )
    base, folders = there[:2]
    if unread := layout.unread(there):
        raise UsageError(
            f"--add {where}: {some([*unread])}: these images would not be read. Move them away, or "
            "into a folder of a split that the set has."
        )
    if absent := sorted(set(folders) - set(splits)):
        raise UsageError(f"--add {where}: holds {some(absent)}, and the set has no such split")
    paths = (base / path for path in folders.values())
    names = {name for path in paths for name in layout.class_folders(path, classes)}
    if absent := sorted(name for name in names if classes.of_folder(name) is None):
        raise UsageError(
            f"--add {where}: {len(absent):,} of its classes are not in the set: {some(absent)}. "
            "Labels are places in a list of classes that stays as it is."
        )
    found = folder.find(root, [s for s in schema.SOURCE_SPLITS if s in folders], classes=classes)
    members: dict[str, tuple[Member, ...]] = {}
    for task in found.tasks:
        members[task.split] = (*members.get(task.split, ()), *found.index(task))
    reader, sha256 = found.images, {}
    for member in (each for of_split in members.values() for each in of_split):
        sha256[member.archive] = hashlib.sha256(reader.read(member)).hexdigest()
    return Additions(found, members, sha256)


def changes_of(request: Request, dataset: Dataset, seed: int) -> list[ShardChange]:
    """Returns the shards to be changed, sorted by name; the seed selects shards for new images."""
    changes: list[ShardChange] = []
    split_of: dict[str, str] = {}
    for name, split in dataset.manifest.splits.items():
        of_split = list(_changes_in(request, name, split, dataset, seed))
        named = {key for each in of_split for key in each.named}
        for listed in request.lists:
            listed.refuse_ambiguous(named & split_of.keys() & listed.keys.keys())
        split_of |= dict.fromkeys(named, name)
        changes += [each.change for each in of_split if any(each.change[1:])]
    for listed in request.lists:
        unknown = [line for key, line in listed.keys.items() if key not in split_of]
        _refuse(listed.path, unknown, f"a key that no image of {dataset.where} has")
    return changes


class _Found(NamedTuple):
    """A shard's change and the listed keys in it, including those that change nothing."""

    change: ShardChange
    named: frozenset[str]


def _changes_in(
    request: Request, name: str, split: Split, dataset: Dataset, seed: int
) -> Iterable[_Found]:
    left_out = request.exclude.keys if request.exclude else {}
    class_of = request.relabel.class_of if request.relabel else {}
    new = request.new.get(name, {})
    wanted = left_out.keys() | class_of.keys() | new.keys()
    coming: dict[int, list[Member]] = {}
    for member in new.values():
        number = plan.keyed_hash(seed, "add", member.key) % len(split.shards)
        coming.setdefault(number, []).append(member)
    taken, emptied, seen = [], [], set[str]()
    found = dataset.heads(split.shards)
    for number, (shard, heads) in enumerate(zip(split.shards, found, strict=True)):
        named: dict[str, int] = {}
        for class_index, key, _ in heads:
            if key in wanted and (key in seen or key in named):
                raise equal_keys(dataset.store, split.shards, key)
            if key in wanted:
                named[key] = class_index
        seen |= named.keys()
        taken += [key for key in named if key in new]
        change = ShardChange(
            shard,
            frozenset(named.keys() & left_out.keys()),
            {
                key: class_of[key]
                for key, class_index in named.items()
                if key in class_of and class_of[key] != class_index
            },
            tuple(coming.get(number, ())),
        )
        if len(change.excluded) == shard.examples and not change.added:
            emptied.append(shard.name)
        yield _Found(change, frozenset(named.keys() - new.keys()))
    if taken:
        raise UsageError(
            f"--add: {len(taken):,} of its images have keys that are in {name} already; the first "
            f"is {min(taken)}. Rename them, or exclude those first."
        )
    if emptied:
        raise UsageError(
            f"--exclude leaves no image in {some(emptied)}, and no shard may be empty. Keep one "
            "image of each, or make the set anew with fewer shards."
        )


def _refuse(path: str, lines: Collection[int], what: str) -> None:
    """Raises UsageError that shows only line numbers, as `KeyList.refuse_unknown` does."""
    if lines:
        count = f"{len(lines):,} line{'s' * (len(lines) > 1)}"
        raise UsageError(f"{path}: {count} with {what}; the first is line {min(lines):,}.")
