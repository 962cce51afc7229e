"""JPEGs with structures that repeat, nest or claim."""

from __future__ import annotations

import functools
import io
import struct

import numpy as np
from PIL import Image

from tests.kit.codec import frames
from tests.kit.codec.frames import segment
from tests.kit.hostile import images
from tests.kit.hostile.bombs.tiff import DIRECTORIES, Entry, directory

_LARGEST_SIDE = 8000  # 64 million pixels, the limit of `prepare`
_ORIENTATION = 0x0112
_IMAGES = 0xB001
_MPF_ENTRIES = 0xB002
_RESOLUTION: Entry = (0x011A, 5, 1, struct.pack("<II", 72, 1))
_APP1 = 0xE1
_APP2 = 0xE2
_APP13 = 0xED
_MOST_CONTENT = 65_533


@functools.cache
def _plain(mode: str = "RGB", side: int = 64) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (side, side), 90).save(buffer, "JPEG")
    return buffer.getvalue()


def _behind_start(parts: bytes) -> bytes:
    return b"\xff\xd8" + parts + _plain()[2:]


def _before_frame(parts: bytes) -> bytes:
    data = _plain()
    at = data.index(b"\xff\xc0")
    return data[:at] + parts + data[at:]


def _in_scan(parts: bytes) -> bytes:
    return _plain()[:-2] + parts + b"\xff\xd9"


def _claims(data: bytes, width: int, height: int) -> bytes:
    """Returns a JPEG with a different size in its frame header."""
    return frames.with_frame(
        data, lambda frame: frame[:5] + struct.pack(">HH", height, width) + frame[9:]
    )


def _exif(content: bytes) -> bytes:
    return segment(_APP1, (b"Exif\0\0" + content)[:_MOST_CONTENT])


def _app1(entries: list[Entry], count: int) -> bytes:
    return _behind_start(_exif(directory(entries)) * count)


def scans_of_large_pixels(count: int) -> bytes:
    """A progressive JPEG of 64 MP with a repeated last scan."""
    data = images.progressive_jpeg(count)
    return _claims(data, _LARGEST_SIDE, _LARGEST_SIDE)


def large_scans_without_interleaving(count: int) -> bytes:
    """A baseline JPEG of 64 MP with a repeated last component."""
    data = images.many_scans_without_interleaving(count)
    return _claims(data, _LARGEST_SIDE, _LARGEST_SIDE)


def full_comments(count: int) -> bytes:
    return _behind_start(segment(0xFE, b"c" * _MOST_CONTENT) * count)


def line_ends(count: int) -> bytes:
    """Comments of line ends, which resemble a file that was translated."""
    return _behind_start(segment(0xFE, b"\n" * _MOST_CONTENT) * count)


def orientations(count: int) -> bytes:
    entry: Entry = (_ORIENTATION, 3, 1, struct.pack("<HH", 6, 0))
    return _app1([_RESOLUTION, *[entry] * 5_400], count)


def upright_orientations(count: int) -> bytes:
    entry: Entry = (_ORIENTATION, 3, 1, struct.pack("<HH", 1, 0))
    return _app1([_RESOLUTION, *[entry] * 5_400], count)


def orientations_at_wrong_places(count: int) -> bytes:
    """Directories full of the tag, but only at offsets that start no entry."""
    content = b"\0\0" + struct.pack("<H", _ORIENTATION) * 5
    head = directory([_RESOLUTION], entry_count=0xFFFF)[: 8 + 2 + 12]
    return _behind_start(_exif(head + content * 5_400) * count)


def exif_of_many_numbers(count: int) -> bytes:
    """Each value claims to be an array that fills the segment."""
    arrays: list[Entry] = [(0x9000 + tag, 7, 40_000, 8) for tag in range(2_000)]
    content = directory([_RESOLUTION, *arrays], padding=40_000)
    return _behind_start(_exif(content) * count)


def exif_that_points_to_itself(count: int) -> bytes:
    """The directories for EXIF, GPS and interoperability, and the next one, are the first one."""
    content = directory([_RESOLUTION, *DIRECTORIES], following=8)
    return _behind_start(_exif(content) * count)


def exif_without_resolution(count: int) -> bytes:
    """Pillow searches such segments for the resolution."""
    return _behind_start(_exif(directory([], entry_count=0xFFFF)) * count)


def exif_in_one_segment(count: int) -> bytes:
    """Headers of EXIF without end, at each of which the search for a resolution may start."""
    head = b"\xff\xe1\xff\xffExif\0\0II*\0\x08\0\0\0\xff\xff"
    parts = (head + bytes(36 - len(head))) * 1_800
    return _behind_start(segment(_APP1, parts) * count)


def mpf_entries(count: int) -> bytes:
    """An index of many pictures (MPF), of which there are at most 4,000."""
    values = struct.pack("<IIIHH", 0x030000, 1, 0, 0, 0) * min(count, 4_000)
    entries: list[Entry] = [(_IMAGES, 4, 1, count), (_MPF_ENTRIES, 7, len(values), values)]
    return _behind_start(segment(_APP2, b"MPF\0" + directory(entries)))


