"""The hosts of a training cluster, and commands that run on them.

`where_ranks_run` reads the hosts from a file in the format of AWS's tutorial, or from a list.

`run` and `run_all` run commands here, and on other hosts through ssh, with bounded output.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from imagenet_prep.core import small_files
from imagenet_prep.core.errors import UsageError

LOCAL = ("localhost", "127.0.0.1", "::1")

# A host name, an address or user@host. Other characters are refused, since ssh gets the text.
_ADDRESS = re.compile(r"(::)?[A-Za-z0-9_][A-Za-z0-9_.:@-]*")
_SLOTS = re.compile(r"slots=([0-9]{1,6})")
# Open MPI's limit of ranks is never reached: a host gets as many ranks as it has slots.
_MAX_SLOTS = re.compile(r"max[_-]slots=[0-9]{1,6}")
_AROUND_EQUALS = re.compile(r"\s*=\s*")
# The form of Horovod and Open MPI. An IPv6 address has more than one colon.
_WITH_SLOTS = re.compile(r"([^:]+):([0-9]{1,6})")
_LIST = re.compile(r"[^:,/]+:[0-9]{1,6}(,[^:,/]+:[0-9]{1,6})*")
# Largest size of a hosts file: enough for ten thousand hosts.
_MOST_BYTES = 1 << 20


class Host(NamedTuple):
    """One line of a hosts file: [USER@]ADDRESS, and the number of ranks, one for each GPU."""

    address: str
    slots: int

    @property
    def is_local(self) -> bool:
        """Whether the address is a name of the local machine."""
        return self.address in LOCAL


def local_first(hosts: Sequence[Host]) -> list[Host]:
    """Returns the hosts in the order of their ranks, this machine first."""
    return sorted(hosts, key=lambda host: not host.is_local)


def where_ranks_run(hosts: str | None, ranks: int) -> list[Host]:
    """Returns the hosts in the file or list `hosts`; if it is None, this machine for all ranks.

    A list has the form of `horovodrun -H`: ADDRESS:SLOTS,ADDRESS:SLOTS. A file with this name takes
    precedence.
    """
    if hosts is None:
        return [Host("localhost", ranks)]
    if _LIST.fullmatch(hosts) and not Path(hosts).exists():
        return _parse(hosts.split(","), "--hosts", "host")
    return read_hosts(Path(hosts))


def read_hosts(path: Path) -> list[Host]:
    """Returns the hosts of a file with lines `ADDRESS [slots=N]` or `ADDRESS:N`; # is a comment.

    `max_slots=N`, which Open MPI allows, is ignored.
    """
    try:
        text = small_files.read(path, _MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: the hosts file cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(small_files.not_utf_8(path, error)) from None
    hosts = _parse(text.split("\n"), str(path), "line")
    if not hosts:
        raise UsageError(f"{path}: no hosts. Write one per line: ADDRESS slots=N")
    return hosts


def _parse(lines: Sequence[str], source: str, unit: str) -> list[Host]:
    """Returns the hosts; an error has the number of the line, but not its text."""
    hosts: dict[str, tuple[int, Host]] = {}
    for number, line in enumerate(lines, start=1):
        words = _AROUND_EQUALS.sub("=", line.partition("#")[0]).split()
        words = [word for word in words if not _MAX_SLOTS.fullmatch(word)]
        if not words:
            continue
        where = f"{source}: {unit} {number}"
        if not _ADDRESS.fullmatch(words[0]):
            raise UsageError(
                f"{where}: the first word is not the address of a host, without brackets and port "
                "(write a port into ~/.ssh/config)"
            )
        host = _host(words)
        if host is None:
            raise UsageError(f"{where}: expected slots=N after the address")
        if host.slots < 1:
            raise UsageError(f"{where}: the host has 0 slots. Remove this {unit}")
        first, _ = hosts.setdefault(host.address, (number, host))
        if first != number:
            raise UsageError(f"{where}: the same host as in {unit} {first}")
    return [host for _, host in hosts.values()]


def _host(words: Sequence[str]) -> Host | None:
    """Returns the host in the words of a line; None if its slots are not understood."""
    address = words[0]
    if len(words) == 1:
        with_slots = _WITH_SLOTS.fullmatch(address)
        return Host(with_slots[1], int(with_slots[2])) if with_slots else Host(address, 1)
    slots = _SLOTS.fullmatch(words[1]) if len(words) == 2 else None
    return Host(address, int(slots[1])) if slots else None


_SSH_FAILED = 255

# Limits of the output in memory, in bytes. The result of a verb with --json has a few hundred.
_OUTPUT_BYTES = 1 << 20
_STDERR_BYTES = 4096
_READ_BYTES = 1 << 16
# The last output of a process arrives within this time, unless a child keeps the pipe open.
_LAST_WORDS_S = 10.0
_POLL_S = 0.02

# A retry cannot help if ssh prints one of these.
_FINAL = (
    "Host key verification failed",
    "Permission denied",
    "Name or service not known",
    "Unable to negotiate",
    "Bad configuration option",
    "Bad owner or permissions",
    "Too many authentication failures",
    "No address associated with hostname",
)
_ADVICE = (
    "ssh to this host must work without prompts (BatchMode), and known_hosts must have its key. If "
    "the key has changed for no known reason, a different host may have its address."
)

# AES in hardware is three times as fast as ssh's first choice. A connection shared with other ssh
# commands would leave a process running. A connection ends after 4 x 5 s without an answer.
SSH_OPTIONS = (
    "Ciphers=^aes128-gcm@openssh.com",
    "Compression=no",
    "ControlMaster=no",
    "ControlPath=none",
    "ClearAllForwardings=yes",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=4",
)
# In the user's ssh_config, each of these would add text to the channel, close its input, or replace
# our command. Versions before 8.7 do not know all of them.
_PLAIN_CHANNEL = (
    "IgnoreUnknown=*",
    "RequestTTY=no",
    "RemoteCommand=none",
    "SessionType=default",
    "StdinNull=no",
    "ForkAfterAuthentication=no",
    "PermitLocalCommand=no",
)
# By default, sshd refuses some connections if more than 10 have not logged in yet (MaxStartups).
_MOST_LOGINS = 8
# After this time, a connection is treated as logged in.
_LOGIN_S = 2.0
# sshd closed the connection before the login, perhaps because of MaxStartups.
_TURNED_AWAY = re.compile(
    r"(kex|ssh)_exchange_identification: |Connection (closed|reset) by \S+ port \d+"
)
RETRY_S = 1.0  # before a command is started once more


def ssh(*options: str) -> list[str]:
    """Returns the part of an ssh command before the address; `options` are from ssh_config(5).

    The command never prompts: the user's key must be set up, and the host's key must be known. A
    changed host key is refused, whereas the scripts of AWS's tutorial accepted any key.
    """
    safe = ("BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=10")
    options = (*safe, *_PLAIN_CHANNEL, *options)
    return ["ssh", *itertools.chain.from_iterable(("-o", option) for option in options)]


def command_on(
    address: str, argv: Sequence[str], options: Sequence[str] = SSH_OPTIONS
) -> list[str]:
    """Returns the command that runs `argv` on a host through ssh, or on this machine."""
    return list(argv) if address in LOCAL else [*ssh(*options), "--", address, shlex.join(argv)]


def plain(text: str) -> str:
    """Returns text from a remote host as one line, with ? for control characters."""
    line = " ".join(text.splitlines())
    return "".join(letter if letter.isprintable() else "?" for letter in line)


class Ending(NamedTuple):
    """How a command on a host ended; `code` is None if it did not start or timed out.

    `said` is the tail of stderr, or the reason if `code` is None. `output` is the tail of stdout.
    """

    code: int | None
    said: str
    output: str = ""
    seconds: float = 0.0

    @property
    def is_of_ssh(self) -> bool:
        """Whether ssh itself failed: the host was not reached, or the connection broke."""
        return self.code == _SSH_FAILED

    @property
    def is_turned_away(self) -> bool:
        """Whether sshd closed the connection before the login; the command did not start."""
        # Without `said`, the output includes the errors of ssh.
        is_silent = not self.said or not self.output
        return self.is_of_ssh and is_silent and bool(_TURNED_AWAY.match(self.said or self.output))

    @property
    def is_final(self) -> bool:
        """Whether ssh would fail again in the same way."""
        return any(words in self.said for words in _FINAL)

    @property
    def is_lost(self) -> bool:
        """Whether a retry may succeed: a time-out, a broken connection, or a killed process."""
        if self.code is None:
            return self.seconds > 0
        # If a process on a remote host is killed, its shell ends with 128 + the signal's number.
        is_killed = self.code < 0 or self.code == 128 + signal.SIGKILL
        return is_killed or (self.is_of_ssh and not self.is_final)

    @property
    def why(self) -> str:
        """The reason: the last line of ssh's or the program's stderr, or the exit code."""
        if "REMOTE HOST IDENTIFICATION HAS CHANGED" in self.said:
            return "the host's key has changed: Host key verification failed"
        # A login shell that refuses access prints the reason on its standard output.
        lines = [line for line in (self.said or self.output).splitlines() if line.strip()]
        final = [line for line in lines if Ending(None, line).is_final]
        last = (final or lines or [f"its process ended with code {self.code}"])[-1]
        return plain(last).rstrip(".")

    @property
    def explained(self) -> str:
        """A sentence that says why the command failed, with advice if ssh would fail again."""
        return f"{self.why}. {_ADVICE}" if self.is_final else f"{self.why}."


class Login:
    """The login of an ssh connection; few take place at the same time."""

    _free = threading.Semaphore(_MOST_LOGINS)

    def __init__(self, argv: Sequence[str]) -> None:
        """Waits until the connection of the command `argv` may start; other commands never wait."""
        self._is_taken = argv[0] == "ssh"
        self._lock = threading.Lock()
        self._timer = threading.Timer(_LOGIN_S, self.end)
        self._timer.daemon = True
        if self._is_taken:
            self._free.acquire()
            self._timer.start()

    def end(self) -> None:
        """Lets the next connection start, because this one has logged in or has ended."""
        with self._lock:
            if self._is_taken:
                self._timer.cancel()
                self._free.release()
            self._is_taken = False


def start(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Starts a process with pipes, in its own session, which Ctrl-C does not reach."""
    return subprocess.Popen(
        argv,
        env=environment,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )


