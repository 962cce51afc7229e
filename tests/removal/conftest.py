"""Searches for one image of a small dataset, `KEY`."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.removal import traces
from imagenet_prep.removal.traces import Trace, TraceSearch
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import command
from tests.kit.layouts import write
from tests.kit.photographs import photograph

CLASSES = ("cat", "dog")
KEY = "cat/2.jpg"


def image(number: int) -> bytes:
    return photograph(40, 50, number)


def done(*words: object, **how: Any) -> command.Finished:
    result = command.run(*words, **how)
    assert result.code == 0, result
    return result


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of eight photographs in three shards; read-only."""
    root = tmp_path_factory.mktemp("traces")
    for number in range(8):
        write(root / "photos" / CLASSES[number % 2] / f"{number}.jpg", image(number))
    done("prepare", root / "photos", root / "set", "--train-shards", "3")
    # The search would also find the photographs.
    shutil.rmtree(root / "photos")
    return root / "set"


@pytest.fixture
def dataset(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "world/set")
    return tmp_path / "world/set"


Search = Callable[..., TraceSearch]


@pytest.fixture
def searched(dataset: Path) -> Search:
    """Searches for the image `KEY` in a folder; returns the search with its traces."""

    def search(*places: Path | str, newest: Path | str = dataset) -> Any:
        opened = open_dataset(str(newest))
        sizes = {hashlib.sha256(image(2)).hexdigest(): len(image(2))}
        made = TraceSearch(opened, sizes, [*map(str, places)], "NEW")
        made.found = traced(made)  # type: ignore[attr-defined]
        return made

    return search


def traced(search: TraceSearch) -> list[Trace]:
    search.find()
    return search.traces("NEW")


def kinds(search: Any) -> dict[str, list[str]]:
    """Returns the locations of the traces by kind, without the dataset itself."""
    found: dict[str, list[str]] = {}
    for trace in search.found:
        if trace.kind != traces.DATASET:
            found.setdefault(trace.kind, []).append(trace.place)
    return found


def amend(old: Path, new: Path, keys: str) -> Path:
    write(new.with_suffix(".txt"), keys.encode())
    done("amend", old, "--exclude", new.with_suffix(".txt"), "--out", new)
    return new
