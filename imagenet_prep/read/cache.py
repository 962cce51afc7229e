"""A local copy of a remote dataset, fetched shard by shard and shared by the ranks of a node.

`NodeCache` fetches shards and files of columns in reading order, one shuffle window ahead of the
reader. Each file is fetched once per node: one rank locks the file's name and fetches the file
while the other ranks wait. The file gets its final name after its sha256 is verified.

Other users may have access to the cache folder, and could plant a folder for this dataset in it. So
the dataset's folder must belong to this user, and a file that already exists in it is read once to
verify its sha256. A ledger records the verified files for later ranks.

Each rank keeps its current and next shards open under a shared lock. To free space, a rank removes
only shards that it can lock exclusively, so it never removes a shard that a rank is reading.

A `HeldFile` stays open, and optionally locked, while it is referenced. After a fork, a lock is
released only when both parent and child have closed the file. So a child closes all locked files of
its parent immediately, and must not use them.

`BackgroundThreads` is a pool of daemon threads. Python does not wait for them when a script ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from imagenet_prep.core import small_files
from imagenet_prep.core.errors import IncompleteError, StoreError, UsageError
from imagenet_prep.core.terminal import human_bytes, printable
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import DatasetFile, Shard
from imagenet_prep.storage import local_file
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.fetch import bring
from imagenet_prep.storage.folder import TEMPORARY, LocalStore
from imagenet_prep.storage.ledger import NOTES, Ledger
from imagenet_prep.storage.local_file import flock, storage_errors
from imagenet_prep.storage.remote import RESUME, Access
from imagenet_prep.storage.store import open_readable

_P = ParamSpec("_P")
_T = TypeVar("_T")
# A queue of (future for the result, function to call). None ends a thread.
_Tasks = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class BackgroundThreads(Executor):
    """Like ThreadPoolExecutor, but with daemon threads; the first task starts all threads.

    At exit, Python waits for the threads of a ThreadPoolExecutor. If one of them were waiting for
    a server that does not respond, the script would never end.
    """

    def __init__(self, count: int, name: str) -> None:
        self._tasks: _Tasks = SimpleQueue()
        self._to_start = [
            threading.Thread(target=_work, args=(self._tasks,), name=name, daemon=True)
            for _ in range(count)
        ]
        self._end = weakref.finalize(self, _end, self._tasks, count)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """See `Executor.submit`."""
        with contextlib.suppress(IndexError):
            while True:
                self._to_start.pop().start()
        future: Future[_T] = Future()
        self._tasks.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Ends the threads after their tasks, without waiting for them."""
        self._end()


