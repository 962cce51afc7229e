"""JPEGs of the rare frame types: lossless, arithmetic, hierarchical, and of 12 bits per sample."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from imagenet_prep.codec import planes
from tests.kit.codec import mutations

if TYPE_CHECKING:
    import numpy.typing as npt

    Pixels = npt.NDArray[np.uint8]

_FRAMES = (0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)
# The first of `files`; decoders accept all except two of them.
NUM_SOUND = 18
_LOSSLESS = 0xC3
_DHP = 0xDE
_WORD_BITS = 5


def segment(marker: int, content: bytes) -> bytes:
    """Returns a marker and its content with the length."""
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def lossless(pixels: Pixels, *, bits: int = 8, marker: int = _LOSSLESS) -> bytes:
    """Returns a lossless JPEG of pixels [height, width, 1 or 3], by predictor 1.

    Its Huffman table has 17 codes of 5 bits, for differences of 0 to 16 bits.
    """
    height, width, components = pixels.shape
    sizes = bytes([0, 0, 0, 0, 17, *[0] * 11])
    frame = struct.pack(">BHHB", bits, height, width, components)
    scan = bytes([components])
    for number in range(1, components + 1):
        frame += bytes((number, 0x11, 0))
        scan += bytes((number, 0))
    head = segment(marker, frame) + segment(0xC4, b"\0" + sizes + bytes(range(17)))
    head += segment(0xDA, scan + bytes((1, 0, 0)))
    return b"\xff\xd8" + head + _entropy(pixels.astype(np.int64), bits) + b"\xff\xd9"


def _entropy(pixels: npt.NDArray[np.int64], bits: int) -> bytes:
    """Returns the scan: each sample as its difference to the one on the left."""
    before = np.roll(pixels, 1, axis=1)
    before[1:, 0] = pixels[:-1, 0]
    before[0, 0] = 1 << (bits - 1)
    values = (pixels - before).ravel()
    sizes = np.frexp(np.abs(values))[1].astype(np.int64)
    rest = np.where(values > 0, values, values + (1 << sizes) - 1)
    places = np.arange(_WORD_BITS + 15, -1, -1)
    words = (sizes << sizes | rest)[:, None] >> places & 1
    stream = words[places < (sizes + _WORD_BITS)[:, None]].astype(np.uint8)
    stream = np.append(stream, np.ones(-len(stream) % 8, np.uint8))
    return np.packbits(stream).tobytes().replace(b"\xff", b"\xff\0")


def arithmetic(pixels: Pixels, *, progressive: bool = False) -> bytes:
    """Returns a JPEG with arithmetic coding."""
    return encoded(pixels, progressive=progressive, is_arithmetic=True)


def encoded(
    pixels: Pixels,
    *,
    sampling: Sequence[tuple[int, int]] = (),
    progressive: bool = False,
    is_arithmetic: bool = False,
) -> bytes:
    """Returns a JPEG [height, width, 1, 3 or 4] by the libjpeg of Pillow's wheel.

    `sampling` has the horizontal and the vertical factor of each component.
    """
    library = planes.load().libjpeg
    height, width, components = pixels.shape
    errors, info = (ctypes.create_string_buffer(size) for size in (168, 520))
    set_int = ctypes.c_int.from_buffer
    ctypes.c_void_p.from_buffer(info).value = library.jpeg_std_error(errors) and ctypes.addressof(
        errors
    )
    library.jpeg_CreateCompress(info, 62, ctypes.c_size_t(520))
    memory = ctypes.c_void_p()
    size = ctypes.c_ulong()
    library.jpeg_mem_dest(info, ctypes.byref(memory), ctypes.byref(size))
    for offset, value in (
        (48, width),
        (52, height),
        (56, components),
        (60, {1: 1, 3: 2, 4: 4}[components]),
    ):
        set_int(info, offset).value = value
    library.jpeg_set_defaults(info)
    library.jpeg_set_quality(info, 85, 1)
    if progressive:
        library.jpeg_simple_progression(info)
    set_int(info, 260).value = is_arithmetic
    described = ctypes.c_void_p.from_buffer(info, 88).value or 0
    for number, factors in enumerate(sampling):
        for place, factor in enumerate(factors):
            address = described + 96 * number + 8 + 4 * place
            ctypes.c_int.from_address(address).value = factor
    library.jpeg_start_compress(info, 1)
    for row in np.ascontiguousarray(pixels):
        line = (ctypes.c_void_p * 1)(row.ctypes.data)
        library.jpeg_write_scanlines(info, line, 1)
    library.jpeg_finish_compress(info)
    made = ctypes.string_at(memory.value or 0, size.value)
    library.jpeg_destroy(info)
    return made


def with_marker(data: bytes, marker: int) -> bytes:
    """Returns a JPEG with a different marker of its frame header."""
    return with_frame(data, lambda frame: bytes((0xFF, marker)) + frame[2:])


def with_bits(data: bytes, bits: int) -> bytes:
    """Returns a JPEG with this number of bits per sample in its frame header."""
    return with_frame(data, lambda frame: frame[:4] + bytes((bits,)) + frame[5:])


def with_two_frames(data: bytes, marker: int) -> bytes:
    """Returns a JPEG with a second frame header of a different type behind the first."""
    return with_frame(data, lambda frame: frame + bytes((0xFF, marker)) + frame[2:])


def with_late_frame(data: bytes, marker: int) -> bytes:
    """Returns a JPEG with a second frame header behind its scan."""
    return data[:-2] + bytes((0xFF, marker)) + _frame(data)[2:] + data[-2:]


def hierarchical(data: bytes) -> bytes:
    """Returns a JPEG that claims to start with the first of several sizes."""
    return with_frame(data, lambda frame: bytes((0xFF, _DHP)) + frame[2:] + frame)


def hidden_frame(data: bytes, marker: int) -> bytes:
    """Returns a JPEG with a second frame header inside a comment."""
    return data[:2] + segment(0xFE, bytes((0xFF, marker)) + _frame(data)[2:]) + data[2:]


def _frame(data: bytes) -> bytes:
    at = _place(data)
    return data[at : at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")]


def with_frame(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Returns a JPEG with a changed frame header, marker included."""
    at = _place(data)
    frame = _frame(data)
    return data[:at] + change(frame) + data[at + len(frame) :]


