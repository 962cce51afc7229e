"""One theatre for all tests of a worker process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.campaign.scenes import Theatre, theatres


@pytest.fixture(scope="session")
def theatre() -> Iterator[Theatre]:
    """Scenes in memory, and a process that runs them; every scene begins in the same way."""
    with theatres(1) as free:
        yield free.get()
