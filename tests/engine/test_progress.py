"""What a run says of its progress: images where they are known, and what is left."""

from __future__ import annotations

import time

import pytest

from imagenet_prep.engine.progress import Progress
from tests.kit.limits import Limits


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> list[float]:
    """The time, which the test sets."""
    now = [0.0]
    limits(progress_line_s=30.0)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_images_are_counted_and_what_is_left_is_said(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Progress("write", 40, 10, images=40_000, images_done=10_000)
    clock[0] = 29.0
    shown.add(5_000, 1_000)
    assert capsys.readouterr().err == "", "a line each 30 s is enough"
    clock[0] = 60.0
    shown.add(5_000, 1_000)

    assert capsys.readouterr().err == (
        "write: 12,000 of 40,000 images, 33 images/s, 28,000 images left, about 14 min\n"
    )
    clock[0] = 36_000.0
    shown.tick()
    assert capsys.readouterr().err.endswith("28,000 images left, about 140.0 h\n")


def test_without_images_tasks_are_counted(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Progress("index", 3, 1)
    clock[0] = 31.0
    shown.tick()
    clock[0] = 62.0
    shown.add(62_000_000)

    assert capsys.readouterr().err == (
        "index: 1 of 3 tasks, starting, 2 tasks left\n"
        "index: 2 of 3 tasks, 1.0 MB/s, 1 task left, about 1 min\n"
    )


def test_a_quiet_run_says_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    shown = Progress("write", 2, 0, images=2, quiet=True)
    clock[0] = 100.0
    shown.add(1, 1)
    shown.close()

    assert capsys.readouterr() == ("", "")
