"""The states of a disk after a loss of power at some moment of a recorded run.

Only synced data is sure: bytes by a sync of their file, names by a sync of their folder. Of
the rest, any part may exist, or none: some pages of the written data, zeros in
place of the others, and any of the names that were given, changed or taken away. That is less than
ext4 or XFS promise, and as much as the standard does.
"""

from __future__ import annotations

import copy
import enum
import hashlib
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.campaign.calls import Change, Entry

_PAGE_BYTES = 4096


class Data(enum.Enum):
    """The state of unsynced bytes."""

    ALL = "all bytes"
    NOTHING = "no bytes"
    ZEROS = "zeros"
    BEGINNING = "a beginning"
    PAGES = "some pages"


class Names(enum.Enum):
    """The state of unsynced changes of names."""

    ALL = "all names"
    NONE = "no names"
    FIRST = "the first names"
    SOME = "some names"


# For each moment: likely states after a crash, and then those that only the standard allows.
VARIANTS = (
    (Names.NONE, Data.NOTHING),
    (Names.ALL, Data.NOTHING),
    (Names.ALL, Data.ZEROS),
    (Names.NONE, Data.ALL),
    (Names.ALL, Data.BEGINNING),
    (Names.FIRST, Data.PAGES),
    (Names.SOME, Data.ZEROS),
    (Names.SOME, Data.PAGES),
    (Names.SOME, Data.PAGES),
)


@dataclass
class File:
    """A file, whatever its names are.

    Attributes:
      synced: its bytes at the last sync.
      since: the later writes, as (offset, bytes), or (new size, None) for a cut.
      mtime_ns: of its last change; it may be there without the bytes.
    """

    synced: bytes = b""
    since: list[tuple[int, bytes | None]] = field(default_factory=list)
    mtime_ns: int = 0

    def content(self, data: Data, rng: random.Random) -> bytes:
        """Returns its content on the disk."""
        changes = self.since
        if data == Data.NOTHING:
            changes = []
        elif data == Data.BEGINNING and changes:
            changes = changes[: rng.randrange(len(changes) + 1)]
            if changes and (part := changes[-1][1]):
                torn = part[: rng.randrange(len(part))]
                changes = [*changes[:-1], (changes[-1][0], torn)]
        if not changes:
            return self.synced
        found = bytearray(self.synced)
        for offset, part in changes:
            if part is None:
                _resize(found, offset)
                continue
            _resize(found, max(len(found), offset + len(part)))
            for start in range(0, len(part), _PAGE_BYTES):
                page = part[start : start + _PAGE_BYTES]
                at = slice(offset + start, offset + start + len(page))
                if data == Data.ZEROS or (data == Data.PAGES and rng.random() < 0.5):
                    # The page keeps its old content; beyond the old end, it has zeros.
                    continue
                found[at] = page
        return bytes(found)


@dataclass(eq=False)
class NameChange:
    """A name that was given to a file or folder, or taken away.

    Attributes:
      name: the path.
      target: the file; None for a folder.
      is_given: or taken away.
      folders: a sync of one of them makes it sure.
      only_with: the change that must be kept with this one: a renamed file always has a name.
      is_sure: whether it was synced.
      before: the earlier path of a folder that is renamed; "" for others.
    """

    name: str
    target: File | None
    is_given: bool
    folders: tuple[str, ...]
    only_with: NameChange | None = None
    is_sure: bool = False
    before: str = ""

    def apply(self, root: str, files: dict[str, File], folders: list[str]) -> None:
        """Makes the change; a missing folder has no files."""
        above = os.path.dirname(self.name)
        if self.before:
            if self.before in folders and (above == root or above in folders):
                _move(self.before, self.name, files, folders)
        elif self.is_given and (above == root or above in folders):
            if self.target is not None:
                files[self.name] = self.target
            elif self.name not in folders:
                folders.append(self.name)
        elif not self.is_given and self.target is not None:
            if files.get(self.name) is self.target:
                del files[self.name]
        elif not self.is_given and self.name in folders:
            inside = f"{self.name}/"
            if not any(path.startswith(inside) for path in (*files, *folders)):
                folders.remove(self.name)

    def __str__(self) -> str:
        return f"{'+' if self.is_given else '-'}{self.name}"


