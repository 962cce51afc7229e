"""Commands without a second of imports: a process that has imported the program forks each of them.

What is forked is a real process, in a session of its own: it may be killed, limited, measured. The
forking process has no threads, so that its children begin as a new interpreter would; and it
adopts whatever a command leaves behind, whatever that has done to its environment or session.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.kit.command import PATIENCE_S, REPOSITORY, environment, threads
from tests.kit.processes import words_of

# All modules that verbs import at work, except Beam, TensorFlow and Arrow. Arrow starts
# a thread: a process that is forked next to one may wait for a lock that no thread holds.
VERBS = (
    "imagenet_prep.adopt",
    "imagenet_prep.amend",
    "imagenet_prep.download",
    "imagenet_prep.replicate",
    "imagenet_prep.preparation.amendment",
    "imagenet_prep.report",
    "imagenet_prep.resize",
    "imagenet_prep.show",
    "imagenet_prep.verify",
    "imagenet_prep.preparation.rewrite",
    "imagenet_prep.preparation.existing_set",
    "imagenet_prep.reporting.page",
    "imagenet_prep.reporting.compare",
    "imagenet_prep.distribute.replica",
    "imagenet_prep.distribute.send",
    "imagenet_prep.read",
    "imagenet_prep.codec.transform",
    "imagenet_prep.pipelines.prepare",
    "imagenet_prep.preparation.job",
    "imagenet_prep.preparation.output",
    # An S3 client imports these when it is made; the layer `quick` does not have them.
    *(
        ("botocore.session", "botocore.httpsession", "botocore.client", "botocore.handlers")
        if importlib.util.find_spec("botocore")
        else ()
    ),
)
PROGRAM = "imagenet_prep.__main__:main"

_MOST_S_TO_DIE = 60.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Ended(NamedTuple):
    """What a command left.

    Attributes:
      code: exit code; negative: the signal that killed it.
      out, err: what it printed.
      peak_bytes: of memory, the imported modules included.
      hung: it was killed since its time was over.
      cpu_s: processor time of it and of the processes that it has waited for.
    """

    code: int
    out: bytes
    err: bytes
    peak_bytes: int
    hung: bool
    cpu_s: float


class Warm:
    """Forks one command at a time; close it after use. It may be used from several threads.

    Attributes:
      pid: of the command.
    """

    def __init__(
        self,
        modules: Iterable[str] = VERBS,
        python: str | Path = sys.executable,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the process that imports.

        Args:
          modules: imported before the first command.
          python: the interpreter, where it is another one.
          env: added to the environment in which they are imported.
        """
        self._folder = tempfile.TemporaryDirectory()
        quiet = {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._process = subprocess.Popen(
            [python, "-m", "tests.kit.warm", *modules],
            cwd=REPOSITORY,
            env=environment(**quiet, **(env or {})),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,  # what lies in a buffer of ours, `select` does not see
        )
        self._running = -1
        self._current = ""
        self.pid = 0
        self._hear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it, and what it runs."""
        self.send(signal.SIGKILL)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    def start(
        self,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        call: str = PROGRAM,
        code: str = "",
        file_bytes: int = 0,
        map_bytes: int = 0,
        cpu_s: int = 0,
    ) -> int:
        """Starts a command; returns its pid.

        Args:
          *arguments: verb and flags.
          env: added to the environment that commands of tests have.
          cwd: its current folder; by default a new, empty one, which `finish` removes.
          call: module:function that reads `arguments` from sys.argv.
          code: executed instead of `call`, as `python -c` does.
          file_bytes: how large it may make a file; 0: any size.
          map_bytes: memory that each of its processes may map; 0: any size.
          cpu_s: processor time after which the kernel ends it; 0: never.
        """
        self._current = tempfile.mkdtemp(dir=self._folder.name)
        order = {
            "argv": ["-c" if code else "imagenet-prep", *map(str, arguments)],
            "env": environment(**(env or {})),
            "cwd": str(cwd or self._current),
            "call": call,
            "code": code,
            "file_bytes": file_bytes,
            "map_bytes": map_bytes,
            "cpu_s": cpu_s,
            "folder": self._folder.name,
        }
        self.pid = self._ask(order)["pid"]
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            self._running = os.pidfd_open(self.pid)
        return self.pid

    def send(self, signum: signal.Signals) -> None:
        """Signals the command; nothing happens where it has ended."""
        if self._running >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._running, signum)

    def ended(self, seconds: float) -> bool:
        """Returns whether the command has ended, or ends within some seconds."""
        return bool(select.select([self._process.stdout], [], [], max(0.0, seconds))[0])

    @property
    def running(self) -> bool:
        """Whether the end of a command is still to be waited for."""
        return self._running >= 0

    def stopped(self, seconds: float = PATIENCE_S) -> bool:
        """Returns whether SIGSTOP has stopped the command, once that or its end has come."""
        end = time.monotonic() + seconds
        while not self.ended(0.01) and time.monotonic() < end:
            if _state(self.pid) == "T":
                return True
        return False

    def finish(self, timeout: float = PATIENCE_S) -> Ended:
        """Waits for the command's end; kills it where that takes too long."""
        if hung := not self.ended(timeout):
            self.send(signal.SIGKILL)
            assert self.ended(_MOST_S_TO_DIE), f"a killed command has no end: {self._states()}"
        order = self._hear()
        if self._running >= 0:
            os.close(self._running)
            self._running = -1
        out, err = (Path(self._folder.name, name).read_bytes() for name in ("out", "err"))
        # A process that the command left may still write into the folder; `close` removes the rest.
        shutil.rmtree(self._current, ignore_errors=True)
        return Ended(order["code"], out, err, order["peak_bytes"], hung, order["cpu_s"])

    def run(self, *arguments: str | Path, timeout: float = PATIENCE_S, **how: Any) -> Ended:
        """Runs a command to its end; keywords are those of `start`."""
        self.start(*arguments, **how)
        return self.finish(timeout)

    def left(self, patience_s: float) -> list[str]:
        """Returns what a finished command has left running, which is killed then.

        Args:
          patience_s: time to end that is given.
        """
        end = time.monotonic() + patience_s
        while there := self._ask({"left": True})["pids"]:
            if time.monotonic() > end:
                lines = [_command_line(pid) for pid in there]
                while there:
                    for pid in there:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    there = self._ask({"left": True})["pids"]
                return lines
            time.sleep(0.01)
        return []

    def _states(self) -> list[str]:
        """Returns command line, state and waiting place of the processes, to find a hang."""
        server = self._process.pid
        pids = [server, self.pid, *children(server), *children(self.pid)]
        return [f"{_command_line(pid)}: {_state(pid)} {_waits_in(pid)}" for pid in pids]

    def _ask(self, what: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the warm process ended with {self._process.wait()}"
        return json.loads(line)


def children(pid: int) -> list[int]:
    """Returns the living children of a process."""
    found = []
    for thread in threads(pid):
        with contextlib.suppress(OSError):
            found += [int(child) for child in (thread / "children").read_text().split()]
    return [child for child in found if _state(child) not in ("Z", "")]


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return ""


def _command_line(pid: int) -> str:
    return f"{pid} {b' '.join(words_of(pid)).decode(errors='replace')[:200]}"


def _waits_in(pid: int) -> str:
    """Returns the function of the kernel in which a process waits."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/wchan").read_text()
    return ""


def _serve(modules: Sequence[str]) -> None:
    """Imports the modules, then forks a process for each order until standard input ends."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of an import is no answer
    for module in modules:
        importlib.import_module(module)
    others = len(os.listdir("/proc/self/task")) - 1
    assert not others or "tensorflow" in modules, f"an import has started {others} threads"
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "left" in order:
            _reap()
            print(json.dumps({"pids": children(os.getpid())}), file=answers, flush=True)
            continue
        pid = os.fork()
        if not pid:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.close(answers.fileno())
            _become(order)
        print(json.dumps({"pid": pid}), file=answers, flush=True)
        _, status, used = os.wait4(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        cpu_s = used.ru_utime + used.ru_stime
        answer = {"code": code, "peak_bytes": used.ru_maxrss * 1024, "cpu_s": cpu_s}
        print(json.dumps(answer), file=answers, flush=True)
    # There is no one left to report them to.
    for pid in children(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    os._exit(0)  # to take all modules apart takes seconds


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become(order: Mapping[str, Any]) -> None:
    """Turns a forked child into the command; never returns."""
    os.setsid()
    for descriptor, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, f"{order['folder']}/out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, f"{order['folder']}/err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    try:
        os.environ.clear()
        os.environ.update(order["env"])
        tempfile.tempdir = None
        os.chdir(order["cwd"])
        sys.argv = order["argv"]
        # Python ignores SIGXFSZ: writing more is an error, EFBIG.
        for limit, name in (
            (resource.RLIMIT_FSIZE, "file_bytes"),
            (resource.RLIMIT_AS, "map_bytes"),
            (resource.RLIMIT_CPU, "cpu_s"),
        ):
            if order[name]:
                resource.setrlimit(limit, (order[name],) * 2)
        if order["code"]:
            exec(order["code"], {"__name__": "__main__"})
        else:
            module, _, function = order["call"].partition(":")
            getattr(importlib.import_module(module), function)()
    except SystemExit as ending:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ending.code if isinstance(ending.code, int) else int(ending.code is not None))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(70)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1:])
