"""What a replica must hold, as the manifest says it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from imagenet_prep.core import naming
from imagenet_prep.core.errors import ManifestError
from imagenet_prep.core.manifest import File, Manifest
from imagenet_prep.core.placement import WHOLE, Placement

# A manifest may come from a bucket that others write to: its names become paths here.
_RESERVED = (naming.MANIFEST, naming.PLACEMENT)
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def contents(manifest: Manifest, placement: Placement = WHOLE) -> list[File]:
    """Returns every file but the manifest, an index before its shard, in one order for all.

    Raises:
      ManifestError: a name is no plain file name.
    """
    files = placement.files(manifest)
    for file in files:
        plain = file.name.removeprefix(f"{naming.INDEX}/")
        if not _PLAIN.fullmatch(plain) or file.name in _RESERVED:
            raise ManifestError(f"{naming.MANIFEST}: {file.name!r} is no name of a file beside it")
    return files


def strangers(names: Iterable[str], files: Iterable[File]) -> list[str]:
    """Returns those of `names` that readers would take for shards, or for their indexes."""
    known = {file.name for file in files}
    return sorted(
        name
        for name in names
        if name not in known
        and (
            ("/" not in name and naming.looks_like_shard(name))
            or name.startswith(f"{naming.INDEX}/")
        )
    )


def num_bytes(files: Iterable[File]) -> int:
    """Returns the bytes of files together."""
    return sum(file.num_bytes for file in files)
