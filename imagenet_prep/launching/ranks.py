"""Starts, follows and ends the ranks of one host, and passes on their output.

`Ranks` has all ranks of a host. No rank outlives the process that started it. MXNet also has
parameter servers, and a scheduler that connects all processes. They end when all ranks have
disconnected from them; if a rank fails, they are killed.

`Pipes` has output pipes for the ranks that mpirun starts. mpirun forwards output in pieces of
4 KiB, which mixes lines of different ranks. So each rank starts as
`python -P -m imagenet_prep.launching.ranks COMMAND...`, gets two pipes from `launching.host` on its
machine, and executes COMMAND with these pipes as stdout and stderr.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from imagenet_prep.core import children, terminal
from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.core.world import LEFT, this_process
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import storage_errors

# A rank waits this long for `launching.host`, which may start later from a slow file system.
_PATIENCE_S = 120.0
_PIPE_POLL_S = 0.05
_MAX_DIGITS = 16


def through(command: Sequence[str]) -> list[str]:
    """Returns the command line of a rank that gets pipes and then executes `command`."""
    return children.python("-m", "imagenet_prep.launching.ranks", *command)


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
                with contextlib.suppress(ConnectionError):  # it was refused
                    asking.sendall(str(rank).encode())
                    _, pipes, _, _ = socket.recv_fds(asking, 1, 2)
                    if pipes:
                        return pipes
                raise UsageError("the launch gave this rank no pipes, see above")
            except OSError as error:
                if time.monotonic() > end:
                    raise UsageError(f"no launch process on this host: {error}") from error
        time.sleep(_PIPE_POLL_S)


def main(command: list[str]) -> None:
    """Executes a command with two pipes from `launching.host` as its output."""
    for number, pipe in enumerate(_ask(os.environ[MARK]), start=1):
        os.dup2(pipe, number)
        os.close(pipe)
    os.execvp(command[0], command)  # noqa: S606 - mpirun has been given the words by `launch`


# Only the ranks of a launch have this environment variable.
MARK = "IMAGENET_PREP_LAUNCH"

_POLL_S = 0.1
# Seconds to wait for the last lines of a process, whose children may keep the pipe open.
_LAST_WORDS_S = 5.0
_OURS = "imagenet-prep: "

# Without a lock, lines of more than 4 KiB from two threads would mix.
_printing = threading.Lock()


def put(target: IO[str], text: bytes | str) -> None:
    """Prints complete lines; ignores a closed output, so that the ranks continue."""
    with _printing, contextlib.suppress(OSError, ValueError):
        target.write(text if isinstance(text, str) else text.decode(errors="replace"))
        target.flush()


class Voice:
    """The output of one process, passed on line by line; lines of stderr get a prefix.

    With `logs`, output is also written to a file in the folder `logs`, e.g. `rank-3.log`. `error`
    is the last error that the program reported, and `last` is the last line of stderr. If the
    process reports a lost peer, the argument `left` is called and the attribute `left` is True.
    """

    def __init__(self, name: str, logs: str | None, left: Callable[[], object]) -> None:
        self._mark = name.removeprefix("rank ")
        self._left = left
        self._log: IO[str] | None = None
        if logs is not None:
            folder = Path(logs)
            file = f"{name.replace(' ', '-')}.log"
            # `LocalStore` refuses a link, through which output could go to any file.
            with storage_errors("write", folder / file):
                folder.mkdir(parents=True, exist_ok=True)
                log = LocalStore(folder).open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self._log = open(log, "w", encoding="utf-8", buffering=1)  # noqa: SIM115 - kept open
        self.error = self.last = ""
        self.left = False
        self._threads: list[threading.Thread] = []

    def listen(self, output: IO[str], errors: IO[str]) -> None:
        """Starts to pass on the output from two pipes, and closes each pipe at its end."""
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
                put(sys.stdout, line)
                self._keep(line)

    def _keep(self, line: str) -> None:
        if self._log is not None:
            with contextlib.suppress(OSError):  # a full disk must not end a training
                self._log.write(line)

    def _pass_errors_on(self, pipe: IO[str]) -> None:
        with pipe as lines:
            for line in lines:
                if line.rstrip() == LEFT:
                    self.left = True
                    self._left()
                    continue
                self._keep(line)
                put(sys.stderr, f"[{self._mark}] {line}")
                self.last = line.strip() or self.last
                if line.startswith(_OURS):
                    self.error = self.last


class Rank:
    """A rank, server or scheduler: a process that is killed if the thread that started it ends.

    `number` is -1 for servers and schedulers. `asked` is True after the first request to end.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        logs: str | None = None,
        left: Callable[[int], object] = lambda _: None,
    ) -> None:
        role = environment.get("DMLC_ROLE", "worker")
        self.number = -1
        self.name = f"{role} {environment.get('DMLC_SERVER_ID', '')}".rstrip()
        if role == "worker":
            self.number = int(environment.get("HOROVOD_RANK", environment.get("RANK", "0")))
            self.name = f"rank {self.number}"
        self.asked = False
        self.voice = Voice(self.name, logs, lambda: left(self.number))
        self.process = subprocess.Popen(
            # A signal to all processes must not end the servers, because ranks need them to save.
            children.bound(command, deaf=self.number < 0),
            # Children of the rank must not import modules from the current folder either.
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
        """Sends a signal to the process, and to the children in its process group."""
        pid = self.process.pid
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                has_group = os.getpgid(pid) == pid
                (os.killpg if has_group else os.kill)(pid, signum)

    def code(self) -> int:
        """Returns the exit code of the ended process, as a shell reports it."""
        code = self.process.wait()
        self.voice.wait()
        return 128 - code if code < 0 else code

    def reason(self) -> str:
        """Returns why the process failed: its last error message, else its signal or last line."""
        error, last = self.voice.error, self.voice.last
        if not error and self.process.returncode < 0:
            number = -self.process.returncode
            text = f"{self.name}: ended by signal {number} ({signal.strsignal(number)})"
            if number == signal.SIGKILL:
                text += ", which the kernel also sends if the memory is full"
            if last:
                text += f"; its last line: {last}"
            return text
        return f"{self.name}: {error.removeprefix(_OURS) or last}"


class Ranks:
    """All ranks of this host; `left` is called with the number of each rank that lost a peer."""

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
        """Starts a rank for each environment, unless the ranks were already asked to end."""
        for environment in environments:
            if not self._asked:
                self._ranks.append(Rank(command, environment, logs, self._left))
        if self._asked:
            self.ask()

    def ask(self, grace_s: float = float("inf")) -> None:
        """Asks all ranks to save and end; `wait` kills those still running after `grace_s`.

        Servers are not asked to end, since ranks need them to save a checkpoint.
        """
        self._asked = True
        self.limit(grace_s)
        for rank in self._ranks:
            if rank.number >= 0 and not rank.asked:
                rank.asked = True
                rank.send(signal.SIGTERM)

    def limit(self, seconds: float) -> None:
        """Sets the time after which `wait` kills all processes that are still running."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def wait(
        self, failed: Callable[[Rank], object], done: Callable[[], object] = lambda: None
    ) -> None:
        """Waits until all ranks and servers have ended.

        `failed` is called with each rank whose exit code is not 0, unless `wait` killed it.
        `done` is called when all ranks have ended.
        """
        running = list(self._ranks)
        serving = False
        try:
            while running and time.monotonic() < self._deadline:
                for rank in [rank for rank in running if rank.process.poll() is not None]:
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


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        terminal.say(error)
        sys.exit(error.exit_code)
