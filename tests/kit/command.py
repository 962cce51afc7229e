"""Commands as users run them: processes with two streams, an exit code and child processes."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.kit.warm import Warm

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = ("-P", "-m", "imagenet_prep")

# A limit, not a measurement: a busy machine is slow, and a hanging process never ends.
PATIENCE_S = 600.0
# Half the CPU time of Beam's job server, which serves one job: most classes are not worth
# optimizing, and the compiler's classes need no second verification.
SHORT_LIVED_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# Ranks ask each other for pending reductions at this interval in milliseconds. The default of one
# costs more than their work on two cores.
RARE_CYCLES = {"HOROVOD_CYCLE_TIME": "50"}
_MARK = "IMAGENET_PREP_TEST_RUN"
# Variables that an interpreter or a library reads only once, before a verb starts.
_AT_IMPORT = re.compile("PYTHON|LANG|LC_|LD_|TZ|OMP_|OPENBLAS_|OPENCV_|MALLOC_")
_forking = threading.Lock()


class Finished(NamedTuple):
    """The result of a command: exit code (negative: the signal that killed it), stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def complaints(self) -> str:
        """Stderr without the detected source and the progress of a slow machine."""
        shown = r"(?:(?:tasks?|images?), .* left.*|\w+ already finished)"
        progress = rf"^\w+: (?:resuming: )?[\d,]+ of [\d,]+ {shown}\n"
        return re.sub(progress, "", re.sub(r"\Asource: .*\n", "", self.err), flags=re.MULTILINE)

    @property
    def json(self) -> Any:
        """The JSON document on stdout, which has nothing else."""
        return json.loads(self.out)


class Running:
    """A started command; made and ended by `started`."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str, out: Any, err: Any) -> None:
        self.process = process
        self._mark = f"{_MARK}={mark}".encode()
        self._out, self._err = out, err

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def workers(self) -> list[int]:
        """Returns the living descendants of the command, also if their parent has changed."""
        return [pid for pid in _marked(self._mark) if pid != self.pid]

    def send(self, signum: signal.Signals, pids: Sequence[int] | None = None) -> None:
        """Signals the command, or those of `pids` that are still its workers."""
        ours = [self.pid] if pids is None else set(pids) & set(self.workers())
        for pid in ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def kill(self) -> int:
        """Kills the command, but not its workers, and returns the exit code."""
        self.send(signal.SIGKILL)
        return self.process.wait(PATIENCE_S)

    def finish(self, timeout: float = PATIENCE_S) -> Finished:
        """Waits for the command's end; AssertionError with its output if it hangs."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            said = self._text(self._err)
            stacks = _wait_channels([self.pid, *self.workers()])
            raise AssertionError(f"still running after {timeout} s\n{said}\n{stacks}") from None
        return Finished(code, self._text(self._out), self._text(self._err))

    def _text(self, file: IO[bytes]) -> str:
        file.seek(0)
        return file.read().decode(
            errors="surrogateescape"
        )  # as Python decodes the names of such files


