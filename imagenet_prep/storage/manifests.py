"""Reads the manifest of a data set from where the set lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagenet_prep.core import regular_file
from imagenet_prep.core.errors import IncompleteError, UsageError
from imagenet_prep.dataset import manifest, naming

if TYPE_CHECKING:
    from imagenet_prep.dataset.manifest import Manifest

    # This module imports libraries for servers.
    from imagenet_prep.storage.store import Readable


def demand_file(store: Readable) -> None:
    """Raises DataDamagedError if a folder has something that is not a file as its manifest."""
    if (folder := store.as_folder) is not None:
        regular_file.refuse_other_kinds(folder.path(naming.MANIFEST))


def read(store: Readable) -> Manifest:
    """Returns the manifest of a finished dataset.

    Raises:
      ManifestError: it is damaged.
      DataDamagedError: it is not a file.
    """
    demand_file(store)
    return manifest.loads(store.read(naming.MANIFEST), store.where(naming.MANIFEST))


def load(store: Readable) -> Manifest:
    """Returns the manifest of a place that a user has named.

    Raises:
      UsageError: there is no data set.
      IncompleteError: one is being written, or its writer was interrupted.
      ManifestError: the manifest is damaged.
      DataDamagedError: it is not a file.
    """
    demand_file(store)
    if store.as_folder is not None and not store.as_folder.root.is_dir():
        raise UsageError(f"{store.where()}: there is no such folder")
    if store.size(naming.MANIFEST) is not None:
        return read(store)
    if naming.WORK in store.list_folder():
        raise IncompleteError(
            f"{store.where()}: no {naming.MANIFEST} yet: what was writing here has not finished. "
            "Run the same command again to resume."
        )
    raise UsageError(f"{store.where()}: no {naming.MANIFEST}: not a data set of imagenet-prep")
