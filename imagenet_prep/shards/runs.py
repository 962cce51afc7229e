"""External sorting: writes sorted runs to disk, and reads ranges of keys from all runs.

An entry is a line of bytes that starts with its key and a zero byte.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import mmap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.storage.local_file import storage_errors

# Maximum entries and bytes per sorted run; 250,000 entries of a dataset's images have 40 MB.
RUN_ENTRIES = 250_000
RUN_BYTES = 64 << 20
# The bytes of this number of entries are counted together, which is faster.
_FEW = 100
# The number of keys that each run contributes to the division of all runs into ranges.
_KEYS_OF_A_RUN = 64
# UTF-8 text never contains this byte.
_BEHIND_ALL = b"\xff"


def write(folder: Path, name: str, entries: Iterable[bytes]) -> list[Path]:
    """Writes entries as sorted runs that fit in memory; returns the files, which are not synced."""
    runs: list[Path] = []
    for run in _runs(entries):
        run.sort()
        path = folder / f"{name}.run-{len(runs):04d}"
        with storage_errors("write", path), open(path, "wb") as file:
            file.writelines(run)
        runs.append(path)
    return runs


def _runs(entries: Iterable[bytes]) -> Iterator[list[bytes]]:
    remaining = iter(entries)
    run: list[bytes] = []
    num_bytes = 0
    while few := list(itertools.islice(remaining, min(_FEW, RUN_ENTRIES - len(run)))):
        run += few
        num_bytes += sum(map(len, few))
        if num_bytes >= RUN_BYTES or len(run) == RUN_ENTRIES:
            yield run
            run = []
            num_bytes = 0
    if run:
        yield run


def side_by_side(sides: Sequence[Sequence[Path]]) -> Iterator[list[list[bytes]]]:
    """Yields, for each range of keys, one sorted list of entries per side (e.g. per dataset).

    All entries of a key are in the same range, which has about as many entries as a run. Only one
    file is open at a time.
    """
    everything = [*itertools.chain.from_iterable(sides)]
    keys = sorted(itertools.chain.from_iterable(map(_some_keys, everything)))
    starts = dict.fromkeys(everything, 0)
    # A range has one piece of a run for each of its keys, and at most one more piece of every run.
    most = (_KEYS_OF_A_RUN + len(everything)) * (RUN_BYTES // _KEYS_OF_A_RUN) * 9 // 8
    for stop in [*keys[_KEYS_OF_A_RUN::_KEYS_OF_A_RUN], _BEHIND_ALL]:
        num_bytes = 0
        entries_of_sides: list[list[bytes]] = []
        for side in sides:
            entries: list[bytes] = []
            for run in side:
                with _mapped(run) as data:
                    end = _first(data, stop, starts[run])
                    num_bytes += end - starts[run]
                    if num_bytes > most:
                        raise DataDamagedError(
                            "the tables of samples are damaged: thousands of lines have the same "
                            "key. Get the dataset again."
                        )
                    entries += data[starts[run] : end].splitlines(keepends=True)
                starts[run] = end
            entries_of_sides.append(sorted(entries))
        yield entries_of_sides


def _some_keys(run: Path) -> list[bytes]:
    """Returns keys, with their zero bytes, that divide a run into roughly equal pieces."""
    with _mapped(run) as data:
        places = range(0, len(data), -(-len(data) // _KEYS_OF_A_RUN))
        begins = (data.rfind(b"\n", 0, place) + 1 for place in places)
        return [data[begin : data.find(b"\0", begin) + 1] for begin in begins]


@contextlib.contextmanager
def _mapped(run: Path) -> Iterator[mmap.mmap]:
    # Each range is mapped again, because pages stay in memory until the file is unmapped.
    with open(run, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def _first(run: mmap.mmap, least: bytes, start: int) -> int:
    """Returns the offset of the first entry that is at least `least`, by bisection."""

    def entry_at(place: int) -> bytes:
        begin = run.rfind(b"\n", 0, place) + 1
        return run[begin : begin + len(least)]

    return bisect.bisect_left(range(len(run)), least, start, key=entry_at)
