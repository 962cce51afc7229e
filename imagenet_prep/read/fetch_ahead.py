"""Threads that fetch the shards which a reader reads now or next, and hold them open for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from imagenet_prep.core.errors import IncompleteError
from imagenet_prep.dataset.manifest import File, Shard
from imagenet_prep.read.held import HeldFile

# Threads of a rank; each has a connection of its own.
THREADS = 8
# What is fetched by itself: a shard with its index, or the rows of a column for a shard.
Item = Shard | File


class Windows:
    """The shards that an epoch reads together, one window after the other, and how far it is."""

    def __init__(self, windows: Sequence[Sequence[Item]] = ()) -> None:
        self._windows = windows
        self._number_of = {
            shard.name: number for number, window in enumerate(windows) for shard in window
        }
        self._current = 0

    def most_bytes(self) -> int:
        """Returns how many bytes two windows, one after the other, have at most."""
        sizes = [sum(map(bytes_of, window)) for window in self._windows]
        return max(map(sum, zip(sizes, [*sizes[1:], 0], strict=True)), default=0)

    def items(self) -> Iterator[Item]:
        """Returns what is read, in order."""
        return chain.from_iterable(self._windows)

    def near(self) -> Iterator[Item]:
        """Yields the shards of the window that is read now, then those of the next."""
        for window in self._windows[self._current : self._current + 2]:
            yield from window

    def move_to(self, name: str) -> bool:
        """Moves on to the window of a shard where that comes later; returns whether it does."""
        number = self._number_of.get(name, 0)
        comes_later = number > self._current
        self._current = max(number, self._current)
        return comes_later


class FetchAhead:
    """Shards by name: which are held open, which failed, and which a thread is fetching.

    One lock guards all of it. The public methods take the lock; the private ones expect that their
    caller has it. A thread fetches the first shard that is near the reader and has none of these
    three states.
    """

    def __init__(self, fetch: Callable[[Item, Callable[[], set[str]]], HeldFile]) -> None:
        """Starts no thread yet; several will call `fetch` with a shard and with `near`."""
        self._fetch = fetch
        # The lock must be one that a thread may take twice: see `stop`.
        self._changed = threading.Condition(threading.RLock())
        self._windows = Windows()
        self._awaited: list[Item] = []
        self._held: dict[str, HeldFile] = {}
        self._failed: dict[str, Exception] = {}
        self._in_work: set[str] = set()
        self._num_threads = 0
        self._is_stopped = False

    def follow(self, windows: Windows) -> None:
        """Begins to fetch what an epoch will read, and lets go of what it will not."""
        with self._changed:
            self._is_stopped = False
            self._failed.clear()
            self._windows = windows
            self._update()

    def need(self, shard: Item) -> HeldFile:
        """Returns a shard, open, once it is fetched.

        It is not removed as long as somebody refers to what is returned.
        """
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
                # If the shard failed and another thread awaits it too, it is fetched once more.
                self._changed.notify_all()

    def forget(self, name: str) -> None:
        """Closes a shard; it is fetched again when it is needed again: files were removed."""
        with self._changed:
            self._held.pop(name, None)

    def near(self) -> set[str]:
        """Returns the names of the shards that the reader awaits, reads now or reads next."""
        with self._changed:
            return {shard.name for shard in self._near()}

    def stop(self) -> None:
        """Closes all shards and ends the threads, until `follow` begins again.

        The garbage collector may call this in any thread, also in one that has the lock.
        """
        with self._changed:
            self._is_stopped = True
            self._held.clear()
            self._changed.notify_all()

    def _near(self) -> Iterator[Item]:
        yield from self._awaited
        yield from self._windows.near()

    def _update(self) -> None:
        """Lets go of the shards that are no longer near, and starts the threads for the others."""
        near = {shard.name for shard in self._near()}
        self._held = {name: held for name, held in self._held.items() if name in near}
        self._changed.notify_all()
        while self._num_threads < THREADS and not self._is_stopped:
            self._num_threads += 1
            threading.Thread(target=self._run, name="fetch", daemon=True).start()

    def _run(self) -> None:
        """Fetches one shard after the other. This thread takes the lock itself."""
        while (shard := self._take()) is not None:
            self._fetch_one(shard)

    def _take(self) -> Item | None:
        """Waits for a shard to fetch, and returns it; None once this thread shall end."""
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
        """Fetches a shard. When this returns, the thread itself no longer holds the file."""
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
    """Returns what a cache fetches and removes together: the index and the shard.

    The table of samples comes when keys are asked for, and stays: it is small.
    """
    return (item,) if isinstance(item, File) else (item.index, item.files[-1])


def bytes_of(item: Item) -> int:
    """Returns how many bytes of a shard or column count towards the limit of a cache."""
    return sum(file.num_bytes for file in together(item))
