"""Stands for the event that waiting code waits for, without a clock."""

from __future__ import annotations

import threading


class Clock(threading.Event):
    """Notes how long it was to wait, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return self.is_set()
