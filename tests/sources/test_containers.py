"""Packed files of sources, and the bytes after the packed content."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from imagenet_prep.core.errors import SourceError
from imagenet_prep.sources import containers
from tests.kit.hostile import archives
from tests.kit.limits import Limits
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


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gzip", "xz"])
def test_zeros_between_packed_files_are_counted_apart(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    """Each file of a tape may have padding; only the padding after one file is limited."""
    half = containers._MAX_PADDING_BYTES // 2 + 512
    piece = pack(b"content") + bytes(half)
    (tmp_path / "file").write_bytes(piece * 3)
    with containers.unpacked(tmp_path / "file") as stream:
        assert stream.read() == b"content" * 3


def test_global_headers_rename_no_file(tmp_path: Path) -> None:
    """Such as the commit in the tars of `git archive`."""
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer,
        mode="w",
        format=tarfile.PAX_FORMAT,
        pax_headers={"comment": "a commit", "path": "elsewhere"},
    ) as archive:
        archive.addfile(tarfile.TarInfo("a"))
    (tmp_path / "a.tar").write_bytes(buffer.getvalue())
    assert [name for name, *_ in containers.contents(tmp_path / "a.tar", len)] == ["a"]


def test_all_of_the_allowance_may_be_used() -> None:
    allowance = containers.Allowance(10)
    allowance.take(4, "a.tar")
    allowance.take(6, "a.tar")
    with pytest.raises(SourceError, match=says("unpacks-more-bytes", "a.tar", "10")):
        allowance.take(1, "a.tar")


def zipped(root: Path, files: Mapping[str, bytes]) -> Path:
    path = root / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def test_files_of_a_zip_share_one_allowance(tmp_path: Path, limits: Limits) -> None:
    limits(zip_allowance_bytes=50_000)
    path = zipped(tmp_path, {str(number): bytes(20_000) for number in range(5)})
    assert path.stat().st_size * 16 < 40_000
    with pytest.raises(SourceError, match=says("unpacks-more-bytes")):
        [*containers.contents(path, lambda _: 20_000)]
    # Bytes that are not requested are not unpacked.
    assert len([*containers.contents(path, lambda _: 100)]) == 5


def test_checksums_of_files_in_zips_are_verified(tmp_path: Path) -> None:
    """The requested bytes may be all of a file; then its end is reached."""
    data = bytes(20_000)
    path = zipped(tmp_path, {"a": data})
    assert [*containers.contents(path, lambda _: 20_000)] == [("a", 20_000, data)]
    packed = path.read_bytes()
    crc = zlib.crc32(data).to_bytes(4, "little")
    assert packed.count(crc) == 2
    path.write_bytes(packed.replace(crc, bytes(4)))
    with pytest.raises(SourceError, match=says("cannot-read-2", path)):
        [*containers.contents(path, lambda _: 20_000)]


@pytest.mark.parametrize("num_bytes", [0, 512, 700, 1024])
def test_bytes_without_a_header_name_no_file(num_bytes: int) -> None:
    assert containers.file_behind(bytes(num_bytes), "a.tar", 2048) is None
    assert containers.file_behind(b"x" * num_bytes, "a.tar", 2048) is None


def test_header_without_its_name_names_no_file() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("long/" * 100))
    headers = buffer.getvalue()
    found = containers.file_behind(headers[:1536], "a.tar", 1536)
    assert found is not None
    assert found.name.startswith("long/long/")
    for num_bytes in (512, 1024):
        assert containers.file_behind(headers[:num_bytes], "a.tar", num_bytes) is None
