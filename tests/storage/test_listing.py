"""The names of a folder are sorted: file systems list them in any order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.storage.folder import LocalStore
from tests.kit.system import System

NAMES = ["a", "b", "c"]


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1], ["b", "c", "a"]], ids="".join)
def test_names_are_sorted_in_every_listing(
    tmp_path: Path, system: System, order: list[str]
) -> None:
    for name in NAMES:
        (tmp_path / name).touch()

    def in_order(scandir: Callable[..., Any], path: Any) -> Any:
        with scandir(path) as entries:
            found = sorted(entries, key=lambda entry: order.index(entry.name))
        return contextlib.nullcontext(found)

    system.instead("scandir", in_order)
    store = LocalStore(tmp_path)
    assert store.list_folder() == store.names("") == list(store.stats("")) == NAMES
