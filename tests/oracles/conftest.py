"""TensorFlow, and a miniature prepared by the real program, for comparison."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from tests.kit.miniature import Miniature, miniature_for_tests


@pytest.fixture(scope="session")
def tf() -> ModuleType:
    """TensorFlow, where it is installed; importing it takes seconds, so no module does."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        warnings.simplefilter("ignore")  # of its own dependencies
        return pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


@pytest.fixture(scope="session")
def small(shared_cache: Path) -> Miniature:
    """A miniature with every odd file, small enough to be prepared in a second."""
    return miniature_for_tests(shared_cache, num_train=44, num_validation=20, size=(160, 120))


@pytest.fixture(scope="session")
def prepared(small: Miniature, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set that `prepare` makes of `small`."""
    from pipelines import prepare

    out = tmp_path_factory.mktemp("prepared") / "set"
    argv = ["--source", str(small.root), "--out", str(out), "--short-side", "96"]
    argv += ["--train-shards", "4", "--validation-shards", "3", "--allow-subset"]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # Apache Beam's dependencies, at import
        assert prepare.run([*argv, "--workers", "1"]) == os.EX_OK
    return out
