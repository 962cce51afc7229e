"""Decides from libjpeg's warnings whether a JPEG has lost pixels.

The first warning of libjpeg ends decoding. libjpeg then decodes the file again to list all
warnings. Pillow itself ignores warnings.

Bytes that no scan uses are harmless only if the picture is complete without them. So they are cut
off, and libjpeg must decode the rest without a warning. Bytes that look like image data are never
cut off, since a lost or changed byte of a scan leaves such bytes at its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from imagenet_prep.codec import cage, planes
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import jpeg
from imagenet_prep.dataset.formats import LINE_ENDS
from imagenet_prep.dataset.member import DOUBTFUL

# The reasons for repairs: header values that decoders correct; surplus bytes; an end marker that is
# missing behind a complete picture. DOUBTFUL: the first bytes of a text that follows may stand in
# place of the picture's last bytes.
HEADER = "header"
SURPLUS = "surplus_data"
NO_END = "no_end_marker"
_REPAIRS = {HEADER, SURPLUS}
_TRUNCATED = "truncated"
_CORRUPT = "corrupt"

# All warnings of libjpeg-turbo by code (interface version 62), with the name in jerror.h and the
# reason that is recorded for the repair or quarantine.
WARNINGS = {
    114: ("JWRN_ADOBE_XFORM", HEADER),  # libjpeg assumes YCbCr or YCCK
    115: ("JWRN_BOGUS_PROGRESSION", _CORRUPT),  # a scan that later scans need is missing
    116: ("JWRN_EXTRANEOUS_DATA", SURPLUS),  # libjpeg continues at the next marker
    117: ("JWRN_HIT_MARKER", _CORRUPT),
    118: ("JWRN_HUFF_BAD_CODE", _CORRUPT),
    119: ("JWRN_JFIF_MAJOR", HEADER),  # does not affect pixels
    120: ("JWRN_JPEG_EOF", _TRUNCATED),
    121: ("JWRN_MUST_RESYNC", _CORRUPT),
    122: ("JWRN_NOT_SEQUENTIAL", HEADER),  # sequential files only have one valid set of parameters
    123: ("JWRN_TOO_MUCH_DATA", _CORRUPT),  # only a bug in this package can cause it
    126: ("JWRN_ARITH_BAD_CODE", _CORRUPT),
    127: ("JWRN_BOGUS_ICC", HEADER),  # profiles are not used
    253: ("JWRN_EXTRANEOUS_DATA", SURPLUS),  # in a scan, and only fill
    254: ("JWRN_EXTRANEOUS_DATA", _CORRUPT),  # in a scan, or behind a table
    255: ("", _CORRUPT),  # no warning: the scans do not have all bits of all coefficients
    0: ("", "undecodable"),  # no warning: the error that ends decoding
}

_ERROR = 0
_FILL_IN_SCAN = 253
_SCANS_MISSING = 255
# The error and the warnings that bytes behind a complete picture can cause.
_OF_TAIL = {_ERROR, 120, 254}

# The scans end at the end marker, at a second JPEG, or at a video, whose first box has its size in
# four bytes before its name; or at the end of the file.
_END_OF_SCANS = re.compile(rb"\xff\xd9|\xff\xd8\xff|.{4}ftyp|\Z", re.DOTALL)
# Bytes that cameras and other programs write behind a picture: zeros, 0xFF with or without a
# stuffed zero, restart markers, text. The data of a photograph does not have 16 bytes of text.
# The possessive "++" takes no memory; "+" would remember each of millions of zeros.
_TAIL = re.compile(rb"(?:\0|\xff[\xd0-\xd7]?|[\t\n\r -~]{16,})++")
# Of 1,000 pictures, 7 end with more bytes that happen to be text.
_MOST_LIKE_TEXT = 4

# Of undamaged files, only one in 256 has a CR before its first LF. Fewer LFs occur by chance.
_LONE_LF = re.compile(rb"[^\r]\n")
_FEWEST_LINE_ENDS = 3


def refuse_translated(data: bytes) -> None:
    """Raises BadImageError if the line ends of a JPEG were translated, which libjpeg may miss."""
    if _LONE_LF.search(data) or data.count(b"\n") < _FEWEST_LINE_ENDS or planes.proves(data):
        return
    raise BadImageError(_CORRUPT, LINE_ENDS)


def repaired(data: bytes, frame: jpeg.JpegFrame, complaint: str = "") -> tuple[str | None, bytes]:
    """Returns the reason to repair a JPEG, or None, and its picture without bytes behind it.

    `frame` is from `jpeg.refuse_bombs`; `complaint` is libjpeg's first warning, if it is known.
    Raises BadImageError if pixels are lost.
    """
    cage.require_cage()
    found = _found(data)
    found.pop(_SCANS_MISSING, None)  # such a JPEG only has less detail
    harmful = _harmful(found)
    if not harmful and _FILL_IN_SCAN not in found:
        return next(map(_reason, found), HEADER if complaint else None), data
    if _OF_TAIL.issuperset(harmful):
        end = next(_END_OF_SCANS.finditer(data, frame.first_scan))
        has_end = end[0] == jpeg.EOI
        for picture, reason in _without_tail(data[: end.start()], frame):
            # Arithmetic codes do not show where they end.
            if not _harmful(_found(picture)) and (has_end or frame.can_be_scaled):
                return SURPLUS if has_end and reason == NO_END else reason, picture
    if not _LONE_LF.search(data) and data.count(b"\n") > 1:
        raise BadImageError(_CORRUPT, LINE_ENDS)
    if harmful:
        raise BadImageError(_reason(harmful[0]), found[harmful[0]])
    raise BadImageError(_CORRUPT, "zeros or other fill in place of image data")


def _found(data: bytes) -> dict[int, str]:
    """Returns what libjpeg says about a JPEG, by the keys of WARNINGS."""
    warnings, error = planes.workspace().warnings(data)
    return {_ERROR: error} if error else warnings


def _reason(code: int) -> str:
    _, reason = WARNINGS.get(code, ("", _CORRUPT))
    return reason


def _harmful(found: dict[int, str]) -> list[int]:
    return [code for code in found if _reason(code) not in _REPAIRS]


def _without_tail(data: bytes, frame: jpeg.JpegFrame) -> Iterator[tuple[bytes, str]]:
    """Yields a JPEG for each place where its picture may end, and the reason for the repair.

    `data` has no end marker.
    """
    tails = (m.start() for m in _TAIL.finditer(data, frame.first_scan) if m.end() == len(data))
    tail = next(tails, len(data))
    yield data[:tail] + jpeg.EOI, NO_END
    if data.startswith(b"\xff\0", tail):
        # The last byte of the scan may be 0xFF with its stuffed zero.
        yield data[: tail + 2] + jpeg.EOI, NO_END
    elif data[tail : tail + 1].strip(b"\0\xff"):
        for stop in range(tail + 1, tail + 1 + _MOST_LIKE_TEXT):
            yield data[:stop] + jpeg.EOI, DOUBTFUL
