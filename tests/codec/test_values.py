"""Samples with more than 8 bits or other meanings: images keep their values, or are refused."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec import opening, transform
from imagenet_prep.codec.policy import Policy
from imagenet_prep.core.errors import BadImageError
from tests.kit.bounds import limited_memory
from tests.kit.codec import jpegs

RAMP = np.tile(np.arange(0, 256, 17), (4, 1))
NO_RANGE = (
    "floating-point, signed and 32-bit values have no agreed range: convert the image to 8 bits"
    " per sample"
)
BITS = 258
COMPRESSION = 259
PHOTOMETRIC = 262
SIGNED = 2
FLOATING = 3


def shown(data: bytes) -> np.ndarray:
    with opening.opened(data) as image:
        return opening.pixels(image)


def refusal(data: bytes) -> str:
    with pytest.raises(BadImageError) as caught:
        transform.transform(data, Policy(None))
    return str(caught.value)


def tiff(rows: np.ndarray, order: str = "II", **tags: int) -> bytes:
    """Returns a TIFF of one strip, with samples as they are in memory."""
    sign = "<" if order == "II" else ">"
    content = rows.astype(rows.dtype.newbyteorder(sign)).tobytes()
    entries = {256: rows.shape[1], 257: len(rows), BITS: 8 * rows.dtype.itemsize, COMPRESSION: 1}
    entries |= {PHOTOMETRIC: 1, 277: 1, 278: len(rows), 279: len(content)}
    entries |= {int(tag.removeprefix("t")): value for tag, value in tags.items()}
    entries[273] = 8 + 2 + 12 * (len(entries) + 1) + 4
    directory = b"".join(
        struct.pack(f"{sign}HHLL", tag, 4, 1, entries[tag]) for tag in sorted(entries)
    )
    head = order.encode() + struct.pack(f"{sign}HLH", 42, 8, len(entries))
    return head + directory + bytes(4) + content


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def png(bits: int, rows: np.ndarray, *, before: bytes = b"", behind: bytes = b"") -> bytes:
    """Returns a PNG of samples [height, width] grey or [height, width, 3], with extra chunks."""
    height, width = rows.shape[:2]
    every = (rows[..., None] >> np.arange(bits - 1, -1, -1) & 1).reshape(height, -1)
    lines = b"".join(b"\0" + np.packbits(line.astype(np.uint8)).tobytes() for line in every)
    color = 2 if rows.ndim == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    parts = [chunk(b"IHDR", header), before, chunk(b"IDAT", zlib.compress(lines)), behind]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw"])
@pytest.mark.parametrize("photometric", [0, 1], ids=["white is 0", "black is 0"])
def test_tiff_of_16_bits_is_scaled_and_inverted(photometric: int, compression: str) -> None:
    buffer = io.BytesIO()
    wide = Image.fromarray((RAMP * 257).astype(np.uint16))
    wide.save(buffer, "TIFF", compression=compression, tiffinfo={PHOTOMETRIC: photometric})
    found = shown(buffer.getvalue())[:, :, 0]
    assert np.array_equal(found, RAMP if photometric else 255 - RAMP)


@pytest.mark.parametrize("photometric", [0, 1])
def test_tiff_of_12_bits_is_not_black(photometric: int) -> None:
    samples = RAMP[0] * 4095 // 255
    packed = np.packbits((samples[:, None] >> np.arange(11, -1, -1) & 1).astype(np.uint8).ravel())
    data = tiff(np.tile(packed, (4, 1)), t256=16, t258=12, t262=photometric)
    if photometric:
        assert np.array_equal(shown(data)[:, :, 0], RAMP)
    else:
        said = "a TIFF (1 bands of 12 bits, grey, compression 1) that Pillow does not read"
        assert refusal(data) == f"undecodable: {said}: unknown pixel mode"


@pytest.mark.parametrize("order", ["II", "MM"])
@pytest.mark.parametrize("photometric", [0, 1])
@pytest.mark.parametrize(
    ("kind", "of"),
    [
        ("u4", 1),
        ("i4", SIGNED),
        ("i2", SIGNED),
        ("f4", FLOATING),
        ("f8", FLOATING),
        ("f2", FLOATING),
    ],
)
def test_values_without_an_agreed_range_are_refused(
    kind: str, of: int, photometric: int, order: str
) -> None:
    said = refusal(tiff(RAMP.astype(kind), order, t262=photometric, t339=of))
    bits = 8 * np.dtype(kind).itemsize
    facts = f"(1 bands of {bits} bits, grey, compression 1)"
    assert said in {
        f"unsupported: {NO_RANGE}",
        f"undecodable: a TIFF {facts} that Pillow does not read: unknown pixel mode",
    }


@pytest.mark.parametrize("bits", [1, 8, 16])
def test_transparent_grey_of_a_png_has_its_depth(bits: int) -> None:
    most = (1 << bits) - 1
    samples = np.tile([0, most // 3, most // 2, most], (4, 1))
    for key in {0, most // 3, most}:
        transparency = chunk(b"tRNS", struct.pack(">H", key))
        found = shown(png(bits, samples, before=transparency))[0, :, 0].astype(int)
        expected = np.where(samples[0] == key, 255, samples[0] * 255 // most)
        assert abs(found - expected).max() <= 1, key


def test_transparent_colour_is_exact_or_refused() -> None:
    samples = np.zeros((4, 8, 3), int)
    samples[:, 4:] = 3
    transparency = chunk(b"tRNS", struct.pack(">HHH", 3, 3, 3))
    assert shown(png(8, samples, before=transparency))[0, :, 0].tolist() == [0] * 4 + [255] * 4
    assert refusal(png(16, samples, before=transparency)).startswith("unsupported: its transparent")


def test_transparency_of_every_mode_becomes_white() -> None:
    for mode in ("LA", "La", "PA", "RGBA", "RGBa"):
        assert np.asarray(opening.rgb(Image.new(mode, (2, 2)))).min() == 255, mode
    for mode in ("1", "L", "P", "RGB", "HSV", "I;16", "I;16B"):
        assert np.asarray(opening.rgb(Image.new(mode, (2, 2)))).max() == 0, mode


LARGE = b"text" * (1 << 20)
METADATA = {
    "profile": chunk(b"iCCP", b"a\0\0" + zlib.compress(LARGE)),
    "compressed": chunk(b"zTXt", b"a\0\0" + zlib.compress(LARGE)),
    "international": chunk(b"iTXt", b"a\0\1\0\0\0" + zlib.compress(LARGE)),
    "much": 17 * chunk(b"tEXt", b"a\0" + LARGE),
    "unknown method": chunk(b"zTXt", b"a\0\7"),
    "wrong checksum": chunk(b"tEXt", b"a\0b")[:-1] + b"?",
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata_of_a_png_never_affects_its_pixels(name: str) -> None:
    for place in ("before", "behind"):
        around: dict[str, Any] = {place: METADATA[name]}
        assert np.array_equal(shown(png(8, RAMP, **around))[:, :, 0], RAMP)


def test_metadata_of_a_png_is_not_decompressed() -> None:
    bombs = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(64 << 20)))
    exif = b"Raw profile type exif\0\0" + zlib.compress(bytes(32 << 20))
    with limited_memory(16 << 20):
        shown(png(8, RAMP, before=8 * bombs))
        assert "too large" in refusal(png(8, RAMP, before=chunk(b"zTXt", exif)))


@pytest.mark.parametrize("name", ["exif", "APP1"])
@pytest.mark.parametrize("kind", ["tEXt", "zTXt", "iTXt"])
def test_png_is_turned_by_exif_in_a_text(kind: str, name: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    block = exif.tobytes().hex()
    text = f"\nexif\n{len(block) // 2:8}\n{block[:72]}\n{block[72:]}\n".encode()
    head = f"Raw profile type {name}\0".encode()
    content = {"tEXt": text, "zTXt": b"\0" + zlib.compress(text), "iTXt": b"\0\0\0\0" + text}[kind]
    around = chunk(kind.encode(), head + content)
    for data in (png(8, RAMP, before=around), png(8, RAMP, behind=around)):
        made = transform.transform(data, Policy(None, orientation="apply"))
        assert (made.height, made.width, made.repair) == (16, 4, "png+orientation")
        assert jpegs.grey(made.encoded)[0].max() < 9


@pytest.mark.parametrize(("num_bytes", "side"), [(65_000, 16), (66_000, 4)])
def test_exif_text_above_64_kb_is_ignored(num_bytes: int, side: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    block = exif.tobytes().hex()
    text = f"\nexif\n{len(block) // 2:8}\n{block}\n".encode()
    around = chunk(b"tEXt", b"Raw profile type exif\0" + text.ljust(num_bytes, b"\n"))

    made = transform.transform(png(8, RAMP, before=around), Policy(None, orientation="apply"))
    assert made.height == side


@pytest.mark.parametrize("kind", [b"tEXt", b"zTXt", b"iTXt"])
def test_text_similar_to_exif_turns_no_image(kind: bytes) -> None:
    for head in (b"exif", b"Raw profile type exif"):
        content = head + b"\0\0\0\0\0" + zlib.compress(b"no\n hex\n\n II*\0")
        made = transform.transform(png(8, RAMP, before=chunk(kind, content)), Policy(None))
        assert made.repair == "png"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *{
            "PNG": b"\x89PNG\r\n\x1a\n" + bytes(40),
            "GIF": b"GIF89a" + bytes(40),
            "TIFF": b"II*\0" + bytes(40),
            "WebP": b"RIFF\x20\0\0\0WEBPVP8 " + bytes(40),
            "BMP": b"BM" + bytes(12) + b"\x28" + bytes(40),
            "JPEG": b"\xff\xd8\xff\xe0" + bytes(40),
        }.items()
    ],
)
def test_broken_file_of_a_known_format_is_undecodable(name: str, data: bytes) -> None:
    assert refusal(data).startswith("undecodable: "), name


@pytest.mark.parametrize("order", ["II", "MM"])
def test_tiff_with_orientation_of_unusual_type_is_turned(order: str) -> None:
    """Pillow ignores an orientation that is text."""
    rows = np.repeat(np.arange(0, 160, 40, dtype=np.uint8)[:, None], 16, axis=1)
    sign = "<" if order == "II" else ">"
    entry = struct.pack(f"{sign}HHLL", 274, 4, 1, 6)
    text = struct.pack(f"{sign}HHL4s", 274, 2, 2, b"6")
    data = tiff(rows, order, t274=6)
    assert data.count(entry) == 1
    made = transform.transform(data.replace(entry, text), Policy(None, orientation="apply"))

    assert (made.width, made.height) == (4, 16)