def environment(**more: str) -> dict[str, str]:
    """Returns the environment of a command, without a developer's settings."""
    names = ("PATH", "HOME", "TMPDIR", "IMAGENET_PREP_CACHE")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    # Compiled files of the checkout belong to no result.
    path = os.pathsep.join(map(str, (REPOSITORY / "tests" / "kit" / "start", REPOSITORY)))
    ours = {"LANG": "C.UTF-8", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return kept | ours | {"JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA} | RARE_CYCLES | more


def with_flags(words: Iterable[str | Path], more: Iterable[str | Path]) -> list[str | Path]:
    """Returns words in which the flags of `more` replace equal ones: a flag is given once."""
    more = [*more]
    kept = []
    is_replaced = False
    for word in words:
        if str(word).startswith("--"):
            is_replaced = word in more
        if not is_replaced:
            kept.append(word)
    return [*kept, *more]


@contextlib.contextmanager
def started(
    *arguments: str | Path,
    cwd: Path | None = None,
    program: Sequence[str] = PROGRAM,
    python: str | Path = sys.executable,
    env: dict[str, str] | None = None,
    stderr: int | None = None,
) -> Iterator[Running]:
    """Yields the running command; ends it and its descendants by pid.

    Args:
      *arguments: verb and flags.
      cwd: its current folder; by default a new, empty one, which is removed afterwards.
      program: arguments of Python.
      python: the interpreter, if it is a different one.
      env: added to the environment.
      stderr: a descriptor, if it is not to be collected.
    """
    mark = uuid.uuid4().hex
    # A process that is ending may still write into the folder.
    empty = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, empty:
        process = subprocess.Popen(
            [python, *program, *map(str, arguments)],
            cwd=cwd or empty.name,
            env=environment(**{_MARK: mark}, **(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err if stderr is None else stderr,
        )
        running = Running(process, mark, out, err)
        try:
            yield running
        finally:
            running.kill()
            running.send(signal.SIGKILL, running.workers())


def run(*arguments: str | Path, timeout: float = PATIENCE_S, **how: Any) -> Finished:
    """Runs a command to its end; keywords are those of `started`.

    It is forked from a process that has imported the verbs, as is the code of `-c`, unless its
    start matters: a different program or interpreter, worker processes, a variable that Python or a
    library reads at import. A command next to a running one of the same test is not forked either.
    """
    is_code = how.get("program", ())[:1] == ("-c",)
    starts = how.keys() - {"env", "cwd", *(["program"] if is_code else ())}
    starts |= {*filter(_AT_IMPORT.match, how.get("env") or {})}
    if starts or "processes" in arguments or not _forking.acquire(blocking=False):
        with started(*arguments, **how) as running:
            return running.finish(timeout)
    try:
        return _forked(*arguments, timeout=timeout, **how)
    finally:
        _forking.release()


def _forked(*arguments: str | Path, timeout: float, **how: Any) -> Finished:
    warm = warm_process()
    if "program" in how:
        how["code"] = how.pop("program")[1]
    try:
        ended = warm.run(*arguments, timeout=timeout, **how)
        warm.left(0.0)
    except BaseException:
        # After a timeout or Ctrl-C, the next answer would belong to a different command.
        _started.cache_clear()
        warm.close()
        raise
    # As Python decodes names of files that are not text.
    out, err = (each.decode(errors="surrogateescape") for each in (ended.out, ended.err))
    assert not ended.hung, f"still running after {timeout} s\n{err}"
    return Finished(ended.code, out, err)


def warm_process() -> Warm:
    """Returns the process that forks the commands of this test process, one at a time."""
    if _started().running:  # a test failed before the end of its command
        _started().close()
        _started.cache_clear()
    return _started()


@functools.cache
def _started() -> Warm:
    from tests.kit.warm import VERBS, Warm

    # Otherwise each page of a report would import Matplotlib.
    plots = ("imagenet_prep.reporting.plots",) if importlib.util.find_spec("matplotlib") else ()
    made = Warm((*VERBS, *plots))
    atexit.register(made.close)
    return made


def wait_until(condition: Callable[[], Any], what: str, timeout: float = PATIENCE_S) -> None:
    """Returns as soon as `condition()` is true; AssertionError after `timeout` seconds.

    An expensive condition is checked less often, because the awaited work needs the processor.
    """
    end = time.monotonic() + timeout
    asked = time.thread_time()
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what}")
        cost_s = time.thread_time() - asked
        time.sleep(max(0.002, 9 * cost_s))
        asked = time.thread_time()


def _marked(mark: bytes) -> list[int]:
    """Returns the living processes with `mark` in their environment, which children inherit."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has just ended, or is not readable for us
            state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            if state != "Z" and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return sorted(found)


def threads(pid: int) -> list[Path]:
    """Returns the folders of a process's threads in /proc; none if it has ended."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _wait_channels(pids: Sequence[int]) -> str:
    """Returns the kernel function in which each thread of a hanging process tree sleeps."""
    lines = []
    for pid in pids:
        for thread in threads(pid):
            with contextlib.suppress(OSError):
                name = (thread / "comm").read_text().strip()
                lines.append(f"{pid}/{thread.name} {name}: {(thread / 'wchan').read_text()}")
    return "\n".join(lines)