class Tail:
    """Keeps the last bytes of a pipe, which a thread reads to the end and closes.

    `hear` is called with each line as it arrives; a line over 64 KiB arrives in pieces. `begin` is
    called at the first byte or, if there is none, at the end.
    """

    def __init__(
        self,
        pipe: IO[bytes] | None,
        num_bytes: int = _STDERR_BYTES,
        hear: Callable[[bytes], object] | None = None,
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        self._kept = bytearray()
        self._begin = begin
        self._num_bytes = num_bytes
        self._hear = hear
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Returns the last bytes as text; call it after the process has ended."""
        self._thread.join(_LAST_WORDS_S)
        return bytes(self._kept).decode(errors="replace").rstrip()

    def _read(self, pipe: IO[bytes] | None) -> None:
        if pipe is not None:
            with pipe:
                # Only `hear` needs complete lines. Otherwise, keep bytes as soon as they arrive.
                read = pipe.readline if self._hear else partial(os.read, pipe.fileno())
                while data := read(_READ_BYTES):
                    self._begin()
                    self._kept += data
                    del self._kept[: -self._num_bytes]
                    if self._hear is not None:
                        self._hear(data)
                self._begin()


class _Running:
    def __init__(
        self, argv: Sequence[str], *, together: bool, hear: Callable[[bytes], object] | None
    ) -> None:
        self._login = Login(argv)
        self._begun_s = time.monotonic()
        self._seconds = 0.0
        self._failed = ""
        self._popen: subprocess.Popen[bytes] | None = None
        stderr = subprocess.STDOUT if together else subprocess.PIPE
        try:
            self._popen = start(argv, stdin=subprocess.DEVNULL, stderr=stderr)
        except OSError as error:
            self._login.end()
            self._failed = f"{argv[0]} cannot be started: {error.strerror}"
            return
        self._output = Tail(self._popen.stdout, _OUTPUT_BYTES, begin=self._login.end)
        self._stderr = Tail(self._popen.stderr, hear=hear)

    def has_ended(self, timeout_s: float | None) -> bool:
        """Returns whether the command has ended; kills it after `timeout_s`."""
        if self._popen is None or self._popen.poll() is not None:
            return True
        self._seconds = time.monotonic() - self._begun_s
        if timeout_s is None or self._seconds < timeout_s:
            return False
        self.kill()
        self._failed = f"no answer in {timeout_s:g} s"
        return True

    def kill(self) -> None:
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()

    def ending(self) -> Ending:
        if self._popen is None or self._failed:
            return Ending(None, self._failed, seconds=self._seconds)
        stderr = self._stderr.text()
        output = self._output.text()
        return Ending(self._popen.returncode, stderr, output, self._seconds)


def run_all(
    commands: Sequence[Sequence[str]],
    *,
    timeout_s: float | None = None,
    together: bool = False,
    hear: Callable[[int, bytes], object] | None = None,
) -> list[Ending]:
    """Runs commands in parallel, e.g. one per host, with no input; returns how each one ended.

    A command is killed after `timeout_s`, and all are killed on an interrupt. With `together`,
    `Ending.output` includes standard error. Otherwise, `hear` is called with the command's number
    and each line of its standard error. If sshd closes a connection before the login, the command
    is started once more.
    """
    hear = hear or (lambda _number, _line: None)
    endings = _run_once(commands, timeout_s, together, hear)
    again = [number for number, ending in enumerate(endings) if ending.is_turned_away]
    if again:
        time.sleep(RETRY_S)
        chosen = [commands[number] for number in again]
        later = _run_once(chosen, timeout_s, together, lambda k, line: hear(again[k], line))
        for number, ending in zip(again, later, strict=True):
            endings[number] = ending
    return endings


def _run_once(
    commands: Sequence[Sequence[str]],
    timeout_s: float | None,
    together: bool,
    hear: Callable[[int, bytes], object],
) -> list[Ending]:
    running: list[_Running] = []
    try:
        for number, argv in enumerate(commands):
            running.append(_Running(argv, together=together, hear=partial(hear, number)))
        while [command for command in running if not command.has_ended(timeout_s)]:
            time.sleep(_POLL_S)
    finally:
        for command in running:
            command.kill()
    return [command.ending() for command in running]


def run(argv: Sequence[str], *, timeout_s: float | None = None) -> Ending:
    """Runs one command, which is killed after `timeout_s`; returns how it ended."""
    return run_all([argv], timeout_s=timeout_s)[0]
