"""Packed files of sources, and the bytes after the packed content."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.core.errors import SourceError
from imagenet_prep.sources import containers
from tests.kit.hostile import archives
from tests.kit.messages import says


@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, bz2.compress, lzma.compress],
    ids=["plain", "gzip", "bzip2", "xz"],
)
def test_packed_and_plain_files_are_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "file").write_bytes(pack(b"content" * 1000))

    with containers.unpacked(tmp_path / "file") as stream:
        assert stream.read() == b"content" * 1000


def test_packed_files_are_joined_without_tape_padding(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(gzip.compress(b"a") + gzip.compress(b"b") + bytes(10_240))

    with containers.unpacked(tmp_path / "file") as stream:
        assert stream.read() == b"ab"


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gzip", "xz"])
def test_gigabytes_of_trailing_zeros_are_not_read(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    """In a sparse file they take no space; reading them would take a minute to hours."""
    (tmp_path / "file").write_bytes(pack(b"content"))
    os.truncate(tmp_path / "file", 8 << 30)

    with (
        containers.unpacked(tmp_path / "file") as stream,
        pytest.raises(OSError, match=says("ends-more-zero-bytes", "1,048,576")),
    ):
        stream.read()


def test_xz_memory_is_limited_to_its_best_level(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9}]
    data = lzma.compress(b"content" * 1000, filters=filters)
    (tmp_path / "best").write_bytes(data + bytes(4) + data + bytes(8))
    (tmp_path / "gigabyte").write_bytes(archives.xz_with_dictionary(b"content", 36))

    with containers.unpacked(tmp_path / "best") as stream:
        assert stream.read() == b"content" * 2000
        assert stream.read(1) == b""
    with (
        containers.unpacked(tmp_path / "gigabyte") as stream,
        pytest.raises(
            containers.UNPACKING_ERRORS, match=says("xz-levels-up-9-unpacked", "exceeded")
        ),
    ):
        stream.read()


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-9], lambda d: d[:90] + b"?" + d[91:]], ids=["cut", "changed"]
)
def test_damaged_xz_is_an_error(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    data = lzma.compress(random.Random(0).randbytes(100_000))
    (tmp_path / "file").write_bytes(damage(data))

    with (
        containers.unpacked(tmp_path / "file") as stream,
        pytest.raises(containers.UNPACKING_ERRORS),
    ):
        stream.read()


@pytest.mark.parametrize("is_packed", [False, True])
def test_larger_file_is_refused_not_cut(is_packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "labels").write_bytes(b"12345")
    if is_packed:
        with tarfile.open(tmp_path / "archive", "w") as archive:
            archive.add(path / "labels", "folder/labels")
        path = tmp_path / "archive"

    def read(most: int) -> list[bytes]:
        return containers.small_files(
            path, ["labels"], max_bytes=most, max_unpacked_bytes=1 << 20, advice="Get it again."
        )

    assert read(5) == [b"12345"]
    with pytest.raises(SourceError, match=says("more-bytes-3", path, "labels", "4")):
        read(4)


def test_checksum_after_the_tar_is_verified(tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    path = tmp_path / "a.tar.gz"
    packed = gzip.compress(file.getvalue())
    path.write_bytes(packed)
    assert [*containers.contents(path, len)] == [("a", 0, b"")]
    path.write_bytes(packed[:-8] + bytes(4) + packed[-4:])
    with pytest.raises(SourceError, match=says("cannot-read-2", path)):
        [*containers.contents(path, len)]
