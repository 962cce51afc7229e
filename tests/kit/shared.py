"""Things that all workers of a test run share: the first one makes them, and the others wait."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Returns a folder that `make` has filled, in this process or a different one; read-only.

    Args:
      folder: to be filled, below the `shared_cache` of a run. It is never moved.
      make: fills it. The files of a killed or failed call are removed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    whole = folder.with_name(f"{folder.name}.whole")
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder


def in_memory() -> str | None:
    """Returns a folder in memory if there is one, because commands sync hundreds of files."""
    folder = Path("/dev/shm")
    if not folder.is_dir() or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return None
    return str(folder) if shutil.disk_usage(folder).free > 2 << 30 else None