def mpf_segments(count: int) -> bytes:
    entries: list[Entry] = [(_IMAGES, 4, 1, 4_000), (_MPF_ENTRIES, 7, 64_000, bytes(64_000))]
    return _behind_start(segment(_APP2, b"MPF\0" + directory(entries)) * count)


def photoshop_blocks(count: int) -> bytes:
    """Segments full of empty blocks, each with a different number."""
    blocks = [b"8BIM" + struct.pack(">HHI", number, 0, 0) for number in range(5_000)]
    return _behind_start(segment(_APP13, b"Photoshop 3.0\0" + b"".join(blocks)) * count)


def icc_chunks(count: int) -> bytes:
    """Parts of a colour profile; there cannot be more than 255."""
    parts = []
    for number in range(count):
        place = bytes((number % 255 + 1, 255))
        parts.append(segment(_APP2, b"ICC_PROFILE\0" + place + bytes(65_000)))
    return _behind_start(b"".join(parts))


def xmp(count: int) -> bytes:
    return _behind_start(segment(_APP1, b"http://ns.adobe.com/xap/1.0/\0" + bytes(65_000)) * count)


def adobe(count: int) -> bytes:
    return _behind_start(segment(0xEE, b"Adobe" + bytes(7)) * count)


def quantization_tables(count: int) -> bytes:
    return _before_frame(segment(0xDB, (b"\0" + b"\1" * 64) * 1_000) * count)


def small_quantization_tables(count: int) -> bytes:
    return _before_frame(segment(0xDB, b"\0" + b"\1" * 64) * count)


def huffman_tables(count: int) -> bytes:
    return _before_frame(segment(0xC4, (b"\0" + b"\0\1" + bytes(14) + b"\0") * 3_500) * count)


def small_huffman_tables(count: int) -> bytes:
    return _before_frame(segment(0xC4, b"\0" + b"\0\1" + bytes(14) + b"\0") * count)


def arithmetic_tables(count: int) -> bytes:
    return _before_frame(segment(0xCC, b"\0\1" * 32_000) * count)


def fill_bytes(count: int) -> bytes:
    return _before_frame(b"\xff" * count)


def markers_without_content(count: int) -> bytes:
    return _before_frame(b"\xff\x01" * count)


def surplus_bytes(count: int) -> bytes:
    return _before_frame(b"\0surplus" * count)


def starts(count: int) -> bytes:
    return b"\xff\xd8" * count + _plain()


def nested(count: int) -> bytes:
    """Complete JPEGs as thumbnails in thumbnails, as many as a segment has room for."""
    inner = _plain(side=8)
    for _ in range(count):
        inner = inner[:2] + segment(_APP1, b"Exif\0\0" + inner[: _MOST_CONTENT - 6]) + inner[2:]
    return inner


def one_after_another(count: int) -> bytes:
    return _plain() * count


def restart_markers(count: int) -> bytes:
    return _in_scan(b"\xff\xd0\xff\xd1" * count)


def restarts_of_each_block(side: int) -> bytes:
    """A restart marker is due behind each block, and none exists."""
    data = _before_frame(segment(0xDD, b"\0\1"))
    return _claims(data, side, side)


def zeros_in_scan(count: int) -> bytes:
    return _in_scan(bytes(count))


def zeros_without_end(count: int) -> bytes:
    return _plain()[:-2] + bytes(count)


def text_without_end(count: int) -> bytes:
    return _plain()[:-2] + b"text of many lines\r\n" * count


def short_texts_without_end(count: int) -> bytes:
    """Texts that are too short, at each of which a search may start again."""
    return _plain()[:-2] + b"fifteen letters\x80" * count


def end_markers(count: int) -> bytes:
    return _plain() + b"\xff\xd9" * count


def baseline_claims(side: int) -> bytes:
    return _claims(_plain(), side, side)


def progressive_claims(side: int) -> bytes:
    return images.jpeg_that_claims(side, side, progressive=True)


def one_row(width: int) -> bytes:
    return _claims(_plain(), width, 1)


def one_column(height: int) -> bytes:
    return _claims(_plain(), 1, height)


def cmyk_claims(side: int) -> bytes:
    return _claims(_plain("CMYK"), side, side)


def arithmetic_claims(side: int) -> bytes:
    pixels = np.zeros((16, 16, 3), np.uint8)
    return _claims(frames.arithmetic(pixels), side, side)


def progressive_arithmetic_claims(side: int) -> bytes:
    pixels = np.zeros((16, 16, 3), np.uint8)
    return _claims(frames.arithmetic(pixels, progressive=True), side, side)


def lossless_claims(side: int) -> bytes:
    return _claims(frames.lossless(np.zeros((16, 16, 3), np.uint8)), side, side)


def large_sampling(side: int) -> bytes:
    """Each component has four times four blocks."""
    return _with_factors(side, (0x44, 0x44, 0x44))


def unequal_sampling(side: int) -> bytes:
    """Chroma has more samples than luma, by factors that do not divide each other."""
    return _with_factors(side, (0x11, 0x34, 0x43))


