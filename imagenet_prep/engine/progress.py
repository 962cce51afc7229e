"""The progress display of a run."""

from __future__ import annotations

import os
import time
from typing import Any

from imagenet_prep.core import monitoring
from imagenet_prep.core.terminal import counted, is_live, say

_LINE_EVERY_S = 30.0
_FIRST_LINE_S = 2.0


class Progress:
    """Shows progress: a bar on a terminal, otherwise lines after 2, 6 and 18 s, then every 30 s.

    The display counts images if their number, `images`, is given, otherwise tasks.
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
        self._title = title
        self._unit = "image" if images else "task"
        self._total, self._first = (images, images_done) if images else (total, done)
        self._done = self._shown = self._first
        self._bytes = 0
        monitoring.count(title)
        self._start = time.monotonic()
        self._next_line = self._start + min(_FIRST_LINE_S, _LINE_EVERY_S)
        self._late_line = self._start + _LINE_EVERY_S
        self._bar: Any = None
        self._quiet = quiet
        if done and not quiet:
            tasks = counted(total, "shard" if images else "task")
            self._say(f"resuming: {done:,} of {tasks} already finished")
        # If a terminal reports no width, as with docker run -t, print lines instead of a bar.
        if not quiet and is_live() and os.get_terminal_size(2).columns:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=title,
                total=self._total,
                initial=self._first,
                bar_format="{desc}: {percentage:3.0f}%|{bar}| {n:,} of {total:,} "
                f"{self._unit}s{{postfix}}",
                miniters=1,
                dynamic_ncols=True,
                leave=False,
            )

    def add(self, num_bytes: int = 0, examples: int = 0) -> None:
        """Counts one finished task, with its bytes and images."""
        self._done += examples if self._unit == "image" else 1
        self._bytes += num_bytes
        monitoring.count(self._title, images=examples, num_bytes=num_bytes)
        self.tick()

    def tick(self, images: int = 0) -> None:
        """Updates the display; `images` is the number that this run has written so far."""
        within = self._first + images if self._unit == "image" else 0
        self._shown = min(self._total, max(self._shown, self._done, within))
        now = time.monotonic()
        if self._bar is not None:
            self._bar.set_postfix_str(self._rate(now) + self._time_left(now), refresh=False)
            self._bar.update(self._shown - self._bar.n)
        # Before any progress, a line would contain no information.
        elif not self._quiet and now >= (
            self._next_line if self._shown > self._first else self._late_line
        ):
            self._say(self._line(now))
            self._late_line = now + _LINE_EVERY_S
            self._next_line = now + min(_LINE_EVERY_S, max(4.0, 2 * (now - self._start)))

    def _say(self, text: str) -> None:
        fields: dict[str, Any] = {"stage": self._title, "unit": self._unit, "done": self._shown}
        seconds = round(time.monotonic() - self._start, 3)
        fields |= {"total": self._total, "bytes": self._bytes, "seconds": seconds}
        say(f"{self._title}: {text}", prefix="", **fields)

    def _line(self, now: float) -> str:
        done = f"{self._shown:,} of {counted(self._total, self._unit)}, {self._rate(now)}"
        remaining = counted(self._total - self._shown, self._unit)
        return f"{done}, {remaining} left{self._time_left(now)}"

    def _time_left(self, now: float) -> str:
        new = self._shown - self._first
        if not new:
            return ""
        seconds = (now - self._start) / new * (self._total - self._shown)
        return f", {_duration(seconds)}"

    def close(self) -> None:
        """Removes the progress bar."""
        if self._bar is not None:
            self._bar.close()

    def _rate(self, now: float) -> str:
        seconds = max(now - self._start, 1e-9)
        if self._unit == "image" and self._shown > self._first:
            return f"{(self._shown - self._first) / seconds:,.0f} images/s"
        return f"{self._bytes / seconds / 1e6:,.1f} MB/s" if self._bytes else "starting"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 7200 else f"about {seconds / 3600:.1f} h"
