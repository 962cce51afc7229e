"""Formats of images, told by their first bytes: what a file is, whatever it is called."""

from __future__ import annotations

HEAD_BYTES = 32

# The formats that the codec reads, by the names that people use.
READ = frozenset({"JPEG", "PNG", "GIF", "BMP", "WebP", "TIFF"})

_BEGINNINGS = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL \r\n\x87\n": "JPEG XL",
    b"\0\0\0\x0cjP  \r\n\x87\n": "JPEG 2000",
    b"8BPS": "Photoshop",
}
# ISO media files say at byte 8 whose they are.
_BRANDS = {
    **dict.fromkeys(
        (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"), "HEIC"
    ),
    **dict.fromkeys((b"avif", b"avis"), "AVIF"),
    **dict.fromkeys((b"qt  ", b"isom", b"iso2", b"mp41", b"mp42", b"M4V "), "video"),
}
# Sizes of the second header of a BMP: two letters alone begin many a text.
_BMP_HEADERS = frozenset({12, 40, 52, 56, 64, 108, 124})


def name_of(head: bytes) -> str | None:
    """Returns the format of a file by its first HEAD_BYTES, None for an unknown one."""
    for beginning, name in _BEGINNINGS.items():
        if head.startswith(beginning):
            return name
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12])
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return "BMP"
    return None


def unreadable(head: bytes) -> str:
    """Returns what is said of a file that is no image which the codec reads."""
    name = name_of(head)
    if name is None or name in READ:
        return f"starts with {head[:8]!r}"
    return f"is {name}, which this program does not read: convert it to JPEG or PNG"
