"""A dataset in a folder, in which each file is complete or absent.

A file is written under a temporary name in `.work/temporary`, and synced by its writer (see
`new_file`). It then gets its final name, and its folder is synced.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import shutil
import stat
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from imagenet_prep.core import small_files, threads
from imagenet_prep.core.errors import DataDamagedError, StoreError, UsageError
from imagenet_prep.core.small_files import MOST_BYTES, fsync_folder
from imagenet_prep.dataset import schema
from imagenet_prep.storage import local_file
from imagenet_prep.storage.local_file import (
    OpenFolder,
    ReadableFile,
    folder_inside,
    locked,
    new_file,
    removed_on_failure,
    storage_errors,
    try_lock,
)
from imagenet_prep.storage.remote import (
    AbsentError,
    Check,
    Stat,
    TransientError,
    changed,
    exactly,
    unchecked,
)

if TYPE_CHECKING:
    from imagenet_prep.dataset.manifest import DatasetFile


TEMPORARY = f"{schema.WORK}/temporary"
# NFS gives a removed file, which a process still has open, a name like this until it is closed.
_BUSY = ".nfs"
# For file systems that do not report their size.
UNKNOWN_BYTES = 1 << 62
_LOCK = f"{schema.WORK}/lock"
# Folders in which tasks publish files.
_PUBLISHED = (*schema.BESIDE, schema.PARQUET_FOLDER)
# Number of folders that a store keeps open: a stage of work uses seven.
_MOST_OPENED = 16
# Errors that mean the folder is missing, unreadable, or read-only.
_NOT_OURS_TO_SYNC = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EROFS)


class LocalStore:
    """A folder on a local or shared file system. Picklable, safe for threads and processes.

    Methods raise DataDamagedError if a name leads outside the folder, StoreError if a path below
    `.work` contains a link or the system refuses, and IncompleteError if the disk is full.
    """

    def __init__(self, root: Path, called: str = "") -> None:
        """Creates nothing on the disk. `called` replaces `root` in messages."""
        self.root = root
        self._called = called or str(root)
        # By name, and whether it may be written to.
        self._opened: dict[tuple[str, bool], OpenFolder] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A descriptor is only valid in its process.
        return {**vars(self), "_opened": {}}

    def _folder(self, name: str, *, make: bool = False) -> OpenFolder:
        """Opens a folder as `folder_inside` does, and keeps it open for the next call.

        Every call looks at the path again, so a folder that was replaced is opened again, and a
        planted link is refused.
        """
        folder = self._opened.get((name, make))
        if folder is None or not folder.is_there():
            if make:
                self._refuse_foreign_work()
            folder = OpenFolder(self.root, name, make=make)
            if len(self._opened) >= _MOST_OPENED:
                self.close_folders()
            self._opened[name, make] = folder
        return folder

    def close_folders(self) -> None:
        """Closes the open folders; the next call opens them again."""
        self._opened.clear()

    @property
    def local(self) -> LocalStore:
        """The store itself, because it is local."""
        return self

    as_folder = local

    def where(self, name: str = "") -> str:
        return f"{self._called}/{name}" if name else self._called

    def path(self, name: str = "") -> Path:
        """Returns the path of the file `name` of the dataset; "" is the folder itself."""
        return _path(self.root, name) if name else self.root

    def open(self, name: str, flags: int) -> int:
        """Opens a file below `.work` or `columns`; returns a descriptor for the caller to close."""
        # A dataset from elsewhere may contain anything: follow no link, open only regular files.
        self.path(name)
        if flags & (os.O_WRONLY | os.O_RDWR):
            self._refuse_foreign_work()
        # Opening a pipe would block forever.
        folder = self._folder(name.rpartition("/")[0])
        descriptor = local_file.open_inside(self.root, name, flags | os.O_NONBLOCK, folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise local_file.refusal(self.root, name)
        return descriptor

    def make_folder(self, name: str) -> None:
        """Makes a folder and its missing parents."""
        with storage_errors("create", self.path(name)):
            self._folder(name, make=True)

    def size(self, name: str) -> int | None:
        """Returns the size of a published file in bytes, or None if it does not exist."""
        path = self.path(name)
        with storage_errors("look at", path):
            try:
                if _is_ours(name):
                    folder = self._folder(name.rpartition("/")[0])
                    status = local_file.stat_inside(self.root, name, folder)
                else:
                    status = path.stat()
            except OSError as error:
                # A link may be broken or circular.
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
                return None
        if stat.S_ISREG(status.st_mode):
            return status.st_size
        if name.partition("/")[0] == schema.COLUMNS:
            raise local_file.refusal(self.root, name)
        return None

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        sizes = {name: self.size(name) for name in names}
        return {name: size for name, size in sizes.items() if size is not None}

    def stat(self, name: str, _budget: object = None) -> Stat:
        try:
            status = self.path(name).stat()
        except OSError as error:
            problem = f"{self.where(name)}: {error.strerror}."
            if error.errno == errno.ENOENT:
                raise AbsentError(f"{problem} Check the path.") from error
            raise StoreError(f"{problem} Check the disk.") from error
        if not stat.S_ISREG(status.st_mode):
            raise AbsentError(f"{self.where(name)}: is not a file. Check the path.")
        return Stat.of(status)

    def list_folder(self, folder: str = "") -> list[str]:
        """Returns the sorted names of files and folders in `folder`; empty if it does not exist."""
        with self._entries(folder) as entries:
            return sorted(entry.name for entry in entries)

    def names(self, folder: str) -> list[str]:
        """Returns the sorted file names directly in `folder`; empty if it does not exist."""
        with self._entries(folder) as entries:
            return sorted(entry.name for entry in entries if _is_file(entry))

    def stats(self, folder: str, _budget: object = None) -> dict[str, Stat]:
        """Returns the state of each file directly in `folder` by name, in the order of the names.

        It is empty if the folder does not exist.
        """
        with self._entries(folder) as entries:
            found = {entry.name: Stat.of(entry.stat()) for entry in entries if _is_file(entry)}
        return dict(sorted(found.items()))

    @contextlib.contextmanager
    def _entries(self, folder: str) -> Iterator[Iterable[os.DirEntry[str]]]:
        path = self.path(folder)
        with storage_errors("list", path), contextlib.ExitStack() as opened:
            entries: Iterable[os.DirEntry[str]] = ()
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                place: int | Path = path
                # A link could lead to private files, and their names would be shown.
                top = folder.partition("/")[0]
                if top in schema.BESIDE:
                    local_file.refuse_other_kinds(self.root, top)
                if _is_ours(folder):
                    place = opened.enter_context(self._folder(folder))
                    # A new descriptor, because a listing moves the position of its descriptor.
                    place = os.open(".", local_file.FOLDER, dir_fd=place)
                    opened.callback(os.close, place)
                listed = opened.enter_context(os.scandir(place))
                entries = (entry for entry in listed if not entry.name.startswith(_BUSY))
            yield entries

    def read(
        self, name: str, offset: int = 0, size: int | None = None, most: int = MOST_BYTES
    ) -> bytes:
        path = self.path(name)
        with self._open_to_read(name) as file:
            if size is None:
                return small_files.read_whole(file, path, most)
            file.seek(offset)
            return file.read(size)

    def read_ours(self, name: str, most: int) -> bytes:
        """Returns a file of at most `most` bytes that only this user or root can have written."""
        with open(self.open(name, os.O_RDONLY), "rb") as file:
            if not local_file.is_only_ours(os.fstat(file.fileno())):
                raise local_file.refusal(self.root, name)
            return small_files.read_whole(file, self.path(name), most)

    def _open_to_read(self, name: str) -> BinaryIO:
        path = self.path(name)
        with storage_errors("read", path):
            if _is_ours(name):
                descriptor = self.open(name, os.O_RDONLY)
            else:
                descriptor = small_files.open_to_read(path)
            return io.BufferedReader(ReadableFile(descriptor, path))

    def chunks(
        self,
        name: str,
        stat: Stat,
        start: int = 0,
        stop: int | None = None,
        _budget: object = None,
        *,
        pinned: bool = True,  # noqa: ARG002 - a file on a disk has one state
    ) -> Generator[bytes, None, None]:
        stop = stat.size if stop is None else stop
        with self.open_file(name, stat) as file:
            file.seek(start)
            try:
                yield from exactly(stop - start, file.read)
            except TransientError:
                # The file was truncated after it was opened.
                changed(self.where(name))

    @contextlib.contextmanager
    def open_file(self, name: str, stat: Stat | None = None) -> Iterator[BinaryIO]:
        with self._open_to_read(name) as file:
            if stat is not None and stat.is_changed(os.fstat(file.fileno())):
                changed(self.where(name))
            yield file

    def read_each(self, names: Iterable[str], most: int = MOST_BYTES) -> Iterator[bytes]:
        return (self.read(name, most=most) for name in names)

    def temporary(self) -> Path:
        """Returns an unused path on the same file system for `publish` to rename."""
        self.make_folder(TEMPORARY)
        return self.path(TEMPORARY) / uuid.uuid4().hex

    def publish(
        self,
        temporary: Path,
        name: str,
        sha256: str | None = None,  # noqa: ARG002
        check: Check = unchecked,
        *,
        durable: bool = True,
    ) -> None:
        """Makes a temporary file visible as `name`, replacing an existing file."""
        folder, _, file = name.rpartition("/")
        with (
            storage_errors("publish", self.path(name)),
            self._folder(folder, make=True) as place,
        ):
            # Check as late as possible: a newer run may have started during the write.
            check()
            os.replace(temporary, file, dst_dir_fd=place)
            if durable:
                fsync_folder(place)

    def adopt_files(
        self, source: object, files: Iterable[DatasetFile], stats: Mapping[str, Stat] | None = None
    ) -> None:
        """Makes hard links to files of a different dataset; the links survive a crash."""
        if not isinstance(source, LocalStore):
            raise UsageError(
                f"{self.where()}: only files in a folder can be hard-linked into this folder. To "
                "copy a dataset from a bucket, use imagenet-prep replicate."
            )
        called = (source.where(), self.where())
        stats = stats or {}
        by_folder: dict[str, list[DatasetFile]] = {}
        for file in files:
            by_folder.setdefault(file.name.rpartition("/")[0], []).append(file)
        for folder, folder_files in by_folder.items():
            with (
                storage_errors("link files to", self.path(folder)),
                self._folder(folder, make=True) as place,
            ):
                for file in folder_files:
                    temporary = self.temporary()
                    path = source.path(file.name)
                    stat = stats.get(file.name)
                    hard_link(path, temporary, file.num_bytes, stat, called)
                    os.replace(temporary, file.name.rpartition("/")[2], dst_dir_fd=place)
                    # Renaming has no effect if both names are links to the same file.
                    temporary.unlink(missing_ok=True)
                fsync_folder(place)

    def rename(self, before: str, after: str) -> None:
        """Renames a file or link durably; no folder above either name may be a link."""
        source = self.path(before)
        target = self.path(after)
        with (
            storage_errors("rename", source),
            self._folder(before.rpartition("/")[0]) as old,
            self._folder(after.rpartition("/")[0]) as new,
        ):
            os.rename(source.name, target.name, src_dir_fd=old, dst_dir_fd=new)
            # Sync the new name first: after a crash, at least one of the two names exists.
            fsync_folder(new)
            fsync_folder(old)

    def remove(self, *names: str) -> None:
        """Removes files durably; they may be absent. A link is removed, not its target."""
        files_by_folder: dict[str, list[str]] = {}
        for name in names:
            folder, _, file = local_file.require_inside(name).rpartition("/")
            files_by_folder.setdefault(folder, []).append(file)
        for folder, files in files_by_folder.items():
            with (
                storage_errors("remove", self.path(folder) / files[0]),
                contextlib.suppress(FileNotFoundError),
                self._folder(folder) as place,
            ):
                for file in files:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(file, dir_fd=place)
                fsync_folder(place)

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Writes a complete small file atomically."""
        temporary = self.temporary()
        with storage_errors("write", self.path(name)), removed_on_failure(temporary):
            with new_file(temporary, durable=durable) as file:
                file.write(data)
            self.publish(temporary, name, durable=durable)

    def write_if_absent(self, name: str, data: bytes) -> bytes:
        """Writes a small file. The caller must hold the lock and know that no such file exists."""
        self.write(name, data)
        return data

    def try_create(self, name: str, owner: str = "") -> bool:
        """Creates a work file in an existing folder; returns False if the file exists."""
        with storage_errors("create", self.path(name)), contextlib.suppress(FileExistsError):
            with os.fdopen(self.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY), "wb") as file:
                file.write(owner.encode())
            return True
        return False

    @contextlib.contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """Keeps an empty file below `.work` during the block, if this user may create one."""
        path = self.path(name)
        with contextlib.suppress(OSError):
            self.path(schema.WORK).mkdir(exist_ok=True)
            os.close(local_file.open_inside(self.root, name, os.O_CREAT | os.O_WRONLY))
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                path.unlink()

    def verify_published(self, files: Iterable[DatasetFile]) -> None:
        """Does nothing: in a folder, published files stay as they are."""

    def remove_tree(self, name: str) -> None:
        """Removes a folder of work files durably; it may be absent."""
        folder, _, last = name.rpartition("/")
        with storage_errors("remove", self.path(name)):
            self._refuse_foreign_work()
            # On NFS, a new folder may have the inode number of a removed one that is still open.
            self.close_folders()
            with contextlib.suppress(FileNotFoundError):
                with local_file.folder_inside(self.root, name):
                    pass  # it is a folder, not a link
                with self._folder(folder) as place:
                    shutil.rmtree(last, onerror=_unless_gone, dir_fd=place)
                    fsync_folder(place)

    def remove_all(self) -> None:
        """Removes the folder with all its files; the lock is removed last."""
        for path in (*self.root.iterdir(), *self.path(schema.WORK).iterdir()):
            name = str(path.relative_to(self.root))
            if name not in (schema.WORK, _LOCK) and not path.name.startswith(_BUSY):
                (self.remove_tree if path.is_dir() else self.remove)(name)
        self.remove_work()
        with contextlib.suppress(OSError):  # The next run may have started.
            self.root.rmdir()

    def remove_work(self) -> None:
        """Removes temporary files, the lock of this run, and `.work` if it is then empty."""
        self.remove_tree(TEMPORARY)
        self.remove(_LOCK)
        with contextlib.suppress(OSError):  # It may have files of the next run.
            self.path(schema.WORK).rmdir()

    def free_bytes(self) -> int:
        """Returns the free disk space in bytes; see `free_bytes`."""
        folder = self.root
        while not folder.exists():
            folder = folder.parent
        return free_bytes(folder)

    @contextlib.contextmanager
    def lock(self, *, shared: bool = False) -> Iterator[None]:
        """Locks the dataset for one writing run; removes temporary files of killed runs.

        Waits for the threads of an interrupted run of this process. Of the processes that share a
        run, the last one removes these files at its end.
        """
        threads.wait_for_left()
        path = self.path(_LOCK)
        with locked(self._open_lock, path=path, where=self.where(), shared=shared) as descriptor:
            if not shared:
                self.remove_tree(TEMPORARY)
            self.settle()
            try:
                yield
            finally:
                if shared and try_lock(descriptor, path):
                    self.remove_tree(TEMPORARY)

    def settle(self) -> None:
        """Syncs the names of files that tasks of this run or of a killed one have published."""
        # Without this sync, a crash could still undo their renaming.
        for folder in (self.root.parent, self.root, *(self.root / name for name in _PUBLISHED)):
            with storage_errors("sync", folder):
                try:
                    local_file.sync_folder(folder)
                except OSError as error:
                    if error.errno not in _NOT_OURS_TO_SYNC:
                        raise

    def _open_lock(self) -> int:
        self.make_folder(schema.WORK)
        with storage_errors("create", self.path(_LOCK)):
            return self.open(_LOCK, os.O_RDWR | os.O_CREAT)

    def _refuse_foreign_work(self) -> None:
        # Accept the owner of the folder, who controls its contents anyway. File systems that change
        # owners (NFS for root, FUSE) show the same owner for both.
        path = self.root / schema.WORK
        try:
            status = path.lstat()
            above = self.root.stat()
        except (FileNotFoundError, NotADirectoryError):
            return
        if status.st_uid not in (os.geteuid(), above.st_uid):
            raise StoreError(
                f"{path} belongs to a different user (UID {status.st_uid}), so its files cannot be "
                "trusted. Remove it, or make it yours (chown), then run the same command again."
            )


