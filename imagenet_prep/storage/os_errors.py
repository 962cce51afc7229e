"""Translates errors of the operating system into errors of this program."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from imagenet_prep.core.errors import IncompleteError, StoreError, of_memory


@contextlib.contextmanager
def storage_errors(action: str, path: Path) -> Iterator[None]:
    """Translates an OSError into IncompleteError if the disk is full, otherwise into StoreError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise IncompleteError(
                f"cannot {action} {path}: {error.strerror}. Finished shards are kept. "
                "Free some space, then run the same command again to resume."
            ) from error
        advice = ". Raise the limit: ulimit -n" if error.errno == errno.EMFILE else ""
        raise StoreError(f"cannot {action} {path}: {error.strerror or error}{advice}") from error


def demand_disk(where: object, error: Exception) -> None:
    """Raises StoreError or IncompleteError if the disk or a lack of memory caused the error.

    The file may then be undamaged.
    """
    lack = of_memory(error)
    if lack is not None:
        raise IncompleteError(f"{where}: cannot be read: {lack}") from error
    if isinstance(error, OSError) and error.errno in (errno.EIO, errno.ESTALE):
        raise StoreError(
            f"{where}: cannot be read: {error.strerror}. Check the disk or the file server, then "
            "run the same command again."
        ) from error


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
