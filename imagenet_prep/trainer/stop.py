"""A wish that a run ends: SIGTERM, a lost terminal, Ctrl-C. The run saves its step first."""

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
    """Whether a run was asked to end (`came`); a rank that is `alone` decides by itself."""

    alone: bool
    came: bool = False

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Listens to SIGTERM, SIGHUP and SIGINT.

        A second one ends a process that is `alone`. One of several ranks gets a second where all
        processes are asked at once, and their launcher too; the launcher ends those that do not
        save.
        """

        def remember(signum: int, frame: FrameType | None) -> None:
            # Noted first: the second signal may come while this answers the first.
            first, self.came = not self.came, True
            if not first and self.alone and callable(earlier := before[signal.Signals(signum)]):
                earlier(signum, frame)
            if first and self.alone and signum == signal.SIGINT:
                # Python may be in the midst of writing to its own stream.
                with contextlib.suppress(OSError):
                    os.write(2, _AGAIN)

        with signals.handled(remember, signal.SIGINT) as before:
            yield
