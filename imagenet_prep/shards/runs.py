"""Sorts more lines than memory holds: sorted runs on the disk, and their merge.

An entry is a line of bytes that begins with a number of eight digits. Entries are sorted as
bytes, so by this number first, and come back in groups that have it in common.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from imagenet_prep.storage.os_errors import storage_errors

_NUMBER_BYTES = 8
# Entries that are sorted at once: those of a plan take 50 MB.
_RUN_ENTRIES = 250_000


def write(folder: Path, name: str, entries: Iterable[bytes]) -> list[Path]:
    """Sorts entries as far as memory holds them; returns the files, `folder/name.run-NNNN`.

    They can be made again at any time, so they are not synced to the disk.

    Raises:
      IncompleteError: the disk is full.
    """
    runs: list[Path] = []
    left = iter(entries)
    while True:
        # All runs are open at once when they are merged, so they grow with their number: a
        # thousand hold two billion entries, and the last of them takes 800 MB.
        size = _RUN_ENTRIES + _RUN_ENTRIES * len(runs) // 64
        run = sorted(itertools.islice(left, size))
        if not run:
            return runs
        path = folder / f"{name}.run-{len(runs):04d}"
        with storage_errors("write", path), open(path, "wb") as file:
            file.writelines(run)
        runs.append(path)


def merged(runs: Iterable[Path]) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Yields (number, its entries, sorted) in the order of the numbers."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(run, "rb")) for run in runs]
        for number, group in itertools.groupby(heapq.merge(*files), lambda e: e[:_NUMBER_BYTES]):
            yield int(number), group
