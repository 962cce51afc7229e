"""What a run notes in `.work` for the next one, read as if somebody else had written it."""

from __future__ import annotations

from typing import Any

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.storage.store import Store

# Room for the names of 300,000 shards. As JSON of many small lists, it becomes twenty times as much
# in memory.
_MOST_BYTES = 32 << 20


def read(store: Store, name: str, **kinds: type) -> dict[str, Any]:
    """Returns the JSON object that a work file holds.

    Args:
      store: the data set.
      name: of the file, which is there.
      **kinds: the keys that it must have, and of which type each value is.

    Raises:
      DataDamagedError: it is no such object.
      ImagenetPrepError: it cannot be read, or is a link.
    """
    try:
        content = canonical.loads(store.read(name, most=_MOST_BYTES))
    except ValueError as error:
        raise damaged(store, name, f"not JSON: {error}") from None
    if not isinstance(content, dict):
        raise damaged(store, name, "expected a JSON object")
    for key, kind in kinds.items():
        if type(content.get(key)) is not kind:
            raise damaged(store, name, f"{key!r} is missing or no {kind.__name__}")
    return content


def damaged(store: Store, name: str, why: str) -> DataDamagedError:
    """Returns what is said of a work file that this program did not write so."""
    return DataDamagedError(
        f"{store.where(name)}: {why}. This program did not write it so; nothing was changed. "
        "Where that folder came from elsewhere, remove its .work; else choose another folder."
    )
