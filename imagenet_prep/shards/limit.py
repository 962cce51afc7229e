"""The limit of images that a run may leave out."""

from __future__ import annotations

from typing import Any

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.dataset.member import QUARANTINED


class BadImageLimit:
    """Counts bad images over all receipts and stops the run beyond the limit."""

    def __init__(self, limit: int | None) -> None:
        """Allows `limit` images to be left out; None allows any number."""
        self._limit = limit
        self._bad: list[dict[str, Any]] = []

    def __call__(self, receipt: dict[str, Any]) -> None:
        """Counts the bad images of a receipt.

        Raises:
          DataDamagedError: these are too many.
        """
        self._bad += [i for i in receipt.get("incidents", ()) if i["action"] == QUARANTINED]
        if self._limit is not None and len(self._bad) > self._limit:
            last = self._bad[-1]
            raise DataDamagedError(
                f"{len(self._bad)} bad images, more than --max-bad {self._limit}; the last is "
                f"{last['key']} ({last['archive']} byte {last['offset']:,}): {last['detail']}. "
                "Finished shards are kept: look at the source, then run again with a higher "
                "--max-bad, or without it."
            )


def check_finished(where: str, there: Manifest, allowed: int | None) -> None:
    """Compares a finished data set with the limit of a run that has nothing left to do.

    Raises:
      DataDamagedError: more images were left out of it than are allowed.
    """
    bad = sum(there.quarantined.values())
    if allowed is not None and bad > allowed:
        raise DataDamagedError(
            f"{where} is finished, but {bad} bad images were left out and {allowed} "
            f"are allowed. They are listed in {naming.QUARANTINE}."
        )
