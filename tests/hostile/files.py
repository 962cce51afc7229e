"""Puts pipes, sockets, folders and huge files in place of a dataset's files."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from imagenet_prep.dataset import schema

SHARD = "train-00000-of-00002"
# The files of a dataset that verbs open, and those that they write there.
NAMES = (
    schema.MANIFEST,
    schema.PLACEMENT,
    schema.LABELS,
    schema.QUARANTINE,
    SHARD,
    schema.index_name(SHARD),
    schema.VERIFIED,
    schema.REPLICAS,
    *(f"{schema.WORK}/{name}" for name in ("lock", "run.json", "adopt.json", "origin.json")),
)
# More than any verb may read, but small enough that a verb that reads it does no harm.
SPARSE_BYTES = 2 << 30


def _socket(path: Path) -> None:
    # The name of a socket has at most 108 bytes.
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, SPARSE_BYTES)


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "sparse": _sparse,
    "socket": _socket,
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
}


def plants(root: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields (kind, function that plants it) for each file of a dataset that will be at `root`."""
    for name in NAMES:
        for kind in KINDS:
            yield f"{name}: {kind}", _planting(root / name, kind)


def work_plants(out: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields the same for the files that a verb left below `.work`, one of each kind."""
    left = [path for path in sorted((out / schema.WORK).rglob("*")) if path.is_file()]
    of_folder = {(path.parent, path.suffix): path for path in left}
    for path in of_folder.values():
        for kind in ("sparse", "pipe"):
            yield f"{path.relative_to(out)}: {kind}", _planting(path, kind)


def plant(path: Path, kind: str) -> None:
    """Replaces a path by something of a kind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    KINDS[kind](path)


def _planting(path: Path, kind: str) -> Callable[[], None]:
    return lambda: plant(path, kind)
