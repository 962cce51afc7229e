"""Errors a user can act on, and the exit codes they end a command with.

    ImagenetPrepError        1   failed; the message says what to do
    ├── UsageError           2   the command line or the combination of settings is wrong
    ├── DataDamagedError     3   bytes are not what they should be
    │   ├── SourceError          an archive, the devkit or a member
    │   └── ManifestError        dataset.json itself
    ├── IncompleteError      4   work is left; run the same command again to resume
    │   └── JobLostError         a cluster gave up on a job, or lost what it had in hand
    ├── BusyError            75  another run holds the output: wait for its end
    └── StoreError           1   reading or writing storage failed
    BadImageError                one image; the codec's caller decides what becomes of it

130 is an interrupt (Ctrl-C). 141 says that the reader of our output left before the end (head).
Anything else that escapes is a bug: traceback, exit 70.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

EXIT_DONE = 0
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
# A shell reports this code for programs that SIGPIPE has ended.
EXIT_UNREAD = 141

# TensorFlow 2.21, the newest, has no package for this Python; must match pyproject.toml.
_TENSORFLOW_ENDS = (3, 14)
_NO_MEMORY = re.compile("can't start new thread|failed to map segment from shared object")


class ImagenetPrepError(Exception):
    """A failure explained in one message: what, on which object, what to do.

    Attributes:
      exit_code: of a command that fails in this way.
      remedy: what to do, if that is known apart from the message.
    """

    exit_code = 1
    remedy = ""

    def __init__(self, message: object = "", remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy or self.remedy


class UsageError(ImagenetPrepError):
    """The request itself cannot be carried out as given."""

    exit_code = 2


class DataDamagedError(ImagenetPrepError):
    """Bytes differ from what they were proven to be, or cannot be what they claim."""

    exit_code = 3


class SourceError(DataDamagedError):
    """An archive, a devkit or one of their members is not usable as ImageNet source."""


class ManifestError(DataDamagedError):
    """dataset.json is missing, damaged, or newer than this program."""


class IncompleteError(ImagenetPrepError):
    """Finished work is kept; running the same command again does the rest."""

    exit_code = 4
    remedy = "Run the same command again: finished work is kept."


class JobLostError(IncompleteError):
    """A cluster has lost a job, or a part of its work; finished tasks are kept."""


class BusyError(ImagenetPrepError):
    """Another run is writing to the same output; once it has ended, this one may begin."""

    # sysexits.h has this number, as it has 70: a failure that passes.
    exit_code = 75
    remedy = "Run the same command again after the other run has ended."


class StoreError(ImagenetPrepError):
    """Reading from or writing to storage failed."""


class BadImageError(Exception):
    """One image cannot be used as it is.

    Attributes:
      reason: short, stable word for counting, e.g. "truncated".
      detail: what the decoder said.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def of_memory(error: BaseException) -> IncompleteError | None:
    """Returns the error that says so if the system had too little memory or threads; else None."""
    if isinstance(error, BaseExceptionGroup):
        return next((lack for each in error.exceptions if (lack := of_memory(each))), None)
    # Python and the loader of libraries have no classes for these errors.
    told = isinstance(error, RuntimeError | ImportError) and _NO_MEMORY.search(str(error))
    if not told and not isinstance(error, MemoryError):
        return None
    what = str(error) or "no more is free"
    return IncompleteError(
        f"out of memory: {what}. Finished work is kept: run the same command again to resume, with "
        "fewer --workers, or with less else on this machine."
    )


def by_name(name: str) -> type[ImagenetPrepError]:
    """Returns the error class called `name`, so that a remote failure keeps its exit code."""
    known: list[type[ImagenetPrepError]] = [ImagenetPrepError]
    for cls in known:
        if cls.__name__ == name:
            return cls
        known.extend(cls.__subclasses__())
    return ImagenetPrepError


def by_exit_code(
    code: int | None, other: type[ImagenetPrepError] = ImagenetPrepError
) -> type[ImagenetPrepError]:
    """Returns the error that has the exit code of a process; `other` where none has it."""
    kinds = (UsageError, DataDamagedError, IncompleteError, BusyError)
    return next((kind for kind in kinds if kind.exit_code == code), other)


def some(items: Sequence[object]) -> str:
    """Returns the first few items, separated by commas, and how many more there are."""
    shown = ", ".join(map(str, items[:5]))
    return shown if len(items) <= 5 else f"{shown} and {len(items) - 5} more"


def install_line(extra: str) -> str:
    """Returns the line that installs an extra, or why this Python cannot have its TensorFlow."""
    if extra in ("tf", "gpu") and sys.version_info >= _TENSORFLOW_ENDS:
        here, last = sys.version_info[:2], (_TENSORFLOW_ENDS[0], _TENSORFLOW_ENDS[1] - 1)
        return "there is no TensorFlow for Python {}.{}. Use Python {}.{} or older".format(
            *here, *last
        )
    return f"pip install 'imagenet-prep[{extra}]'"
