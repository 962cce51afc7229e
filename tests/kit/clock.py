"""Replaces the event of waiting code, without a clock."""

from __future__ import annotations

import threading


class Clock(threading.Event):
    """Records the time that it should wait, and returns at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return self.is_set()
