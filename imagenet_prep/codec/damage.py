"""The meaning of libjpeg's warnings about a JPEG: all its pixels are there, or some are lost.

Pillow ignores warnings, and simplejpeg reports only the first one. So Pillow's libjpeg decodes a
file once more if simplejpeg reports one, to list all warnings.
"""

from __future__ import annotations

from imagenet_prep.codec import planes
from imagenet_prep.core.errors import BadImageError

# Reasons of repairs: values in the header that decoders correct, and bytes that belong to nothing.
HEADER, SURPLUS = "header", "surplus_data"
_REPAIRS = {HEADER, SURPLUS}
_TRUNCATED, _CORRUPT = "truncated", "corrupt"

# All warnings of libjpeg-turbo, by their codes in version 62 of its interface: the names in
# jerror.h, and the reason of the repair or of the quarantine.
WARNINGS = {
    114: ("JWRN_ADOBE_XFORM", HEADER),  # it takes YCbCr or YCCK
    115: ("JWRN_BOGUS_PROGRESSION", _CORRUPT),  # a scan that other scans build on is missing
    116: ("JWRN_EXTRANEOUS_DATA", SURPLUS),  # it goes on at the next marker
    117: ("JWRN_HIT_MARKER", _CORRUPT),
    118: ("JWRN_HUFF_BAD_CODE", _CORRUPT),
    119: ("JWRN_JFIF_MAJOR", HEADER),  # of no meaning for pixels
    120: ("JWRN_JPEG_EOF", _TRUNCATED),
    121: ("JWRN_MUST_RESYNC", _CORRUPT),
    122: ("JWRN_NOT_SEQUENTIAL", HEADER),  # such a file has no other parameters to choose from
    123: ("JWRN_TOO_MUCH_DATA", _CORRUPT),  # a fault of ours
    126: ("JWRN_ARITH_BAD_CODE", _CORRUPT),
    127: ("JWRN_BOGUS_ICC", HEADER),  # nothing here reads a profile
}

# In the first warning, which is all that simplejpeg gives where Pillow's libjpeg cannot be loaded.
_SURPLUS_WORDS, _TRUNCATED_WORDS = "extraneous bytes", "Premature end of JPEG file"


def repair(data: bytes, complaint: str = "") -> str | None:
    """Returns the reason of the repair of a JPEG, or None; raises BadImageError if pixels are lost.

    Surplus bytes in a scan decide, whatever comes after them: TensorFlow and DALI train on such
    images, and the archive's md5 tells damage from how an image was published.
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
