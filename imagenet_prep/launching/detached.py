"""A launch without a terminal: started in a session of its own, looked at and ended from any other.

LOG_DIR/launch.json says which process it is, LOG_DIR/launch.log holds what it would have shown.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from imagenet_prep.core import canonical, cli, errors
from imagenet_prep.core.errors import BusyError, DataDamagedError, ImagenetPrepError, UsageError

RECORD, LOG = "launch.json", "launch.log"

_TAIL_LINES, _TAIL_BYTES = 10, 8192
_BOOT = Path("/proc/sys/kernel/random/boot_id")
# What an end that was asked for looks like.
_ORDERLY = (errors.EXIT_DONE, errors.IncompleteError.exit_code, errors.EXIT_INTERRUPTED)


@dataclass(frozen=True)
class Record:
    """What LOG_DIR/launch.json says.

    Attributes:
      host: where it runs.
      pid: its process there.
      start: when the kernel started that process, in ticks since `boot`: a number that is used
        again for another process does not have it.
      boot: which start of the machine that was.
      since: the same for people, UTC.
      exit: its exit code, None until it has ended by itself.
      ended: when, UTC, "" until then.
    """

    host: str
    pid: int
    start: int
    boot: str
    since: str
    exit: int | None = None
    ended: str = ""

    @classmethod
    def load(cls, folder: Path) -> Record | None:
        """Returns that of a folder, None where nothing was started.

        Raises:
          DataDamagedError: it is not what this program writes.
          ImagenetPrepError: it cannot be read.
        """
        path = folder / RECORD
        try:
            fields = canonical.loads(path.read_bytes())
            record = cls(**fields)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ImagenetPrepError(f"{path}: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise DataDamagedError(f"{path}: not what launch --detach writes: {error}") from error
        texts = (record.host, record.boot, record.since, record.ended)
        numbers = (record.pid, record.start, 0 if record.exit is None else record.exit)
        if not all(type(n) is int for n in numbers) or not all(type(t) is str for t in texts):
            raise DataDamagedError(f"{path}: not what launch --detach writes: wrong types")
        return record

    def save(self, folder: Path) -> None:
        """Writes it, whole or not at all."""
        partial = folder / f"{RECORD}.{os.getpid()}"
        partial.write_text(json.dumps(dataclasses.asdict(self)), "utf-8")
        partial.replace(folder / RECORD)

    @property
    def runs(self) -> bool:
        """Whether it still runs; to be asked on its host."""
        if self.exit is not None or self.boot != _boot() or _start(self.pid) != self.start:
            return False
        try:
            # A record that was planted names no process but a detached launch.
            return b"--detach" in Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False


def start(folder: Path, work: Callable[[Callable[[], None]], int]) -> int:
    """Runs `work` in a session of its own; returns when it has said that it is under way.

    Returns in both processes: here 0, or the exit code of one that ended before; there the exit
    code of the work.

    Args:
      folder: for record and log.
      work: is given what it calls when all is checked, and returns an exit code.

    Raises:
      BusyError: one runs there already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    earlier = Record.load(folder)
    if earlier is not None and earlier.host == socket.gethostname() and earlier.runs:
        raise BusyError(f"{folder}: a launch runs there: pid {earlier.pid}, since {earlier.since}")
    log = os.open(folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    begin = os.fstat(log).st_size
    ours, theirs = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        return _there(folder, log, theirs, work)
    os.close(theirs)
    os.close(log)
    try:
        under_way = os.read(ours, 1)
    except BaseException:
        os.kill(pid, signal.SIGTERM)
        raise
    if under_way:
        print(
            f"detached: pid {pid}, log {folder / LOG}\n"
            f"  imagenet-prep launch --status {folder}\n"
            f"  imagenet-prep launch --stop {folder}"
        )
        return errors.EXIT_DONE
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.stderr.write((folder / LOG).read_bytes()[begin:].decode(errors="replace"))
    return 128 - code if code < 0 else code


def _there(folder: Path, log: int, parent: int, work: Callable[[Callable[[], None]], int]) -> int:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((null, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    pid = os.getpid()
    record = Record(socket.gethostname(), pid, _start(pid) or 0, _boot(), _now())

    def under_way() -> None:
        record.save(folder)
        os.write(parent, b"+")
        os.close(parent)

    code = cli.outcome(lambda: work(under_way))
    dataclasses.replace(record, exit=code, ended=_now()).save(folder)
    return code


def status(folder: Path) -> int:
    """Says whether it runs; returns 0 while it does, then its exit code."""
    record = _known(folder)
    if record.runs:
        print(f"running since {record.since}, pid {record.pid} on {record.host}")
        code = errors.EXIT_DONE
    elif record.exit is None:
        print(
            f"ended without a report, begun {record.since}: pid {record.pid} on {record.host} was "
            "killed, or the machine went down"
        )
        code = ImagenetPrepError.exit_code
    else:
        print(f"ended {record.ended} with exit code {record.exit}, begun {record.since}")
        code = record.exit
    print(_tail(folder / LOG), end="")
    return code


def stop(folder: Path) -> int:
    """Asks it to end as SIGTERM does, waits for that, and says what came of it.

    Returns:
      0 where it has ended in order (all done, saved, or before training began) or does not run;
      else its exit code.
    """
    record = _known(folder)
    try:
        # From here on the number can be given to no other process without our noticing.
        process = os.pidfd_open(record.pid) if record.pid > 1 else -1
    except OSError:
        process = -1
    if process < 0 or not record.runs:
        print(f"not running: {folder}")
        return errors.EXIT_DONE
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        signal.pidfd_send_signal(process, signal.SIGTERM)
    print(f"asked pid {record.pid} to end; waiting for its checkpoint", flush=True)
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    waiting.poll()
    os.close(process)
    code = status(folder)
    return errors.EXIT_DONE if code in _ORDERLY else code


def _known(folder: Path) -> Record:
    record = Record.load(folder)
    if record is None:
        raise UsageError(f"{folder}: no launch --detach was started with this --log-dir")
    if record.host != socket.gethostname():
        raise UsageError(f"{folder}: that launch runs on {record.host}: ask there")
    return record


def _tail(path: Path) -> str:
    """Returns the last lines of a log, indented."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = text.splitlines()[-_TAIL_LINES:]
    return "".join(f"  {line}\n" for line in lines)


def _start(pid: int) -> int | None:
    """Returns when a living process began, in ticks since the machine did."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # The 22nd field; the state is the 3rd.
    return None if state in "ZX" else int(fields[18])


def _boot() -> str:
    return _BOOT.read_text().strip()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
