"""Processes that share a run of `prepare`, each with its own host name; one can be held at a step.

A held process waits at its gate until the test opens the gate, stops the process or kills it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.kit import command

# A heartbeat that stays the same for this time belongs to a lost process. Tests do not depend on
# its length: if a busy machine makes a process seem lost, a task is done twice.
LOST_AFTER_S = 1.0
NEVER_S = 1e6

_PROGRAM = """\
import ctypes
import os
import socket
import sys
import time
from pathlib import Path

from imagenet_prep.core import program
from imagenet_prep.core.errors import IncompleteError
from imagenet_prep.engine import shared_run
from imagenet_prep.preparation import planning, tasks, writing

STEPS = {
    "list": (tasks.IndexWork, "__call__"),
    "plan": (planning.Planner, "make"),
    "shard": (tasks.WriteWork, "__call__"),
    "commit": (writing, "commit"),
}


def held_at(gate, function):
    def wait(*arguments, **named):
        gate.with_suffix(".reached").touch()
        while not gate.with_suffix(".open").exists():
            if gate.with_suffix(".fails").exists():
                raise IncompleteError("this host fails")
            time.sleep(0.01)
        return function(*arguments, **named)

    return wait


name, folder, step, lost_after_s, *words = sys.argv[1:]
if not os.getuid():
    new_uts_namespace = 0x04000000
    assert ctypes.CDLL(None).unshare(new_uts_namespace) == 0
    socket.sethostname(name)
shared_run._BEAT_S = 0.05
shared_run.LOST_AFTER_S = float(lost_after_s)
if step:
    owner, attribute = STEPS[step]
    gate = Path(folder) / name
    setattr(owner, attribute, held_at(gate, getattr(owner, attribute)))
program.main("imagenet_prep.pipelines.prepare", words)
"""


class Peers:
    """Starts processes that run the same command.

    Args:
      folder: for the gates.
      command: the words after `prepare`.
      env: variables of the processes.
    """

    def __init__(self, folder: Path, words: tuple[str | Path, ...], env: Mapping[str, str]) -> None:
        self.folder = folder
        self.words = words
        self._env = dict(env)

    @contextlib.contextmanager
    def started(
        self,
        name: str,
        *more: str | Path,
        step: str = "",
        lost_after_s: float = LOST_AFTER_S,
        alone: bool = False,
    ) -> Iterator[command.Running]:
        """Yields a running process of the host `name`, which is held at `step`."""
        share = [] if alone else ["--share"]
        words = command.with_flags(self.words, (*share, *more))
        arguments = (name, self.folder, step, str(lost_after_s), *words)
        program = ("-P", "-c", _PROGRAM)
        with command.started(*arguments, program=program, env=self._env) as running:
            yield running

    def await_held(self, name: str, running: command.Running) -> None:
        """Returns when a process has reached its step."""
        reached = (self.folder / name).with_suffix(".reached")
        command.wait_until(lambda: reached.exists() or running.ended, f"{name} is held")
        assert not running.ended, running.finish()

    def open(self, name: str) -> None:
        """Lets a held process continue."""
        (self.folder / name).with_suffix(".open").touch()

    def fail(self, name: str) -> None:
        """Lets the step of a held process fail."""
        (self.folder / name).with_suffix(".fails").touch()
