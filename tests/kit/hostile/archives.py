"""Archives that claim, or unpack to, far more than their size."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import zlib

from imagenet_prep.sources import labels

BLOCK = 512
MANY_DIGITS = b"9" * 5000


def tar_header(name: str, size: int | bytes, kind: bytes = b"0") -> bytes:
    """Returns one ustar header; `size` in bytes, or its field of 12 bytes as it is."""
    field = size if isinstance(size, bytes) else b"%011o\0" % size
    head = name.encode()[:100].ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2
    rest = kind + bytes(100) + b"ustar\x0000" + bytes(247)
    block = head + field.ljust(12, b"\0") + b"00000000000\0" + b" " * 8 + rest
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def tar_member(name: str, data: bytes, kind: bytes = b"0") -> bytes:
    """Returns header and content of one member, padded."""
    return tar_header(name, len(data), kind) + data + bytes(-len(data) % BLOCK)


def tar(*members: bytes) -> bytes:
    """Returns a complete tar of members that the functions above made."""
    return b"".join(members) + bytes(2 * BLOCK)


def pax_record(key: bytes, value: bytes) -> bytes:
    """Returns one record of a pax header, with its length in front."""
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + 1
    while length != len(body) + len(str(length)):
        length = len(body) + len(str(length))
    return str(length).encode() + body


def tar_with_a_pax_size_of_many_digits() -> bytes:
    """Returns a tar with a member size of 5,000 digits, more than int() takes."""
    pax = tar_member("pax", pax_record(b"size", MANY_DIGITS), b"x")
    return tar(pax, tar_member("a.JPEG", b"image"))


def tar_with_a_pax_length_of_many_digits() -> bytes:
    """Returns a tar with a pax record that claims a length of 5,000 digits."""
    return tar(tar_member("pax", MANY_DIGITS + b" path=a\n", b"x"), tar_member("a", b"image"))


def tar_with_many_small_pax_records() -> bytes:
    """Returns a tar with a pax header of 1 MB, made of 200,000 records of five bytes."""
    return tar(tar_member("pax", b"5 a=\n" * 209_000, b"x"), tar_member("a.JPEG", b"image"))


def tar_of_negative_size() -> bytes:
    """Returns a tar with a member of -512 bytes, in GNU's base 256, which some programs read for
    ever.
    """
    field = (-512).to_bytes(12, "big", signed=True)
    return tar(tar_header("a.JPEG", field) + b"image".ljust(BLOCK, b"\0"))


def tar_of_odd_octal_size(field: bytes = b"-0000000010\0") -> bytes:
    """Returns a tar with a member size that is not octal."""
    return tar(tar_header("a.JPEG", field) + b"image".ljust(BLOCK, b"\0"))


def zlib_of_zeros(num_bytes: int) -> bytes:
    """Returns zlib data of zeros, a thousandth of their size, made instantly."""
    block_bytes = 16 << 20
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(bytes(block_bytes)) + packer.flush(zlib.Z_FULL_FLUSH)
    rest = packer.compress(bytes(num_bytes % block_bytes)) + packer.flush()
    checksum = num_bytes % 65_521 << 16 | 1  # Adler-32 of zeros
    return b"\x78\xda" + block * (num_bytes // block_bytes) + rest + struct.pack(">I", checksum)


def gzip_of_zeros(num_bytes: int, before: bytes = b"", after: bytes = b"") -> bytes:
    """Returns gzip of zeros between two parts; a thousandth of its size, made instantly."""
    chunk = 16 << 20
    packed = gzip.compress(bytes(chunk), 6, mtime=0)
    rest = bytes(num_bytes % chunk)
    return gzip.compress(before) + packed * (num_bytes // chunk) + gzip.compress(rest + after)


def devkit_of_zeros(num_bytes: int) -> bytes:
    """Returns a devkit (.tar.gz) with this number of zeros as ground truth."""
    name = f"ILSVRC2012_devkit_t12/data/{labels.GROUND_TRUTH}"
    pad = bytes(-num_bytes % BLOCK + 2 * BLOCK)
    return gzip_of_zeros(num_bytes, tar_header(name, num_bytes), pad)


def devkit_with_extra_zeros(num_bytes: int) -> bytes:
    """Returns a devkit (.tar.gz) with an unexpected member of this number of zeros."""
    pad = bytes(-num_bytes % BLOCK + 2 * BLOCK)
    return gzip_of_zeros(num_bytes, tar_header("readme.txt", num_bytes), pad)


def nested_box_archives(depth: int, innermost: bytes) -> bytes:
    """Returns a .tar.gz in a .tar.gz in ..., `depth` of them around the innermost tar."""
    data = gzip.compress(innermost, mtime=0)
    for _ in range(depth):
        data = gzip.compress(tar(tar_member("inner.tar.gz", data)), mtime=0)
    return data


def box_archives_of_zeros(num_bytes: int, inner: int = 4) -> bytes:
    """Returns annotations (.tar.gz) of packed tars that together contain this number of zeros."""
    each = num_bytes // inner
    pad = bytes(-each % BLOCK + 2 * BLOCK)
    packed = gzip_of_zeros(each, tar_header("readme.txt", each), pad)
    members = [tar_member(f"n{number:08d}.tar.gz", packed) for number in range(inner)]
    return gzip.compress(tar(*members), mtime=0)


def mat_of_zeros(num_bytes: int) -> bytes:
    """Returns a MAT-file with this number of packed zeros as its only variable."""
    head = struct.pack("<II", 14, num_bytes)
    packed = zlib.compress(head + bytes(num_bytes))
    return mat_header() + struct.pack("<II", 15, len(packed)) + packed


def mat_with_cells(num_cells: int) -> bytes:
    """Returns a MAT-file of 200 bytes with a cell array that claims this number of cells."""
    return _mat_matrix(1, num_cells, b"")


def mat_with_blanks(num_characters: int) -> bytes:
    """Returns a MAT-file of 200 bytes with a text of no bytes that claims this number of
    characters.
    """
    return _mat_matrix(4, num_characters, struct.pack("<II", 16, 0))


def mat_with_structs(num_structs: int) -> bytes:
    """Returns a MAT-file of 200 bytes with this number of structures, with one field each."""
    names = struct.pack("<II", 4 << 16 | 5, 8) + struct.pack("<II8s", 1, 8, b"WNID")
    return _mat_matrix(2, num_structs, names)


def mat_nested(depth: int) -> bytes:
    """Returns a MAT-file with cells in cells in cells."""
    data = _mat_body(1, 0, b"")
    for _ in range(depth):
        data = _mat_body(1, 1, struct.pack("<II", 14, len(data)) + data)
    return mat_header() + struct.pack("<II", 14, len(data)) + data


def mat_header() -> bytes:
    """Returns the first 128 bytes of a little-endian MAT-file of version 5."""
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"


def _mat_matrix(kind: int, count: int, rest: bytes) -> bytes:
    data = _mat_body(kind, count, rest)
    return mat_header() + struct.pack("<II", 14, len(data)) + data


def _mat_body(kind: int, count: int, rest: bytes) -> bytes:
    flags = struct.pack("<IIII", 6, 8, kind, 0)
    dims = struct.pack("<IIii", 5, 8, 1, count)
    name = struct.pack("<II8s", 1, 7, b"synsets")
    return flags + dims + name + rest


class Bytes:
    """Reads byte ranges of one archive in memory, with the interface of `sources.containers`."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, _archive: str, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(size)


def xz_with_dictionary(data: bytes, exponent: int) -> bytes:
    """Returns bytes packed by xz that request a dictionary: 36 is one of a gigabyte."""
    packed = bytearray(lzma.compress(data, preset=0))
    end = 12 + (packed[12] + 1) * 4 - 4
    packed[packed.index(b"\x21\x01", 12, end) + 2] = exponent
    packed[end : end + 4] = struct.pack("<I", zlib.crc32(packed[12:end]))
    return bytes(packed)


def zip_of_empty_files(num: int, name: bytes = b"a") -> bytes:
    """Returns a zip that lists an empty file many times."""
    head = (0x02014B50, 20, 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0, 0, 0, 0, 0, 0)
    files = (struct.pack("<IHHHHHHIIIHHHHHII", *head) + name) * num
    end = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, num, num, len(files), 4)
    end += struct.pack("<IIQI", 0x07064B50, 0, 4 + len(files), 1)
    ones = (0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    return b"PK\3\4" + files + end + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, *ones, 0)
