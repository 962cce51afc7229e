"""The progress of a run, for people."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from imagenet_prep.core.terminal import counted

_LINE_EVERY_S = 30.0


class Progress:
    """Shows what is done, the rate, and what is left: a bar on a terminal, else a line each 30 s.

    It counts images where it is known how many there are, else tasks. It reads receipts only, so it
    works the same for remote runners.
    """

    def __init__(
        self,
        title: str,
        total: int,
        done: int,
        *,
        images: int = 0,
        images_done: int = 0,
        quiet: bool = False,
    ) -> None:
        """Starts to count images, or tasks if their number is unknown; some are done already."""
        self._title = title
        self._unit = "image" if images else "task"
        self._total, self._first = (images, images_done) if images else (total, done)
        self._done = self._first
        self._examples = self._bytes = 0
        self._start = self._last_line = time.monotonic()
        self._bar: Any = None
        self._quiet = quiet
        # A terminal may report no width (docker run -t): then it gets lines instead of a bar.
        if not quiet and sys.stderr.isatty() and os.get_terminal_size(2).columns:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=title,
                total=self._total,
                initial=self._first,
                unit=self._unit,
                dynamic_ncols=True,
                leave=False,
            )

    def add(self, num_bytes: int = 0, examples: int = 0) -> None:
        """Counts one finished task, with what it has made or moved."""
        step = examples if self._unit == "image" else 1
        self._done += step
        self._examples += examples
        self._bytes += num_bytes
        if self._bar is not None:
            self._bar.set_postfix_str(self._rate())
            self._bar.update(step)
        self.tick()

    def tick(self) -> None:
        """Prints a line every 30 s if there is no bar."""
        now = time.monotonic()
        if self._bar is None and not self._quiet and now - self._last_line >= _LINE_EVERY_S:
            self._last_line = now
            print(f"{self._title}: {self._line(now)}", file=sys.stderr, flush=True)

    def _line(self, now: float) -> str:
        done = f"{self._done:,} of {counted(self._total, self._unit)}, {self._rate()}"
        left = counted(self._total - self._done, self._unit)
        if not (new := self._done - self._first):
            return f"{done}, {left} left"
        minutes = (now - self._start) / new * (self._total - self._done) / 60
        return f"{done}, {left} left, {_duration(minutes)}"

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.close()

    def _rate(self) -> str:
        seconds = max(time.monotonic() - self._start, 1e-9)
        if self._examples:
            return f"{self._examples / seconds:,.0f} images/s"
        return f"{self._bytes / seconds / 1e6:,.1f} MB/s" if self._bytes else "starting"


def _duration(minutes: float) -> str:
    return f"about {minutes:.0f} min" if minutes < 120 else f"about {minutes / 60:.1f} h"
