"""Reads the work files of earlier runs in `.work` as untrusted input."""

from __future__ import annotations

from typing import TypeVar

from imagenet_prep.core import records
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.storage.store import Store

# Enough for the names of 300,000 shards. JSON of many small lists takes 20 times as much memory.
_MOST_BYTES = 32 << 20
T = TypeVar("T")


def read(store: Store, name: str, kind: type[T]) -> T:
    """Returns the record of type `kind` from an existing work file."""
    try:
        return records.loads(kind, store.read(name, most=_MOST_BYTES))
    except ValueError as error:
        raise damaged(store, name, str(error)) from None


def damaged(store: Store, name: str, why: str) -> DataDamagedError:
    """Returns the error for a work file that this program did not write."""
    return DataDamagedError(
        f"{store.where(name)}: {why}. This program did not write this file; nothing was changed. "
        "If the folder was copied from elsewhere, remove its .work; or choose a different folder."
    )
