"""Stops a run on SIGTERM, a lost terminal or Ctrl-C, after the run has saved a checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from imagenet_prep.core import signals

_AGAIN = (
    b"\nimagenet-prep: ending after the next step, which is saved. Ctrl-C again ends at once.\n"
)


@dataclass(eq=False)
class Stop:
    """`came` is True if a run was asked to stop; `alone` is True if the run has only one rank."""

    alone: bool
    came: bool = False

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Sets `came` on SIGTERM, SIGHUP, SIGINT, SIGUSR1 or SIGUSR2 during a `with` block.

        Slurm sends the signal of `sbatch --signal`, usually SIGUSR1 or SIGUSR2, before a job ends.

        A second signal ends a one-rank run at once. With several ranks, it is ignored: the launcher
        may be repeating the first signal, and it kills ranks that do not save.
        """

        def remember(signum: int, frame: FrameType | None) -> None:
            # Set this first: a second signal may interrupt this handler.
            first = not self.came
            self.came = True
            if not first and self.alone:
                earlier = before[signal.Signals(signum)]
                if callable(earlier):
                    earlier(signum, frame)
            if first and self.alone and signum == signal.SIGINT:
                # Not through sys.stderr: Python may be in the middle of a write to it.
                with contextlib.suppress(OSError):
                    os.write(2, _AGAIN)

        with signals.handled(remember, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2) as before:
            yield
