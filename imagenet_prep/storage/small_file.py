"""Reads the small files of a data set of ours, which its manifest names."""

from __future__ import annotations

import hashlib

from imagenet_prep.core.errors import ManifestError
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.storage.store import Readable


def small_file(store: Readable, there: Manifest, name: str) -> bytes:
    """Returns a file beside the shards of a data set of ours.

    Raises:
      ManifestError: it is not what the manifest says.
    """
    expected = next((file for file in there.files if file.name == name), None)
    data = store.read(name) if expected and store.size(name) == expected.num_bytes else b""
    if expected is None or hashlib.sha256(data).hexdigest() != expected.sha256:
        raise ManifestError(
            f"{store.where(name)}: missing, or not what {naming.MANIFEST} says. Fetch it again."
        )
    return data
