"""Tests of the codec call decoders in this process, as the cage does."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import pytest

from imagenet_prep.codec import cage
from imagenet_prep.core import limits


@pytest.fixture(autouse=True)
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets all decoders run in this process, without Pillow's warnings."""
    monkeypatch.setattr(cage, "_is_inside", True)
    warnings.simplefilter("ignore")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Returns a list that gets an entry for each turn taken from now on."""
    taken = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        taken.append(True)
        yield

    monkeypatch.setattr(limits, "turn", turn)
    return taken
