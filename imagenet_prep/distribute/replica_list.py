"""The list of a data set's replicas, for its report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from imagenet_prep.core.errors import StoreError
from imagenet_prep.dataset import naming
from imagenet_prep.storage.journal import Journal


def add(root: Path, places: Sequence[str], digest: str) -> None:
    """Adds a line for each replica that became whole.

    Args:
      root: folder of the data set.
      places: where its replicas are.
      digest: of its manifest.
    """
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    journal = Journal(root, naming.REPLICAS)
    known: dict[str, str] = {}
    # A data set that may only be read has no such list, and is as good without.
    with contextlib.suppress(OSError, StoreError):
        for entry in journal.news():
            match entry:
                case {"where": str(where), "digest": str(there)}:
                    known[where] = there
        for place in places:
            if known.get(place) != digest:
                journal.add({"where": place, "when": when, "digest": digest})
