"""Output pipes for the ranks that mpirun starts.

mpirun forwards output in pieces of 4 KiB, which mixes lines of different ranks. So each rank
starts as `python -P -m imagenet_prep.launching.pipes COMMAND...`, gets two pipes from
`launching.host` on its machine, and executes COMMAND with these pipes as stdout and stderr.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from imagenet_prep.core import children, terminal
from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.core.world import this_process
from imagenet_prep.launching.ranks import MARK, Voice

# A rank waits this long for `launching.host`, which may start later from a slow file system.
_PATIENCE_S = 120.0
_POLL_S = 0.05
_MAX_DIGITS = 16


def through(command: Sequence[str]) -> list[str]:
    """Returns the command line of a rank that gets pipes and then executes `command`."""
    return children.python("-m", "imagenet_prep.launching.pipes", *command)


def _address(mark: str) -> str:
    """Returns the name of an abstract socket, which needs no file."""
    return f"\0imagenet-prep-{mark}"


class Pipes:
    """Passes on the output of a host's ranks; calls `left` with each rank that lost a peer."""

    def __init__(self, mark: str, logs: str | None, left: Callable[[int], object]) -> None:
        self._logs, self._left = logs, left
        self._voices: list[Voice] = []
        self._door = socket.socket(socket.AF_UNIX)
        # If the launch knows a machine by two names, its first process there serves all ranks.
        with contextlib.suppress(OSError):
            self._door.bind(_address(mark))
            self._door.listen()
            threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Waits for the last lines of the ranks, which have ended."""
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # ends the thread, which close() does not
        self._door.close()
        for voice in [*self._voices]:
            voice.wait()

    def _serve(self) -> None:
        while True:
            try:
                rank, _ = self._door.accept()
            except OSError:
                return
            with rank:
                try:
                    self._give(rank)
                except (OSError, ValueError, ImagenetPrepError) as error:
                    # Without pipes, the rank ends.
                    terminal.say(f"a rank gets no pipes: {error}")

    def _give(self, rank: socket.socket) -> None:
        credentials = rank.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] != os.geteuid():
            raise ValueError("it belongs to a different user")
        number = int(rank.recv(_MAX_DIGITS))
        voice = Voice(f"rank {number}", self._logs, lambda: self._left(number))
        output, its_output = os.pipe()
        errors, its_errors = os.pipe()
        try:
            socket.send_fds(rank, [b"\n"], [its_output, its_errors])
        finally:
            os.close(its_output)
            os.close(its_errors)
            voice.listen(os.fdopen(output, errors="replace"), os.fdopen(errors, errors="replace"))
            self._voices.append(voice)


def _ask(mark: str) -> list[int]:
    rank = this_process().rank
    end = time.monotonic() + _PATIENCE_S
    while True:
        with socket.socket(socket.AF_UNIX) as asking:
            try:
                asking.connect(_address(mark))
                asking.sendall(str(rank).encode())
                _, pipes, _, _ = socket.recv_fds(asking, 1, 2)
                if pipes:
                    return pipes
                raise UsageError("the launch gave this rank no pipes, see above")
            except OSError as error:
                if time.monotonic() > end:
                    raise UsageError(f"no launch process on this host: {error}") from error
        time.sleep(_POLL_S)


def main(command: list[str]) -> None:
    """Executes a command with two pipes from `launching.host` as its output."""
    for number, pipe in enumerate(_ask(os.environ[MARK]), start=1):
        os.dup2(pipe, number)
        os.close(pipe)
    os.execvp(command[0], command)  # noqa: S606 - mpirun has been given the words by `launch`


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        terminal.say(error)
        sys.exit(error.exit_code)
