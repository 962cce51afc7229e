"""A launch without a terminal: whose process it is, whether it runs, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.command import Finished, Running, run, started, wait_until

# As `launch --detach` does it, around work that waits until it is asked to end, then takes a
# while to save, or that fails at once.
PROGRAM = """
import sys, time
from pathlib import Path
from imagenet_prep.core import cli, errors
from imagenet_prep.launching import detached
def work(under_way):
    if "unfit" in sys.argv:
        raise errors.UsageError("no host is fit")
    print("checked", flush=True)
    under_way()
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        time.sleep(0.3)
        raise errors.IncompleteError("step 7 is saved \\x1b[31m")
cli.finish(lambda: detached.start(Path(sys.argv[1]), work))
"""


def detach(folder: Path, *words: str) -> Iterator[Running]:
    arguments = (folder, "--detach", *words)
    with started(*arguments, program=("-P", "-c", PROGRAM)) as running:
        yield running


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Running]:
    """One that is under way, with its records in `tmp_path`."""
    for running in detach(tmp_path):
        assert running.finish().code == 0
        yield running


def status(folder: Path) -> Finished:
    return run("launch", "--status", folder)


def pid_in(folder: Path) -> int:
    return int(json.loads((folder / "launch.json").read_text())["pid"])


def test_it_outlives_who_started_it_in_a_session_of_its_own(
    tmp_path: Path, launched: Running
) -> None:
    pid = pid_in(tmp_path)

    assert launched.workers() == [pid]
    assert os.getsid(pid) == pid
    told = status(tmp_path)
    assert told.code == 0
    assert told.out.startswith("running since 20")
    assert f"pid {pid} on " in told.out
    assert told.out.endswith("\n  checked\n")
    for running in detach(tmp_path):
        again = running.finish()
        assert again.code == 1
        assert f"a launch runs there: pid {pid}" in again.err


def test_stop_waits_for_its_end_and_status_has_its_exit_code(
    tmp_path: Path, launched: Running
) -> None:
    stopped = run("launch", "--stop", tmp_path)

    assert stopped.code == 0, stopped
    assert launched.workers() == []
    assert "with exit code 4, begun " in stopped.out
    assert r"step 7 is saved \x1b[31m" in stopped.out
    assert status(tmp_path).code == 4
    again = run("launch", "--stop", tmp_path)
    assert (again.code, again.out) == (0, f"not running: {tmp_path}\n")


def test_one_that_was_killed_is_said_to_be(tmp_path: Path, launched: Running) -> None:
    launched.send(signal.SIGKILL, [pid_in(tmp_path)])
    wait_until(lambda: not launched.workers(), "it is killed")
    told = status(tmp_path)

    assert told.code == 1
    assert told.out.startswith("ended without a report")


def test_a_number_that_is_another_process_now_is_never_signalled(tmp_path: Path) -> None:
    code = "print(flush=True); import time; time.sleep(600)"
    argv = [sys.executable, "-c", code, "--detach"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        record = {"host": os.uname().nodename, "pid": stranger.pid, "start": 1, "boot": boot}
        (tmp_path / "launch.json").write_text(json.dumps(record | {"since": "2026"}))
        stopped = run("launch", "--stop", tmp_path)

        assert stranger.poll() is None
        stranger.kill()
    assert stopped.out == f"not running: {tmp_path}\n"


@pytest.mark.parametrize("text", ["[1]", "{}", '{"host": 1}', "{", '{"pid": "1"}'])
def test_a_record_that_is_none_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "launch.json").write_text(text)
    told = status(tmp_path)

    assert told.code == 3, told
    assert "not what launch --detach writes" in told.err


def test_what_is_wrong_is_said_before_it_leaves(tmp_path: Path) -> None:
    for running in detach(tmp_path, "unfit"):
        finished = running.finish()

    assert finished.code == 2, finished
    assert finished.err == "imagenet-prep: no host is fit\n"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--status", "nowhere"), "nowhere: no launch --detach was started"),
        (("--status", "a", "--stop", "b"), "--status and --stop stand alone"),
        (("--stop", "a", "-np", "2"), "--status and --stop stand alone"),
        (("--", "train", "--synthetic"), "-np N: expected how many ranks"),
        (("-np", "1", "--detach", "--dry-run", "--", "train"), "nothing to --detach"),
    ],
)
def test_flags_that_mean_nothing_together(words: tuple[str, ...], named: str) -> None:
    finished = run("launch", *words)

    assert finished.code == 2
    assert named in finished.err
