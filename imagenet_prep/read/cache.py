"""A data set that lies elsewhere, fetched shard by shard into a folder that a node's ranks share.

Shards come in the order in which they will be read, a window ahead of the reader. Each is
proven by its sha256 before it gets its name, and fetched once a node: whoever holds the
lock of its name fetches, the others wait for the file.

A shard that a reader reads now or next is open there, under a shared lock. Who makes room
removes only what it can lock for itself alone, so no rank loses what another one removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from imagenet_prep.core.errors import DataDamagedError, IncompleteError, UsageError
from imagenet_prep.core.regular_file import MOST_BYTES
from imagenet_prep.dataset import manifest, naming
from imagenet_prep.dataset.manifest import File, Shard
from imagenet_prep.read import cached
from imagenet_prep.read.held import HeldFile, only_one
from imagenet_prep.storage.fetch import bring, whole
from imagenet_prep.storage.folder import TEMPORARY, LocalStore
from imagenet_prep.storage.os_errors import storage_errors
from imagenet_prep.storage.retry import RetryBudget
from imagenet_prep.storage.store import open_remote

_REMEDY = "Check the source (imagenet-prep replicate --check), and put that file there again."
_CONNECTIONS = 8
_RETRIES = 20
_TIMEOUT_S = 60.0


class NodeCache:
    """The local copy of a remote data set, as far as it is needed.

    Attributes:
      root: folder of the copy; laid out like the data set itself.
    """

    def __init__(self, address: str, folder: Path, limit_bytes: int | None) -> None:
        """Fetches the manifest and the class list; shards come when `follow` names them.

        Args:
          address: http(s):// or s3:// of the data set.
          folder: on this node; each data set gets its own below it.
          limit_bytes: what the shards may take, and as much more as readers of this node hold at
            that moment; None for as much as the disk holds.

        Raises:
          DataDamagedError: what lies there is no manifest of ours, or too large.
          StoreError: the server refuses, or the data set's part of the folder is another user's.
          IncompleteError: the server fails again and again, or the disk is full.
        """
        self._address = address
        self._remote = open_remote(address, connections=_CONNECTIONS, timeout_s=_TIMEOUT_S)
        self._limit = limit_bytes
        self._ended = threading.Event()
        self._closed = False
        self._news = threading.Condition()
        self._wanted: deque[Shard] = deque()
        self._in_work: set[str] = set()
        self._asked: list[Shard] = []
        self._held: dict[str, HeldFile] = {}
        self._failed: dict[str, Exception] = {}
        self._windows: Sequence[Sequence[Shard]] = ()
        self._window_of: dict[str, int] = {}
        self._window = 0
        self._num_threads = 0
        content = whole(self._remote, naming.MANIFEST, self._budget(naming.MANIFEST))
        facts = manifest.loads(content, self._remote.where(naming.MANIFEST))
        self.root = folder / facts.digest[:16]
        self._store = LocalStore(self.root)
        self._all_shards = [shard for split in facts.splits.values() for shard in split.shards]
        cached.take_folder(self._store)
        labels = next(file for file in facts.files if file.name == naming.LABELS)
        if labels.num_bytes > MOST_BYTES:
            raise DataDamagedError(
                f"{self._remote.where(labels.name)}: has {labels.num_bytes:,} bytes, expected "
                f"{MOST_BYTES:,} at most. Get the data set from where it was made."
            )
        with storage_errors("fetch", self.root / labels.name), only_one(self._store, labels.name):
            self._bring([labels])
        self._store.write(naming.MANIFEST, content)

    def follow(self, windows: Sequence[Sequence[Shard]]) -> None:
        """Begins to fetch what an epoch will read, and lets go of what it will not.

        Args:
          windows: the shards that are read at the same time, one window after the other.

        Raises:
          UsageError: two windows at once are more than the limit.
        """
        sizes = [sum(map(_size, each)) for each in windows]
        most = max(map(sum, zip(sizes, [*sizes[1:], 0], strict=True)), default=0)
        if self._limit is not None and most > self._limit:
            raise UsageError(
                f"the cache may hold {self._limit / 1e9:,.1f} GB; reading one window of shards "
                f"while the next is fetched takes {most / 1e9:,.1f} GB. Allow more, or choose a "
                "smaller shuffle_window."
            )
        with self._news:
            self._closed = False
            self._ended.clear()
            self._failed.clear()
            self._windows = windows
            self._window_of = {
                shard.name: number for number, each in enumerate(windows) for shard in each
            }
            self._move(0)
            self._begin_work()

    def need(self, shard: Shard) -> HeldFile:
        """Returns a shard, open, once it and its index are in `root`.

        Neither is removed as long as somebody refers to what is returned.

        Raises:
          ImagenetPrepError: it cannot be had; the message names it and the remedy.
        """
        name = shard.name
        with self._news:
            if self._window_of.get(name, 0) > self._window:
                self._move(self._window_of[name])
            if name in self._held:
                return self._held[name]
            self._asked.append(shard)
            try:
                self._move(self._window)
                self._begin_work()
                while name not in self._held:
                    if name in self._failed:
                        raise self._failed[name]
                    if self._closed:
                        raise IncompleteError(f"{name}: not fetched, the reader was closed")
                    self._news.wait()
                return self._held[name]
            finally:
                self._asked.remove(shard)

    def forget(self, shard: Shard) -> None:
        """Looks at the files of a shard anew when it is needed again: some were removed by hand."""
        with self._news:
            self._held.pop(shard.name, None)

    def close(self) -> None:
        """Ends the fetching until `follow` begins again; what is there stays."""
        self._ended.set()
        self.leave()

    def leave(self) -> None:
        """Ends the fetching as `close` does, but for a shard whose server is being waited for.

        The garbage collector calls this, in any thread and at any place, so the only lock it
        takes is one that a thread may take twice.
        """
        with self._news:
            self._closed = True
            self._held.clear()
            self._news.notify_all()

    def _near(self) -> dict[str, Shard]:
        """Returns by name what is waited for, read now or read next; the caller holds the lock."""
        windows = self._windows[self._window : self._window + 2]
        return {shard.name: shard for each in (self._asked, *windows) for shard in each}

    def _move(self, window: int) -> None:
        """Wants the shards of a window and of the next; the caller holds the lock."""
        self._window = window
        near = self._near()
        self._held = {name: held for name, held in self._held.items() if name in near}
        there = self._held.keys() | self._in_work
        self._wanted = deque(shard for name, shard in near.items() if name not in there)
        self._news.notify_all()

    def _begin_work(self) -> None:
        """Starts the threads that are missing; the caller holds the lock."""
        while self._num_threads < _CONNECTIONS and not self._closed:
            self._num_threads += 1
            threading.Thread(target=self._work, name="fetch", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._news:
                while not self._wanted and not self._closed:
                    self._news.wait()
                if self._closed:
                    self._num_threads -= 1
                    return
                shard = self._wanted.popleft()
                self._in_work.add(shard.name)
            held: HeldFile | Exception
            try:
                held = self._hold(shard)
            except Exception as error:  # noqa: BLE001 - `need` raises it, where it is waited for
                held = error
            with self._news:
                self._in_work.discard(shard.name)
                if isinstance(held, Exception):
                    self._failed[shard.name] = held
                elif shard.name in self._near() and not self._closed:
                    self._held[shard.name] = held
                del held  # or this thread would hold it while it waits
                self._news.notify_all()

    def _hold(self, shard: Shard) -> HeldFile:
        """Returns a shard, open under a shared lock, once it and its index are in `root`."""
        path = self.root / shard.name
        with storage_errors("fetch", path), only_one(self._store, shard.name):
            self._bring(shard.files)
            # Nobody has it to themselves: they would hold the lock of its name.
            return HeldFile(path, fcntl.LOCK_SH)

    def _bring(self, files: Sequence[File]) -> None:
        """Leaves files in `root`, proven; the caller holds the lock of their name."""
        missing = [file for file in files if not cached.is_proven(self._store, file)]
        if missing:
            self._make_room(missing)
        for file in missing:
            name, budget = _temporary(file.name), self._budget(file.name)
            bring(self._remote, file, self._store, name, budget, _REMEDY, reserved=True)
            cached.note(self._store, file)

    def _make_room(self, files: Sequence[File]) -> None:
        """Removes what nobody reads, as far as needed, and makes temporary files of full size.

        One at a time on a node, so that what others are about to fetch counts too.
        """
        with only_one(self._store, "room"):
            if self._limit is not None:
                self._remove_down_to(self._limit - sum(file.num_bytes for file in files))
            self._store.make_folder(TEMPORARY)
            for file in files:
                # Ours alone while we hold its lock: what a killed holder left is written over.
                name = _temporary(file.name)
                opened = self._store.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
                with os.fdopen(opened, "wb") as empty:
                    # A signal would end the file object's own `truncate`; this call goes on.
                    os.ftruncate(empty.fileno(), file.num_bytes)

    def _remove_down_to(self, num_bytes: int) -> None:
        """Removes shards that nobody on this node reads now or next, the oldest first."""
        with self._news:
            near = self._near()
        taken = 0
        far: list[tuple[float, Shard]] = []
        for shard in self._all_shards:
            for file in shard.files:
                for name in (file.name, _temporary(file.name)):
                    taken += self._store.size(name) or 0
            if shard.name not in near:
                with contextlib.suppress(FileNotFoundError):
                    far.append(((self.root / shard.name).stat().st_mtime, shard))
        for _, shard in sorted(far, key=lambda each: each[0]):
            if taken <= num_bytes:
                return
            if self._remove(shard):
                taken -= _size(shard)

    def _remove(self, shard: Shard) -> bool:
        """Removes a shard; returns False, and leaves it, where somebody fetches or reads it."""
        try:
            with only_one(self._store, shard.name, fcntl.LOCK_NB):
                alone = HeldFile(self.root / shard.name, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The index goes too: a shard counts with it, and comes back with it.
                for file in shard.files:
                    (self.root / file.name).unlink(missing_ok=True)
                del alone
        except BlockingIOError:
            return False
        return True

    def _budget(self, name: str) -> RetryBudget:
        return RetryBudget(self._remote.where(name), _RETRIES, self._ended)


def _size(shard: Shard) -> int:
    return sum(file.num_bytes for file in shard.files)


def _temporary(name: str) -> str:
    """Returns the name under which a file grows."""
    return f"{TEMPORARY}/{name.replace('/', '-')}"
