"""Processes of ours on other hosts, through ssh, and how they end."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from typing import IO, NamedTuple

from imagenet_prep.core import children
from imagenet_prep.distribute.messages import Messages, plain
from imagenet_prep.distribute.wire import Channel
from imagenet_prep.hosts.hosts_file import LOCAL
from imagenet_prep.hosts.ssh import ssh_argv

# Exit code of ssh itself.
_SSH_FAILED = 255

_STDERR_BYTES = 4096
# The result of a run with --json has some hundred bytes.
_STDOUT_BYTES = 1 << 20
# A process whose output has ended has hardly anything left to do.
_END_S = 1.0
# What it said is in the pipe by then, unless somebody else holds the pipe open.
_LAST_WORDS_S = 10.0

# What ssh says where trying again cannot help.
_FINAL = ("Host key verification failed", "Permission denied", "Could not resolve hostname")
_ADVICE = (
    "ssh to it must work without a question (BatchMode), with its key in known_hosts. A key that "
    "changed without a reason is somebody else's host."
)

# AES in hardware is three times as fast as ssh's first choice. No connection is shared with
# other ssh commands: a master would stay behind. 4 x 5 s without an answer end it.
SSH_OPTIONS = (
    "Ciphers=^aes128-gcm@openssh.com",
    "Compression=no",
    "ControlMaster=no",
    "ControlPath=none",
    "ClearAllForwardings=yes",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=4",
)


def command_on(address: str, argv: Sequence[str]) -> list[str]:
    """Returns what runs `argv` on a host, which may be this one."""
    return list(argv) if address in LOCAL else ssh_argv(address, argv, options=SSH_OPTIONS)


def module_argv(python: str, module: str, *arguments: str) -> list[str]:
    """Returns what runs a module of ours; nothing is imported from the current folder."""
    return children.python("-m", module, *arguments, program=python)


class Ending(NamedTuple):
    """How a process on some host ended.

    Attributes:
      code: its exit code, or ssh's.
      said: the last lines that it left on its standard error.
    """

    code: int
    said: str

    @property
    def is_of_ssh(self) -> bool:
        """Whether ssh itself failed: the host was not reached, or the connection broke."""
        return self.code == _SSH_FAILED

    @property
    def is_final(self) -> bool:
        """Whether ssh will say the same again."""
        return _is_final(self.said)

    @property
    def why(self) -> str:
        """The last line that ssh or the program left, or the exit code."""
        if "REMOTE HOST IDENTIFICATION HAS CHANGED" in self.said:
            return "the host's key has changed: Host key verification failed"
        lines = [line for line in self.said.splitlines() if line.strip()]
        final = [line for line in lines if _is_final(line)]
        last = (final or lines or [f"its process ended with code {self.code}"])[-1]
        return plain(last).rstrip(".")

    @property
    def explained(self) -> str:
        """Why a host cannot be worked with, and what to do where that is known."""
        return f"{self.why}. {_ADVICE}" if self.is_final else f"{self.why}."


def _is_final(text: str) -> bool:
    return any(words in text for words in _FINAL)


class Process:
    """A process of ours on some host, and the channel to it.

    Attributes:
      channel: to its standard input and output.
    """

    def __init__(
        self, address: str, argv: Sequence[str], messages: Messages, *, silence_s: float
    ) -> None:
        """Starts it; it ends when its input does, which is when this process ends.

        Args:
          address: of the host.
          argv: what runs there.
          messages: that it may send.
          silence_s: seconds after which it is given up.

        Raises:
          OSError: this machine cannot start another process.
        """
        self._popen = subprocess.Popen(
            command_on(address, argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl-C is the leader's: it ends the rest in order.
            start_new_session=True,
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self.channel = Channel(
            self._popen.stdout.fileno(),
            self._popen.stdin.fileno(),
            messages,
            silence_s=silence_s,
        )
        self._stderr = _Tail(self._popen.stderr, _STDERR_BYTES)

    def end(self) -> Ending:
        """Ends it where it has not ended.

        Called by the thread that reads from its channel, and by no other.
        """
        try:
            self._popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
        code = self._popen.wait()
        said = self._stderr.text()
        with self.channel.closing():
            for pipe in (self._popen.stdin, self._popen.stdout):
                assert pipe is not None
                pipe.close()
        # A shell that lets nobody in says so on its standard output.
        return Ending(code, said or self.channel.noise)

    def kill(self) -> None:
        """Kills what runs here of it: the ssh, or the process itself."""
        self._popen.kill()


def run_on(
    address: str, argv: Sequence[str], *, timeout_s: float | None = None
) -> tuple[Ending, str]:
    """Runs a command on a host; returns how it ended, and the last 1 MiB of its output.

    Args:
      address: of the host.
      argv: what runs there.
      timeout_s: after which it is killed; None waits.

    Raises:
      OSError: this machine cannot start another process.
    """
    popen = subprocess.Popen(
        command_on(address, argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert popen.stdout is not None
    assert popen.stderr is not None
    out, said = _Tail(popen.stdout, _STDOUT_BYTES), _Tail(popen.stderr, _STDERR_BYTES)
    try:
        code = popen.wait(timeout_s)
    except subprocess.TimeoutExpired:
        popen.kill()
        return Ending(popen.wait(), f"no answer for {timeout_s:g} s"), ""
    except BaseException:
        popen.kill()
        raise
    return Ending(code, said.text()), out.text()


class _Tail:
    """The last bytes of a pipe, which a thread of its own reads to the end, and closes."""

    def __init__(self, pipe: IO[bytes], num_bytes: int) -> None:
        self._kept = bytearray()
        self._num_bytes = num_bytes
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Returns them; call it when the process has ended."""
        self._thread.join(_LAST_WORDS_S)
        return bytes(self._kept).decode(errors="replace").strip()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            while data := os.read(pipe.fileno(), 1 << 16):
                self._kept += data
                del self._kept[: -self._num_bytes]
