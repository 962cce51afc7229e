"""The program with a fault inside, as a warm process starts it; what it is told is in TOLD."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

TOLD = "CAMPAIGN"

# What changes a file system, as Python's audit events call it.
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def main() -> None:
    """Sets up what the environment tells, then runs the verb in sys.argv; never returns."""
    told = json.loads(os.environ[TOLD])
    if told.get("small"):
        _shorten(told.get("official", {}))
    if told.get("blind"):
        from imagenet_prep.storage.folder import LocalStore

        LocalStore.free_bytes = lambda _: 1 << 50  # type: ignore[method-assign]
    _count_changes(told)
    from imagenet_prep.__main__ import main as program

    program()


def _count_changes(told: dict[str, Any]) -> None:
    """Sends this process a signal before its n-th change of a file; notes how many it made."""
    at, signum = told.get("at", 0), told.get("signum", signal.SIGKILL)
    count = 0
    lock = threading.Lock()

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in _CHANGES or (event == "open" and _writes(arguments)):
            with lock:
                count += 1
                due = count == at
            if due:
                os.kill(os.getpid(), signum)

    sys.addaudithook(look)
    end = os._exit

    def ending(code: int) -> None:
        Path(told["note"]).write_text(str(count))
        end(code)

    os._exit = ending  # type: ignore[assignment]


def _writes(arguments: tuple[Any, ...]) -> bool:
    path, _, flags = arguments
    return isinstance(path, str | bytes) and isinstance(flags, int) and bool(flags & _WRITES)


def _shorten(official: dict[str, str]) -> None:
    """Makes ranges of 64 kB and pauses of milliseconds; makes small files the official archives.

    Args:
      official: hex of each archive's md5 by its name.
    """
    from imagenet_prep import download
    from imagenet_prep.preparation import archives
    from imagenet_prep.storage import retry

    archives._MIB = 1 << 16
    retry._FIRST_DELAY_S = 0.005
    for what, archive in list(download.ARCHIVES.items()):
        if archive.name in official:
            known = archive._replace(md5=official[archive.name], size=None)
            download.ARCHIVES[what] = known


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def leave_a_process() -> None:
    """Ends, and leaves one that has a session and an environment of its own."""
    subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
