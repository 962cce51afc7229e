"""JPEGs with libjpeg's warnings: one for each warning, by its name in jerror.h."""

from __future__ import annotations

import io
import itertools
import random
import struct

from PIL import Image

from tests.kit.codec import frames, mutations

# The last applies only to a program that reads the profile, the first to one that requests too
# much.
CANNOT_BE_MADE = {"JWRN_TOO_MUCH_DATA", "JWRN_BOGUS_ICC"}
_HEADER = (0xDB, 0xC0, 0xC4, 0xDA)  # DQT, SOF0, DHT, SOS
_FILLS = (b"\xff\0", bytes(3), b"\0\xff\0")


def plain(**options: object) -> bytes:
    """Returns the sound photograph from which the others are made."""
    buffer = io.BytesIO()
    Image.fromarray(mutations.photograph()).save(buffer, "JPEG", quality=90, **options)
    return buffer.getvalue()


def harmless() -> dict[str, list[bytes]]:
    """Returns files without lost pixels, by the name of the warning."""
    data = plain()
    bare = data[:2] + data[20:]  # without JFIF, which overrides Adobe's marker
    adobe = b"\xff\xee" + struct.pack(">H", 14) + b"Adobe\0\x64\0\0\0\0"
    version = data.index(b"JFIF\0") + 5
    parameters = _behind_scan_header(data) - 3
    return {
        "JWRN_ADOBE_XFORM": [bare[:2] + adobe + bytes((n,)) + bare[2:] for n in (3, 255)],
        "JWRN_EXTRANEOUS_DATA": [
            _with_junk(data, 0xDB, b"junk\0"),
            *(_with_junk(data, *choice) for choice in itertools.product(_HEADER, _FILLS)),
            *(data[:-2] + 50 * fill + data[-2:] for fill in _FILLS),
        ],
        "JWRN_JFIF_MAJOR": [
            data[:version] + bytes(number) + data[version + 2 :] for number in ((0, 0), (2, 1))
        ],
        "JWRN_NOT_SEQUENTIAL": [
            data[:parameters] + bytes(three) + data[parameters + 3 :]
            for three in ((0, 0, 0), (0, 63, 1), (1, 5, 0))
        ],
    }


def harmful() -> dict[str, list[bytes]]:
    """Returns files with lost pixels, by the name of the first warning."""
    data = plain()
    restarts = plain(restart_marker_blocks=4)
    second, third = (restarts.index(bytes((0xFF, m))) for m in (0xD2, 0xD3))
    # Before the last 3,000 bytes, libjpeg-turbo silently treats a bad code as zero.
    small = frames.encoded(mutations.photograph((61, 43)))
    start = _behind_scan_header(small)
    return {
        "JWRN_HIT_MARKER": [data[: len(data) // 2] + b"\xff\xd9"],
        "JWRN_JPEG_EOF": [data[: len(data) // 2]],
        # Behind a table, or image data that remains behind a changed byte.
        "JWRN_EXTRANEOUS_DATA": [
            *(_with_junk(data, marker, b"junk\0") for marker in _HEADER[1:]),
            data[:-2] + data[-300:-20] + data[-2:],
        ],
        "JWRN_MUST_RESYNC": [restarts[:second] + restarts[third:]],
        "JWRN_HUFF_BAD_CODE": [small[:start] + 16 * b"\xff\0" + small[start:]],
        "JWRN_ARITH_BAD_CODE": [_bad_arithmetic()],
        "JWRN_BOGUS_PROGRESSION": [_without_scan(plain(progressive=True), 1)],
    }


def _with_junk(data: bytes, marker: int, junk: bytes) -> bytes:
    at = data.index(bytes((0xFF, marker)))
    return data[:at] + junk + data[at:]


def _behind_scan_header(data: bytes) -> int:
    at = data.index(b"\xff\xda")
    return at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def _without_scan(data: bytes, number: int) -> bytes:
    """Returns a progressive JPEG without one scan, but with the tables before it."""
    ends = [at for at in range(len(data)) if data[at : at + 2] in (b"\xff\xc4", b"\xff\xda")]
    scans = [at for at in ends if data[at + 1] == 0xDA]
    begin, end = (next(at for at in ends if at > scans[n]) for n in (number - 1, number))
    return data[:begin] + data[end:]


def _bad_arithmetic() -> bytes:
    rng = random.Random(21)
    data = bytearray(frames.arithmetic(mutations.photograph((61, 43))))
    start = _behind_scan_header(bytes(data))
    at = rng.randrange(start, len(data) - 20)
    data[at : at + 12] = (rng.randrange(1, 255) for _ in range(12))
    return bytes(data)
