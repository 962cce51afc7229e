"""A rate limit in bytes per second that several threads share."""

from __future__ import annotations

import threading
import time


class Pace:
    """Limits the rate to `bytes_per_s`; 0 means no limit."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> None:
        """Waits until `num_bytes` more may be sent."""
        if not self._bytes_per_s:
            return
        with self._lock:
            start = max(self._free_at, time.monotonic())
            self._free_at = start + num_bytes / self._bytes_per_s
        time.sleep(max(0.0, start - time.monotonic()))
