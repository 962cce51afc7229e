"""Progress of a run: images if their number is known, and the remaining work."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from imagenet_prep.engine.attempts import Followed, Progress
from tests.kit.limits import Limits
from tests.kit.system import System


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> list[float]:
    """The time, which the test sets."""
    now = [0.0]
    limits(progress_line_s=30.0)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_progress_counts_images_and_prints_the_rest(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Progress("write", 40, 10, images=40_000, images_done=10_000)
    assert capsys.readouterr().err == "write: resuming: 10 of 40 shards already finished\n"
    clock[0] = 1.9
    shown.tick(50)
    assert capsys.readouterr().err == "", "an estimate was printed too early"
    clock[0] = 2.0
    shown.tick(50)
    assert capsys.readouterr().err == (
        "write: 10,050 of 40,000 images, 25 images/s, 29,950 images left, about 20 min\n"
    )
    clock[0] = 5.9
    shown.tick(100)
    assert capsys.readouterr().err == "", "a line was printed too early"
    clock[0] = 60.0
    shown.add(5_000, 1_000)
    shown.tick(2_000)

    assert capsys.readouterr().err == (
        "write: 11,000 of 40,000 images, 17 images/s, 29,000 images left, about 29 min\n"
    )
    clock[0] = 36_000.0
    shown.tick(2_000)
    assert capsys.readouterr().err.endswith("28,000 images left, about 140.0 h\n")
    shown.tick(1_000_000)
    assert shown._line(36_000.0).endswith("0 images left, about 0 s")


class _Archive(NamedTuple):
    name: str


class _Shard(NamedTuple):
    name: str


class _Stage:
    def receipts(self, names: Iterable[str]) -> dict[str, Any]:
        receipt = SimpleNamespace(content=SimpleNamespace(examples=1), outputs=())
        return {name: receipt for name in names if name in ("archive-0", "shard-0")}


def test_hashed_archives_are_not_counted_as_shards(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [*map(_Archive, ("archive-0", "archive-1")), *map(_Shard, ("shard-0", "shard-1"))]
    Followed(cast(Any, _Stage()), tasks, title="write", images=2).close()

    assert capsys.readouterr().err == "write: resuming: 1 of 2 shards already finished\n"


def test_tasks_are_counted_if_images_are_unknown(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Progress("index", 3, 1)
    clock[0] = 31.0
    shown.tick(17)
    clock[0] = 62.0
    shown.add(62_000_000)

    assert capsys.readouterr().err == (
        "index: resuming: 1 of 3 tasks already finished\n"
        "index: 1 of 3 tasks, starting, 2 tasks left\n"
        "index: 2 of 3 tasks, 1.0 MB/s, 1 task left, about 62 s\n"
    )


def test_progress_bar_moves_within_a_shard(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, system: System
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    system.instead("get_terminal_size", lambda *_: os.terminal_size((100, 24)))
    shown = Progress("write", 10, 0, images=2_500)
    clock[0] = 4.0
    shown.tick(1_000)
    clock[0] = 5.0
    shown.tick(1_250)
    shown._bar.refresh()

    last = terminal.getvalue().split("\r")[-1]
    assert last.startswith("write:  50%|")
    assert last.rstrip().endswith("| 1,250 of 2,500 images, 250 images/s, about 5 s")
    shown.close()


def test_quiet_run_prints_no_progress(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Progress("write", 2, 0, images=2, quiet=True)
    clock[0] = 100.0
    shown.add(1, 1)
    shown.close()

    assert capsys.readouterr() == ("", "")
