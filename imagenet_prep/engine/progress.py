"""The progress of a run, for people."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

_LINE_EVERY_S = 30.0


class Progress:
    """Shows tasks done, images/s or MB/s, time left: a bar on a terminal, else a line each 30 s.

    Reads receipts only, so it works the same for remote runners.
    """

    def __init__(self, title: str, total: int, done: int, *, quiet: bool = False) -> None:
        self._title = title
        self._total = total
        self._done = self._first = done
        self._examples = self._bytes = 0
        self._start = self._last_line = time.monotonic()
        self._bar: Any = None
        self._quiet = quiet
        # A terminal may report no width (docker run -t): then it gets lines instead of a bar.
        if not quiet and sys.stderr.isatty() and os.get_terminal_size(2).columns:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=title, total=total, initial=done, unit="task", dynamic_ncols=True, leave=False
            )

    def add(self, num_bytes: int = 0, examples: int = 0) -> None:
        """Counts one finished task, with what it has made or moved."""
        self._done += 1
        self._examples += examples
        self._bytes += num_bytes
        if self._bar is not None:
            self._bar.set_postfix_str(self._rate())
            self._bar.update()
        self.tick()

    def tick(self) -> None:
        """Prints a line every 30 s if there is no bar."""
        now = time.monotonic()
        if self._bar is None and not self._quiet and now - self._last_line >= _LINE_EVERY_S:
            self._last_line = now
            new = self._done - self._first
            left = (now - self._start) / new * (self._total - self._done) if new else None
            eta = "unknown" if left is None else f"{left / 60:.1f} min"
            print(
                f"{self._title}: {self._done}/{self._total} tasks, {self._rate()}, {eta} left",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.close()

    def _rate(self) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        if self._examples:
            return f"{self._examples / seconds:,.0f} images/s"
        return f"{self._bytes / seconds / 1e6:,.1f} MB/s" if self._bytes else "starting"
