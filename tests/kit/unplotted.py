"""Pages of reports without plots, which take two of a page's three seconds."""

from __future__ import annotations

import pytest


def without_plots(patch: pytest.MonkeyPatch) -> None:
    """Omits the plots from the pages of this process."""
    patch.setattr("imagenet_prep.reporting.plots.of", lambda *_: [])


@pytest.fixture
def unplotted(monkeypatch: pytest.MonkeyPatch) -> None:
    """`without_plots`, for one test."""
    without_plots(monkeypatch)
