"""Errors that a user can act on, and their exit codes.

    ImagenetPrepError        1   failed; the message says how to fix it
    ├── UsageError           2   the command line or the combination of settings is wrong
    ├── DataDamagedError     3   bytes differ from the expected ones
    │   ├── SourceError          an archive, the devkit or a member
    │   └── ManifestError        dataset.json itself
    ├── IncompleteError      4   work is left; run the same command again to resume
    │   └── JobLostError         a cluster gave up on a job, or lost part of its work
    ├── BusyError            75  another run is writing to the output: wait for its end
    └── StoreError           1   reading or writing storage failed
    BadImageError                one image; the caller of the codec decides how to handle it

130 is an interrupt (Ctrl-C). 141 means that the reader of our output (such as head) closed early.
Any other exception is a bug: traceback, exit 70.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

EXIT_DONE = 0
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
# The code that a shell reports for programs ended by SIGPIPE.
EXIT_UNREAD = 141

# TensorFlow 2.21, the latest, has no package for this Python version. Must match pyproject.toml.
_TENSORFLOW_ENDS = (3, 14)
_NO_MEMORY = re.compile("can't start new thread|failed to map segment from shared object")


class ImagenetPrepError(Exception):
    """A failure with one message: the problem, the object and the remedy.

    Attributes:
      exit_code: exit code of a command that fails with this error.
      remedy: the remedy, if it is known apart from the message.
    """

    exit_code = 1
    remedy = ""

    def __init__(self, message: object = "", remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy or self.remedy


class UsageError(ImagenetPrepError):
    """The request cannot be carried out as given."""

    exit_code = 2


class DataDamagedError(ImagenetPrepError):
    """Bytes differ from the verified ones, or are not in the expected format."""

    exit_code = 3


class SourceError(DataDamagedError):
    """An archive, a devkit or one of their members cannot be used as an ImageNet source."""


class ManifestError(DataDamagedError):
    """dataset.json is missing, damaged, or written by a newer version."""


class IncompleteError(ImagenetPrepError):
    """Work is left: run the same command again, which keeps finished work."""

    exit_code = 4
    remedy = "Run the same command again: finished work is kept."


class JobLostError(IncompleteError):
    """A cluster lost a job or part of its work; finished tasks are kept."""


class BusyError(ImagenetPrepError):
    """Another run is writing to the same output; run again after it has ended."""

    # EX_TEMPFAIL of sysexits.h, which also defines 70: a temporary failure.
    exit_code = 75
    remedy = "Run the same command again after the other run has ended."


class StoreError(ImagenetPrepError):
    """Reading from or writing to storage failed."""


class BadImageError(Exception):
    """One image cannot be used as it is; the caller of the codec decides how to handle it.

    Attributes:
      reason: short, stable word for counting, e.g. "truncated".
      detail: message of the decoder.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def of_memory(error: BaseException) -> IncompleteError | None:
    """Returns an IncompleteError if the system ran out of memory or threads; else None."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(of_memory, error.exceptions)), None)
    # Python and the dynamic loader have no specific classes for these errors.
    is_lack = isinstance(error, RuntimeError | ImportError) and _NO_MEMORY.search(str(error))
    if not is_lack and not isinstance(error, MemoryError):
        return None
    detail = f": {error}" if str(error) else ""
    return IncompleteError(
        f"out of memory{detail}. Finished work is kept. Stop other programs or use fewer "
        "--workers, and run the same command again."
    )


def by_name(name: str) -> type[ImagenetPrepError]:
    """Returns the error class of this name, so that a remote failure keeps its exit code."""
    known: list[type[ImagenetPrepError]] = [ImagenetPrepError]
    for cls in known:
        if cls.__name__ == name:
            return cls
        known.extend(cls.__subclasses__())
    return ImagenetPrepError


def by_exit_code(
    code: int | None, default: type[ImagenetPrepError] = ImagenetPrepError
) -> type[ImagenetPrepError]:
    """Returns the error class for the exit code of a process, or `default` if there is none."""
    kinds = (UsageError, DataDamagedError, IncompleteError, BusyError)
    return next((kind for kind in kinds if kind.exit_code == code), default)


def some(items: Sequence[object]) -> str:
    """Returns the first 5 items, separated by commas, and the number of further ones."""
    shown = ", ".join(map(str, items[:5]))
    return shown if len(items) <= 5 else f"{shown} and {len(items) - 5} more"


def install_line(extra: str) -> str:
    """Returns the command that installs an extra, or why TensorFlow needs an older Python."""
    if extra in ("tf", "gpu") and sys.version_info >= _TENSORFLOW_ENDS:
        return "use Python 3.{} or older, since Python {}.{} has no TensorFlow".format(
            _TENSORFLOW_ENDS[1] - 1, *sys.version_info[:2]
        )
    return f"pip install 'imagenet-prep[{extra}]'"
