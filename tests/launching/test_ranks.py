"""The ranks of a host: their time limits, and the pipes that only ranks of this user get."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.launching.ranks import MARK, Pipes, Rank, Ranks, Voice, through
from tests.kit import command
from tests.kit.command import wait_until
from tests.kit.messages import says
from tests.kit.system import System

pytestmark = pytest.mark.slow  # processes in each test


@pytest.mark.parametrize(
    "calls",
    [
        [("limit", 0.3), ("limit", 60.0)],
        [("limit", 60.0), ("limit", 0.3)],
        [("ask", 0.3), ("ask", math.inf)],
        [("ask", math.inf), ("ask", 0.3)],
        [("limit", 0.3), ("ask", 60.0)],
        [("ask", 0.3), ("limit", math.inf)],
    ],
)
def test_the_shortest_time_limit_of_ranks_counts(
    tmp_path: Path, calls: list[tuple[str, float]]
) -> None:
    """A further signal does not give them more time."""
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "open(sys.argv[1], 'w').close(); time.sleep(20)"
    )
    ranks = Ranks()
    ranks.start([sys.executable, "-S", "-c", code, str(tmp_path / "deaf")], [{"RANK": "0"}])
    wait_until((tmp_path / "deaf").exists, "it ignores the signal")
    begin = time.monotonic()
    for name, seconds in calls:
        getattr(ranks, name)(seconds)
    ranks.wait(lambda _: None)

    assert 0.3 <= time.monotonic() - begin < 15


def test_no_rank_starts_after_a_signal(tmp_path: Path) -> None:
    ranks = Ranks()
    ranks.ask(30)
    ranks.start(["touch", str(tmp_path / "started")], [{"RANK": "0"}, {"RANK": "1"}])
    failed: list[Rank] = []
    ranks.wait(failed.append)

    assert [*tmp_path.iterdir()] == failed == ranks._ranks == []


def test_signal_during_a_start_reaches_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that have not been started yet stay so."""
    ranks = Ranks()

    class Interrupted(Rank):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            ranks.ask()

    monkeypatch.setattr("imagenet_prep.launching.ranks.Rank", Interrupted)
    code = "import time; time.sleep(20)"
    ranks.start([sys.executable, "-S", "-c", code], [{"RANK": "0"}, {"RANK": "1"}])
    failed: list[tuple[int, int]] = []
    ranks.wait(lambda rank: failed.append((rank.number, rank.code())))

    assert failed == [(0, 143)]


def run_rank(mark: str) -> subprocess.CompletedProcess[str]:
    """Runs a rank that says its number, as mpirun would start it."""
    argv = through([sys.executable, "-S", "-c", "import os; print(os.environ['RANK'])"])
    world = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}
    environment = command.environment(**world, **{MARK: mark})
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("is_own", [True, False])
def test_only_ranks_of_this_user_get_pipes(
    is_own: bool, system: System, capfd: pytest.CaptureFixture[str]
) -> None:
    user = os.geteuid()
    system.instead("geteuid", lambda _: user + (not is_own))
    mark = f"pipes-{os.getpid()}-{is_own}"
    with Pipes(mark, None, lambda _: None):
        rank = run_rank(mark)

    said = capfd.readouterr()
    if is_own:
        assert (rank.returncode, rank.stdout, said.out) == (0, "", "3\n")
        return
    assert (rank.returncode, rank.stdout, said.out) == (2, "", "")
    # It is refused once, and does not try again.
    assert said.err.count("\n") == 1
    assert says("rank-gets-no-pipes", says("belongs-different-user")).search(said.err)
    assert says("launch-gave-rank-no-pipes").search(rank.stderr)


def pass_on(voice: Voice, lines: list[str]) -> None:
    """Passes on the lines of a process, which writes them to stdout and then to stderr."""
    pipes = [os.pipe(), os.pipe()]
    output, errors = (os.fdopen(reading) for reading, _ in pipes)
    voice.listen(output, errors)
    for _, writing in pipes:
        with os.fdopen(writing, "w") as file:
            file.writelines(f"{line}\n" for line in lines)
    voice.wait()


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["first", "last"], "rank 3: last"),
        (["why", "", "  ", "\t"], "rank 3: why"),
        (["imagenet-prep: why", "last", ""], "rank 3: why"),
        (["imagenet-prep: early", "imagenet-prep: late", ""], "rank 3: late"),
        ([""], "rank 3: "),
    ],
)
def test_empty_lines_do_not_hide_the_reason(lines: list[str], reason: str) -> None:
    code = "import sys; print(*sys.argv[1:], sep='\\n', file=sys.stderr); sys.exit(1)"
    rank = Rank([sys.executable, "-S", "-c", code, *lines], {"RANK": "3"})

    assert rank.code() == 1
    assert rank.reason() == reason


def test_logs_keep_the_output_of_earlier_starts(tmp_path: Path) -> None:
    for word in ("first", "second"):
        voice = Voice("rank 3", str(tmp_path), lambda: None)
        pass_on(voice, [word])
        assert voice._log is not None
        voice._log.close()

    assert (tmp_path / "rank-3.log").read_text().split() == ["first"] * 2 + ["second"] * 2


@pytest.mark.parametrize("full", ["_log", "stdout", "stderr"])
def test_only_output_on_a_full_disk_is_lost(
    tmp_path: Path, full: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A rank is ended if nothing reads its pipe, which takes only some of the lines."""
    lines = [f"line {number} {'-' * 100}" for number in range(2000)]
    voice = Voice("rank 3", str(tmp_path), lambda: None)
    log = voice._log
    assert log is not None
    with (
        contextlib.suppress(OSError),
        open("/dev/full", "w", buffering=1) as disk,
        monkeypatch.context() as patched,
    ):
        patched.setattr(voice if full == "_log" else sys, full, disk)
        pass_on(voice, lines)
    log.close()

    said = capfd.readouterr()
    found = {"_log": (tmp_path / "rank-3.log").read_text(), "stdout": said.out, "stderr": said.err}
    times = {"_log": 2, "stdout": 1, "stderr": 1, full: 0}
    for line in (lines[0], lines[-1]):
        assert {name: text.count(line) for name, text in found.items()} == times
