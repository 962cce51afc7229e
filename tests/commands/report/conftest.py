"""The demo's dataset with its report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep import report as report_verb
from imagenet_prep.bench_train import FIGURES, RankRuns, TimedRun, figures
from imagenet_prep.core import strict_json
from imagenet_prep.dataset import schema
from tests.kit import command
from tests.kit.command import REPOSITORY
from tests.kit.shared import made_once

SCREENSHOTS = REPOSITORY / "build" / "report"


class Demo(NamedTuple):
    """A dataset that no test changes, and its source archives."""

    out: Path
    source: Path


def make_demo(folder: Path, images: int, short_side: int) -> Demo:
    """Returns the demo of that many photographs, made once per run."""
    size = ("--images", str(images), "--short-side", str(short_side))

    def make(folder: Path) -> None:
        result = command.run("demo", folder, *size, "--no-training")
        assert result.code == 0, result

    folder = made_once(folder, make)
    return Demo(folder / f"dataset-{images}-{short_side}", folder / f"archives-{images}")


@pytest.fixture(scope="session")
def demo(shared_cache: Path) -> Demo:
    """The demo as its users see it: 400 photographs at 256 pixels; made in 15 s; read-only."""
    return make_demo(shared_cache / "demo", 400, 256)


@pytest.fixture(scope="session")
def small(shared_cache: Path) -> Demo:
    """The demo with 40 photographs, the minimum, at 96 pixels; read-only."""
    return make_demo(shared_cache / "small", 40, 96)


@pytest.fixture(scope="session")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Figures in the form of `bench-train`, of 1 and of 8 ranks."""
    measured = [RankRuns(ranks, TimedRun(90.0 * ranks, 9.0), None) for ranks in (1, 8)]
    path = tmp_path_factory.mktemp("training") / FIGURES
    path.write_bytes(strict_json.dumps({"rows": figures(measured, [8], 24.5)}))
    return path


@pytest.fixture
def copy(small: Demo, tmp_path: Path) -> Path:
    """A copy of the small demo's dataset, to be damaged."""
    return Path(shutil.copytree(small.out, tmp_path / "copy"))


@pytest.fixture
def sourceless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only compares pages with a source if the test gives one: this is most of the work."""
    monkeypatch.setenv(schema.CACHE, str(tmp_path / "of-another-user"))


@pytest.fixture
def written(unplotted: None, sourceless: None, tmp_path: Path) -> Callable[..., str]:
    """Calls `report` and returns the page's text, without plots."""

    def make(*arguments: str | Path) -> str:
        out = tmp_path / "page.html"
        assert report_verb.run([*map(str, arguments), "--out", str(out)]) == 0
        return out.read_text("utf-8")

    return make


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., str]:
    """Runs `report` like a user and returns the page's text."""

    def make(*arguments: str | Path) -> str:
        out = tmp_path / "page.html"
        result = command.run("report", *arguments, "--out", out)
        assert result.code == 0, result
        return out.read_text("utf-8")

    return make
