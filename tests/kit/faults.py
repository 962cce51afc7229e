"""Faults of real machines: flipped bits, truncated files, small and read-only disks."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import Ledger


def flip_bit(path: Path, position: int, bit: int = 0) -> None:
    """Inverts one bit of a file in place; its size stays."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def corrupt_silently(replica: Path, name: str, position: int) -> None:
    """Inverts one bit as a disk does: the file's times and notes do not change."""
    (notes,) = replica.glob(".work/replica-*.jsonl")
    ledger = Ledger(LocalStore(replica), str(notes.relative_to(replica)), 10_000)
    note = ledger.find(name)
    assert note is not None
    flip_bit(replica / name, position)
    ledger.add({name: (replica / name).stat()}, sha256=note["sha256"])


def cut(path: Path, num_bytes: int) -> None:
    """Truncates a file as an aborted download does."""
    os.truncate(path, num_bytes)


@contextlib.contextmanager
def disk(folder: Path, options: str) -> Iterator[None]:
    """Mounts a file system in memory on `folder`, e.g. "size=64k,nr_inodes=20".

    Skips the test if this user or this container may not mount.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"cannot mount a file system here: {result.stderr.partition(chr(10))[0]}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    """Changes a mounted `disk`, e.g. to "size=64m" or "ro"."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


# Runs a command that dies at its n-th rename; the number precedes the verb.
DYING = (
    "-c",
    """
import os, pathlib, sys
left = int(sys.argv.pop(1))
def dying(function):
    def call(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return function(*args, **kwargs)
    return call
from imagenet_prep.__main__ import main
from imagenet_prep.storage.folder import LocalStore
changes = {os: ("rename", "replace", "link"), pathlib.Path: ("rmdir", "unlink")}
for where, names in {**changes, LocalStore: ("remove",)}.items():
    for name in names:
        setattr(where, name, dying(getattr(where, name)))
main()
""",
)


def failing(code: int, *, after: int = 0) -> object:
    """Returns a function that fails with this error after it was called `after` times."""
    calls = itertools.count(-after)

    def fail(*args: object, **kwargs: object) -> None:
        if next(calls) >= 0:
            raise OSError(code, os.strerror(code))

    return fail
