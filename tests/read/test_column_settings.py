"""Arguments of `ColumnWriter` of a wrong type are refused before anything is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.read import ColumnWriter
from tests.kit.messages import says


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": 3}, says("column-expected-string", "3", "name", "3")),
        # The name of a field or a condition of readers.
        ({"name": "width"}, says("flags-exports-use-themselves-choose", "width")),
        ({"name": "Key.a"}, says("flags-exports-use-themselves-choose", "key")),
        ({"dtype": np.dtype("int32")}, says("column-expected-string", ..., "dtype")),
        ({"dtype": np.int32}, says("column-expected-string", ..., "dtype")),
        ({"shape": 3}, says("column-shape-expected-list-numbers", ..., "3")),
        ({"shape": (2.0,)}, says("column-shape-expected-list-numbers", ..., "(2.0,)")),
        ({"reader": "key"}, says("reader-expected-dict-arguments-make_dataset", "key")),
        ({"world": (0, 1)}, says("expected-8", "world", "(0, 1)", "World(rank, size)")),
    ],
)
def test_settings_of_wrong_types_are_refused(
    damaged: Path, given: dict[str, Any], said: re.Pattern[str]
) -> None:
    settings: dict[str, Any] = {"name": "latents", "shape": (3,), "dtype": "int32", "batch_size": 8}
    with pytest.raises(UsageError, match=said):
        ColumnWriter(damaged, "train", **{**settings, **given})
    assert not (damaged / "columns").exists()
