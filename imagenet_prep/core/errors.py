"""Errors that a user can act on, and their exit codes.

    ImagenetPrepError        1   failed; the message says how to fix it
    ├── UsageError           2   the command line or the combination of settings is wrong
    ├── DataDamagedError     3   bytes differ from the expected ones
    │   ├── SourceError          an archive, the devkit or one of their members is damaged
    │   └── ManifestError        dataset.json is damaged
    ├── IncompleteError      4   the work is not finished; run the same command again to resume
    │   └── JobLostError         a cluster gave up on a job, or lost part of its work
    ├── BusyError            75  another run is writing to the output: wait for its end
    └── StoreError           1   reading or writing storage failed
    BadImageError                one image is bad; the caller of the codec decides how to handle it

Exit code 130 means an interrupt (Ctrl-C). Exit code 141 means that the reader of the output, such
as `head`, has closed the pipe. Any other exception is a bug: its traceback is printed, and the exit
code is 70.
"""

from __future__ import annotations

import contextlib
import errno
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

EXIT_DONE = 0
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
# A shell reports this exit code for a program that SIGPIPE has ended.
EXIT_UNREAD = 141

# TensorFlow 2.21, the latest version, has no package for Python 3.14. Must match pyproject.toml.
_TENSORFLOW_ENDS = (3, 14)
# Parquet's reader reports a lack of memory in a footer as an OSError, zlib as its own error -4.
_NO_MEMORY = re.compile(
    "can't start new thread|failed to map segment from shared object|std::bad_alloc|^Error -4 "
)


class ImagenetPrepError(Exception):
    """The base class of all errors that a user can fix.

    Attributes:
      exit_code: exit code of a command that fails with this error.
      remedy: the instruction for fixing the error; "" if `message` includes it.
    """

    exit_code = 1
    remedy = ""

    def __init__(self, message: object = "", remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy or self.remedy


class UsageError(ImagenetPrepError):
    """An argument, or a combination of settings, is invalid."""

    exit_code = 2


class DataDamagedError(ImagenetPrepError):
    """Data differs from its checksum, or is not in the expected format."""

    exit_code = 3


class SourceError(DataDamagedError):
    """An archive, a devkit or one of their members cannot be used as an ImageNet source."""


class ManifestError(DataDamagedError):
    """dataset.json is missing, damaged, or written by a newer version."""


class IncompleteError(ImagenetPrepError):
    """The work is not finished; running the same command again resumes it."""

    exit_code = 4
    remedy = "Run the same command again."


class JobLostError(IncompleteError):
    """A cluster lost a job or part of its work; finished tasks are kept."""


class BusyError(ImagenetPrepError):
    """Another run is writing to the same output; run again after it has ended."""

    # This is EX_TEMPFAIL, a temporary failure, in sysexits.h; 70 is EX_SOFTWARE there.
    exit_code = 75
    remedy = "Run the same command again after the other run has ended."


class StoreError(ImagenetPrepError):
    """Reading from or writing to storage failed."""


class BadImageError(Exception):
    """One image cannot be used unchanged; the caller of the codec decides how to handle it.

    Attributes:
      reason: short, stable word for counting, e.g. "truncated".
      detail: message of the decoder.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


_KEPT = "Finished work is kept. "
# Whether the running verb continues the work of an earlier run. Worker processes leave it True.
_resumes = True


@contextlib.contextmanager
def of_verb(*, resumes: bool) -> Iterator[None]:
    """Lets the errors of a block say whether a next run continues the finished work of this one."""
    global _resumes
    before = _resumes
    _resumes = resumes
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(interrupted()) from None
    except Exception as error:
        lack = of_memory(error)
        if lack is not None:
            raise lack from error
        raise
    finally:
        _resumes = before


def kept_work() -> str:
    """Returns a sentence about finished work, for errors; "" if the verb starts from scratch."""
    return _KEPT if _resumes else ""


def interrupted() -> str:
    """Returns the message after an interrupt."""
    return f"interrupted. {kept_work()}Run the same command again."


def of_memory(error: BaseException) -> IncompleteError | None:
    """Returns an IncompleteError if the system ran out of memory or threads; else None."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(of_memory, error.exceptions)), None)
    # Python has no error class for a thread that cannot start or a library that cannot load.
    kinds = RuntimeError | ImportError | OSError | zlib.error
    is_lack = isinstance(error, kinds) and _NO_MEMORY.search(str(error))
    is_refused = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if not is_lack and not is_refused and not isinstance(error, MemoryError):
        return None
    detail = f": {error}" if str(error) else ""
    return IncompleteError(
        f"out of memory{detail}. {kept_work()}Stop other programs or use fewer --workers, and run "
        "the same command again."
    )


def by_name(name: str) -> type[ImagenetPrepError]:
    """Returns the error class with this name, or ImagenetPrepError if there is none."""
    known: list[type[ImagenetPrepError]] = [ImagenetPrepError]
    for cls in known:
        if cls.__name__ == name:
            return cls
        known.extend(cls.__subclasses__())
    return ImagenetPrepError


def by_exit_code(
    code: int | None, default: type[ImagenetPrepError] = ImagenetPrepError
) -> type[ImagenetPrepError]:
    """Returns the error class with an exit code, or `default` if there is none."""
    kinds = (UsageError, DataDamagedError, IncompleteError, BusyError)
    return next((kind for kind in kinds if kind.exit_code == code), default)


def some(items: Sequence[object], total: int | None = None) -> str:
    """Returns the first 5 items, separated by commas, and the number of items not shown.

    `total` is the number of all items, if `items` has only the first of them.
    """
    shown = ", ".join(map(str, items[:5]))
    num = len(items) if total is None else total
    return shown if num <= 5 else f"{shown} and {num - 5} more"


def _by_part(value: Any, name: str = "") -> dict[str, Any]:
    """Returns the values inside dicts and lists of dicts by their path, such as `base.quality`."""
    items: dict[Any, Any] = {}
    if isinstance(value, Mapping):
        items = {**value}
    elif isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        items = dict(enumerate(value))
    if not items:
        return {name: value}
    parts: dict[str, Any] = {}
    for key, item in items.items():
        parts |= _by_part(item, f"{name}.{key}" if name else str(key))
    return parts


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Returns a phrase for each setting whose value there differs from that of this command.

    For settings with parts, such as the list of amendments, only the parts that differ are named.
    """
    theirs = _by_part(theirs)
    ours = _by_part(ours)

    def shown(value: object) -> str:
        return "not set" if value is None else repr(value)

    return [
        f"{name} is {shown(theirs.get(name))} there, {shown(ours.get(name))} here"
        for name in {**ours, **theirs}
        if theirs.get(name) != ours.get(name)
    ]


def install_line(extra: str) -> str:
    """Returns the command that installs an extra, or the advice to use an older Python."""
    if extra in ("tf", "gpu") and sys.version_info >= _TENSORFLOW_ENDS:
        return "use Python 3.{} or older, since Python {}.{} has no TensorFlow".format(
            _TENSORFLOW_ENDS[1] - 1, *sys.version_info[:2]
        )
    return f"pip install 'imagenet-prep[{extra}]'"