def _place(data: bytes) -> int:
    """Returns the offset of the frame header of a sound JPEG."""
    at = 2
    while data[at + 1] not in _FRAMES:
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return at


def files(size: tuple[int, int] = (61, 43)) -> dict[str, bytes]:
    """Returns small JPEGs of every frame type, and with every ambiguity about it."""
    found = dict(mutations.sources(size))
    pixels = mutations.photograph(size)
    grey = pixels[:, :, :1]
    for name, of in {"rgb": pixels, "grey": grey}.items():
        found |= {
            f"lossless {name}": lossless(of),
            f"lossless {name}, 12 bits": lossless(of, bits=12),
            f"arithmetic {name}": arithmetic(of),
            f"arithmetic progressive {name}": arithmetic(of, progressive=True),
        }
    for source in ("420", "grey", "progressive", "cmyk", "lossless rgb", "arithmetic rgb"):
        data = found[source]
        found |= {f"{source} as {marker:x}": with_marker(data, marker) for marker in _FRAMES}
        found |= {f"{source}, {bits} bits": with_bits(data, bits) for bits in (2, 12, 16)}
        found[f"{source}, hierarchical"] = hierarchical(data)
        for marker in (0xC0, 0xC2, 0xC3, 0xC9):
            found[f"{source}, then {marker:x}"] = with_two_frames(data, marker)
            found[f"{source}, late {marker:x}"] = with_late_frame(data, marker)
            found[f"{source}, hidden {marker:x}"] = hidden_frame(data, marker)
    return found
