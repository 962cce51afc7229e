"""GIFs with structures that repeat, claim or unpack."""

from __future__ import annotations

import struct

from tests.kit.hostile import images

_COLOURS = b"\0\0\0\xff\xff\xff"
_END = b";"
# LZW with codes of three bits: clear, one pixel, end.
_ONE_PIXEL = b"\x02\x02\x44\x01\0"
_CLEAR_CODES = b"\x24\x49\x92"  # eight codes of three bits, all of them "clear"


def _screen(width: int = 8, height: int = 8) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + _COLOURS


def _frame(width: int, height: int, content: bytes, flags: int = 0, colours: bytes = b"") -> bytes:
    place = struct.pack("<HHHHB", 0, 0, width, height, flags)
    return b"," + place + colours + content


def _blocks(data: bytes) -> bytes:
    """Returns data in blocks of at most 255 bytes."""
    parts = []
    for at in range(0, len(data), 255):
        part = data[at : at + 255]
        parts.append(bytes((len(part),)) + part)
    return b"".join(parts) + b"\0"


def _with(parts: bytes) -> bytes:
    return _screen() + parts + _frame(1, 1, _ONE_PIXEL) + _END


def comment_of_blocks(size: int) -> bytes:
    return _with(b"\x21\xfe" + _blocks(b"c" * size))


def comment_of_small_blocks(count: int) -> bytes:
    return _with(b"\x21\xfe" + b"\1c" * count + b"\0")


def comments(count: int) -> bytes:
    return _with(b"\x21\xfe\1c\0" * count)


def applications(count: int) -> bytes:
    return _with(b"\x21\xff\x0bNETSCAPE2.0\3\1\0\0\0" * count)


def application_of_blocks(size: int) -> bytes:
    return _with(b"\x21\xff\x0bICCRGBG1012" + _blocks(bytes(size)))


def controls(count: int) -> bytes:
    return _with(b"\x21\xf9\4\0\0\0\0\0" * count)


def unknown_extensions(count: int) -> bytes:
    return _with(b"\x21\x77\0" * count)


def unknown_bytes(count: int) -> bytes:
    return _with(b"\x77" * count)


def frames(count: int) -> bytes:
    return _screen() + _frame(1, 1, _ONE_PIXEL) * count + _END


def frames_with_colours(count: int) -> bytes:
    one = _frame(1, 1, _ONE_PIXEL, flags=0x87, colours=bytes(768))
    return _screen() + one * count + _END


def frames_of_other_disposal(count: int) -> bytes:
    parts = []
    for number in range(count):
        control = bytes(((number % 4) << 2, 0, 0, 0, 0))
        parts.append(b"\x21\xf9\4" + control + _frame(1, 1, _ONE_PIXEL))
    return _screen() + b"".join(parts) + _END


def small_blocks(count: int) -> bytes:
    """Pixels in blocks of one byte."""
    blocks = b"\1\x24\1\x49\1\x92" * count
    return _screen() + _frame(8, 8, b"\2" + blocks + b"\0") + _END


def clear_codes(count: int) -> bytes:
    """LZW codes that make no pixel."""
    return _screen() + _frame(8, 8, b"\2" + _blocks(_CLEAR_CODES * count)) + _END


def clear_codes_of_large_pixels(count: int) -> bytes:
    return (
        _screen(8_000, 8_000) + _frame(8_000, 8_000, b"\2" + _blocks(_CLEAR_CODES * count)) + _END
    )


def long_codes(side: int) -> bytes:
    """Each code makes one pixel more than the code before it, which is the most that LZW can
    unpack.
    """
    bits = 4 | 0 << 3  # two codes of three bits: clear, and one pixel
    position = 6
    width = 3
    for code in range(6, 4_095):
        if code == 1 << width:
            width += 1
        bits |= code << position
        position += width
    return _screen(side, side) + _frame(side, side, b"\2" + _blocks(_number_bytes(bits))) + _END


def _number_bytes(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "little")


def large_screen(side: int) -> bytes:
    """A small image on a large screen."""
    return _screen(side, side) + _frame(1, 1, _ONE_PIXEL) + _END


def large_frame(side: int) -> bytes:
    return _screen() + _frame(side, side, _ONE_PIXEL) + _END


def large_second_frame(side: int) -> bytes:
    return _screen() + _frame(1, 1, _ONE_PIXEL) + _frame(side, side, _ONE_PIXEL) + _END


def disposed(side: int) -> bytes:
    return images.gif_that_claims(side, side)


def disposed_on_small_screen(side: int) -> bytes:
    return images.gif_that_claims(side, side, screen=1)


def interlaced(side: int) -> bytes:
    return _screen(side, side) + _frame(side, side, _ONE_PIXEL, flags=0x40) + _END


def code_sizes(size: int) -> bytes:
    """A code size that LZW does not have."""
    return _screen() + _frame(8, 8, bytes((size,)) + _blocks(bytes(1_000))) + _END


# fmt: off
TABLE = {
    "a comment of blocks": (comment_of_blocks, (1_000, 4_000_000, 30_000_000)),
    "a comment of small blocks": (comment_of_small_blocks, (100, 1_000_000, 15_000_000)),
    "comments": (comments, (100, 6_000_000)),
    "application extensions": (applications, (10, 1_500_000)),
    "an application extension of blocks": (application_of_blocks, (1_000, 30_000_000)),
    "control extensions": (controls, (10, 3_700_000)),
    "unknown extensions": (unknown_extensions, (10, 10_000_000)),
    "unknown bytes": (unknown_bytes, (10, 30_000_000)),
    "frames": (frames, (10, 10_000, 2_000_000)),
    "frames with colours": (frames_with_colours, (10, 38_000)),
    "frames of other disposal": (frames_of_other_disposal, (10, 10_000, 1_000_000)),
    "small blocks": (small_blocks, (100, 5_000_000)),
    "clear codes": (clear_codes, (100, 10_000_000)),
    "clear codes of 64 MP": (clear_codes_of_large_pixels, (100, 10_000_000)),
    "long codes": (long_codes, (100, 2_000, 8_000)),
    "a large screen": (large_screen, (1_000, 8_000, 65_535)),
    "a large frame": (large_frame, (1_000, 8_000, 65_535)),
    "a large second frame": (large_second_frame, (1_000, 65_535)),
    "disposed pixels": (disposed, (1_000, 8_000, 65_500)),
    "disposed pixels on a small screen": (disposed_on_small_screen, (1_000, 8_000, 65_500)),
    "interlaced pixels": (interlaced, (1_000, 8_000)),
    "code sizes": (code_sizes, (0, 12, 255)),
}
# fmt: on
