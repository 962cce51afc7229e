"""Sorts more lines than memory holds: sorted runs on the disk, read a range at a time.

An entry is a line of bytes that begins with a number of eight digits. Entries are sorted as
bytes, so by this number first. Processes write runs beside each other; then each reads the entries
of some numbers from all runs, so that none waits for another.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import mmap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.storage.os_errors import storage_errors

_NUMBER_BYTES = 8
# Entries that are sorted at once, as far as they have no more bytes: those of a plan have 50 MB.
RUN_ENTRIES, RUN_BYTES = 250_000, 64 << 20
# Fewer entries are sorted before another worker has begun.
_WORTH_A_RANGE = 25_000
# Entries whose bytes are counted at once, which takes less time than one by one.
_FEW = 100
# So many keys of a run say where the entries of all runs are cut into ranges.
_KEYS_OF_A_RUN = 64
# No text in UTF-8 has this byte.
_BEHIND_ALL = b"\xff"
_TOO_MANY = (
    "the tables of samples have a key that belongs to one image in thousands of lines: they are "
    "damaged. Get the dataset again."
)


def write(folder: Path, name: str, entries: Iterable[bytes]) -> list[Path]:
    """Sorts entries as far as memory holds them; returns the files, `folder/name.run-NNNN`.

    They can be made again at any time, so they are not synced to the disk.
    """
    runs: list[Path] = []
    left = iter(entries)
    while run := _run(left):
        run.sort()
        path = folder / f"{name}.run-{len(runs):04d}"
        with storage_errors("write", path), open(path, "wb") as file:
            file.writelines(run)
        runs.append(path)
    return runs


def _run(left: Iterator[bytes]) -> list[bytes]:
    """Returns the entries of the next run."""
    run: list[bytes] = []
    room = RUN_BYTES
    while room > 0 and (few := [*itertools.islice(left, min(_FEW, RUN_ENTRIES - len(run)))]):
        run += few
        room -= sum(map(len, few))
    return run


def read(runs: Iterable[Path], start: int, stop: int) -> Iterator[tuple[int, list[bytes]]]:
    """As `grouped`, for the numbers of [start, stop): all their entries are in memory."""
    entries: list[bytes] = []
    for run in runs:
        with _mapped(run) as data:
            of_range = data[_first(data, b"%08d" % start) : _first(data, b"%08d" % stop)]
        entries += of_range.splitlines(keepends=True)
    return grouped(entries)


def side_by_side(sides: Sequence[Sequence[Path]]) -> Iterator[list[list[bytes]]]:
    """Yields all entries of several sides, a range of keys at a time: of each side a sorted list.

    Here, an entry is a line that begins with its key and a byte of 0. All entries of a key are in
    one range; a range has about as many entries as a run. One file is open at a time.
    """
    everything = [run for side in sides for run in side]
    keys = sorted(itertools.chain.from_iterable(map(_some_keys, everything)))
    starts = dict.fromkeys(everything, 0)
    # A range has a piece of a run for each of its keys, and at most one more of every run.
    most = (_KEYS_OF_A_RUN + len(everything)) * (RUN_BYTES // _KEYS_OF_A_RUN) * 9 // 8
    for stop in [*keys[_KEYS_OF_A_RUN::_KEYS_OF_A_RUN], _BEHIND_ALL]:
        found: list[list[bytes]] = []
        left = most
        for side in sides:
            entries: list[bytes] = []
            for run in side:
                with _mapped(run) as data:
                    end = _first(data, stop, starts[run])
                    if (left := left - end + starts[run]) < 0:
                        raise DataDamagedError(_TOO_MANY)
                    entries += data[starts[run] : end].splitlines(keepends=True)
                starts[run] = end
            entries.sort()
            found.append(entries)
        yield found


def _some_keys(run: Path) -> list[bytes]:
    """Returns keys that cut a run into about equal pieces, each with its byte of 0."""
    with _mapped(run) as data:
        places = range(0, len(data), -(-len(data) // _KEYS_OF_A_RUN))
        begins = (data.rfind(b"\n", 0, place) + 1 for place in places)
        return [data[begin : data.find(b"\0", begin) + 1] for begin in begins]


@contextlib.contextmanager
def _mapped(run: Path) -> Iterator[mmap.mmap]:
    # Mapped for one range alone: what was read of a file stays in memory as long as its map.
    with open(run, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def grouped(entries: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Yields (number, its entries, sorted) for each number that has entries, which get sorted."""
    entries.sort()
    for number, group in itertools.groupby(entries, lambda entry: entry[:_NUMBER_BYTES]):
        yield int(number), list(group)


def _first(run: mmap.mmap, least: bytes, start: int = 0) -> int:
    """Returns the byte at which the first entry begins that is not less, by bisection."""

    def entry_at(place: int) -> bytes:
        begin = run.rfind(b"\n", 0, place) + 1
        return run[begin : begin + len(least)]

    return bisect.bisect_left(range(len(run)), least, start, key=entry_at)


def ranges(counts: Sequence[int], workers: int) -> list[tuple[int, int]]:
    """Cuts numbers into ranges [start, stop) of about equally many entries, at most a run's.

    `counts` are the entries of each number; a range may exceed a run by those of one number. If
    there are enough entries, there are at least as many ranges as workers.
    """
    total = sum(counts)
    pieces = max(-(-total // RUN_ENTRIES), min(workers, total // _WORTH_A_RANGE), 1)
    size = max(1, -(-total // pieces))
    before = list(itertools.accumulate(counts, initial=0))
    groups = itertools.groupby(range(len(counts)), lambda number: before[number] // size)
    cut = [list(group) for _, group in groups]
    return [(group[0], group[-1] + 1) for group in cut]
