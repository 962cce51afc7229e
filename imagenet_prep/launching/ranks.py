"""The ranks of one host: started, heard, ended; none of them outlives the process that did.

Beside ranks there may be parameter servers, and the scheduler by which all of them meet. They end
when the ranks part from them in order, and are killed where the ranks cannot.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from imagenet_prep.core import children
from imagenet_prep.core.world import LEFT
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.os_errors import storage_errors

# This variable is in the environment of every rank of one launch, and of nothing else.
MARK = "IMAGENET_PREP_LAUNCH"

_POLL_S = 0.1
# Its last lines are there when it has ended; a child of it may hold the pipe open.
_LAST_WORDS_S = 5.0
_OURS = "imagenet-prep: "

# Without it, two threads would take turns within a line of more than 4 KiB.
_printing = threading.Lock()


def _print(line: str, target: IO[str]) -> None:
    """Prints a line whole; where nobody reads any more, the rank must not notice."""
    with _printing, contextlib.suppress(OSError):
        print(line, end="", file=target, flush=True)


class Voice:
    """What one process says: passed on line by line, so that lines of several ones do not mix.

    Its error output has its mark before each line. All is also written to a file in `logs`, such as
    `rank-3.log`, if given.

    Attributes:
      error: the last line in which the program said why it fails, "" if none.
      last: the last line of its error output.
      left: whether it said that another rank left it; the function of this name is called then.
    """

    def __init__(self, name: str, logs: str | None, left: Callable[[], object]) -> None:
        self._mark, self._left = name.removeprefix("rank "), left
        self._log: IO[str] | None = None
        if logs is not None:
            self._log = _opened(Path(logs), f"{name.replace(' ', '-')}.log")
        self.error = self.last = ""
        self.left = False
        self._threads: list[threading.Thread] = []

    def listen(self, output: IO[str], errors: IO[str]) -> None:
        """Begins to pass on what comes from two pipes, which are closed at their ends."""
        for hear, pipe in ((self._pass_on, output), (self._pass_errors_on, errors)):
            self._threads.append(threading.Thread(target=hear, args=(pipe,), daemon=True))
            self._threads[-1].start()

    def wait(self) -> None:
        """Waits for the last lines of a process that has ended."""
        for thread in self._threads:
            thread.join(_LAST_WORDS_S)

    def _pass_on(self, pipe: IO[str]) -> None:
        with pipe as lines:
            for line in lines:
                _print(line, sys.stdout)
                self._keep(line)

    def _keep(self, line: str) -> None:
        if self._log is not None:
            with contextlib.suppress(OSError):  # a full disk does not end a training
                self._log.write(line)

    def _pass_errors_on(self, pipe: IO[str]) -> None:
        with pipe as lines:
            for line in lines:
                if line.rstrip() == LEFT:
                    self.left = True
                    self._left()
                    continue
                self._keep(line)
                _print(f"[{self._mark}] {line}", sys.stderr)
                self.last = line.strip() or self.last
                if line.startswith(_OURS):
                    self.error = self.last


def _opened(folder: Path, name: str) -> IO[str]:
    """Opens the log of a rank; what lies there may have been planted."""
    with storage_errors("write", folder / name):
        folder.mkdir(parents=True, exist_ok=True)
        log = LocalStore(folder).open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return open(log, "w", encoding="utf-8", buffering=1)


class Rank:
    """One running process.

    Attributes:
      number: of the rank, over all hosts; -1: it is no rank.
      name: "rank 3", "server 0" or "scheduler".
      voice: what it says.
      asked: whether it was asked to end. To many programs a second time means: at once.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        logs: str | None = None,
        left: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Starts it; to be called by a thread that lives as long as the rank may."""
        role = environment.get("DMLC_ROLE", "worker")
        if role == "worker":
            self.number = int(environment.get("HOROVOD_RANK", environment.get("RANK", "0")))
            self.name = f"rank {self.number}"
        else:
            self.number = -1
            self.name = f"{role} {environment.get('DMLC_SERVER_ID', '')}".rstrip()
        self.asked = False
        self.voice = Voice(self.name, logs, lambda: left(self.number))
        self.process = subprocess.Popen(
            # Whoever ends all processes at once must not take the servers from ranks that save.
            children.bound(command, deaf=self.number < 0),
            # Its own children must not look into the current folder for modules either.
            env=os.environ | environment | {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.voice.listen(self.process.stdout, self.process.stderr)

    def send(self, signum: signal.Signals) -> None:
        """Signals it once, and what it has started."""
        pid = self.process.pid
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                has_group = os.getpgid(pid) == pid
                (os.killpg if has_group else os.kill)(pid, signum)

    def code(self) -> int:
        """Returns the exit code of the ended process, as a shell has it."""
        code = self.process.wait()
        self.voice.wait()
        return 128 - code if code < 0 else code

    def reason(self) -> str:
        """Returns why it failed: its own word, or what can be known."""
        error, last = self.voice.error, self.voice.last
        if error:
            return f"{self.name}: {error.removeprefix(_OURS)}"
        if self.process.returncode < 0:
            number = -self.process.returncode
            its_last = f"; its last line: {last}" if last else ""
            return f"{self.name}: ended by signal {number}{its_last}"
        return f"{self.name}: {last}"


class Ranks:
    """All ranks of this host; `left` is called with the number of one that another one left."""

    def __init__(self, left: Callable[[int], object] = lambda _: None) -> None:
        self._left = left
        self._ranks: list[Rank] = []
        self._asked = False
        self._deadline = float("inf")

    def start(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        logs: str | None = None,
    ) -> None:
        """Starts a rank for each environment, unless they have been asked to end."""
        for environment in environments:
            if not self._asked:
                self._ranks.append(Rank(command, environment, logs, self._left))
        if self._asked:
            self.ask()

    def ask(self, grace_s: float = float("inf")) -> None:
        """Asks all ranks to save and end; `wait` kills those that live `grace_s` seconds later.

        Servers are not asked: ranks need them to save.
        """
        self._asked = True
        self.limit(grace_s)
        for rank in self._ranks:
            if rank.number >= 0 and not rank.asked:
                rank.asked = True
                rank.send(signal.SIGTERM)

    def limit(self, seconds: float) -> None:
        """Lets `wait` kill what lives so many seconds from now."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def wait(
        self, failed: Callable[[Rank], object], done: Callable[[], object] = lambda: None
    ) -> None:
        """Returns when no rank and no server is left.

        `failed` is called with each rank whose exit code is not 0, unless it was killed here, and
        `done` when there may be servers left, but no rank.
        """
        running = list(self._ranks)
        serving = False
        try:
            while running and time.monotonic() < self._deadline:
                for rank in [each for each in running if each.process.poll() is not None]:
                    running.remove(rank)
                    if rank.code():
                        failed(rank)
                if not serving and all(rank.number < 0 for rank in running):
                    serving = True
                    done()
                time.sleep(_POLL_S if running else 0)
        finally:
            for rank in running:
                rank.send(signal.SIGKILL)
            for rank in running:
                rank.code()
