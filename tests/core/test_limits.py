"""Limits of a process: the number of CPU cores, with quotas of cgroups, and turns of heavy work."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from imagenet_prep.core import limits
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
def test_quota_of_cgroup_version_2_is_used(tmp_path: Path, text: str, expected: int) -> None:
    root = system_of(tmp_path, "0::/\n", {"cpu.max": text})

    assert num_cores(root) == expected


def test_lowest_quota_of_all_parent_groups_is_used(tmp_path: Path) -> None:
    files = {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000", "c/cpu.max": "1 1000"}
    root = system_of(tmp_path, "0::/a/b/d\n", files)

    assert num_cores(root) == 3


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("300000", 3), ("1000", 1)])
@pytest.mark.parametrize("place", ["", "docker/1/"])
def test_quota_of_cgroup_version_1_is_used(
    tmp_path: Path, place: str, quota: str, expected: int
) -> None:
    lines = "5:memory:/x\n4:cpu,cpuacct:/docker/1\n3:cpuset:/\n0::/system.slice\n"
    files = {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": "100000"}
    below = {f"cpu/{place}{name}": text for name, text in files.items()}
    root = system_of(tmp_path, lines, below)

    assert num_cores(root) == expected


def test_affinity_is_used_if_there_are_no_cgroups(tmp_path: Path) -> None:
    assert num_cores(tmp_path) == 8


def test_every_count_of_cores_uses_the_quota() -> None:
    package = Path(__file__).parents[2] / "imagenet_prep"
    users = [path for path in package.rglob("*.py") if "sched_getaffinity" in path.read_text()]
    counts = [path for path in package.rglob("*.py") if "cpu_count(" in path.read_text()]

    assert [path.name for path in users] == ["limits.py"]
    assert counts == []
    assert num_cores() <= len(os.sched_getaffinity(0))


WAITS = """
import contextlib, sys, time
from imagenet_prep.core import limits
limits.among_processes(2, 0)
with contextlib.suppress(KeyError), limits.turn():
    if sys.argv[1] == "error":
        raise KeyError
print("over", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("end", ["return", "error"])
def test_turn_of_a_running_process_is_over(end: str) -> None:
    """A worker lives as long as the run, so the others cannot wait for its end."""
    with os.fdopen(os.memfd_create("work"), "wb") as shared:
        argv = [sys.executable, "-P", "-c", WAITS, end]
        with subprocess.Popen(argv, stdin=shared, stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            try:
                assert worker.stdout.readline() == b"over\n"
                fcntl.lockf(shared, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            finally:
                worker.kill()


PROGRAM = """
import sys
from pathlib import Path
from imagenet_prep.core import limits
limits.among_processes(int(sys.argv[2]), 0)
for _ in range(20):
    with limits.turn():
        # Two that are in their turn at once would meet this file.
        mark = Path(sys.argv[1])
        mark.touch(exist_ok=False)
        mark.unlink()
"""


@pytest.fixture(autouse=True)
def before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the state for other tests."""
    monkeypatch.setattr(limits, "_semaphore", threading.Semaphore(1))
    monkeypatch.setattr(limits, "_shared_byte", None)


@pytest.mark.parametrize(("workers", "most"), [(1, 1), (2, 1), (3, 1), (8, 4)])
def test_half_of_the_threads_have_simultaneous_turns(workers: int, most: int) -> None:
    limits.among_threads(workers)
    inside = threading.Barrier(most)
    waiting = []

    def work() -> None:
        with limits.turn():
            # Passes only if all threads with a turn arrive.
            inside.wait(60)
            waiting.append(inside.n_waiting)

    threads = [threading.Thread(target=work) for _ in range(2 * most)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(waiting) == 2 * most
    for _ in range(most):
        assert limits._semaphore.acquire(blocking=False)
    assert not limits._semaphore.acquire(blocking=False)


def test_processes_that_share_a_file_take_turns(tmp_path: Path) -> None:
    with os.fdopen(os.memfd_create("work"), "wb") as shared:
        argv = [sys.executable, "-P", "-c", PROGRAM, str(tmp_path / "mark"), "2"]
        processes = [subprocess.Popen(argv, stdin=shared) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]


def test_turn_ends_with_an_error_or_a_process(tmp_path: Path) -> None:
    with os.fdopen(os.memfd_create("work"), "wb") as shared:
        dies = PROGRAM + "\nimport os\nt = limits.turn(); t.__enter__(); os._exit(7)"
        argv = [sys.executable, "-P", "-c", dies, str(tmp_path / "mark"), "2"]
        assert subprocess.run(argv, stdin=shared, check=False).returncode == 7
        limits.among_processes(2, shared.fileno())
        for _ in range(2):
            with pytest.raises(KeyError), limits.turn():
                raise KeyError
