"""External sorting of lines: any number of runs gives the result of one sort."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError, IncompleteError
from imagenet_prep.shards import difference
from tests.kit.limits import Limits
from tests.kit.messages import says


def test_full_disk_is_incomplete(tmp_path: Path) -> None:
    (tmp_path / "a.run-0000").symlink_to("/dev/full")
    with pytest.raises(IncompleteError, match="full"):
        difference.write(tmp_path, "a", iter([b"00000001x\n" * 10_000]))


@pytest.mark.parametrize("num", [0, 1, 200, 3000])
def test_ranges_are_sorted_and_split_no_key(num: int, tmp_path: Path, limits: Limits) -> None:
    limits(sorted_run_entries=100, sorted_run_keys=7)
    chance = random.Random(num)
    # Keys that are prefixes of others, and several entries of a key.
    keys = ["a" * chance.randrange(1, 9) + chance.choice("b é\U0001f600") for _ in range(50)]
    entries = [
        [f"{chance.choice(keys)}\0{chance.randrange(10**6)}\n".encode() for _ in range(n)]
        for n in (num, num // 3)
    ]
    sides = [
        difference.write(tmp_path, name, iter(each))
        for name, each in zip("ab", entries, strict=True)
    ]
    ranges = list(difference.side_by_side(sides))

    for side, each in enumerate(entries):
        lines = itertools.chain.from_iterable(of_range[side] for of_range in ranges)
        assert [*lines] == sorted(each)
    seen: set[bytes] = set()
    for of_range in ranges:
        here = {line.partition(b"\0")[0] for line in itertools.chain(*of_range)}
        assert not here & seen
        seen |= here
    assert len(ranges) > num // 200


def test_long_entries_make_short_runs_and_ranges(tmp_path: Path, limits: Limits) -> None:
    limits(sorted_run_bytes=1 << 20, few_sorted_runs=10)
    entries = [b"%05d%b\0%d\n" % (n * 7919 % 2000, b"x" * 4096, n) for n in range(2000)]
    files = difference.write(tmp_path, "a", iter(entries))
    ranges = list(difference.side_by_side([files]))

    assert max(path.stat().st_size for path in files) < (1 << 20) + 10 * 5000
    assert [*itertools.chain.from_iterable(lines for (lines,) in ranges)] == sorted(entries)
    assert max(sum(map(len, of_range)) for (of_range,) in ranges) < 2 << 20


def test_key_with_too_many_entries_is_damage(tmp_path: Path, limits: Limits) -> None:
    limits(sorted_run_bytes=1 << 16)
    sides = [difference.write(tmp_path, n, (b"a\0%08d\n" % i for i in range(20_000))) for n in "ab"]

    with pytest.raises(DataDamagedError, match=says("tables-samples-damaged-thousands-lines")):
        list(difference.side_by_side(sides))
