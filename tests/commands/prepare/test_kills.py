"""A run may end at any moment: nothing half visible, nothing done twice, nobody left behind."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.dataset import (
    assert_nothing_half_visible,
    contents,
    receipts,
    shard_names,
    stamps,
)
from tests.kit.lengths import long_but
from tests.kit.miniature import Miniature
from tests.kit.shared import made_once

KINDS = ("threads", "processes")
SHARDS = ("--train-shards", "24", "--validation-shards", "4")
SETTINGS = (*SHARDS, "--short-side", "64", "--allow-subset", "--workers", "2")
NUM_SHARDS = 28


class Whole:
    """An undisturbed run in threads: its bytes, and its time; made once for all workers."""

    def __init__(self, source: Path, folder: Path) -> None:
        def make(folder: Path) -> None:
            out = folder / "out"
            with command.started(*prepare(source, out, "threads")) as run:
                start = time.monotonic()
                command.wait_until(lambda: receipts(out), "the first receipt")
                first = time.monotonic()
                result = run.finish()
            assert result.code == 0, result
            end = time.monotonic()
            (folder / "seconds.json").write_text(json.dumps([end - start, end - first]))

        made_once(folder, make)
        self.contents = contents(folder / "out")
        self.seconds, self.writing_s = json.loads((folder / "seconds.json").read_bytes())


def prepare(source: Path, out: Path, kind: str) -> list[str]:
    places = ("--source", str(source), "--out", str(out))
    return ["prepare", *places, *SETTINGS, "--worker-kind", kind]


def assert_completed(source: Path, out: Path, whole: Whole) -> None:
    """The next run completes the dataset; in threads, which start faster than processes."""
    result = command.run(*prepare(source, out, "threads"))
    assert result.code == 0, result
    assert contents(out) == whole.contents


@pytest.fixture(scope="module")
def whole(many: Miniature, shared_cache: Path) -> Whole:
    return Whole(many.root, shared_cache / "whole")


@contextlib.contextmanager
def in_the_middle(many: Miniature, out: Path, kind: str) -> Iterator[command.Running]:
    """Yields a run that has published its first shards and is held there, with its workers."""
    for _ in range(10):
        with command.started(*prepare(many.root, out, kind)) as run:
            command.wait_until(lambda r=run: len(receipts(out)) >= 3 or r.ended, "some receipts")
            run.send(signal.SIGSTOP)
            run.send(signal.SIGSTOP, run.workers())
            if len(receipts(out)) < NUM_SHARDS and not run.ended:
                yield run
                return
        shutil.rmtree(out)  # this machine looked the other way until the run was over
    raise AssertionError("no run could be caught in the middle")


# In short: the run that is killed and started again.
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
# How many, and how many of them at least between the first shard and the last.
@pytest.mark.parametrize(("num_kills", "num_inside"), [(2, 1), (16, 5)])
def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(
    many: Miniature, kind: str, whole: Whole, tmp_path: Path, num_kills: int, num_inside: int
) -> None:
    rng = random.Random(f"kills of {kind}")
    kills = in_the_middle = number = 0
    out = tmp_path / "out-0"
    while kills < num_kills or in_the_middle < num_inside:
        number += 1
        assert number < 100, f"only {kills} kills, {in_the_middle} of them in the middle"
        before = stamps(out)
        done = len(receipts(out))
        with command.started(*prepare(many.root, out, kind)) as run:
            if number % 2:
                wait_for_receipt(out, done, run)
                delay = rng.uniform(0, whole.writing_s)
            else:
                delay = rng.uniform(0, whole.seconds)
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(delay)
            code = run.kill()
            command.wait_until(lambda r=run: not r.workers(), "the workers of a killed run end")

        assert code in (0, -signal.SIGKILL)
        assert_nothing_half_visible(out, whole.contents)
        after = stamps(out)
        assert {name: after[name] for name in shard_names(before)} == {
            name: before[name] for name in shard_names(before)
        }
        if code == 0:
            assert contents(out) == whole.contents
            out = tmp_path / f"out-{number}"
            continue
        kills += 1
        in_the_middle += 0 < len(shard_names(after)) < NUM_SHARDS

    assert_completed(many.root, out, whole)


@pytest.mark.parametrize("kind", long_but(["processes"], KINDS))
def test_a_run_killed_and_started_again_at_once_does_what_is_left(
    many: Miniature, kind: str, whole: Whole, tmp_path: Path
) -> None:
    """The killed run's workers are still busy with a shard when the next run begins."""
    out = tmp_path / "out"
    with in_the_middle(many, out, kind) as first:
        before = stamps(out)
        done = len(receipts(out))
        first.kill()
        with command.started(*prepare(many.root, out, kind)) as second:
            command.wait_until(lambda: len(receipts(out)) > done or second.ended, "progress")
            first.send(signal.SIGCONT, first.workers())
            result = second.finish()
        command.wait_until(lambda: not first.workers(), "the first run's workers end")

    assert result.code == 0, result
    assert contents(out) == whole.contents
    after = stamps(out)
    assert {name: after[name] for name in shard_names(before)} == {
        name: before[name] for name in shard_names(before)
    }


