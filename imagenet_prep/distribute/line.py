"""The files that a receiving host lacks, in the order in which they are sent."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.manifest import File
from imagenet_prep.distribute.chain import MAX_WRONG
from imagenet_prep.hosts.messages import BrokenError


class Line:
    """The files that a receiving host lacks. Not thread-safe: the caller must hold a lock.

    Each file is first *lacking*. It is *offered* when the sending host has or is receiving it,
    then taken by `next`, and finally *stored* by the receiving host. A shard's index and samples
    table are sent before the shard, so that they exist when the shard appears.
    """

    def __init__(self, files: Sequence[File]) -> None:
        self.all_named = False  # whether the receiving host has listed all lacking files
        self._files = {file.name: file for file in files}
        # The number of leading bytes that the receiving host has, by name of a lacking file.
        self._lacking: dict[str, int] = {}
        self._offered: set[str] = set()
        self._ready: deque[str] = deque()
        # Shards that wait until a different file is sent, by the name of that file.
        self._held: dict[str, str] = {}
        self._going: set[str] = set()
        self._wrong: Counter[str] = Counter()

    def lacks(self, name: str, begun: int) -> None:
        """Notes a missing file, of which the receiving host has the first `begun` bytes."""
        file = self._files.get(name)
        if self.all_named or file is None or name in self._lacking:
            raise BrokenError(f"it unexpectedly reported {name} as missing")
        if begun > file.num_bytes:
            raise BrokenError(f"{name}: it has {begun:,} of {file.num_bytes:,} bytes")
        self._lacking[name] = begun

    def lacks_no_more(self, files: int) -> None:
        """Notes that the receiving host has listed all missing files; `files` is their number."""
        if self.all_named or files != len(self._lacking):
            raise BrokenError(
                f"it named {len(self._lacking):,} of {counted(files, 'missing file')}"
            )
        self.all_named = True

    def offer(self, names: Iterable[str]) -> None:
        """Notes files that the sender has or is receiving; ignores files that are not lacking."""
        for name in names:
            if name in self._lacking and name not in self._offered:
                self._offered.add(name)
                self._ready.append(name)

    def next(self) -> tuple[File, int] | None:
        """Takes the next file to send, if any; returns it and the number of bytes to skip."""
        if not self.all_named:
            return None
        while self._ready:
            name = self._ready.popleft()
            waits_for = next((part for part in naming.beside(name) if part in self._lacking), None)
            if waits_for is not None:
                self._held[waits_for] = name
                continue
            shard = self._held.pop(name, None)
            if shard is not None:
                self._ready.appendleft(shard)
            self._offered.discard(name)
            self._going.add(name)
            return self._files[name], self._lacking.pop(name)
        return None

    def put_back(self, name: str) -> None:
        """Notes that a file vanished before it was sent, so that it can be offered again."""
        if name in self._going:
            self._going.remove(name)
            # Send the file from its start, since the first bytes may be damaged.
            self._lacking[name] = 0

    def stored(self, name: str) -> None:
        """Notes that the receiving host has stored and verified a file."""
        if name not in self._going:
            raise BrokenError(f"it stored {name}, which was not sent")
        self._going.remove(name)

    def wrong(self, name: str) -> bool:
        """Re-offers a file that arrived damaged; returns whether the sender's copy is damaged."""
        if name not in self._going:
            raise BrokenError(f"it reported {name} as damaged, which was not sent")
        self.put_back(name)
        self.offer([name])
        self._wrong[name] += 1
        return self._wrong[name] >= MAX_WRONG

    def finish(self) -> None:
        """Raises BrokenError if a host lacks files, although it reports that it is complete."""
        remaining = len(self._lacking) + len(self._going)
        if not self.all_named or remaining:
            raise BrokenError(f"it reports success, but lacks {counted(remaining, 'file')}")
