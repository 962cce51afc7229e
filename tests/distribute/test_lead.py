from __future__ import annotations

from typing import Any

import pytest

from imagenet_prep.distribute.lead import _Giver


class Started:
    """A process that was started."""

    def __init__(self) -> None:
        self.killed = False

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize("order", [("stop", "started"), ("started", "stop")], ids=str)
def test_a_giver_that_is_stopped_has_no_process_whichever_comes_first(
    order: tuple[str, ...],
) -> None:
    giver, process = _Giver(), Started()
    steps: dict[str, Any] = {"stop": giver.stop, "started": lambda: giver.started(process)}  # type: ignore[arg-type]
    for step in order:
        steps[step]()

    assert process.killed
