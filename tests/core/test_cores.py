"""The number of CPU cores: the affinity, and the quota of cgroups of both versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from imagenet_prep.core.limits import num_cores
from tests.kit.system import System


def system_of(root: Path, groups: str, files: Mapping[str, str]) -> Path:
    """Writes /proc/self/cgroup and files below /sys/fs/cgroup; returns the root of both."""
    path = root / "proc" / "self" / "cgroup"
    path.parent.mkdir(parents=True)
    path.write_text(groups)
    for name, text in files.items():
        file = root / "sys" / "fs" / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.fixture(autouse=True)
def _eight_cores(system: System) -> None:
    system.instead("sched_getaffinity", lambda _real, _pid: set(range(8)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("1600000 100000", 8),
        ("", 8),
        ("200000 0", 8),
        ("many 100000", 8),
        ("200000", 8),
    ],
)
def test_the_quota_of_version_2(tmp_path: Path, text: str, expected: int) -> None:
    root = system_of(tmp_path, "0::/\n", {"cpu.max": text})

    assert num_cores(root) == expected


def test_the_lowest_quota_of_all_groups_above_counts(tmp_path: Path) -> None:
    files = {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000", "c/cpu.max": "1 1000"}
    root = system_of(tmp_path, "0::/a/b/d\n", files)

    assert num_cores(root) == 3


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("300000", 3), ("1000", 1)])
@pytest.mark.parametrize("place", ["", "docker/1/"])
def test_the_quota_of_version_1(tmp_path: Path, place: str, quota: str, expected: int) -> None:
    lines = "5:memory:/x\n4:cpu,cpuacct:/docker/1\n3:cpuset:/\n0::/system.slice\n"
    files = {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": "100000"}
    below = {f"cpu/{place}{name}": text for name, text in files.items()}
    root = system_of(tmp_path, lines, below)

    assert num_cores(root) == expected


def test_without_cgroups_the_affinity_counts(tmp_path: Path) -> None:
    assert num_cores(tmp_path) == 8


def test_every_count_of_cores_uses_the_quota() -> None:
    package = Path(__file__).parents[2] / "imagenet_prep"
    users = [path for path in package.rglob("*.py") if "sched_getaffinity" in path.read_text()]
    counts = [path for path in package.rglob("*.py") if "cpu_count(" in path.read_text()]

    assert [path.name for path in users] == ["limits.py"]
    assert counts == []
    assert num_cores() <= len(os.sched_getaffinity(0))