def test_workers_end_with_their_launcher_even_where_nobody_reaps_it(
    many: Miniature, tmp_path: Path
) -> None:
    """In a container whose first process reaps nothing, a killed launcher stays as a zombie."""
    out = tmp_path / "out"
    with in_the_middle(many, out, "processes") as run:
        workers = run.workers()
        done = len(receipts(out))
        run.send(signal.SIGKILL)
        run.send(signal.SIGCONT, workers)
        command.wait_until(lambda: not run.workers(), "the workers end")

        # What they held they may finish; they take nothing new.
        assert workers
        assert len(receipts(out)) <= done + len(workers)


@pytest.mark.parametrize("kind", long_but(["threads"], KINDS))
@pytest.mark.parametrize(
    "signum", long_but([signal.SIGINT], [signal.SIGINT, signal.SIGTERM]), ids=lambda s: s.name
)
def test_an_interrupted_run_says_so_and_resumes(
    many: Miniature, kind: str, whole: Whole, tmp_path: Path, signum: signal.Signals
) -> None:
    out = tmp_path / "out"
    with in_the_middle(many, out, kind) as run:
        before = stamps(out)
        run.send(signum)
        run.send(signal.SIGCONT)
        run.send(signal.SIGCONT, run.workers())
        result = run.finish()
        command.wait_until(lambda: not run.workers(), "the workers end")

    assert (result.code, result.out) == (130, "")
    assert "interrupted" in result.err
    assert "resume" in result.err
    assert "Traceback" not in result.err
    assert_nothing_half_visible(out, whole.contents)

    assert_completed(many.root, out, whole)
    after = stamps(out)
    assert {name: after[name] for name in shard_names(before)} == {
        name: before[name] for name in shard_names(before)
    }


# In short: the interrupted run above.
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("interrupts", [1, 12])
def test_a_run_interrupted_at_random_moments_never_looks_like_a_bug(
    many: Miniature, kind: str, whole: Whole, tmp_path: Path, interrupts: int
) -> None:
    rng = random.Random(f"interrupts of {kind}")
    out = tmp_path / "out-0"
    for number in range(1, interrupts + 1):
        with command.started(*prepare(many.root, out, kind)) as run:
            # Before the lock is there Python itself is still starting.
            command.wait_until(lambda o=out, r=run: holds_lock(o, r) or r.ended, "the lock")
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(rng.uniform(0, whole.seconds))
            run.send(signal.SIGINT if number % 2 else signal.SIGTERM)
            result = run.finish()
            command.wait_until(lambda r=run: not r.workers(), "the workers end")

        assert result.code in (0, 130), result
        assert "Traceback" not in result.err, result.err
        assert_nothing_half_visible(out, whole.contents)
        if result.code == 0:
            out = tmp_path / f"out-{number}"

    assert_completed(many.root, out, whole)


@pytest.mark.parametrize("kind", long_but(["threads"], KINDS))
def test_an_impatient_second_ctrl_c_is_no_bug(many: Miniature, kind: str, tmp_path: Path) -> None:
    with in_the_middle(many, tmp_path / "out", kind) as run:
        run.send(signal.SIGCONT)
        for _ in range(20):
            run.send(signal.SIGINT)
            time.sleep(0.005)
        run.send(signal.SIGCONT, run.workers())
        result = run.finish()

    assert result.code == 130, result
    assert "Traceback" not in result.err, result.err


@pytest.mark.parametrize("number", long_but([1], [1, 2]), ids=["one", "all"])
def test_a_lost_worker_process_ends_the_run_and_the_next_one_completes_it(
    many: Miniature, tmp_path: Path, whole: Whole, number: int
) -> None:
    """The kernel kills a worker for its memory; the run must neither hang nor claim success."""
    out = tmp_path / "out"
    with in_the_middle(many, out, "processes") as run:
        workers = run.workers()
        run.send(signal.SIGKILL, workers[:number])
        run.send(signal.SIGCONT)
        run.send(signal.SIGCONT, run.workers())
        result = run.finish()

    assert len(workers) == 2
    assert_nothing_half_visible(out, whole.contents)
    if result.code == 0:  # the other worker did it all
        assert contents(out) == whole.contents
    else:
        assert result.code == 4, result
        assert re.search(r"worker process.* again to resume", result.err)
        assert "Traceback" not in result.err

    assert_completed(many.root, out, whole)


def wait_for_receipt(out: Path, done: int, run: command.Running) -> None:
    """Returns when a receipt more than `done` is there, or the run has ended."""
    command.wait_until(lambda: len(receipts(out)) > done or run.ended, "another receipt")


def holds_lock(out: Path, run: command.Running) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return f"pid {run.pid} " in (out / ".work" / "lock").read_text()
    return False
