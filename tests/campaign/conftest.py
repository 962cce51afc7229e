"""One runner for all tests of a worker process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.campaign.__main__ import Runner, runners
from tests.campaign.scenes import Theatre


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    """The runner of this worker process, in memory."""
    with runners(1) as free:
        yield free.get()


@pytest.fixture(scope="session")
def theatre(runner: Runner) -> Theatre:
    """The scenes of the runner; each attempt starts with an empty disk."""
    return runner.theatre
