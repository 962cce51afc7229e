"""Reads quarantine.jsonl, the list of quarantined, repaired and excluded images of a dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from imagenet_prep.core.errors import ManifestError
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.dataset.member import Incident, parse_incident
from imagenet_prep.storage.fetch import as_file, hashed
from imagenet_prep.storage.store import Readable

# In a line, keys and paths have at most 4,096 bytes, details a few hundred.
_MOST_LINE_BYTES = 64 << 10


def incidents(store: Readable, of: Manifest | None = None) -> Iterator[Incident]:
    """Yields the lines of quarantine.jsonl; verifies the file if the manifest `of` is given.

    Yields nothing if the manifest lists no such file.
    """
    listed = {file.sha256 for file in of.files if file.name == naming.QUARANTINE} if of else set()
    if of and not listed:
        return
    digest = hashlib.sha256()
    where = store.where(naming.QUARANTINE)
    try:
        if store.size(naming.QUARANTINE) is None:
            raise ValueError("missing")
        with store.opened(naming.QUARANTINE) as opened:
            file = as_file(hashed(opened, [digest]))
            while line := file.readline(_MOST_LINE_BYTES):
                yield parse_incident(line)
        if of and digest.hexdigest() not in listed:
            raise ValueError(f"sha256 {digest.hexdigest()} is not in {naming.MANIFEST}")
    except ValueError as error:
        raise ManifestError(f"{where}: {error}. Copy it from the original dataset.") from None


def num_excluded(store: Readable, manifest: Manifest) -> int:
    """Returns the number of images that were excluded on request, from the verified list."""
    return sum(incident.is_excluded for incident in incidents(store, manifest))
