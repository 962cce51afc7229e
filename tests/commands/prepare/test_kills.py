"""A run may end at any time: no partial file, no repeated work, and no process remains."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.dataset import (
    assert_visible_files_are_complete,
    contents,
    receipts,
    shard_names,
    stamps,
)
from tests.kit.lengths import long_except
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
    """Yields a run after its first shards; the run and its workers are stopped by a signal."""
    for _ in range(10):
        with command.started(*prepare(many.root, out, kind)) as run:
            command.wait_until(lambda r=run: len(receipts(out)) >= 3 or r.ended, "some receipts")
            run.send(signal.SIGSTOP)
            run.send(signal.SIGSTOP, run.workers())
            if len(receipts(out)) < NUM_SHARDS and not run.ended:
                yield run
                return
        shutil.rmtree(out)  # the run ended before this machine could stop it
    raise AssertionError("no run could be caught in the middle")


@pytest.mark.parametrize("kind", long_except(["processes"], KINDS))
def test_killed_run_resumes_while_old_workers_are_busy(
    many: Miniature, kind: str, whole: Whole, tmp_path: Path
) -> None:
    """The killed run's workers are still busy with a shard when the next run starts."""
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


def test_workers_end_if_their_launcher_is_a_zombie(many: Miniature, tmp_path: Path) -> None:
    """In some containers the first process reaps no children, so a killed launcher is a zombie."""
    out = tmp_path / "out"
    with in_the_middle(many, out, "processes") as run:
        workers = run.workers()
        done = len(receipts(out))
        run.send(signal.SIGKILL)
        run.send(signal.SIGCONT, workers)
        command.wait_until(lambda: not run.workers(), "the workers end")

        # Workers may finish their current task, but start no new one.
        assert workers
        assert len(receipts(out)) <= done + len(workers)


@pytest.mark.parametrize("kind", long_except(["threads"], KINDS))
def test_repeated_ctrl_c_is_handled(many: Miniature, kind: str, tmp_path: Path) -> None:
    with in_the_middle(many, tmp_path / "out", kind) as run:
        run.send(signal.SIGCONT)
        for _ in range(20):
            run.send(signal.SIGINT)
            time.sleep(0.005)
        run.send(signal.SIGCONT, run.workers())
        result = run.finish()

    assert result.code == 130, result
    assert "Traceback" not in result.err, result.err


@pytest.mark.parametrize("number", long_except([1], [1, 2]), ids=["one", "all"])
def test_lost_worker_ends_run_and_next_run_completes(
    many: Miniature, tmp_path: Path, whole: Whole, number: int
) -> None:
    """The kernel kills a worker for its memory; the run must neither hang nor report success."""
    out = tmp_path / "out"
    with in_the_middle(many, out, "processes") as run:
        workers = run.workers()
        run.send(signal.SIGKILL, workers[:number])
        run.send(signal.SIGCONT)
        run.send(signal.SIGCONT, run.workers())
        result = run.finish()

    assert len(workers) == 2
    assert_visible_files_are_complete(out, whole.contents)
    if result.code == 0:  # the other worker did all the work
        assert contents(out) == whole.contents
    else:
        assert result.code == 4, result
        assert re.search(r"worker process.* Finished work is kept\. Run the same", result.err)
        assert "Traceback" not in result.err

    assert_completed(many.root, out, whole)
