"""Remembers what the last verification of a folder has proven, as long as no file was touched."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass

from imagenet_prep.core import canonical, records
from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.manifest import File
from imagenet_prep.dataset.schema import LEVELS
from imagenet_prep.storage.folder import LocalStore


@dataclass(frozen=True)
class _Proof:
    """Files of this fingerprint were proven at this level and time."""

    fingerprint: str
    level: str
    utc: str


def fingerprint(store: LocalStore, digest: str, files: Iterable[File]) -> str:
    """Returns a digest that changes when one of these files is written, replaced or removed.

    It covers sizes and the kernel's times of change, which no program can set back. It does not
    cover bytes, so it does not notice a disk that loses data by itself.

    Args:
      store: the folder.
      digest: of the manifest.
      files: of the data set.
    """
    there = []
    for file in files:
        with contextlib.suppress(OSError):
            stat = store.path(file.name).stat()
            there.append([file.name, stat.st_size, stat.st_ino, stat.st_ctime_ns])
    return canonical.digest([digest, there])


def proven(store: LocalStore, level: str, found: str) -> str | None:
    """Returns when (UTC) files of this fingerprint were proven at `level` or a higher one."""
    try:
        proof = records.loads(_Proof, store.read(naming.PROOF))
        levels = list(LEVELS)
        enough = levels.index(proof.level) >= levels.index(level)
        return proof.utc if enough and proof.fingerprint == found else None
    except (ImagenetPrepError, ValueError):  # no proof, or not one of ours
        return None


def keep(store: LocalStore, level: str, found: str) -> None:
    """Notes that files of this fingerprint are sound, if the folder can be written."""
    utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with contextlib.suppress(ImagenetPrepError):
        store.write(naming.PROOF, canonical.dumps(_Proof(found, level, utc)))
