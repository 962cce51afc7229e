"""Starts, follows and ends the processes of a launch on all hosts, if needed in the background.

`Crew` starts one process per host (`launching.host`), local or through ssh, which starts the host's
ranks. A thread per process reads its messages and queues events; one loop handles them.

`mpirun` returns the mpirun command line, if Open MPI starts the ranks instead of `launching.host`.

`start_detached` runs a launch in the background, in its own session. `status` and `stop` check and
stop it from any terminal. LOG_DIR/launch.json (`LaunchRecord`) identifies its process, and
LOG_DIR/launch.log has its output.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from imagenet_prep.core import children, errors, monitoring, program, small_files, strict_json
from imagenet_prep.core.errors import BusyError, DataDamagedError, ImagenetPrepError, UsageError
from imagenet_prep.hosts.channel import BrokenError, Cause, MessageFrame, Process
from imagenet_prep.hosts.commands import RETRY_S, Host, Tail, ssh, start
from imagenet_prep.launching.host import FROM_HOST, NO_RANK, LaunchOrder
from imagenet_prep.launching.host_checks import RankNetwork
from imagenet_prep.launching.ranks import put, through
from imagenet_prep.storage import local_file
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import storage_errors

# The same as in horovodrun: no InfiniBand verbs, and threads may run on all cores.
_FLAGS = ("-mca", "pml", "ob1", "-mca", "btl", "^openib", "-bind-to", "none", "-map-by", "slot")
# By default, hosts would start other hosts by ssh, which needs keys on every host.
_FLAT = ("-mca", "plm_rsh_no_tree_spawn", "true")


def mpirun(
    used: Sequence[Host],
    network: RankNetwork,
    variables: Mapping[str, str],
    command: Sequence[str],
    more: Sequence[str] = (),
) -> list[str]:
    """Returns the mpirun command line that starts `command` once per rank.

    It contains only the names of variables; mpirun takes the values from its own environment.
    """
    argv = ["mpirun", "--allow-run-as-root"]
    argv += ["-np", str(sum(host.slots for host in used))]
    argv += ["-H", ",".join(f"{host.address}:{host.slots}" for host in used), *_FLAGS]
    if not all(host.is_local for host in used):
        argv += [*_FLAT, "-mca", "plm_rsh_num_concurrent", str(len(used))]
        # By default, ssh would prompt, or mpirun would accept any host key.
        argv += ["-mca", "plm_rsh_agent", " ".join(ssh())]
        names = set(network.interfaces)
        if len(names) == 1:
            argv += ["-mca", "btl_tcp_if_include", *names]
    for name in sorted(variables):
        argv += ["-x", name]
    return [*argv, *more, *through(command)]


# A host that vanishes or is silent is noticed after a minute.
_SILENCE_S = 60.0
_SSH_OPTIONS = ("ServerAliveInterval=15", "ServerAliveCountMax=4")
# Seconds for the other ranks to end after one has failed. Ranks that save get more time.
_FAILED_S = 15.0
# Seconds for a host to answer, in addition to the time that its ranks have to end.
_ANSWER_S = 30.0
_INCOMPLETE = 4


def exit_code(failures: Sequence[tuple[int, bool]]) -> int:
    """Returns the exit code of the first failed rank (preferably one that lost no peer), or 0."""
    return min(failures, key=lambda failure: failure[1], default=(0, False))[0]


def _say(sentence: str) -> None:
    put(sys.stderr, f"imagenet-prep: {sentence}\n")


class Crew:
    """The processes of a launch on all hosts; ranks get `grace_s` seconds to save a checkpoint."""

    def __init__(self, hosts: Sequence[Host], grace_s: float) -> None:
        self._hosts, self._grace_s = hosts, grace_s
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._members: list[Process] = []
        self._mpirun: subprocess.Popen[bytes] | None = None
        # The processes that have not ended: addresses of hosts, and "mpirun".
        self._running: set[str] = set()
        self._ends = float("inf")
        self._asked = False
        self._has_ended = False
        self._done = 0
        self._failures: list[tuple[int, bool]] = []
        self._left: set[int] = set()

    def run(
        self,
        orders: Sequence[LaunchOrder],
        starter: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Runs all ranks to their end; returns the exit code of the launch.

        With Open MPI, `starter` is the mpirun command line, and `environment` is its environment.
        """
        with program.handled(lambda *_: self._events.put(self._ask), signal.SIGINT):
            try:
                for host, order in zip(self._hosts, orders, strict=True):
                    self._start(host, order)
                if starter:
                    self._start_mpirun(starter, environment)
                self._follow()
            finally:
                self._has_ended = True
                for member in self._members:
                    member.kill()
                if self._mpirun is not None:
                    self._mpirun.kill()
        self._name_silent()
        return exit_code(self._failures)

    def _start(self, host: Host, order: LaunchOrder) -> None:
        member = self._begin(host, order)
        self._running.add(host.address)
        # A host may send "failed" once per rank, and "done" once. It may send "left" for all ranks:
        # if the launch knows a machine by two names, one process there serves both.
        slots = sum(host.slots for host in self._hosts)
        allowed = {"left": slots, "failed": len(order.ranks), "done": 1}
        again = partial(self._begin, host, order)
        threading.Thread(target=self._listen, args=(member, allowed, again), daemon=True).start()

    def _begin(self, host: Host, order: LaunchOrder) -> Process:
        """Starts the process of a host."""
        member = Process(
            host.address,
            sys.executable,
            ("imagenet_prep.launching.host", "run"),
            FROM_HOST,
            _SILENCE_S,
            ssh_options=_SSH_OPTIONS,
            hear=partial(put, sys.stderr),
        )
        self._members.append(member)
        # JSON escapes bytes that are not UTF-8, which variables may contain.
        member.channel.begin("run", json.dumps(dataclasses.asdict(order)).encode())
        return member

    def _listen(
        self, member: Process, allowed: dict[str, int], again: Callable[[], Process]
    ) -> None:
        """Handles messages of a host's process until it ends; kills it at an invalid message.

        If sshd closed the connection before the login, `again` starts the process once more.
        """

        def take(frame: MessageFrame) -> None:
            if frame.kind == "printed":
                put(sys.stdout, frame.body)
                return
            allowed[frame.kind] -= 1
            if allowed[frame.kind] < 0:
                raise BrokenError(f"it sent {frame.kind!r} too often")
            self._events.put(partial(self._heard, frame))

        broken, ending = member.listen(take, _ANSWER_S)
        if ending.is_turned_away and not self._has_ended:
            time.sleep(RETRY_S)
            broken, ending = again().listen(take, _ANSWER_S)
        why = f"ended with code {ending.code}" if ending.code else ""
        if broken:
            why = f"was ended: {broken}"
        # The host or its process died, or the network failed: a new launch may succeed.
        lost = broken.cause is Cause.SILENT if broken else ending.is_lost
        self._events.put(partial(self._ended, member.address, why, _INCOMPLETE if lost else 1))

    def _start_mpirun(self, argv: Sequence[str], environment: Mapping[str, str] | None) -> None:
        bound = children.bound(argv, signal.SIGTERM)
        self._mpirun = popen = start(bound, environment=environment, stdin=subprocess.DEVNULL)
        self._running.add("mpirun")
        outputs = [
            Tail(popen.stdout, hear=partial(put, sys.stdout)),
            Tail(popen.stderr, hear=partial(put, sys.stderr)),
        ]

        def wait() -> None:
            code = popen.wait()
            for output in outputs:
                output.text()
            self._events.put(partial(self._mpirun_ended, 128 - code if code < 0 else code))

        threading.Thread(target=wait, daemon=True).start()

    def _follow(self) -> None:
        while self._running:
            try:
                left_s = max(0.0, self._ends - time.monotonic())
                event = self._events.get(timeout=None if left_s == float("inf") else left_s)
            except queue.Empty:
                names = ", ".join(sorted(self._running))
                _say(f"no answer from {names}: ranks may still be running there")
                return
            event()

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._order("ask", self._grace_s)

    def _order(self, kind: str, seconds: float) -> None:
        """Sends an order to all hosts in threads, so that no host delays the others."""
        self._ends = time.monotonic() + seconds + _ANSWER_S

        def write(member: Process) -> None:
            with contextlib.suppress(OSError):  # It has ended and needs no order.
                member.channel.write(kind, seconds=seconds)

        for member in self._members:
            threading.Thread(target=write, args=(member,), daemon=True).start()

    def _heard(self, frame: MessageFrame) -> None:
        if frame.kind == "left":
            self._left.add(frame.fields["rank"])
        elif frame.kind == "failed":
            self._failed(**frame.fields)
        else:
            self._done += 1
            if self._done == len(self._hosts) and self._ends == float("inf"):
                # No rank is left, but a server waits forever for a rank that did not disconnect.
                self._order("limit", _FAILED_S)

    def _failed(self, rank: int, code: int) -> None:
        self._failures.append((code, rank in self._left))
        if self._ends == float("inf"):
            # If one rank ends in an orderly way, all ranks do, and rank 0 is saving a checkpoint.
            is_orderly = code == _INCOMPLETE and rank not in (NO_RANK, *self._left)
            limit_s = self._grace_s if is_orderly else _FAILED_S
            self._order("limit", min(limit_s, self._grace_s))

    def _ended(self, address: str, why: str, code: int) -> None:
        self._running.remove(address)
        if why:
            _say(f"{address}: the process that runs its ranks {why}")
            self._failed(NO_RANK, code)

    def _mpirun_ended(self, code: int) -> None:
        self._running.remove("mpirun")
        if code:
            self._failures.append((code, False))
        # The process on each host ends the ranks that mpirun has left running.
        self._order("ask", _FAILED_S)

    def _name_silent(self) -> None:
        """Reports the ranks that did not report a lost peer: one of them died or stalled first."""
        places: list[str] = []
        for host in self._hosts:
            places += [host.address] * host.slots
        silent = [f"{rank} on {at}" for rank, at in enumerate(places) if rank not in self._left]
        if self._left and silent:
            _say(f"died or stalled: rank {', '.join(silent)}")


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
class LaunchRecord:
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
    def load(cls, folder: Path) -> LaunchRecord | None:
        """Returns the record of a folder, or None if no launch was started."""
        path = folder / RECORD
        try:
            with open(LocalStore(folder).open(RECORD, os.O_RDONLY), "rb") as file:
                text = small_files.read_whole(file, path, _RECORD_BYTES)
            record = strict_json.parse_record(cls, text)
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
        LocalStore(folder).write(RECORD, strict_json.dumps(self))

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


def start_detached(folder: Path, work: Callable[[Callable[[], None]], int]) -> int:
    """Runs `work` in a child process with its own session.

    `work` gets a function and must call it after its checks; then the parent returns 0. If the
    child ends earlier, the parent returns the child's exit code, which is the result of `work`.
    """
    with storage_errors("create", folder):
        folder.mkdir(parents=True, exist_ok=True)
    earlier = LaunchRecord.load(folder)
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
        place = shlex.quote(str(folder))
        print(
            f"detached: pid {pid}, log {folder / LOG}\n"
            f"  imagenet-prep launch --status {place}\n"
            f"  imagenet-prep launch --stop {place}"
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
    record = LaunchRecord(socket.gethostname(), pid, start_ticks(pid) or 0, boot_id(), _now())

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
    runs = record.runs
    if not runs:
        record = _loaded(folder)  # It may have ended, and reported that, after the record was read.
    process = f"pid {record.pid} on {record.host}"
    if runs:
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


def _loaded(folder: Path) -> LaunchRecord:
    record = LaunchRecord.load(folder)
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
