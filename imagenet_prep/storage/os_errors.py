"""Translates errors of the operating system into errors of this program."""

from __future__ import annotations

import contextlib
import errno
import io
from collections.abc import Iterator
from pathlib import Path

from imagenet_prep.core.errors import IncompleteError, StoreError, of_memory

# A wrong path, or a wrong size or offset in a file, can cause these errors.
_CAUSED_BY_INPUT = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.EOVERFLOW,
)
CHECK_DISK = (
    "Check the disk or the file server, and the permissions, then run the same command again."
)


@contextlib.contextmanager
def storage_errors(action: str, path: Path) -> Iterator[None]:
    """Translates an OSError into IncompleteError if the disk is full, otherwise into StoreError."""
    try:
        yield
    except OSError as error:
        raise _explained(action, path, error) from error


def _explained(action: str, path: Path, error: OSError) -> IncompleteError | StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return IncompleteError(
            f"cannot {action} {path}: {error.strerror}. Finished shards are kept. "
            "Free some space, then run the same command again to resume."
        )
    advice = ". Raise the limit: ulimit -n" if error.errno == errno.EMFILE else ""
    return StoreError(f"cannot {action} {path}: {error.strerror or error}{advice}")


class ReadableFile(io.FileIO):
    """An unbuffered file for reading; its errors are StoreErrors that name the file."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor)
        self._path = path

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        """Reads bytes into a buffer; returns their number."""
        try:
            return super().readinto(buffer)
        except OSError as error:
            demand_disk(self._path, error)
            raise _explained("read", self._path, error) from error


def demand_disk(where: object, error: Exception) -> None:
    """Raises StoreError if the system could not read a file, or IncompleteError for lack of memory.

    The file may then be undamaged. Libraries also raise an OSError, without a number, for damaged
    data.
    """
    lack = of_memory(error)
    if lack is not None:
        raise IncompleteError(f"{where}: cannot be read: {lack}") from error
    if isinstance(error, OSError) and error.errno not in (None, *_CAUSED_BY_INPUT):
        message = f"{where}: cannot be read: {error.strerror}. {CHECK_DISK}"
        raise StoreError(message, CHECK_DISK) from error


@contextlib.contextmanager
def removed_on_failure(*paths: Path) -> Iterator[None]:
    """Removes unfinished files if the block fails."""
    try:
        yield
    except BaseException:
        for path in paths:
            # Ignore a second error: the first one says more.
            with contextlib.suppress(OSError):
                path.unlink()
        raise