def _with_factors(side: int, factors: tuple[int, int, int]) -> bytes:
    data = _claims(_plain(), side, side)

    def change(frame: bytes) -> bytes:
        changed = bytearray(frame)
        for component, factor in enumerate(factors):
            changed[11 + 3 * component] = factor
        return bytes(changed)

    return frames.with_frame(data, change)


def components(count: int) -> bytes:
    """A frame and a scan of more components than decoders accept."""
    frame = struct.pack(">BHHB", 8, 64, 64, count)
    scan = bytes((count,))
    for number in range(count):
        frame += bytes((number, 0x11, 0))
        scan += bytes((number, 0))
    data = _plain()
    tables = data[2 : data.index(b"\xff\xc0")]
    head = segment(0xC0, frame) + segment(0xDA, scan + b"\0\x3f\0")
    return b"\xff\xd8" + tables + head + bytes(1_000) + b"\xff\xd9"


def frame_headers(count: int) -> bytes:
    data = _plain()
    at = data.index(b"\xff\xc0")
    return data[:at] + data[at : at + 19] * count + data[at:]


# fmt: off
TABLE = {
    "scans": (images.progressive_jpeg, (90, 500, 20_000)),
    "scans of 64 MP": (scans_of_large_pixels, (3, 99)),
    "scans without interleaving": (images.many_scans_without_interleaving, (90, 500, 20_000)),
    "scans of 64 MP without interleaving": (large_scans_without_interleaving, (3, 99)),
    "scans behind garbage": (images.scans_behind_garbage, (90, 300)),
    "scans behind an end in a comment": (images.scans_behind_an_end_in_a_comment, (90, 300)),
    "empty comments": (images.jpeg_with_many_comments, (9_000, 200_000, 7_000_000)),
    "full comments": (full_comments, (1, 450)),
    "line ends": (line_ends, (1, 450)),
    "orientations": (orientations, (1, 20, 450)),
    "upright orientations": (upright_orientations, (1, 450)),
    "orientations at wrong places": (orientations_at_wrong_places, (1, 20, 450)),
    "EXIF of many numbers": (exif_of_many_numbers, (1, 450)),
    "EXIF that points to itself": (exif_that_points_to_itself, (1, 9_000)),
    "EXIF without resolution": (exif_without_resolution, (1, 9_000)),
    "EXIF in one segment": (exif_in_one_segment, (1, 450)),
    "MPF entries": (mpf_entries, (2, 4_000, 2**32 - 1)),
    "MPF segments": (mpf_segments, (1, 450)),
    "Photoshop blocks": (photoshop_blocks, (1, 20, 450)),
    "ICC chunks": (icc_chunks, (3, 255, 450)),
    "XMP": (xmp, (1, 450)),
    "Adobe segments": (adobe, (10, 9_000)),
    "quantization tables": (quantization_tables, (1, 450)),
    "small quantization tables": (small_quantization_tables, (100, 9_000, 400_000)),
    "Huffman tables": (huffman_tables, (1, 450)),
    "small Huffman tables": (small_huffman_tables, (100, 9_000, 1_000_000)),
    "arithmetic tables": (arithmetic_tables, (1, 450)),
    "fill bytes": (fill_bytes, (1_000, 30_000_000)),
    "markers without content": (markers_without_content, (100, 9_000, 15_000_000)),
    "surplus bytes": (surplus_bytes, (10, 3_700_000)),
    "starts": (starts, (10, 9_000, 15_000_000)),
    "nested thumbnails": (nested, (1, 8)),
    "files one after another": (one_after_another, (2, 40_000)),
    "restart markers": (restart_markers, (10, 100_000, 7_000_000)),
    "restarts of each block": (restarts_of_each_block, (64, 8_000)),
    "zeros in the scan": (zeros_in_scan, (100, 30_000_000)),
    "zeros without end": (zeros_without_end, (100, 1_000_000, 30_000_000)),
    "text without end": (text_without_end, (100, 1_500_000)),
    "short texts without end": (short_texts_without_end, (100, 1_800_000)),
    "end markers": (end_markers, (10, 15_000_000)),
    "baseline claims": (baseline_claims, (1_000, 8_000, 65_500)),
    "progressive claims": (progressive_claims, (1_000, 8_000, 65_500)),
    "CMYK claims": (cmyk_claims, (1_000, 8_000)),
    "one row": (one_row, (65_500,)),
    "one column": (one_column, (65_500,)),
    "arithmetic claims": (arithmetic_claims, (1_000, 8_000)),
    "progressive arithmetic claims": (progressive_arithmetic_claims, (1_000, 8_000)),
    "lossless claims": (lossless_claims, (1_000, 8_000)),
    "large sampling": (large_sampling, (64, 8_000)),
    "unequal sampling": (unequal_sampling, (64, 8_000)),
    "components": (components, (4, 10, 255)),
    "frame headers": (frame_headers, (1, 9_000, 1_500_000)),
}
# fmt: on
