"""A data set that lies elsewhere, fetched shard by shard into a folder that a node's ranks share.

Shards come in the order in which they will be read, a window ahead of the reader. Each is
proven by its sha256 before it gets its name, and fetched once a node: whoever holds the
lock of its name fetches, the others wait for the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from imagenet_prep.core import manifest, naming
from imagenet_prep.core.errors import DataDamagedError, IncompleteError, UsageError
from imagenet_prep.core.manifest import File, Shard
from imagenet_prep.core.remote import open_remote
from imagenet_prep.core.store import LocalStore, storage_errors
from imagenet_prep.core.transfer import Answer, Patience, fetch, patiently

FOLDER_VARIABLE = "IMAGENET_PREP_CACHE"
DEFAULT_FOLDER = "~/.cache/imagenet-prep"

_LOCKS = f"{naming.WORK}/locks"
_CONNECTIONS = 8
_RETRIES = 20
_TIMEOUT_S = 60.0


class NodeCache:
    """The local copy of a remote data set, as far as it is needed.

    Attributes:
      manifest: of the data set.
      root: folder of the copy; laid out like the data set itself.
    """

    def __init__(self, address: str, folder: Path, limit_bytes: int | None) -> None:
        """Fetches the manifest and the class list; shards come when `follow` names them.

        Args:
          address: http(s):// or s3:// of the data set.
          folder: on this node; each data set gets its own below it.
          limit_bytes: what the shards may take; None for as much as the disk holds.

        Raises:
          ManifestError: what lies there is no manifest of ours.
          StoreError: the server refuses.
          IncompleteError: the server fails again and again, or the disk is full.
        """
        self._address = address
        self._remote = open_remote(address, connections=_CONNECTIONS, timeout_s=_TIMEOUT_S)
        self._limit = limit_bytes
        self._ended = threading.Event()
        self._news = threading.Condition()
        self._wanted: deque[Shard] = deque()
        self._in_work: set[str] = set()
        self._here: set[str] = set()
        self._failed: dict[str, Exception] = {}
        self._windows: Sequence[Sequence[Shard]] = ()
        self._window_of: dict[str, int] = {}
        self._window = 0
        self._threads: list[threading.Thread] = []
        content = self._content(naming.MANIFEST)
        self.manifest = manifest.loads(content, self._remote.where(naming.MANIFEST))
        self.root = folder / self.manifest.digest[:16]
        self._store = LocalStore(self.root)
        self._all_shards = [s for split in self.manifest.splits.values() for s in split.shards]
        for file in self.manifest.files:
            if file.name == naming.LABELS:
                self._bring(file)
        self._store.write(naming.MANIFEST, content)

    def follow(self, windows: Sequence[Sequence[Shard]]) -> None:
        """Begins to fetch what an epoch will read.

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
            self._windows = windows
            self._window_of = {
                shard.name: number for number, each in enumerate(windows) for shard in each
            }
            self._move(0)
            while len(self._threads) < _CONNECTIONS:
                thread = threading.Thread(target=self._work, name="fetch", daemon=True)
                self._threads.append(thread)
                thread.start()

    def need(self, shard: Shard) -> None:
        """Returns when a shard and its index are in `root`.

        Raises:
          ImagenetPrepError: it cannot be had; the message names it and the remedy.
        """
        with self._news:
            if self._window_of[shard.name] > self._window:
                self._move(self._window_of[shard.name])
            if shard.name not in self._here | self._in_work:
                if shard in self._wanted:
                    self._wanted.remove(shard)
                self._wanted.appendleft(shard)
                self._news.notify_all()
            while shard.name not in self._here:
                if shard.name in self._failed:
                    raise self._failed.pop(shard.name)
                if self._ended.is_set():
                    raise IncompleteError(f"{shard.name}: not fetched, the reader was closed")
                self._news.wait()

    def close(self) -> None:
        """Ends the fetching; what is there stays."""
        with self._news:
            self._ended.set()
            self._news.notify_all()

    def _move(self, window: int) -> None:
        """Wants the shards of a window and of the next; the caller holds the lock."""
        self._window = window
        self._wanted.clear()
        for each in self._windows[window : window + 2]:
            self._wanted += [s for s in each if s.name not in self._here | self._in_work]
        self._news.notify_all()

    def _work(self) -> None:
        while True:
            with self._news:
                while not self._wanted and not self._ended.is_set():
                    self._news.wait()
                if self._ended.is_set():
                    return
                shard = self._wanted.popleft()
                self._in_work.add(shard.name)
                self._make_room()
            error: Exception | None = None
            try:
                for file in shard.files:
                    self._bring(file)
            except Exception as raised:  # noqa: BLE001 - `need` raises it, where it is waited for
                error = raised
            with self._news:
                self._in_work.discard(shard.name)
                if error is None:
                    self._here.add(shard.name)
                else:
                    self._failed[shard.name] = error
                self._news.notify_all()

    def _bring(self, file: File) -> None:
        """Leaves one file in `root`, proven."""
        name, num_bytes, sha256 = file.name, file.num_bytes, file.sha256
        if self._store.size(name) == num_bytes:
            return
        with self._only_one(name):
            if self._store.size(name) == num_bytes:
                return
            where = self._remote.where(name)
            stat = self._patiently(name, lambda: self._remote.stat(name))
            if stat.size != num_bytes:
                raise DataDamagedError(f"{where}: {stat.size:,} bytes, expected {num_bytes:,}")
            # Ours alone while we hold the lock: what a killed holder left is written over.
            temporary = self._store.temporary().with_name(name.replace("/", "-"))
            try:
                with storage_errors("write", temporary):
                    opened = self._store.open(
                        str(temporary.relative_to(self.root)),
                        os.O_CREAT | os.O_WRONLY | os.O_TRUNC,
                    )
                    with os.fdopen(opened, "wb") as empty:
                        empty.truncate(num_bytes)
                patience = Patience(where, _RETRIES, self._ended)
                fetch(self._remote, name, stat, 0, num_bytes, temporary, patience)
                with open(temporary, "rb") as content:
                    found = hashlib.file_digest(content, "sha256").hexdigest()
                if found != sha256:
                    raise DataDamagedError(
                        f"{where}: sha256 {found}, the manifest says {sha256}. Prove the source: "
                        "imagenet-prep replicate --check, and put that file there again."
                    )
                self._store.publish(temporary, name)
            finally:
                temporary.unlink(missing_ok=True)

    def _make_room(self) -> None:
        """Removes shards that are not read now or next, until those in work fit.

        The caller holds the lock. What is removed while another rank has it open can still be
        read there.
        """
        if self._limit is None:
            return
        there = {}
        for shard in self._all_shards:
            with contextlib.suppress(FileNotFoundError):
                there[shard.name] = (self.root / shard.name).stat()
        taken = sum(_size(shard) for shard in self._all_shards if shard.name in there)
        coming = self._in_work - set(there)
        taken += sum(_size(shard) for shard in self._all_shards if shard.name in coming)
        near = {s.name for each in self._windows[self._window : self._window + 2] for s in each}
        far = [s for s in self._all_shards if s.name in there and s.name not in near]
        for shard in sorted(far, key=lambda shard: there[shard.name].st_mtime):
            if taken <= self._limit:
                return
            # The index goes too: a shard counts with it, and comes back with it.
            for file in reversed(shard.files):
                (self.root / file.name).unlink(missing_ok=True)
            self._here.discard(shard.name)
            taken -= _size(shard)

    @contextlib.contextmanager
    def _only_one(self, name: str) -> Iterator[None]:
        """Holds a file's lock among all ranks of the node; the kernel frees a dead holder's."""
        lock = f"{_LOCKS}/{name.replace('/', '-')}"
        path = self._store.path(lock)
        self._store.make_folder(_LOCKS)
        with storage_errors("create", path):
            descriptor = self._store.open(lock, os.O_RDWR | os.O_CREAT)
        try:
            with storage_errors("lock", path):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _content(self, name: str) -> bytes:
        def read() -> bytes:
            stat = self._remote.stat(name)
            return b"".join(self._remote.read(name, 0, stat.size, stat))

        return self._patiently(name, read)

    def _patiently(self, name: str, attempt: Callable[[], Answer]) -> Answer:
        return patiently(attempt, Patience(self._remote.where(name), _RETRIES, self._ended))


def _size(shard: Shard) -> int:
    return sum(file.num_bytes for file in shard.files)
