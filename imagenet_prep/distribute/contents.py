"""What a replica must hold, as the manifest says it."""

from __future__ import annotations

from collections.abc import Iterable

from imagenet_prep.dataset import naming
from imagenet_prep.dataset.manifest import File


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
