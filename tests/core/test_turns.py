from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from imagenet_prep.core import limits

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
    """Leaves to other tests what they have found."""
    monkeypatch.setattr(limits, "_semaphore", threading.Semaphore(1))
    monkeypatch.setattr(limits, "_shared_byte", None)


@pytest.mark.parametrize(("workers", "most"), [(1, 1), (2, 1), (3, 1), (8, 4)])
def test_half_of_the_threads_have_a_turn_at_once(workers: int, most: int) -> None:
    limits.among_threads(workers)
    inside = threading.Barrier(most)
    waiting = []

    def work() -> None:
        with limits.turn():
            # Only all who may have a turn together pass.
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


def test_a_turn_ends_with_an_error_and_with_a_process(tmp_path: Path) -> None:
    with os.fdopen(os.memfd_create("work"), "wb") as shared:
        dies = PROGRAM + "\nimport os\nt = limits.turn(); t.__enter__(); os._exit(7)"
        argv = [sys.executable, "-P", "-c", dies, str(tmp_path / "mark"), "2"]
        assert subprocess.run(argv, stdin=shared, check=False).returncode == 7
        limits.among_processes(2, shared.fileno())
        for _ in range(2):
            with pytest.raises(KeyError), limits.turn():
                raise KeyError
