"""External sorting of lines: any number of runs gives the result of one sort."""

from __future__ import annotations

import itertools
import random
import threading
from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError, IncompleteError
from imagenet_prep.shards.sorted_tables import SortedRuns, key_ranges, side_by_side
from tests.kit.installed import Installed
from tests.kit.limits import Limits
from tests.kit.messages import says


def test_full_disk_is_incomplete(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/dev/full")
    with pytest.raises(IncompleteError, match="full"):
        SortedRuns(tmp_path / "a").write(iter([b"00000001x\n" * 10_000]))


@pytest.mark.parametrize("code", ["compiled", "python"])
@pytest.mark.parametrize("num", [0, 1, 200, 3000])
def test_ranges_are_sorted_and_split_no_key(
    num: int, tmp_path: Path, limits: Limits, installed: Installed, code: str
) -> None:
    if code == "python":
        installed.library("shards.sorted_tables")
    limits(sorted_run_bytes=2000, sorted_run_keys=7)
    chance = random.Random(num)
    # Keys that are prefixes of others, and several entries of a key.
    keys = ["a" * chance.randrange(1, 9) + chance.choice("b é\U0001f600") for _ in range(50)]
    entries = [
        [f"{chance.choice(keys)}\0{chance.randrange(10**6)}\n".encode() for _ in range(n)]
        for n in (num, num // 3)
    ]
    sides = []
    for name, each in zip("ab", entries, strict=True):
        side = SortedRuns(tmp_path / name)
        # Several calls add runs.
        side.write(each[:100])
        side.write(each[100:])
        sides.append(side)
    ranges = list(side_by_side(sides))

    for number, each in enumerate(entries):
        lines = itertools.chain.from_iterable(of_range[number] for of_range in ranges)
        assert [*lines] == sorted(each)
    seen: set[bytes] = set()
    for of_range in ranges:
        here = {line.partition(b"\0")[0] for line in itertools.chain(*of_range)}
        assert not here & seen
        seen |= here
    assert len(ranges) > num // 200


def test_threads_write_runs_of_one_file(tmp_path: Path, limits: Limits) -> None:
    limits(sorted_run_bytes=1 << 10, sorted_run_keys=2)
    runs = SortedRuns(tmp_path / "a")
    entries = [[b"%05d\0%d\n" % (n * 7919 % 5000, of) for n in range(500)] for of in range(8)]
    threads = [threading.Thread(target=runs.write, args=(each,)) for each in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = itertools.chain.from_iterable(lines for (lines,) in side_by_side([runs]))
    assert [*lines] == sorted(itertools.chain.from_iterable(entries))


def test_long_entries_make_short_runs_and_ranges(tmp_path: Path, limits: Limits) -> None:
    limits(sorted_run_bytes=1 << 20)
    entries = [b"%05d%b\0%d\n" % (n * 7919 % 2000, b"x" * 4096, n) for n in range(2000)]
    runs = SortedRuns(tmp_path / "a")
    runs.write(iter(entries))
    ranges = list(side_by_side([runs]))

    assert [*itertools.chain.from_iterable(lines for (lines,) in ranges)] == sorted(entries)
    assert max(sum(map(len, of_range)) for (of_range,) in ranges) < 2 << 20
    pieces = [piece for (of_range,) in key_ranges([runs]) for piece in of_range]
    assert max(piece.stop - piece.start for piece in pieces) < (1 << 20) + 5000


def test_many_small_runs_make_few_ranges(tmp_path: Path) -> None:
    runs = SortedRuns(tmp_path / "a")
    for number in range(300):
        runs.write([b"%05d\0x\n" % (number * 7919 % 300)])
    assert len(list(key_ranges([runs]))) < 10


def test_key_with_too_many_entries_is_damage(tmp_path: Path, limits: Limits) -> None:
    limits(sorted_run_bytes=1 << 16)
    sides = [SortedRuns(tmp_path / name) for name in "ab"]
    for side in sides:
        side.write(b"a\0%08d\n" % i for i in range(20_000))

    with pytest.raises(DataDamagedError, match=says("tables-samples-damaged-thousands-lines")):
        list(side_by_side(sides))
