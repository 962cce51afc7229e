"""The program with a fault inside, as a warm process starts it; its settings are in SETTINGS."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.campaign import calls

SETTINGS = "CAMPAIGN"

# Changes of a file system, as Python's audit events call them.
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}
_MANIFEST = "dataset.json"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def main() -> None:
    """Reads the settings of the environment, then runs the verb in sys.argv; never returns."""
    settings = json.loads(os.environ[SETTINGS])
    if settings.get("small"):
        _shorten(settings.get("official", {}))
    if settings.get("blind"):
        from imagenet_prep.storage.folder import LocalStore

        LocalStore.free_bytes = lambda _: 1 << 50  # type: ignore[method-assign]
    if settings.get("careless"):
        # A program that syncs nothing, which the campaign must find.
        os.fsync = os.fdatasync = lambda _: None  # type: ignore[assignment]
    _count_changes(settings)
    if "calls" in settings:
        calls.arm(settings["calls"])
    from imagenet_prep.__main__ import main as program

    program()


def _count_changes(settings: dict[str, Any]) -> None:
    """Does something at the n-th change of a file, and notes how many there were.

    A signal is sent to this process before the change; or it and some that follow fail, as on a
    disk that is full or broken, so that files that are published and made fail together.
    """
    at = settings.get("at", 0)
    signum = settings.get("signum", signal.SIGKILL)
    error = settings.get("errno", 0)
    times = settings.get("times", 0)
    count = 0
    failed = 0
    manifest = 0
    lock = threading.Lock()
    noting = False

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count, failed, manifest
        if noting or not (event in _CHANGES or (event == "open" and _writes(arguments))):
            return
        with lock:
            count += 1
            due = count == at
            fails = (
                error and at <= count < at + times and _is_below(settings["below"], arguments[0])
            )
            failed += bool(fails)
            if any(str(each).endswith(_MANIFEST) for each in arguments[:2]):
                manifest = count
        if fails:
            raise OSError(error, os.strerror(error), arguments[0])
        if due and not error:
            os.kill(os.getpid(), signum)

    sys.addaudithook(look)
    end = os._exit

    def ending(code: int) -> None:
        nonlocal noting
        noting = True
        if "calls" in settings:
            calls.disarm(settings["calls"])
        Path(settings["note"]).write_text(f"{count} {failed} {manifest}")
        end(code)

    os._exit = ending  # type: ignore[assignment]


def _writes(arguments: tuple[Any, ...]) -> bool:
    path, _, flags = arguments
    return isinstance(path, str | bytes) and isinstance(flags, int) and bool(flags & _WRITES)


def _is_below(folder: str, path: object) -> bool:
    """Whether a path is of a folder; one that is not absolute is below a folder that was opened."""
    return isinstance(path, str) and (not path.startswith("/") or path.startswith(folder))


def _shorten(official: dict[str, str]) -> None:
    """Makes ranges of 64 kB, large writes of a page, and pauses of milliseconds.

    So a small run does all that a large one does, also in the background.

    Args:
      official: hex of the md5 of each small file that is to be an official archive, by its name.
    """
    from imagenet_prep import download
    from imagenet_prep.sources import archive_download
    from imagenet_prep.storage import fetch, local_file, remote

    archive_download._MIB = 1 << 16
    local_file._LARGE_WRITE_BYTES = mmap.PAGESIZE
    fetch._SYNC_BYTES = 1 << 14
    remote._FIRST_DELAY_S = 0.005
    for what, (archive, *more) in list(download.ARCHIVES.items()):
        if archive.name in official:
            known = archive._replace(md5=official[archive.name], size=None)
            download.ARCHIVES[what] = (known, *more)


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def leave_a_process() -> None:
    """Ends, and leaves one that has a session and an environment of its own."""
    code = "import time; print('started', flush=True); time.sleep(600)"
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={}, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()  # a process that has just started may still have no command line
