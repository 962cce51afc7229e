"""Which files a neighbour lacks, and which is sent next. Pure: no process, no file is touched."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.manifest import File
from imagenet_prep.distribute.chain import MAX_WRONG
from imagenet_prep.hosts.messages import BrokenError


class Line:
    """The files that one neighbour lacks. Not safe for threads; the caller has a lock.

    A file is *lacking*, then *offered* as soon as it is here or begins to arrive here, then taken
    by `next`, then *stored* there. What lies beside a shard is sent before it: when the shard can
    be seen there, its index and its table are there.

    Attributes:
      all_named: whether the neighbour has named all that it lacks.
    """

    def __init__(self, files: Sequence[File]) -> None:
        self.all_named = False
        self._files = {file.name: file for file in files}
        # How many of its first bytes the neighbour has, by name.
        self._lacking: dict[str, int] = {}
        self._offered: set[str] = set()
        self._ready: deque[str] = deque()
        # Offered shards, by the name of the file that they wait for.
        self._held: dict[str, str] = {}
        self._going: set[str] = set()
        self._wrong: Counter[str] = Counter()

    def lacks(self, name: str, begun: int) -> None:
        """Notes that the neighbour lacks a file, and has its first `begun` bytes."""
        file = self._files.get(name)
        if self.all_named or file is None or name in self._lacking:
            raise BrokenError(f"it lacks {name}, which is impossible")
        if begun > file.num_bytes:
            raise BrokenError(f"{name}: it has {begun:,} bytes of {file.num_bytes:,}")
        self._lacking[name] = begun

    def lacks_no_more(self, files: int) -> None:
        """Notes that the neighbour has named all files that it lacks; `files` is their number."""
        if self.all_named or files != len(self._lacking):
            raise BrokenError(
                f"it lacks {counted(files, 'file')} and has named {len(self._lacking):,}"
            )
        self.all_named = True

    def offer(self, names: Iterable[str]) -> None:
        """Notes files that are here or begin to arrive; ignores those that are not lacking."""
        for name in names:
            if name in self._lacking and name not in self._offered:
                self._offered.add(name)
                self._ready.append(name)

    def next(self) -> tuple[File, int] | None:
        """Takes the first offered file; returns it and how many of its bytes the neighbour has."""
        if not self.all_named:
            return None
        while self._ready:
            name = self._ready.popleft()
            waits_for = next((each for each in naming.beside(name) if each in self._lacking), None)
            if waits_for is not None:
                self._held[waits_for] = name
                continue
            if (shard := self._held.pop(name, None)) is not None:
                self._ready.appendleft(shard)
            self._offered.discard(name)
            self._going.add(name)
            return self._files[name], self._lacking.pop(name)
        return None

    def put_back(self, name: str) -> None:
        """Notes that a file vanished before it was sent; it has to be offered again."""
        if name in self._going:
            self._going.remove(name)
            # The whole file: its first bytes may be what was wrong.
            self._lacking[name] = 0

    def stored(self, name: str) -> None:
        """Notes that the neighbour has stored and proven a file."""
        if name not in self._going:
            raise BrokenError(f"it stored {name}, which was not sent")
        self._going.remove(name)

    def wrong(self, name: str) -> bool:
        """Notes that a file arrived damaged; it is sent again. True if it is damaged here, too."""
        if name not in self._going:
            raise BrokenError(f"{name} arrived wrong, which was not sent")
        self.put_back(name)
        self.offer([name])
        self._wrong[name] += 1
        return self._wrong[name] >= MAX_WRONG

    def finish(self) -> None:
        """Notes that the neighbour is whole."""
        left = len(self._lacking) + len(self._going)
        if not self.all_named or left:
            raise BrokenError(f"it is whole, and lacks {counted(left, 'file')}")
