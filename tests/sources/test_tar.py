"""Tars: members equal those of the standard library; a tar is refused if it is damaged."""

from __future__ import annotations

import io
import itertools
import os
import random
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import SourceError
from imagenet_prep.sources import containers
from imagenet_prep.storage.archive import ArchiveReader
from tests.kit.messages import says

BLOCK = tarfile.BLOCKSIZE
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
# The longest path in a ustar header: a folder of 155 bytes and a name of 100.
USTAR_LIMIT = f"{'d' * 155}/{'n' * 100}"
NAMES = {
    "plain": ["n01440764_10026.JPEG", "n01440764_10027.JPEG"],
    "empty-between": ["a", "empty", "b"],
    "folders": ["folder/", "folder/a", "folder/deep/", "folder/deep/b"],
    "dot": ["./", "./a", "a..b/c.."],
    "spaces": ["with space 'and' \"quotes\"", "tab\tnewline\nname"],
    "non-ascii": ["é/猫.JPEG", "\U0001f436" * 20],
    "exactly-100": ["n" * 100],
    "ustar-limit": [USTAR_LIMIT, "b"],
}
# Only GNU and pax headers can hold these.
LONG_NAMES = {
    "101-without-folder": ["n" * 101, "b"],
    "long": ["/".join(["d" * 90] * 30), "short", "é" * 200],
    "longer-than-a-block": ["x" * 4096, "y" * 511, "z" * 512],
}


def make_tar(names: list[str], tar_format: int) -> bytes:
    """Returns a tar of files of many sizes; a name that ends with a slash is a folder."""
    buffer = io.BytesIO()
    sizes = itertools.cycle([1, 511, 0, 512, 513, 10_000])
    rng = random.Random(0)
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format, encoding="utf-8") as archive:
        for name in names:
            info = tarfile.TarInfo(name.rstrip("/"))
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
                continue
            info.size = 0 if name == "empty" else next(sizes)
            archive.addfile(info, io.BytesIO(rng.randbytes(info.size)))
    return buffer.getvalue()


