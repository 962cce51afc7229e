from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.storage.local_file import LargeFile
from tests.kit.system import System

WRITE = 4 << 20  # what a LargeFile writes at once


@pytest.mark.parametrize(
    "sizes",
    [[], [0], [1], [4096] * 3, [WRITE], [WRITE - 1, 2, WRITE], [3 * WRITE + 5], [83_001] * 150],
    ids=["nothing", "empty", "byte", "blocks", "whole", "across", "long", "images"],
)
@pytest.mark.parametrize("past_cache", ["allowed", "refused at opening", "refused at writing"])
def test_a_large_file_holds_what_was_appended_and_knows_its_digest(
    tmp_path: Path, system: System, sizes: list[int], past_cache: str
) -> None:
    if past_cache == "refused at opening":

        def refuse_open(real: Callable[..., int], path: Path, flags: int, *mode: int) -> int:
            if flags & os.O_DIRECT:
                os.close(real(path, flags & ~os.O_DIRECT, *mode))  # as tmpfs leaves it
                raise OSError(errno.EINVAL, "no O_DIRECT here")
            return real(path, flags, *mode)

        system.instead("open", refuse_open)
    elif past_cache == "refused at writing":

        def refuse_write(real: Callable[..., int], descriptor: int, data: memoryview) -> int:
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(errno.EINVAL, "no O_DIRECT here")
            return real(descriptor, data[: 1 << 20])  # and never all of it

        system.instead("write", refuse_write)
    parts = [os.urandom(size) for size in sizes]
    with LargeFile(tmp_path / "large") as file:
        for part in parts:
            file.append(part)

    whole = b"".join(parts)
    assert (tmp_path / "large").read_bytes() == whole
    assert (file.num_bytes, file.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())


def test_a_large_file_never_replaces_another(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"mine")

    with pytest.raises(FileExistsError):
        LargeFile(tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == b"mine"


def test_a_failing_disk_is_heard_of_before_the_file_is_finished(
    tmp_path: Path, system: System
) -> None:
    system.fails("write", errno.EIO)

    with pytest.raises(OSError, match="Input/output error"), LargeFile(tmp_path / "f") as file:
        for _ in range(3):
            file.append(bytes(WRITE))
    assert file.sha256 == ""


def test_a_file_that_the_disk_does_not_hold_is_not_finished(tmp_path: Path, system: System) -> None:
    synced = []

    def sync(_real: object, descriptor: int) -> None:
        synced.append(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE)
        raise OSError(errno.EIO, "Input/output error")

    system.instead("fsync", sync)

    with pytest.raises(OSError, match="Input/output error"), LargeFile(tmp_path / "f") as file:
        file.append(bytes(WRITE + 1))
    assert file.sha256 == ""
    assert synced == [os.O_WRONLY]  # who wrote it is told
