"""Launches without a terminal: identity, status and end of their processes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import BusyError, UsageError
from imagenet_prep.launching import crew
from tests.kit.command import Finished, Running, run, started, wait_until
from tests.kit.dataset import contents
from tests.kit.messages import says

# Like `launch --detach`: the work waits for a signal and then takes a while to save, or it fails at
# once.
PROGRAM = """
import sys, time
from pathlib import Path
from imagenet_prep.core import errors, program
from imagenet_prep.launching import crew
def work(under_way):
    if "unfit" in sys.argv:
        raise errors.UsageError("no host is fit" + ", really" * 2_000)
    print("checked", flush=True)
    under_way()
    try:
        while True:
            time.sleep(0.05)
    except KeyboardInterrupt:
        time.sleep(0.3)
        raise errors.IncompleteError("step 7 is saved \\x1b[31m")
program.finish(lambda: crew.start_detached(Path(sys.argv[1]), work))
"""


def detach(folder: Path, *words: str) -> Iterator[Running]:
    arguments = (folder, "--detach", *words)
    with started(*arguments, program=("-P", "-c", PROGRAM)) as running:
        yield running


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Running]:
    """A running launch with its records in `tmp_path`."""
    for running in detach(tmp_path):
        assert running.finish().code == 0
        yield running


def status(folder: Path) -> Finished:
    return run("launch", "--status", folder)


def pid_in(folder: Path) -> int:
    return int(json.loads((folder / "launch.json").read_text())["pid"])


def test_a_detached_launch_outlives_the_starting_command(tmp_path: Path, launched: Running) -> None:
    pid = pid_in(tmp_path)

    assert launched.workers() == [pid]
    assert os.getsid(pid) == pid
    told = status(tmp_path)
    assert told.code == 0
    assert says("running-since", "20").match(told.out)
    assert f"pid {pid} on " in told.out
    assert told.out.endswith("\n  checked\n")
    for running in detach(tmp_path):
        again = running.finish()
        assert again.code == BusyError.exit_code
        assert says("launch-running-pid-since", ..., pid).search(again.err)


def test_stop_waits_and_status_returns_the_exit_code(tmp_path: Path, launched: Running) -> None:
    stopped = run("launch", "--stop", tmp_path)

    assert stopped.code == 0, stopped
    assert launched.workers() == []
    assert says("ended-exit-code-started", ..., 4).search(stopped.out)
    assert r"step 7 is saved \x1b[31m" in stopped.out
    assert status(tmp_path).code == 4
    again = run("launch", "--stop", tmp_path)
    assert (again.code, again.out) == (0, f"not running: {tmp_path}\n")


def test_status_reports_a_killed_launch(tmp_path: Path, launched: Running) -> None:
    launched.send(signal.SIGKILL, [pid_in(tmp_path)])
    wait_until(lambda: not launched.workers(), "it is killed")
    told = status(tmp_path)

    assert told.code == 1
    assert says("ended-without-report-started-machine").match(told.out)


def test_a_reused_pid_is_never_signalled(tmp_path: Path) -> None:
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


def test_planted_records_do_not_stop_a_launch(tmp_path: Path, launched: Running) -> None:
    record = (tmp_path / "launch.json").read_bytes()
    for planted in ("without a log", "with a log", "with a link"):
        folder = tmp_path / planted
        folder.mkdir()
        (folder / "launch.json").write_bytes(record)
        if planted == "with a log":
            (folder / "launch.log").write_text("of another launch\n")
        elif planted == "with a link":
            (folder / "launch.log").symlink_to(tmp_path / "launch.log")
        stopped = run("launch", "--stop", folder)

        assert (stopped.code, stopped.out) == (0, f"not running: {folder}\n"), planted
    assert launched.workers() == [pid_in(tmp_path)]


@pytest.mark.root
def test_records_of_other_users_are_ignored(tmp_path: Path, launched: Running) -> None:
    os.chown(tmp_path / "launch.json", 1001, 1001)
    stopped = run("launch", "--stop", tmp_path)

    assert stopped.out == f"not running: {tmp_path}\n"
    assert launched.workers() == [pid_in(tmp_path)]


RECORD = {"host": os.uname().nodename, "pid": 2, "start": 1, "boot": "b", "since": "2026"}


def test_malformed_records_are_reported(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    wrong = (
        {"pid": 10**30},
        {"since": deep},
        {"pid": -1},
        {"pid": 1},
        {"exit": 10**30},
        {"exit": -1},
    )
    texts = ["[1]", "{}", '{"host": 1}', "{", '{"pid": "1"}', "[" * 60_000, " " * (1 << 20)]
    for text in (*texts, *(json.dumps(RECORD | each) for each in (*wrong, {"exit": True}))):
        (tmp_path / "launch.json").write_text(text)
        for verb in ("--status", "--stop"):
            told = run("launch", verb, tmp_path)

            assert told.code == 3, (text[:200], told)
            assert re.search("invalid record of launch --detach|expected at most 65,536", told.err)


@pytest.mark.parametrize("name", ["launch.json", "launch.log"])
@pytest.mark.parametrize("kind", ["a pipe", "a link"])
def test_records_that_are_pipes_or_links_are_ignored(tmp_path: Path, name: str, kind: str) -> None:
    folder = tmp_path / "log"
    mine = tmp_path / ".bashrc"
    folder.mkdir()
    mine.write_text("# my own\n")
    if name == "launch.log":
        (folder / "launch.json").write_text(json.dumps(RECORD | {"exit": 0, "ended": "2026"}))
    if kind == "a pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to(mine)
    for running in detach(folder):
        begun = running.finish()

        assert begun.code == 1, begun
        assert says("file-folder-above-link-wrong", folder / name).search(begun.err)
        assert running.workers() == []
    for verb in ("--status", "--stop"):
        told = run("launch", verb, folder)

        assert told.code == (1 if name == "launch.json" else 0), told
        assert "my own" not in told.out + told.err
    assert mine.read_text() == "# my own\n"


def test_a_record_is_not_written_through_links(tmp_path: Path) -> None:
    mine = tmp_path / ".bashrc"
    mine.write_text("# my own\n")
    (tmp_path / "launch.json").symlink_to(mine)
    crew.LaunchRecord("host", 2, 1, "boot", "2026").save(tmp_path)

    assert mine.read_text() == "# my own\n"
    found = crew.LaunchRecord.load(tmp_path)
    assert found is not None
    assert found.pid == 2


def test_problems_are_reported_before_the_launch_detaches(tmp_path: Path) -> None:
    for running in detach(tmp_path, "unfit"):
        finished = running.finish()

    assert finished.code == 2, finished
    assert finished.err == f"imagenet-prep: no host is fit{', really' * 2_000}\n"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--status", "nowhere"), says("no-launch-detach-started-log-dir", "nowhere")),
        (("--status", "a", "--stop", "b"), says("cannot-combined", "--status", "--stop")),
        (("--stop", "a", "-np", "2"), says("cannot-combined", "--stop", "--num-processes")),
        (("--", "train", "--synthetic"), says("np-n-expected-number-ranks")),
        (
            ("-np", "1", "--detach", "--dry-run", "--", "train"),
            says("cannot-combined", "--detach", "--dry-run"),
        ),
    ],
)
def test_contradictory_flags_are_refused(words: tuple[str, ...], named: re.Pattern[str]) -> None:
    finished = run("launch", *words)

    assert finished.code == 2
    assert named.search(finished.err)


HERE = crew.LaunchRecord(os.uname().nodename, 2, 1, "another boot", "2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("record", "code", "said"),
    [
        (HERE, 1, says("ended-without-report-started-machine", "2026-01-01T00:00:00Z", "pid 2 on")),
        (
            dataclasses.replace(HERE, exit=0, ended="later"),
            0,
            says("ended-exit-code-started", "later", 0),
        ),
        (
            dataclasses.replace(HERE, exit=75, ended="later"),
            75,
            says("ended-exit-code-started", "later", 75),
        ),
    ],
    ids=str,
)
def test_status_returns_an_exit_code_per_state(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    record: crew.LaunchRecord,
    code: int,
    said: re.Pattern[str],
) -> None:
    record.save(tmp_path)
    (tmp_path / "launch.log").write_text("".join(f"line {number}\n" for number in range(20)))

    assert crew.status(tmp_path) == code
    head, *tail = capsys.readouterr().out.splitlines()
    assert said.search(head)
    assert tail == [f"  line {number}" for number in range(10, 20)]


def test_launch_that_ends_during_status_has_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    HERE.save(tmp_path)

    def ends(record: crew.LaunchRecord) -> bool:
        dataclasses.replace(record, exit=4, ended="now").save(tmp_path)
        return False

    monkeypatch.setattr(crew.LaunchRecord, "runs", property(ends))
    assert crew.status(tmp_path) == 4
    assert says("ended-exit-code-started", "now", 4).match(capsys.readouterr().out)


def test_launches_on_other_hosts_are_refused(tmp_path: Path) -> None:
    dataclasses.replace(HERE, host="node-9").save(tmp_path)

    for verb in (crew.status, crew.stop):
        with pytest.raises(UsageError, match=says("launch-run-command", ..., "node-9")):
            verb(tmp_path)


@pytest.mark.parametrize("changed", [{}, {"boot": "another"}, {"start": 1}, {"exit": 0}], ids=str)
def test_launches_are_identified_by_boot_start_and_flag(changed: dict[str, Any]) -> None:
    def record_of(pid: int) -> crew.LaunchRecord:
        start = crew.start_ticks(pid)
        assert start is not None
        return crew.LaunchRecord(os.uname().nodename, pid, start, crew.boot_id(), "2026")

    assert not record_of(os.getpid()).runs  # these tests are no launch
    argv = ["sh", "-c", "echo; read line", "launch", "--detach"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, **pipes) as launch:
        # Popen returns a moment before /proc shows the new command line.
        assert launch.stdout is not None
        launch.stdout.readline()
        assert dataclasses.replace(record_of(launch.pid), **changed).runs == (not changed)


def test_ended_process_has_no_start_time() -> None:
    """Until its parent reads its exit code, the process still has an entry in /proc."""
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{ended.pid}/stat").exists()
        assert crew.start_ticks(ended.pid) is None
    assert crew.start_ticks(os.getpid()) is not None


def test_second_launches_in_a_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HERE.save(tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(crew.LaunchRecord, "runs", True)

    with pytest.raises(BusyError, match=says("launch-running-pid-since", ..., 2, "2026")):
        crew.start_detached(tmp_path, lambda _: 0)
    assert contents(tmp_path) == before
