"""Hosts that are asked each for itself, by ssh: what a replica lacks, or to fetch their own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from imagenet_prep.core import children
from imagenet_prep.core.errors import (
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    StoreError,
    UsageError,
    by_name,
)
from imagenet_prep.core.placement import Placement
from imagenet_prep.distribute.send import Process, command_on
from imagenet_prep.distribute.wire import PROTOCOL, BrokenError

# Of ssh itself.
SSH_FAILED = 255

_TICK_S = 0.5
# Hosts asked at a time; one ssh each.
_MAX_ASKED = 32
# What ssh says where trying again cannot help.
_FINAL = ("Host key verification failed", "Permission denied", "Could not resolve hostname")
_ADVICE = (
    "ssh to it must work without a question (BatchMode), with its key in known_hosts. A key that "
    "changed without a reason is somebody else's host."
)
_BY_EXIT_CODE: dict[int, type[ImagenetPrepError]] = {
    **{error.exit_code: error for error in (UsageError, DataDamagedError, IncompleteError)},
    SSH_FAILED: IncompleteError,
}


@dataclass(frozen=True)
class Request:
    """What is wanted on every host.

    Attributes:
      data: the manifest's bytes.
      root: folder of the data set on this host.
      path: folder of the replica, the same on every host.
      python: the interpreter on every host that has this package.
      prove: read all that is there, first.
      limit: bytes a second of one stream; 0 is no limit.
      retries: losses of one host that are put up with.
      wait_s: how long lost hosts are waited for when all others are whole.
      placements: what each host is to hold, by address.
    """

    data: bytes
    root: str
    path: str
    python: str
    prove: bool
    limit: float
    retries: int
    wait_s: float
    placements: Mapping[str, Placement]

    def placement(self, address: str) -> tuple[int, int, int]:
        """Returns what a host is to hold, as a frame says it."""
        return dataclasses.astuple(self.placements[address])


def ask(
    addresses: Sequence[str], request: Request, task: str
) -> list[dict[str, Any] | ImagenetPrepError]:
    """Returns what every host says of its replica, without moving anything.

    Args:
      addresses: of the hosts.
      request: what it is held against.
      task: "check" reads every byte, "plan" what was not proven before.

    Returns:
      For each host problems and lacking_bytes, or the error.
    """

    def ask_one(address: str) -> dict[str, Any] | ImagenetPrepError:
        module = "imagenet_prep.distribute.receive"
        argv = children.python("-m", module, request.path, program=request.python)
        process = Process(address, argv)
        answer: dict[str, Any] | None = None
        error: ImagenetPrepError | None = None
        stop = threading.Event()

        def keep_alive() -> None:
            while not stop.wait(_TICK_S):
                with contextlib.suppress(OSError):
                    process.channel.keep_alive()

        threading.Thread(target=keep_alive, daemon=True).start()
        try:
            process.channel.write(
                "begin",
                request.data,
                protocol=PROTOCOL,
                task=task,
                prove=task == "check",
                placement=request.placement(address),
            )
            while (frame := process.channel.read()) is not None:
                if frame.kind == "error":
                    error = by_name(frame.fields["error"])(frame.fields["message"])
                elif frame.kind == "problems":
                    answer = frame.fields
        except (BrokenError, OSError):
            pass  # what ssh said tells more
        finally:
            stop.set()
        code, said = process.end()
        if error is not None or answer is not None:
            return error or answer or {}
        return StoreError(explained(code, said))

    with ThreadPoolExecutor(_MAX_ASKED) as pool:
        return list(pool.map(ask_one, addresses))


def pull(
    addresses: Sequence[str], request: Request, argv_of: Callable[[Placement], Sequence[str]]
) -> list[dict[str, Any] | ImagenetPrepError]:
    """Returns what became of this program's own run on every host, all at once.

    Args:
      addresses: of the hosts.
      request: its interpreter, and what each is to hold.
      argv_of: verb and flags for a host that is to hold this; --json is added.
    """

    def pull_one(address: str) -> dict[str, Any] | ImagenetPrepError:
        argv = argv_of(request.placements[address])
        command = children.python("-m", "imagenet_prep", *argv, "--json", program=request.python)
        result = subprocess.run(
            command_on(address, command),
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        if result.returncode == 0:
            answer: dict[str, Any] = json.loads(result.stdout)["replicas"][0]
            return {name: answer[name] for name in ("moved_bytes", "problems")}
        said = reason(result.returncode, result.stderr.decode(errors="replace"))
        return _BY_EXIT_CODE.get(result.returncode, StoreError)(said)

    with ThreadPoolExecutor(len(addresses)) as pool:
        return list(pool.map(pull_one, addresses))


def explained(code: int, said: str) -> str:
    """Returns why a host cannot be worked with, and what to do where that is known."""
    why = reason(code, said)
    return f"{why}. {_ADVICE}" if is_final(said) else f"{why}."


def is_final(said: str) -> bool:
    """Returns whether ssh will say the same again."""
    return any(words in said for words in _FINAL)


def reason(code: int, said: str) -> str:
    """Returns the last line that ssh or the program left, or the exit code."""
    lines = [line for line in said.splitlines() if line.strip()]
    final = [line for line in lines if is_final(line)]
    changed = any("REMOTE HOST IDENTIFICATION HAS CHANGED" in line for line in lines)
    if changed:
        return "the host's key has changed: Host key verification failed"
    return (final or lines or [f"its process ended with code {code}"])[-1].rstrip(".\r")