def make_one(name: str = "a", kind: bytes = tarfile.REGTYPE, **attributes: object) -> bytes:
    """Returns a tar with one member of any kind before a regular file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        info = tarfile.TarInfo(name)
        info.type = kind
        for key, value in attributes.items():
            setattr(info, key, value)
        archive.addfile(info)
        archive.addfile(tarfile.TarInfo("b"))
    return buffer.getvalue()


def with_header(data: bytes, field: slice, value: bytes) -> bytes:
    """Returns a tar with `value` at `field` of its first header, and a matching checksum."""
    header = bytearray(data[:BLOCK])
    header[field] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data[BLOCK:]


class InMemory(ArchiveReader):
    """An archive in memory: thousands of files would use up the file descriptors."""

    def __init__(self, data: bytes) -> None:
        super().__init__({})
        self.data = data

    def read(self, archive: str, offset: int, size: int) -> bytes:
        assert archive == "some.tar"
        assert 0 <= offset <= offset + size <= len(self.data)
        return self.data[offset : offset + size]


def found_in(data: bytes, start: int = 0, stop: int | None = None) -> list[tuple]:
    found = containers.members(
        InMemory(data), "some.tar", start, len(data) if stop is None else stop
    )
    # A loop that does not advance must fail a test instead of hanging it.
    return [tuple(member) for member in itertools.islice(found, 1000)]


def found_in_file(path: Path, stop: int) -> list[tuple]:
    reader = ArchiveReader({"some.tar": path})
    return [tuple(member) for member in containers.members(reader, "some.tar", 0, stop)]


def expected_in(data: bytes) -> list[tuple]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8") as archive:
        return [(info.name, info.offset_data, info.size) for info in archive if info.isreg()]


def tars() -> Iterator[Any]:
    """Yields names and a format that can store them."""
    for kind, tar_format in FORMATS.items():
        lists = NAMES if kind == "ustar" else NAMES | LONG_NAMES
        for key, names in lists.items():
            yield pytest.param(names, tar_format, id=f"{kind}-{key}")


@pytest.mark.parametrize(("names", "tar_format"), [*tars()])
def test_members_equal_those_of_the_standard_library(
    tmp_path: Path, names: list[str], tar_format: int
) -> None:
    path = tmp_path / "some.tar"
    path.write_bytes(data := make_tar(names, tar_format))
    expected = expected_in(data)

    assert len(expected) == sum(not name.endswith("/") for name in names)
    assert found_in_file(path, len(data)) == found_in(data) == expected


@pytest.mark.parametrize("seed", range(20))
def test_random_tars_are_read_like_the_standard_library(seed: int) -> None:
    rng = random.Random(seed)
    alphabet = "abc/ .é猫-_0"

    def name() -> str:
        text = "".join(rng.choices(alphabet, k=rng.choice([3, 50, 99, 100, 101, 300])))
        text = text.strip("/").replace("..", "_.")
        ending = "/" if rng.random() < 0.1 else ""
        return f"n{text}n{ending}"

    data = make_tar([name() for _ in range(30)], rng.choice(list(FORMATS.values())[1:]))

    assert found_in(data) == expected_in(data)


def test_old_headers_without_magic_are_read() -> None:
    data = make_tar(["a"], tarfile.USTAR_FORMAT)
    data = with_header(data, slice(156, 265), bytes(109))

    assert found_in(data) == expected_in(data) == [("a", BLOCK, 1)]


def test_old_folder_is_recognised_by_its_slash() -> None:
    data = make_tar(["folder/", "folder/a"], tarfile.USTAR_FORMAT)
    data = with_header(data, slice(156, 157), b"\0")

    assert expected_in(data) == [("folder/a", 2 * BLOCK, 1)]
    assert found_in(data) == expected_in(data)


def test_sizes_in_base_256_are_read() -> None:
    data = with_header(
        make_tar(["a"], tarfile.GNU_FORMAT), slice(124, 136), b"\x80" + (1).to_bytes(11, "big")
    )

    assert found_in(data) == expected_in(data) == [("a", BLOCK, 1)]


def test_size_in_a_pax_header_is_used() -> None:
    # Files beyond 8 GiB are stored like this; the size in the plain header is 0.
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("big")
        info.pax_headers = {"size": "600"}
        archive.addfile(info)
        buffer.write(b"x" * 600 + bytes(424))
        archive.offset += 1024
        archive.addfile(tarfile.TarInfo("b"))
    data = buffer.getvalue()

    assert [(name, size) for name, _, size in expected_in(data)] == [("big", 600), ("b", 0)]
    assert found_in(data) == expected_in(data)


def test_other_pax_records_are_ignored() -> None:
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "all"}
    ) as archive:
        info = tarfile.TarInfo("é")
        info.pax_headers = {"comment": "path=wrong", "mtime": "1.5", "SCHILY.xattr.user.a": "b"}
        archive.addfile(info)
    data = buffer.getvalue()

    assert found_in(data) == expected_in(data)
    assert [name for name, _, _ in expected_in(data)] == ["é"]


@pytest.mark.parametrize("tar_format", FORMATS.values(), ids=FORMATS)
def test_tar_inside_a_tar_is_read_in_place(tar_format: int) -> None:
    inner = make_tar(["a", "b", "é"], tar_format)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in (("first.tar", make_tar(["z"], tar_format)), ("second.tar", inner)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    outer = buffer.getvalue()
    _, (_, start, size) = found_in(outer)

    expected = [(name, start + offset, size) for name, offset, size in expected_in(inner)]
    assert found_in(outer, start, start + size) == expected


def test_tar_may_be_empty() -> None:
    assert found_in(bytes(BLOCK)) == []
    assert found_in(bytes(20 * BLOCK)) == []


TRUNCATED = re.compile(
    "|".join(
        says(key).pattern
        for key in ("member-needs-bytes-up-tar", "no-end-of-archive-block-tar-truncated")
    )
)
BYTE = re.compile(r"^some\.tar: byte [\d,]+")
OUTSIDE = says("member-points-outside-folder", BYTE)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (
            make_one(kind=tarfile.SYMTYPE, linkname="/etc/passwd"),
            says("member", BYTE, ..., says("symbolic-link")),
        ),
        (
            make_one(kind=tarfile.LNKTYPE, linkname="b"),
            says("member", BYTE, ..., says("hard-link")),
        ),
        (make_one(kind=tarfile.CHRTYPE), says("member", BYTE, ..., "a device")),
        (make_one(kind=tarfile.BLKTYPE), says("member", BYTE, ..., "a device")),
        (make_one(kind=tarfile.FIFOTYPE), says("member", BYTE, ..., "a pipe")),
        (make_one(kind=b"S"), says("member-unknown-kind", BYTE, ..., "b'S'")),
        (
            make_one(kind=tarfile.SYMTYPE, linkname="x" * 200),
            says("member-unknown-kind", BYTE, ..., "b'K'"),
        ),
        (make_one("../x"), OUTSIDE),
        (make_one("a/../../x"), OUTSIDE),
        (make_one("a/.."), OUTSIDE),
        (make_one("/etc/passwd"), OUTSIDE),
        (make_one("/" + "d/" * 100 + "x"), OUTSIDE),
        (make_one("../folder", kind=tarfile.DIRTYPE), OUTSIDE),
    ],
    ids=[
        "symlink",
        "hard-link",
        "character-device",
        "block-device",
        "fifo",
        "sparse",
        "long-symlink",
        "parent",
        "parent-inside",
        "parent-at-the-end",
        "absolute",
        "long-absolute",
        "folder-outside",
    ],
)
def test_members_that_imagenet_never_contains_are_refused(
    data: bytes, what: re.Pattern[str]
) -> None:
    with pytest.raises(SourceError, match=what):
        found_in(data)


@pytest.mark.parametrize("tar_format", FORMATS.values(), ids=FORMATS)
def test_truncation_at_every_block_is_refused(tar_format: int) -> None:
    names = ["first", "folder/", "é" * 40, "third"]
    sound = make_tar(names, tar_format)
    _, offset, size = expected_in(sound)[-1]
    # tarfile accepts a tar without its two zero blocks; we require one of them.
    whole = offset + -(-size // BLOCK) * BLOCK + BLOCK

    for length in range(0, len(sound), BLOCK):
        if length >= whole:
            assert found_in(sound[:length]) == expected_in(sound)
        else:
            with pytest.raises(SourceError, match=TRUNCATED):
                found_in(sound[:length])


def streamed_from(data: bytes) -> list[tuple]:
    with io.BytesIO(data) as stream:
        found = containers.stream_contents(stream, "some.tar", containers.allowance(len(data)))
        return [tuple(member) for member, _ in found]


@pytest.mark.parametrize("listed", [found_in, streamed_from])
@pytest.mark.parametrize("num_blocks", [1, 2, 3, 8])
def test_lost_blocks_never_hide_files(
    num_blocks: int, listed: Callable[[bytes], list[tuple]]
) -> None:
    """A hole, as after a broken copy, may change content, which is verified later."""
    sound = make_tar(["first", "folder/", "é" * 120, "third", "fourth"], tarfile.GNU_FORMAT)
    refused = 0
    for start in range(0, len(sound), BLOCK):
        damaged = bytearray(sound)
        stop = min(start + num_blocks * BLOCK, len(sound))
        damaged[start:stop] = bytes(stop - start)
        if not any(damaged[start:]):
            continue  # the tar could just have fewer files
        try:
            found = listed(bytes(damaged))
        except SourceError:
            refused += 1
        else:
            # Without its longer header, a file has the short name, which is a different problem.
            assert [member[1:] for member in found] == [each[1:] for each in expected_in(sound)]
    assert refused >= 2


@pytest.mark.parametrize("listed", [found_in, streamed_from])
def test_several_tars_in_one_file_are_refused(listed: Callable[[bytes], list[tuple]]) -> None:
    first = make_tar(["a"], tarfile.GNU_FORMAT)
    behind = says("byte-data-follows-end-of-archive-block", "some.tar", f"{2 * BLOCK:,}")
    for more in (make_tar(["b"], tarfile.GNU_FORMAT), b"x", bytes(200_000) + b"x"):
        with pytest.raises(SourceError, match=behind):
            listed(first + more)
    for more in (b"", b"\0", bytes(200_000)):
        assert listed(first + more) == expected_in(first)


def test_truncation_within_a_block_is_refused() -> None:
    sound = make_tar(["first", "second"], tarfile.GNU_FORMAT)

    for length in [*range(1, 2 * BLOCK, 37), *range(2 * BLOCK + 1, 5 * BLOCK - 1, 101)]:
        with pytest.raises(SourceError, match="truncated"):
            found_in(sound[:length])


def test_file_that_shrinks_during_reading_is_truncated(tmp_path: Path) -> None:
    data = make_tar(["first", "second"], tarfile.GNU_FORMAT)
    path = tmp_path / "some.tar"
    path.write_bytes(data[: 3 * BLOCK])

    with pytest.raises(SourceError, match=says("ends-byte-expected-least-archive", "some.tar")):
        found_in_file(path, len(data))


def test_flipped_bit_anywhere_in_a_header_is_refused() -> None:
    sound = make_tar(["first", "second"], tarfile.GNU_FORMAT)[BLOCK * 2 :]

    for bit in range(8 * BLOCK):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert found_in(bytes(damaged)) == expected_in(sound)
        except SourceError as error:
            assert says("not-tar-header-checksum-wrong").search(str(error))
        else:  # only the checksum's own padding may change without harm
            assert 148 <= bit // 8 < 156


@pytest.mark.parametrize(
    "size",
    [b"garbage\0\0\0\0\0", b"-0000001000\0", b"0000000009\0\0"],
    ids=["text", "negative", "not-octal"],
)
def test_size_that_is_no_number_is_refused(size: bytes) -> None:
    data = with_header(make_tar(["a", "b"], tarfile.GNU_FORMAT), slice(124, 136), size)

    with pytest.raises(SourceError, match=r"some\.tar: byte 0"):
        found_in(data)


@pytest.mark.parametrize(
    "records",
    [
        b"garbage\n",
        b"x path=a\n",
        b"-5 path=a\n",
        b"0 path=a\n",
        b"\xff\xfe\n",
        b"9999 path=a\n",
        b"7 a=b",
    ],
    ids=["no-length", "text-length", "negative", "zero", "bytes", "too-long", "cut"],
)
def test_damaged_pax_header_is_refused_or_ignored(records: bytes) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        info = tarfile.TarInfo("pax")
        info.type = tarfile.XHDTYPE
        info.size = len(records)
        archive.addfile(info, io.BytesIO(records))
        archive.addfile(tarfile.TarInfo("b"))

    try:
        assert [name for name, _, _ in found_in(buffer.getvalue())] in (["b"], ["a"])
    except SourceError as error:
        assert "some.tar: byte" in str(error)


def test_endless_long_name_is_refused_before_reading(tmp_path: Path) -> None:
    data = with_header(
        make_tar(["a"], tarfile.GNU_FORMAT), slice(124, 157), b"00010000000\0" + b" " * 20 + b"L"
    )
    path = tmp_path / "some.tar"
    path.write_bytes(data)
    os.truncate(path, 1 << 22)

    with pytest.raises(
        SourceError, match=says("extended-header-too-large", ..., "2,097,152", "It is dam")
    ):
        found_in_file(path, 1 << 22)


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_overlong_name_is_refused_and_shortened(tar_format: int) -> None:
    with pytest.raises(
        SourceError, match=says("name-characters-expected-most", ..., "'aaa")
    ) as caught:
        found_in(make_tar(["a" * 4097], tar_format))
    assert len(str(caught.value)) < 400


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", bytes(2000))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8\xff\xe0" + bytes(range(256)) * 8,
        zipped(),
        b"<html><body>Please log in</body></html>" * 40,
        random.Random(1).randbytes(5000),
    ],
    ids=["jpeg", "zip", "login-page", "noise"],
)
def test_file_that_is_no_tar_is_refused(data: bytes) -> None:
    with pytest.raises(
        SourceError, match=says("not-tar-header-checksum-wrong", "some.tar: byte 0")
    ):
        found_in(data)


def test_compressed_tar_is_refused_with_its_remedy() -> None:
    data = b"\x1f\x8b\x08" + random.Random(0).randbytes(2000)
    with pytest.raises(
        SourceError, match=says("not-tar-compressed-file-cannot", "some.tar: byte 0")
    ):
        found_in(data)


@pytest.mark.parametrize("data", [b"", b"short text"], ids=["empty", "short"])
def test_file_shorter_than_a_header_is_refused(data: bytes) -> None:
    with pytest.raises(
        SourceError, match=says("no-end-of-archive-block-tar-truncated", "some.tar: byte 0")
    ):
        found_in(data)


@pytest.mark.parametrize("data", [b"", b"\xff" * 256, bytes(range(256)), bytes(256)])
def test_bytes_are_summed_as_by_sum(data: bytes) -> None:
    assert containers._sum(data) == sum(data)
