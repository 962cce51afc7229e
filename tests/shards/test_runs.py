"""Lines sorted through files: any number of runs gives what one sort gives."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from imagenet_prep.core.errors import IncompleteError
from imagenet_prep.shards import plan, runs
from tests.shards.test_plan import classes_of


@pytest.mark.parametrize("num", [0, 1, 3, 4, 1000])
def test_what_comes_back_is_sorted_and_grouped(
    num: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_RUN_ENTRIES", 3)
    rng = random.Random(num)
    entries = [b"%08d%04d\n" % (rng.randrange(9), rng.randrange(10_000)) for _ in range(num)]
    files = runs.write(tmp_path, "a", iter(entries))
    found = [(number, list(group)) for number, group in runs.merged(files)]

    assert found == [
        (int(number), list(group))
        for number, group in itertools.groupby(sorted(entries), lambda entry: entry[:8])
    ]
    sizes = [path.read_bytes().count(b"\n") for path in files]
    assert sum(sizes) == num
    # They grow with their number, so that a merge has few of them open.
    assert sizes[:1] == [3] * (num >= 3) + [num] * (0 < num < 3)
    assert num < 1000 or sizes[-2] > 3 * sizes[0]


def test_a_plan_of_many_runs_is_the_plan_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = classes_of([40, 0, 25, 1])
    digests = set()
    for size in (1, 7, 66):
        monkeypatch.setattr(runs, "_RUN_ENTRIES", size)
        found = plan.write(tmp_path, "train", classes, num_classes=4, num_shards=5, seed=3)
        digests.add(found.digest)

        assert sorted(path.name for path in tmp_path.iterdir()) == [
            f"train-0000{shard}-of-00005.jsonl" for shard in range(5)
        ]
    assert len(digests) == 1


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.run-0000").symlink_to("/dev/full")
    with pytest.raises(IncompleteError, match="full"):
        runs.write(tmp_path, "a", iter([b"00000001x\n" * 10_000]))
