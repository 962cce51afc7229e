"""A launch in the background, in its own session, that any terminal can check and stop.

LOG_DIR/launch.json identifies its process, and LOG_DIR/launch.log has its output.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from imagenet_prep.core import canonical, errors, monitoring, program, records, regular_file
from imagenet_prep.core.errors import BusyError, DataDamagedError, ImagenetPrepError, UsageError
from imagenet_prep.storage import local_file
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import storage_errors

RECORD = "launch.json"
LOG = "launch.log"

_TAIL_LINES = 10
_TAIL_BYTES = 8192
# Limit of the output before a launch detaches, which is at most one line per host.
_SAID_BYTES = 1 << 20
_RECORD_BYTES = 1 << 16
# Valid process ids (an int of C) and exit codes (a byte).
_PIDS = range(2, 1 << 31)
_CODES = range(256)
_BOOT = Path("/proc/sys/kernel/random/boot_id")
# Exit codes of a launch that ended on request.
_ORDERLY = (errors.EXIT_DONE, errors.IncompleteError.exit_code, errors.EXIT_INTERRUPTED)


@dataclass(frozen=True)
class Record:
    """The content of LOG_DIR/launch.json.

    `boot` is the `boot_id`; `start` is the process's start time, in ticks since this boot. A later
    process with the same pid has different values. `exit` is None if the launch runs or was killed.
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
        """Returns the record of a folder, or None if no launch was started."""
        path = folder / RECORD
        try:
            with open(LocalStore(folder).open(RECORD, os.O_RDONLY), "rb") as file:
                text = regular_file.read_whole(file, path, _RECORD_BYTES)
            record = records.loads(cls, text)
            if record.pid not in _PIDS or (record.exit or 0) not in _CODES:
                raise ValueError(f"pid {record.pid}, exit {record.exit}")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ImagenetPrepError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise DataDamagedError(f"{path}: invalid record of launch --detach: {error}") from error
        return record

    def save(self, folder: Path) -> None:
        """Writes the record atomically."""
        LocalStore(folder).write(RECORD, canonical.dumps(self))

    @property
    def runs(self) -> bool:
        """Whether the launch is still running; only valid on its host."""
        if self.exit is not None or self.boot != boot_id() or start_ticks(self.pid) != self.start:
            return False
        try:
            # A forged record could have the pid of a process that is not a detached launch.
            return b"--detach" in Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False

    def is_of(self, folder: Path) -> bool:
        """Returns whether the process is the launch of this folder, which `stop` may end.

        A forged record could have the pid of a different launch of this user. So the process must
        write to the log in this folder, and its user must own the record.
        """
        try:
            process = Path(f"/proc/{self.pid}")
            owner = process.stat().st_uid
            output = (process / "fd" / "1").stat()
            log, record = (local_file.stat_inside(folder, name) for name in (LOG, RECORD))
        except (OSError, ImagenetPrepError):
            return False
        return os.path.samestat(output, log) and record.st_uid == owner


def start(folder: Path, work: Callable[[Callable[[], None]], int]) -> int:
    """Runs `work` in a child process with its own session.

    `work` gets a function and must call it after its checks; then the parent returns 0. If the
    child ends earlier, the parent returns the child's exit code, which is the result of `work`.
    """
    with storage_errors("create", folder):
        folder.mkdir(parents=True, exist_ok=True)
    earlier = Record.load(folder)
    if earlier is not None and earlier.host == socket.gethostname() and earlier.runs:
        raise BusyError(f"{folder}: a launch is running: pid {earlier.pid}, since {earlier.since}")
    with storage_errors("write", folder / LOG):
        log = LocalStore(folder).open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    begin = os.fstat(log).st_size
    ours, theirs = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        return _detached(folder, log, theirs, work)
    os.close(theirs)
    os.close(log)
    try:
        under_way = os.read(ours, 1)
    except BaseException:
        os.kill(pid, signal.SIGTERM)
        raise
    if under_way:
        monitoring.leave_to_child()
        print(
            f"detached: pid {pid}, log {folder / LOG}\n"
            f"  imagenet-prep launch --status {folder}\n"
            f"  imagenet-prep launch --stop {folder}"
        )
        return errors.EXIT_DONE
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.stderr.write(_end_of_log(folder, begin, _SAID_BYTES))
    return 128 - code if code < 0 else code


def _detached(
    folder: Path, log: int, parent: int, work: Callable[[Callable[[], None]], int]
) -> int:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((null, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    pid = os.getpid()
    record = Record(socket.gethostname(), pid, start_ticks(pid) or 0, boot_id(), _now())

    def under_way() -> None:
        record.save(folder)
        os.write(parent, b"+")
        os.close(parent)

    code = program.outcome(lambda: work(under_way))
    dataclasses.replace(record, exit=code, ended=_now()).save(folder)
    return code


def status(folder: Path) -> int:
    """Prints whether the launch is running; returns 0 if it is, else its exit code."""
    record = _loaded(folder)
    process = f"pid {record.pid} on {record.host}"
    if record.runs:
        print(f"running since {record.since}, {process}")
        code = errors.EXIT_DONE
    elif record.exit is None:
        print(f"ended without a report, started {record.since}: {process} or its machine crashed")
        code = ImagenetPrepError.exit_code
    else:
        print(f"ended {record.ended} with exit code {record.exit}, started {record.since}")
        code = record.exit
    lines = _end_of_log(folder).splitlines()[-_TAIL_LINES:]
    print("".join(f"  {line}\n" for line in lines), end="")
    return code


def stop(folder: Path) -> int:
    """Sends SIGTERM to a launch, waits for its end, and prints its exit code.

    Returns 0 if no launch is running, or if the stopped launch completed, saved a checkpoint or
    was interrupted; otherwise returns the exit code of the launch.
    """
    record = _loaded(folder)
    try:
        # The pidfd refers to this process even if its number is reused.
        process = os.pidfd_open(record.pid) if record.pid > 1 else -1
    except OSError:
        process = -1
    if process < 0 or not (record.runs and record.is_of(folder)):
        print(f"not running: {folder}")
        return errors.EXIT_DONE
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        signal.pidfd_send_signal(process, signal.SIGTERM)
    print(f"asked pid {record.pid} to stop; waiting for its checkpoint", flush=True)
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    waiting.poll()
    os.close(process)
    code = status(folder)
    return errors.EXIT_DONE if code in _ORDERLY else code


def _loaded(folder: Path) -> Record:
    record = Record.load(folder)
    if record is None:
        raise UsageError(f"{folder}: no launch --detach was started with this --log-dir")
    if record.host != socket.gethostname():
        raise UsageError(f"{folder}: its launch is on {record.host}: run the command there")
    return record


def _end_of_log(folder: Path, begin: int = 0, most: int = _TAIL_BYTES) -> str:
    """Returns the last bytes of the log after `begin`, or "" if it cannot be read."""
    try:
        with open(LocalStore(folder).open(LOG, os.O_RDONLY), "rb") as file:
            file.seek(max(begin, os.fstat(file.fileno()).st_size - most))
            return file.read(most).decode(errors="replace")
    except (OSError, ImagenetPrepError):
        return ""


def start_ticks(pid: int) -> int | None:
    """Returns the start time of a running process, in ticks since the machine started."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # Field 22 of the file; the state is field 3.
    return None if state in "ZX" else int(fields[18])


def boot_id() -> str:
    """Returns an id that changes with each start of the machine."""
    return _BOOT.read_text().strip()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
