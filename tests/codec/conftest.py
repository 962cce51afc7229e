"""Tests of the codec call decoders in this process, as the cage does."""

from __future__ import annotations

import warnings

import pytest

from imagenet_prep.codec import cage


@pytest.fixture(autouse=True)
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets all decoders run in this process, without Pillow's warnings."""
    monkeypatch.setattr(cage, "_is_inside", True)
    warnings.simplefilter("ignore")