class State(NamedTuple):
    """A state of a disk.

    Attributes:
      files: by path; a file may have several names.
      folders: paths, each after the one above it.
      contents: of the files, by identity.
      story: when and how it came to be, in words.
    """

    files: dict[str, File]
    folders: list[str]
    contents: dict[int, bytes]
    story: str

    def digest(self) -> str:
        """Returns the digest of the state."""
        whole = hashlib.sha256(repr(sorted(self.folders)).encode())
        for name, file in sorted(self.files.items()):
            # Digests are compared in this process only, and those of contents are its dearest part.
            content = hash(self.contents[id(file)])
            whole.update(f"{name}\0{file.mtime_ns}\0{content}\0".encode())
        return whole.hexdigest()

    def lay_out(self, root: Path) -> None:
        """Makes a folder hold this and nothing else."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        for folder in self.folders:
            Path(folder).mkdir()
        first: dict[int, str] = {}
        for name, file in self.files.items():
            if id(file) in first:
                os.link(first[id(file)], name)
                continue
            first[id(file)] = name
            Path(name).write_bytes(self.contents[id(file)])
            os.utime(name, ns=(file.mtime_ns, file.mtime_ns))


class Disk:
    """The synced and unsynced state, moment by moment."""

    def __init__(self, root: Path) -> None:
        """Treats the current content of a folder as synced."""
        self._root = str(root)
        self._files: dict[str, File] = {}
        self._folders: list[str] = []
        self._by_inode: dict[int, File] = {}
        self._changes: list[NameChange] = []
        for path in sorted(root.rglob("*")):
            if path.is_dir():
                self._folders.append(str(path))
                continue
            status = path.stat()
            file = File(path.read_bytes(), [], status.st_mtime_ns)
            self._files[str(path)] = self._by_inode[status.st_ino] = file
        self._now = dict(self._files)

    def copy(self) -> Disk:
        """Returns a disk that goes on from here by itself."""
        return copy.deepcopy(self)

    def goes_on(self, entry: Entry) -> None:
        """Takes the next change of the record."""
        match entry.change:
            case Change.CREATED:
                self._by_inode[entry.inode] = file = File(mtime_ns=entry.mtime_ns)
                self._give(entry.name, file)
            case Change.WRITTEN | Change.CUT | Change.SYNCED:
                # A temporary file without a name is not created by name, and ends with the power.
                if entry.inode in self._by_inode:
                    self._change(self._by_inode[entry.inode], entry)
            case Change.RENAMED:
                self._rename(entry.name, entry.other)
            case Change.LINKED:
                self._give(entry.other, self._now[entry.name])
            case Change.UNLINKED | Change.FOLDER_REMOVED:
                self._take(entry.name)
            case Change.FOLDER_MADE:
                self._give(entry.name, None)
            case Change.FOLDER_SYNCED:
                for change in self._changes:
                    change.is_sure |= entry.name in change.folders
            case Change.ALL_SYNCED:
                for file in self._by_inode.values():
                    file.synced = file.content(Data.ALL, random.Random(0))
                    file.since = []
                for change in self._changes:
                    change.is_sure = True

    def as_it_is(self, root: Path) -> None:
        """Writes the files that the system shows now, and continues with them.

        Unsynced data stays unsynced: a run was killed, and the machine continues.
        """
        now = self.state(Names.ALL, Data.ALL, random.Random(0))
        now.lay_out(root)
        self._by_inode = {Path(name).stat().st_ino: file for name, file in now.files.items()}

    def _change(self, file: File, entry: Entry) -> None:
        file.mtime_ns = entry.mtime_ns
        if entry.change == Change.WRITTEN:
            file.since.append((entry.offset, entry.data))
        elif entry.change == Change.CUT:
            file.since.append((entry.offset, None))
        else:
            file.synced = file.content(Data.ALL, random.Random(0))
            file.since = []

    def _give(self, name: str, target: File | None) -> NameChange:
        if target is not None:
            self._now[name] = target
        change = NameChange(name, target, True, (os.path.dirname(name),))
        self._changes.append(change)
        return change

    def _take(self, name: str) -> NameChange:
        target = self._now.pop(name, None)
        change = NameChange(name, target, False, (os.path.dirname(name),))
        self._changes.append(change)
        return change

    def _rename(self, name: str, other: str) -> None:
        if name not in self._now:
            _move(name, other, self._now, [])
            folders = (os.path.dirname(other), os.path.dirname(name))
            self._changes.append(NameChange(other, None, True, folders, before=name))
            return
        given = self._give(other, self._now[name])
        taken = self._take(name)
        given.folders += taken.folders
        taken.only_with = given

    def state(self, names: Names, data: Data, rng: random.Random) -> State:
        """Returns one of the states that a crash at this moment may leave."""
        unsure = [change for change in self._changes if not change.is_sure]
        kept = {
            Names.ALL: lambda: unsure,
            Names.NONE: list[NameChange],
            Names.FIRST: lambda: unsure[: rng.randrange(len(unsure) + 1)],
            Names.SOME: lambda: [change for change in unsure if rng.random() < 0.5],
        }[names]()
        there = {*kept, *(change.only_with for change in kept)}
        files = dict(self._files)
        folders = [*self._folders]
        for change in self._changes:
            if change.is_sure or change in there:
                change.apply(self._root, files, folders)
        contents = {id(file): file.content(data, rng) for file in files.values()}
        lost = [str(change).replace(self._root, "") for change in unsure if change not in there]
        return State(files, folders, contents, f"{names.value}, {data.value}; lost: {lost}")


def last_states(disk: Disk, rng: random.Random) -> Iterator[State]:
    """Yields different states that a crash at this moment may leave."""
    seen = set[str]()
    for names, data in VARIANTS:
        state = disk.state(names, data, rng)
        if (digest := state.digest()) not in seen:
            seen.add(digest)
            yield state


def _move(name: str, other: str, files: dict[str, File], folders: list[str]) -> None:
    """Gives all paths in a folder, and its own, the beginning `other` instead of `name`."""

    def moved(path: str) -> str:
        return other + path[len(name) :] if f"{path}/".startswith(f"{name}/") else path

    folders[:] = map(moved, folders)
    for path in [path for path in files if moved(path) != path]:
        files[moved(path)] = files.pop(path)


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    content += bytes(size - len(content))
