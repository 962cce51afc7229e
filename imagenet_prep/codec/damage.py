"""Decides from libjpeg's warnings whether a JPEG has lost pixels.

simplejpeg only reports the first warning. If there is one, libjpeg decodes the file again to list
all warnings. Pillow itself ignores warnings.
"""

from __future__ import annotations

from imagenet_prep.codec import planes
from imagenet_prep.core.errors import BadImageError

# The reasons for repairs are header values that decoders correct, and surplus bytes.
HEADER, SURPLUS = "header", "surplus_data"
_REPAIRS = {HEADER, SURPLUS}
_TRUNCATED, _CORRUPT = "truncated", "corrupt"

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
}

# Words in simplejpeg's warning, which is the only one if Pillow's libjpeg cannot be loaded.
_SURPLUS_WORDS, _TRUNCATED_WORDS = "extraneous bytes", "Premature end of JPEG file"


def repair(data: bytes, complaint: str = "") -> str | None:
    """Returns the reason to repair a JPEG, or None; raises BadImageError if pixels are lost.

    `complaint` is simplejpeg's warning. After surplus bytes in a scan, later warnings are ignored,
    since TensorFlow and DALI accept these images.
    """
    if not planes.is_available():
        if _SURPLUS_WORDS in complaint:
            return SURPLUS
        raise BadImageError(_TRUNCATED if _TRUNCATED_WORDS in complaint else _CORRUPT, complaint)
    warnings, error = planes.workspace().warnings(data)
    if error:
        raise BadImageError("undecodable", error)
    found = None
    for in_scan, code, said in warnings:
        _, reason = WARNINGS.get(code, ("", _CORRUPT))
        if reason not in _REPAIRS:
            raise BadImageError(reason, said)
        if reason == SURPLUS and in_scan:
            return reason
        found = found or reason
    return found or (HEADER if complaint else None)
