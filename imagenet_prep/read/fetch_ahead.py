"""Threads that fetch the current and next shards of a reader, and keep them open for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from imagenet_prep.core.errors import IncompleteError
from imagenet_prep.dataset.manifest import File, Shard
from imagenet_prep.read.held import HeldFile

THREADS = 8  # per rank, each with its own connection
# A unit of fetching: a shard with its index, or a column's rows for a shard.
Item = Shard | File


class Windows:
    """The windows of shards of an epoch in reading order, and the current window."""

    def __init__(self, windows: Sequence[Sequence[Item]] = ()) -> None:
        self._windows = windows
        self._number_of = {
            shard.name: number for number, window in enumerate(windows) for shard in window
        }
        self._current = 0

    def most_bytes(self) -> int:
        """Returns the largest size in bytes of two successive windows."""
        sizes = [sum(map(bytes_of, window)) for window in self._windows]
        return max(map(sum, zip(sizes, [*sizes[1:], 0], strict=True)), default=0)

    def items(self) -> Iterator[Item]:
        """Returns all items in reading order."""
        return chain.from_iterable(self._windows)

    def near(self) -> Iterator[Item]:
        """Yields the shards of the current window, then of the next."""
        for window in self._windows[self._current : self._current + 2]:
            yield from window

    def move_to(self, name: str) -> bool:
        """Moves forward to the window of a shard; returns False if it is not a later one."""
        number = self._number_of.get(name, 0)
        comes_later = number > self._current
        self._current = max(number, self._current)
        return comes_later


class FetchAhead:
    """Fetches shards in threads, and keeps them open while the reader needs them.

    One lock guards all state. Public methods take it; private methods expect it to be held. A
    thread fetches the first near shard that is not yet held, failed or being fetched.
    """

    def __init__(self, fetch: Callable[[Item, Callable[[], set[str]]], HeldFile]) -> None:
        """Starts no threads yet; several threads will call `fetch(shard, self.near)`."""
        self._fetch = fetch
        # A reentrant lock: see `stop`.
        self._changed = threading.Condition(threading.RLock())
        self._windows = Windows()
        self._awaited: list[Item] = []
        self._held: dict[str, HeldFile] = {}
        self._failed: dict[str, Exception] = {}
        self._in_work: set[str] = set()
        self._num_threads = 0
        self._is_stopped = False

    def follow(self, windows: Windows) -> None:
        """Starts to fetch the shards of an epoch, and releases all others."""
        with self._changed:
            self._is_stopped = False
            self._failed.clear()
            self._windows = windows
            self._update()

    def need(self, shard: Item) -> HeldFile:
        """Waits for a shard and returns it open; it is not removed while it is referenced."""
        name = shard.name
        with self._changed:
            if self._windows.move_to(name):
                self._update()
            if name in self._held:
                return self._held[name]
            self._awaited.append(shard)
            try:
                self._update()
                while name not in self._held:
                    if name in self._failed:
                        raise self._failed.pop(name)
                    if self._is_stopped:
                        raise IncompleteError(f"{name}: not fetched, the reader was closed")
                    self._changed.wait()
                return self._held[name]
            finally:
                self._awaited.remove(shard)
                # If a failed shard is also awaited by a second thread, it is fetched again.
                self._changed.notify_all()

    def forget(self, name: str) -> None:
        """Closes a shard after its files were removed; it is fetched again when needed."""
        with self._changed:
            self._held.pop(name, None)

    def near(self) -> set[str]:
        """Returns the names of the shards that the reader awaits, or reads now or next."""
        with self._changed:
            return {shard.name for shard in self._near()}

    def stop(self) -> None:
        """Closes all shards and ends the threads, until the next `follow`."""
        # The garbage collector may call this in any thread, even in one that holds the lock.
        with self._changed:
            self._is_stopped = True
            self._held.clear()
            self._changed.notify_all()

    def _near(self) -> Iterator[Item]:
        yield from self._awaited
        yield from self._windows.near()

    def _update(self) -> None:
        """Releases shards that are no longer near, and starts threads for the others."""
        near = {shard.name for shard in self._near()}
        self._held = {name: held for name, held in self._held.items() if name in near}
        self._changed.notify_all()
        while self._num_threads < THREADS and not self._is_stopped:
            self._num_threads += 1
            threading.Thread(target=self._run, name="fetch", daemon=True).start()

    def _run(self) -> None:
        """Fetches shards until stopped; called without the lock."""
        while (shard := self._take()) is not None:
            self._fetch_one(shard)

    def _take(self) -> Item | None:
        """Waits for a shard to fetch and returns it, or None if this thread must end."""
        with self._changed:
            while not self._is_stopped:
                for shard in self._near():
                    name = shard.name
                    if not any(name in each for each in (self._held, self._failed, self._in_work)):
                        self._in_work.add(name)
                        return shard
                self._changed.wait()
            self._num_threads -= 1
            return None

    def _fetch_one(self, shard: Item) -> None:
        """Fetches a shard. Afterwards this thread keeps no reference to the file."""
        held: HeldFile | None = None
        try:
            held = self._fetch(shard, self.near)
        except Exception as error:  # noqa: BLE001 - `need` raises it in the thread that waits
            with self._changed:
                self._failed[shard.name] = error
        with self._changed:
            self._in_work.discard(shard.name)
            if held is not None and shard in self._near() and not self._is_stopped:
                self._held[shard.name] = held
            self._changed.notify_all()


def together(item: Item) -> tuple[File, ...]:
    """Returns the files that a cache fetches and removes together: index and shard."""
    # The sample table is fetched when keys are needed, and stays because it is small.
    return (item,) if isinstance(item, File) else (item.index, item.files[-1])


def bytes_of(item: Item) -> int:
    """Returns the bytes of a shard or column that count towards the cache limit."""
    return sum(file.num_bytes for file in together(item))