# A task uses the same few names several times.
@functools.lru_cache(1024)
def _path(root: Path, name: str) -> Path:
    return root / local_file.require_inside(name)


def free_bytes(folder: Path) -> int:
    """Returns the free disk space in bytes; UNKNOWN_BYTES if the file system has no size."""
    disk = shutil.disk_usage(folder)
    return disk.free if disk.total else UNKNOWN_BYTES


def _unless_gone(_function: object, _path: object, failed: tuple[Any, Any, Any]) -> None:
    """Raises an error of `shutil.rmtree`, unless other processes removed, added or use a file."""
    error = failed[1]
    passing = (errno.ENOENT, errno.ENOTEMPTY, errno.EBUSY)
    if not isinstance(error, OSError) or error.errno not in passing:
        raise error


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Returns whether an entry is a file, or a link to one; False if a link leads to itself."""
    try:
        return entry.is_file()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False


def _is_ours(name: str) -> bool:
    """Returns whether a file is in one of this program's own folders, where links are refused."""
    return name.partition("/")[0] in (schema.WORK, schema.COLUMNS)


# The file systems differ or have no hard links, the file has too many links, or the kernel does not
# allow links to files of other users.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


def hard_link(
    path: Path,
    target: Path,
    num_bytes: int,
    stat: Stat | None,
    called: tuple[str, str],
    instead: str = "copy the dataset with `imagenet-prep replicate`",
) -> None:
    """Makes a hard link `target` to a file or, if `path` is a symbolic link, to the file behind it.

    `stat` is the file's state earlier in this run, if known. `called` are the names of both
    datasets in messages, and `instead` is the advice if no link can be made.
    """
    source, where = called
    try:
        # Keep the file open: the inode number of a deleted file may be reused.
        opened = open(small_files.open_to_read(path), "rb")  # noqa: SIM115 - until the end
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        if stat is not None:
            changed(str(path))
        raise DataDamagedError(f"{path}: missing. Run verify on {source}.") from None
    with opened:
        status = os.fstat(opened.fileno())
        if stat is not None and stat.is_changed(status):
            changed(str(path))
        if num_bytes != status.st_size:
            raise DataDamagedError(
                f"{path}: {status.st_size:,} bytes, the manifest says {num_bytes:,}. Run verify on "
                f"{source}."
            )
        # A different program may have just copied the file here without syncing it.
        os.fsync(opened.fileno())
        with removed_on_failure(target):
            try:
                # Without a folder descriptor, os.link would link the symbolic link itself.
                with folder_inside(target.parent) as folder:
                    os.link(path, target.name, dst_dir_fd=folder)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                raise UsageError(
                    f"{where}: cannot create a hard link to {path} there ({error.strerror}). "
                    "Choose a folder on the same file system and run this as the owner of the "
                    f"files; or {instead}."
                ) from error
            if not os.path.samestat(status, target.lstat()):
                changed(str(path))