def _work(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        future, call = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - Future.result() raises it again
                future.set_exception(error)
        # While the thread waits for a task, it must not keep the last task's arguments alive.
        del task, future, call


def _end(tasks: _Tasks, count: int) -> None:
    for _ in range(count):
        tasks.put(None)


_LOCKS = f"{schema.WORK}/locks"
_REPORT_S = 30.0  # a wait for a lock is reported after this time
_MOST_HOLDER_BYTES = 1000


class HeldFile:
    """An open file, closed when nothing references it; `lock` is an operation of flock, or 0."""

    def __init__(self, path: Path, lock: int = 0) -> None:
        # Network file systems only allow exclusive locks on files open for writing.
        mode = os.O_RDWR if lock & fcntl.LOCK_EX else os.O_RDONLY
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        self.descriptor = os.open(path, mode | os.O_NONBLOCK | os.O_CLOEXEC)
        self._closing = weakref.finalize(self, os.close, self.descriptor)
        small_files.require_regular(self.descriptor, path)
        if lock:
            _locked.add(self)
            flock(self.descriptor, path, lock)


_locked: weakref.WeakSet[HeldFile] = weakref.WeakSet()
_reported: set[str] = set()  # processes for which this process has reported a wait


def _let_go() -> None:
    for file in list(_locked):
        if file._closing.detach():
            os.close(file.descriptor)
            file.descriptor = -1


@contextlib.contextmanager
def only_one(
    store: LocalStore, name: str, flags: int = 0, *, purpose: str | None = None
) -> Iterator[None]:
    """Holds the lock `name` of a dataset's folder; waits for it unless `flags` is LOCK_NB.

    `purpose` tells processes that wait for the lock what this process does, by default that it
    uses `name`.
    """
    store.make_folder(_LOCKS)
    path = f"{_LOCKS}/{name.replace('/', '-')}"
    with storage_errors("write", store.path(path)):
        descriptor = store.open(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            flock(descriptor, store.path(path), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if flags & fcntl.LOCK_NB:
                raise
            _wait(descriptor)
        holder = f"pid {os.getpid()} on {os.uname().nodename}, which {purpose or f'uses {name}'}"
        # The lock is also valid without this text, for example if the disk is full.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
        yield
    finally:
        # Closing the file does not release the lock if a process was forked meanwhile.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _wait(descriptor: int) -> None:
    """Waits for a lock. Reports a long wait, because the process that holds it may be stopped."""
    report = threading.Timer(_REPORT_S, _report_wait, [descriptor])
    report.daemon = True
    report.start()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        report.cancel()
        # The caller may close the descriptor only when the timer no longer reads from it.
        report.join()


def _report_wait(descriptor: int) -> None:
    holder = os.pread(descriptor, _MOST_HOLDER_BYTES, 0).decode(errors="replace")
    pid = holder.partition(",")[0]
    # A process that holds several locks is reported once.
    if pid not in _reported:
        _reported.add(pid)
        logging.getLogger(__name__).warning(
            f"waiting for {printable(holder)}. If that process is stopped, continue it (kill -CONT)"
            " or end it."
        )


os.register_at_fork(after_in_child=_let_go)


_FOLDERS = (schema.WORK, TEMPORARY, *schema.BESIDE)
_REMEDY = "Check the source (imagenet-prep replicate --check), and restore this file there."
_THREADS = 8  # per rank; each thread has its own connection
_TIMEOUT_S = 60.0


# Fetched as a unit: a shard with its index, or the file with a column's rows for a shard.
Item = Shard | DatasetFile


class _Copy:
    """The folder of the local copy, which has the layout of the dataset."""

    def __init__(self, dataset: Dataset, folder: Path, limit_bytes: int | None) -> None:
        self._limit = limit_bytes
        self.ended = threading.Event()  # once set, failed fetches are not retried
        access = Access(connections=_THREADS, timeout_s=_TIMEOUT_S, remedy=RESUME, ended=self.ended)
        self._source = open_readable(dataset.where, access)
        self.root = folder / dataset.manifest.digest[:16]
        self._store = LocalStore(self.root)
        self._all_shards = dataset.manifest.shards
        _take_folder(self._store)
        num_files = sum(len(shard.files) for shard in self._all_shards)
        self._ledger = Ledger(self._store, NOTES, 4 * num_files)  # columns add files

    def close_folders(self) -> None:
        """Closes the folders that the store keeps open."""
        self._store.close_folders()

    def fetch(self, item: Item, near: Callable[[], Collection[str]]) -> HeldFile:
        """Opens a file under a shared lock; if it is missing, fetches it and its index, if any."""
        path = self.root / item.name
        alone = only_one(self._store, item.name, purpose=f"fetches {item.name}")
        with storage_errors("fetch", path), alone:
            self._bring(_together(item), near)
            # This never waits: `_remove` takes its exclusive lock only with the lock of the name.
            return HeldFile(path, fcntl.LOCK_SH)

    def _all(self) -> Iterator[Item]:
        """Yields all shards of the dataset, and the column files that are in the folder."""
        yield from self._all_shards
        for column in self._store.list_folder(schema.COLUMNS):
            folder = f"{schema.COLUMNS}/{column}"
            for name, status in self._store.stats(folder).items():
                yield DatasetFile(f"{folder}/{name}", status.size, "")

    def _bring(self, files: Sequence[DatasetFile], near: Callable[[], Collection[str]]) -> None:
        """Fetches and verifies the missing files. The caller must hold the lock for their name."""
        missing = [file for file in files if not self._is_verified(file)]
        if missing:
            self._make_room(missing, near)
        for file in missing:
            name = _temporary(file.name)
            status = bring(self._source, file, self._store, _REMEDY, name, reserved=True)
            self._ledger.add({file.name: status}, sha256=file.sha256)

    def _is_verified(self, file: DatasetFile) -> bool:
        """Returns whether a file exists and its sha256 is right, by the ledger or by hashing it."""
        flags = os.O_RDONLY | os.O_NONBLOCK
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            open(local_file.open_inside(self.root, file.name, flags), "rb") as opened,
        ):
            status = os.fstat(opened.fileno())
            is_ours = stat.S_ISREG(status.st_mode) and local_file.is_only_ours(status)
            if is_ours and status.st_size == file.num_bytes:
                self._ledger.reload()
                return self._ledger.sha256(file.name, opened) == file.sha256
        return False

    def _make_room(self, files: Sequence[DatasetFile], near: Callable[[], Collection[str]]) -> None:
        """Removes unused shards to meet the limit, and reserves space with temporary files."""
        # Only one thread per node at a time, since the limit includes the reserved space.
        with only_one(self._store, "room", purpose="frees space in the cache"):
            if self._limit is not None:
                most = self._limit - sum(file.num_bytes for file in files)
                self._remove_down_to(most, near())
            self._store.make_folder(TEMPORARY)
            for file in files:
                # Only the holder of the lock uses this name. A killed process may have left a file.
                name = _temporary(file.name)
                opened = self._store.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
                with os.fdopen(opened, "wb") as empty:
                    # Unlike the `truncate` method of file objects, ftruncate survives signals.
                    os.ftruncate(empty.fileno(), file.num_bytes)

    def _remove_down_to(self, num_bytes: int, near: Collection[str]) -> None:
        """Removes unused shards not in `near`, oldest first, until at most `num_bytes` are used."""
        used_bytes = sum(status.size for status in self._store.stats(TEMPORARY).values())
        far: list[tuple[float, Item]] = []
        for item in self._all():
            used_bytes += sum(self._store.size(file.name) or 0 for file in _together(item))
            if item.name not in near:
                with contextlib.suppress(FileNotFoundError):
                    far.append(((self.root / item.name).stat().st_mtime, item))
        for _, item in sorted(far, key=lambda timed: timed[0]):
            if used_bytes <= num_bytes:
                return
            if self._remove(item):
                used_bytes -= _bytes_of(item)

    def _remove(self, shard: Item) -> bool:
        """Removes a shard and returns True; returns False if a rank is fetching or reading it."""
        try:
            with only_one(self._store, shard.name, fcntl.LOCK_NB):
                alone = HeldFile(self.root / shard.name, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for file in _together(shard):
                    (self.root / file.name).unlink(missing_ok=True)
                del alone
        except BlockingIOError:
            return False
        return True


class NodeCache:
    """Fetches the shards of a remote dataset into the folder `root` before the reader needs them.

    Fetched shards take at most `limit_bytes` (None: no limit). But shards that readers of this node
    use are always kept, even above the limit.
    """

    def __init__(self, dataset: Dataset, folder: Path, limit_bytes: int | None) -> None:
        self._limit = limit_bytes
        # The copy must not refer to this object, or connections would outlive a dropped reader.
        self._copy = _Copy(dataset, folder, limit_bytes)
        self.root = self._copy.root
        self._threads = BackgroundThreads(_THREADS, "fetch")
        self._lock = threading.RLock()  # reentrant: see `stop`
        self._windows: Sequence[Sequence[Item]] = ()
        self._window_of: dict[str, int] = {}
        self._current = 0
        self._awaited: list[Item] = []
        self._files: dict[str, Future[HeldFile]] = {}
        self._stopped: Future[Any] = Future()

    def follow(self, windows: Sequence[Sequence[Item]]) -> None:
        """Starts fetching windows in reading order; closes files outside the first two windows."""
        sizes = [sum(map(_bytes_of, window)) for window in windows]
        # The next window is fetched while one is read, so both must fit.
        most = max(map(sum, zip(sizes, [*sizes[1:], 0], strict=True)), default=0)
        if self._limit is not None and most > self._limit:
            raise UsageError(
                f"the cache is limited to {human_bytes(self._limit)}, but reading one window of "
                f"shards while fetching the next takes {human_bytes(most)}. Increase cache_gb, or "
                "choose a smaller shuffle_window."
            )
        self._copy.ended.clear()
        with self._lock:
            self._stopped = Future()
            self._windows = windows
            self._current = 0
            self._window_of = {}
            for number, window in enumerate(windows):
                self._window_of |= dict.fromkeys((item.name for item in window), number)
            for name in [name for name, file in self._files.items() if _has_failed(file)]:
                del self._files[name]
            self._update()

    def need(self, item: Item) -> HeldFile:
        """Waits until a file is fetched; returns it open, so that no rank removes it."""
        name = item.name
        with self._lock:
            if self._stopped.done():
                raise _closed(name)
            self._awaited.append(item)
            window = self._window_of.get(name, 0)
            if window > self._current or name not in self._files:
                self._current = max(window, self._current)
                self._update()
            file, stopped = self._files[name], self._stopped
        try:
            if not file.done():
                wait((file, stopped), return_when=FIRST_COMPLETED)
            if not file.done() or file.cancelled():
                raise _closed(name)
            return file.result()
        finally:
            with self._lock:
                self._awaited.remove(item)
                if _has_failed(file) and self._files.get(name) is file:
                    del self._files[name]  # fetched again when needed

    def forget(self, name: str) -> None:
        """Closes a shard after its files were removed; `need` will fetch it again."""
        with self._lock:
            self._files.pop(name, None)

    def stop(self) -> None:
        """Closes all files. Until the next call of `follow`, `need` raises IncompleteError."""
        # The garbage collector may call this in any thread, even in one that holds the lock.
        with self._lock:
            if not self._stopped.done():
                self._stopped.set_result(None)
            for file in self._files.values():
                file.cancel()
            self._files.clear()

    def bring_samples(self, shards: Sequence[Shard]) -> None:
        """Fetches and verifies the sample tables of shards, several at a time."""
        tables = [shard.samples for shard in shards if shard.samples]
        with BackgroundThreads(_THREADS, "fetch") as pool:
            deque(pool.map(self._copy.fetch, tables, repeat(self._near)), maxlen=0)

    def close(self) -> None:
        """Calls `stop`, and ends retries of failed fetches. Fetched files stay in the folder."""
        self._copy.ended.set()
        self.stop()
        self._copy.close_folders()

    def _near(self) -> dict[str, Item]:
        """Returns, by name, the items that are awaited or in the current or next window."""
        with self._lock:
            near = (self._awaited, *self._windows[self._current : self._current + 2])
            return {item.name: item for item in chain.from_iterable(near)}

    def _update(self) -> None:
        """Closes files outside `_near()` and fetches those in it. The caller must hold `_lock`."""
        near = self._near()
        for name in self._files.keys() - near.keys():
            self._files.pop(name).cancel()
        for name, item in near.items():
            if name not in self._files:
                self._files[name] = self._threads.submit(self._copy.fetch, item, self._near)


def _has_failed(file: Future[HeldFile]) -> bool:
    return file.done() and not file.cancelled() and file.exception() is not None


def _closed(name: str) -> IncompleteError:
    return IncompleteError(f"{name}: not fetched, because the reader was closed")


def _together(item: Item) -> tuple[DatasetFile, ...]:
    """Returns the files of an item: a shard's index and records, or a column's file."""
    # A sample table is fetched only if keys are needed. It is small, and is never removed.
    return (item,) if isinstance(item, DatasetFile) else (item.index, item.files[-1])


def _bytes_of(item: Item) -> int:
    return sum(file.num_bytes for file in _together(item))


def _take_folder(store: LocalStore) -> None:
    """Creates the folder of a dataset; makes sure that other users cannot write to it."""
    with storage_errors("create", store.root):
        store.root.mkdir(parents=True, exist_ok=True)
        if store.root.is_symlink():
            raise local_file.refusal(store.root)
    for name in _FOLDERS:
        store.make_folder(name)
    for name in ("", *_FOLDERS):
        path = store.path(name)
        with storage_errors("open", path), local_file.folder_inside(store.root, name) as place:
            status = os.fstat(place)
            if status.st_uid not in (os.geteuid(), 0):
                raise StoreError(
                    f"{path} belongs to a different user (UID {status.st_uid}), so its files "
                    "cannot be trusted. Set cache_dir, or IMAGENET_PREP_CACHE, to a folder of "
                    "your own."
                )
            if status.st_mode & 0o022:
                os.fchmod(place, stat.S_IMODE(status.st_mode) & ~0o022)


def _temporary(name: str) -> str:
    return f"{TEMPORARY}/{name.replace('/', '-')}"
