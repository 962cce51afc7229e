"""The ranks of one host: started, followed, ended; none of them outlives the process that did.

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

_POLL_S = 0.1
# Its last lines are there when it has ended; a child of it may hold the pipe open.
_LAST_WORDS_S = 5.0
_OURS = "imagenet-prep: "


class Rank:
    """One running process, whose stderr is passed on with its number before each line.

    Attributes:
      number: of the rank, over all hosts; -1: it is no rank.
      name: "rank 3", "server 0" or "scheduler".
      error: the last line in which the program said why it fails, "" if none.
      left: whether it failed because another rank did.
      asked: whether it was asked to end. To many programs a second time means: at once.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], logs: str | None = None
    ) -> None:
        """Starts it; to be called by a thread that lives as long as the rank may.

        With a folder for `logs`, all that it says is also written to a file of its name there:
        `rank-3.log`.

        Raises:
          StoreError: that file cannot be written, or is a link or a pipe.
        """
        role = environment.get("DMLC_ROLE", "worker")
        if role == "worker":
            self.number = int(environment.get("HOROVOD_RANK", environment.get("RANK", "0")))
            self.name, self._mark = f"rank {self.number}", str(self.number)
        else:
            self.number = -1
            self.name = self._mark = f"{role} {environment.get('DMLC_SERVER_ID', '')}".rstrip()
        self._log: IO[str] | None = None
        if logs is not None:
            self._log = _opened(Path(logs), f"{self.name.replace(' ', '-')}.log")
        self.process = subprocess.Popen(
            # Whoever ends all processes at once must not take the servers from ranks that save.
            children.bound(command, deaf=self.number < 0),
            # Its own children must not look into the current folder for modules either.
            env=os.environ | environment | {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=None if logs is None else subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self.error = self._last = ""
        self.left = self.asked = False
        self._threads = [threading.Thread(target=self._pass_on, daemon=True)]
        if logs is not None:
            self._threads.append(threading.Thread(target=self._copy, daemon=True))
        for thread in self._threads:
            thread.start()

    def _copy(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with contextlib.suppress(OSError):
                    print(line, end="", flush=True)
                self._keep(line)

    def _keep(self, line: str) -> None:
        if self._log is not None:
            with contextlib.suppress(OSError):  # a full disk does not end a training
                self._log.write(line)

    def _pass_on(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                if line.rstrip() == LEFT:
                    self.left = True
                    continue
                self._keep(line)
                # Where nobody reads any more the rank must not notice.
                with contextlib.suppress(OSError):
                    print(f"[{self._mark}] {line}", end="", file=sys.stderr, flush=True)
                self._last = line.strip() or self._last
                if line.startswith(_OURS):
                    self.error = self._last

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
        for thread in self._threads:
            thread.join(_LAST_WORDS_S)
        return 128 - code if code < 0 else code

    def reason(self) -> str:
        """Returns why it failed: its own word, or what can be known."""
        if self.error:
            return f"{self.name}: {self.error.removeprefix(_OURS)}"
        if self.process.returncode < 0:
            number = -self.process.returncode
            last = f"; its last line: {self._last}" if self._last else ""
            return f"{self.name}: ended by signal {number}{last}"
        return f"{self.name}: {self._last}"


def _opened(folder: Path, name: str) -> IO[str]:
    """Opens the log of a rank; what lies there may have been planted."""
    with storage_errors("write", folder / name):
        folder.mkdir(parents=True, exist_ok=True)
        log = LocalStore(folder).open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return open(log, "w", encoding="utf-8", buffering=1)


class Ranks:
    """All ranks of this host."""

    def __init__(self) -> None:
        """Begins with none."""
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
                self._ranks.append(Rank(command, environment, logs))
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

        Args:
          failed: called with each rank whose exit code is not 0, in the order of their ends, but
            not with those that were killed here.
          done: called when there may be servers left, but no rank.
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
                rank.process.wait()
