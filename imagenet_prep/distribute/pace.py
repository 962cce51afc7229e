"""A limit of bytes a second, shared by all threads that move them."""

from __future__ import annotations

import threading
import time


class Pace:
    """Lets `bytes_per_s` pass; 0 lets everything pass."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> None:
        """Waits until so many bytes may go."""
        if not self._bytes_per_s:
            return
        with self._lock:
            start = max(self._free_at, time.monotonic())
            self._free_at = start + num_bytes / self._bytes_per_s
        time.sleep(max(0.0, start - time.monotonic()))
