"""A miniature prepared by the real program, for comparison."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from pathlib import Path

import pytest

from tests.kit.miniature import Miniature, miniature_for_tests


@pytest.fixture(scope="session")
def small(shared_cache: Path) -> Miniature:
    """A miniature with all odd files that can be prepared in a second."""
    return miniature_for_tests(shared_cache, num_train=44, num_validation=20, size=(160, 120))


@pytest.fixture(scope="session")
def prepared(small: Miniature, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset that `prepare` makes of `small`."""
    return _prepared(small, tmp_path_factory.mktemp("prepared") / "set")


@pytest.fixture(scope="session")
def from_0(small: Miniature, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same dataset with `--label-offset 0`."""
    return _prepared(small, tmp_path_factory.mktemp("from_0") / "set", "--label-offset", "0")


def _prepared(small: Miniature, out: Path, *flags: str) -> Path:
    from imagenet_prep.pipelines import prepare

    argv = ["--source", str(small.root), "--out", str(out), "--short-side", "96", *flags]
    argv += ["--train-shards", "4", "--validation-shards", "3", "--allow-subset"]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # Apache Beam's dependencies, at import
        assert prepare.run([*argv, "--workers", "1"]) == os.EX_OK
    return out
