"""Checkpoints: one file each, written atomically, and proven when they are read."""

from __future__ import annotations

import io
import json
import re
import time
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from imagenet_prep.core import cli
from imagenet_prep.core.errors import DataDamagedError, IncompleteError, StoreError
from imagenet_prep.storage.folder import LocalStore

Arrays = Mapping[str, npt.NDArray[np.generic]]

_NAME = re.compile(r"checkpoint-(\d{8})\.npz")
# Appended to the name of a damaged checkpoint. It is not used any more, and kept for inspection.
_DAMAGED = ".damaged"
_FACTS = "facts"


@dataclass(frozen=True)
class Checkpoint:
    """One state of a run.

    Attributes:
      step: number of steps made.
      facts: the numbers of the run and the state of the reader, as JSON.
      arrays: all variables by name, in the order in which they were saved.
      saved_at: seconds since 1970, UTC.
    """

    step: int
    facts: dict[str, Any]
    arrays: Arrays
    saved_at: float


def name(step: int) -> str:
    """Returns the file name of the checkpoint after a step."""
    return f"checkpoint-{step:08d}.npz"


def step_of(text: str) -> int | None:
    """Returns the step of a checkpoint from its file name; None for other names."""
    match = _NAME.fullmatch(text)
    return int(match[1]) if match else None


def save(folder: Path, step: int, facts: dict[str, Any], arrays: Arrays, *, keep: int) -> None:
    """Publishes a checkpoint and removes all but the last `keep` sound ones.

    Older ones are proven before any is removed; damaged ones are reported and renamed.

    Raises:
      IncompleteError: the disk is full; earlier checkpoints are kept.
      StoreError: anything else the system refuses.
    """
    head = json.dumps({"step": step, "saved_at": time.time(), "facts": facts}).encode()
    stream = io.BytesIO()
    # A zip without compression: every member has a CRC that reading checks.
    np.savez(stream, **{_FACTS: np.frombuffer(head, np.uint8)}, **arrays)  # type: ignore[arg-type]
    try:
        LocalStore(folder).write(name(step), stream.getvalue())
    except IncompleteError as error:
        raise IncompleteError(
            f"{folder / name(step)}: the disk is full ({error.__cause__}). Earlier checkpoints are "
            "kept. Free some space, then run the same command again to go on from the last."
        ) from error
    sound = 0
    for there in reversed(steps(folder)):
        path = folder / name(there)
        if sound == keep:
            path.unlink(missing_ok=True)
        elif there == step or _is_sound(path):
            sound += 1


def steps(folder: Path) -> list[int]:
    """Returns the steps that have checkpoints, in order."""
    found = (step_of(file) for file in LocalStore(folder).names(""))
    return sorted(step for step in found if step is not None)


def clear(folder: Path) -> None:
    """Removes all checkpoints, damaged ones too.

    Raises:
      StoreError: the system refuses.
    """
    store = LocalStore(folder)
    for file in store.names(""):
        if step_of(file.removesuffix(_DAMAGED)) is not None:
            store.remove(file)


def load_latest(folder: Path) -> Checkpoint | None:
    """Returns the last sound checkpoint, or None where there is none.

    Damaged ones after it are reported and renamed. If none is sound, all stay as they are.

    Raises:
      DataDamagedError: there are checkpoints, and none is sound.
    """
    there = steps(folder)
    damaged: list[Path] = []
    for step in reversed(there):
        path = folder / name(step)
        try:
            found = load(path)
        except DataDamagedError as error:
            cli.say(f"{error} Trying the one before.")
            damaged.append(path)
            continue
        for path in damaged:
            _set_aside(path)
        return found
    if there:
        raise DataDamagedError(
            f"{folder}: none of its {len(there)} checkpoints can be read, see above. "
            "Remove them to begin again."
        )
    return None


def load(path: Path) -> Checkpoint:
    """Returns a checkpoint.

    Raises:
      DataDamagedError: a byte is not what was written.
      StoreError: the system cannot read it.
    """
    try:
        # NumPy leaves a file open that it cannot read; this closes it.
        with open(path, "rb") as stream, np.load(stream) as file:
            arrays = {key: file[key] for key in file.files}
        head = json.loads(arrays.pop(_FACTS).tobytes())
        return Checkpoint(head["step"], head["facts"], arrays, head["saved_at"])
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataDamagedError(f"{path}: damaged checkpoint ({error}).") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error


def _is_sound(path: Path) -> bool:
    try:
        load(path)
    except (DataDamagedError, StoreError) as error:
        cli.say(error)
        if isinstance(error, DataDamagedError):  # else it may be sound: kept, but not counted
            _set_aside(path)
        return False
    return True


def _set_aside(path: Path) -> None:
    aside = path.name + _DAMAGED
    LocalStore(path.parent).rename(path.name, aside)
    cli.say(f"{path}: set aside as {aside}.")
