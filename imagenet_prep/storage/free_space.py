"""Refuses to begin a run if the disk is too small for it."""

from __future__ import annotations

from imagenet_prep.core.errors import StoreError
from imagenet_prep.core.terminal import human_bytes
from imagenet_prep.storage.store import Store


def require_space(
    out: Store, needed: float, why: str = "", elsewhere: str = "", *, free: int | None = None
) -> None:
    """Raises StoreError unless the disk of `out` has the needed bytes.

    For a bucket, the disk is the local one with the files before their upload.

    Args:
      why: continues "about 5 GB are needed" in the message.
      elsewhere: what else the user can do; continues "Free 3 GB, ".
      free: the free bytes, if the caller knows them already.
    """
    if free is None:
        free = out.local.free_bytes()
    if needed <= free:
        return
    if not why and out.as_folder is None:
        why = " on this machine while shards are uploaded"
    if not elsewhere and out.as_folder:
        elsewhere = "choose a different --out or a smaller --short-side"
    raise StoreError(
        f"{out.local.root}: about {human_bytes(needed)} are needed{why}, but only "
        f"{human_bytes(free)} are free. Free {human_bytes(needed - free)}, "
        f"{elsewhere or 'or set TMPDIR to a folder on a larger disk'}."
    )
