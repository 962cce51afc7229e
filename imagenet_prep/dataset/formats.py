"""Detects image formats by a file's first bytes, and counts files that are not images.

The counts by extension are reported, so that no file is dropped silently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from imagenet_prep.core.errors import install_line
from imagenet_prep.core.imports import is_there
from imagenet_prep.core.terminal import counted

HEAD_BYTES = 64
LINE_ENDS = "line ends were translated (git, FTP): copy the original in binary mode"
HEIC = "HEIC"

# Formats that the codec reads, by their common names.
READ = frozenset({"JPEG", "PNG", "GIF", "BMP", "WebP", "TIFF", "AVIF"})
# Formats of photographs with any file name. TIFF is not included: raw camera files look like TIFF.
PHOTOGRAPH_FORMATS = READ - {"TIFF"} | {HEIC, "JPEG XL"}
# Decoder modules that an installation may lack, and the commands that install them.
_DECODERS = {
    "AVIF": ("PIL._avif", "pip install --force-reinstall --only-binary :all: pillow"),
    HEIC: ("pillow_heif", install_line("heif")),
}

_BEGINNINGS = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",  # BigTIFF
    b"MM\0+": "big-endian BigTIFF",
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL \r\n\x87\n": "JPEG XL",
    b"\0\0\0\x0cjP  \r\n\x87\n": "JPEG 2000",
    b"8BPS": "Photoshop",
}
# Brands of ISO media files, at byte 8. After a generic HEIF brand, the compatible brands decide.
_BRANDS = {
    **dict.fromkeys((b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis"), HEIC),
    **dict.fromkeys((b"avif", b"avis"), "AVIF"),
    **dict.fromkeys((b"qt  ", b"isom", b"iso2", b"mp41", b"mp42", b"M4V "), "video"),
}
# Valid sizes of a BMP's second header, since a text file can also start with "BM".
_BMP_HEADERS = frozenset({12, 40, 52, 56, 64, 108, 124})


def name_of(head: bytes) -> str | None:
    """Returns the format of a file, given its first HEAD_BYTES; None if it is unknown."""
    for beginning, name in _BEGINNINGS.items():
        if head.startswith(beginning):
            return name
    if head[4:8] == b"ftyp":
        if head[8:12] not in (b"mif1", b"msf1", b"miaf"):
            return _BRANDS.get(head[8:12])
        stop = min(len(head), int.from_bytes(head[:4], "big"))
        compatible = (head[at : at + 4] for at in range(16, stop, 4))
        return next((_BRANDS[brand] for brand in compatible if brand in _BRANDS), HEIC)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return "BMP"
    return None


def is_readable(name: str | None) -> bool:
    """Returns whether this installation can decode a format."""
    decoder = _DECODERS.get(name or "")
    if decoder:
        return is_there(decoder[0])
    return name in READ


def unreadable(head: bytes) -> str:
    """Returns the error text for a file that the codec cannot read."""
    name = name_of(head)
    if head.startswith((b"\x89PNG\r\r\n", b"\x89PNG\n", b"\x89PNG\r\x1a")):
        return f"is a PNG whose {LINE_ENDS}"
    if name is None or is_readable(name):
        return f"starts with {head[:8]!r}"
    return f"is {name}, which is not read here: {remedy([name])}"


def remedy(names: Collection[str]) -> str:
    """Returns the advice for images in unsupported formats."""
    commands = [f"run {_DECODERS[name][1]}" for name in sorted(names) if name in _DECODERS]
    return ", or ".join([*commands, "convert to JPEG or PNG"])


def unsupported_in_words(details: Iterable[str]) -> list[str]:
    """Returns a line for each unsupported format, with its number of quarantined images."""
    counts = Counter(detail for detail in details if detail.startswith("is "))
    return [
        f"{counted(number, 'quarantined image')}: the format {detail}, then prepare to a new --out"
        for detail, number in sorted(counts.items())
    ]


_MAX_ENDING = 12
_MAX_ENDINGS = 20
_NO_ENDING = "without an ending"
_OTHERS = "others"
# Folders created by operating systems, NAS devices and archivers.
_SYSTEM_FOLDERS = {
    "$recycle.bin",
    "system volume information",
    "found.000",
    "lost+found",
    "lost.dir",
    "@eadir",
    "@tmp",
    "@recycle",
    "@recently-snapshot",
    "#recycle",
    "#snapshot",
    "~snapshot",
    "__macosx",
    "network trash folder",
    "temporary items",
}
# Extensions of images that are read, and of archives.
IMAGE_EXTENSIONS = (".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
ARCHIVE_EXTENSIONS = (".tar", ".tar.gz", ".tgz", ".zip")
# Extensions of images that are not read: from phones, raw, or of programs. Messages name them.
PHOTOGRAPH_EXTENSIONS = {
    ".heic",
    ".heif",
    ".hif",
    ".avif",
    ".jxl",
    ".jp2",
    ".dng",
    ".nef",
    ".nrw",
    ".cr2",
    ".cr3",
    ".ppm",
    ".pgm",
    ".pbm",
    ".pnm",
    ".pam",
    ".tga",
    ".psd",
    ".exr",
    ".hdr",
    ".svg",
    ".dcm",
    ".crw",
    ".arw",
    ".raf",
    ".orf",
    ".rw2",
    ".pef",
    ".srw",
    ".3fr",
    ".iiq",
    ".x3f",
}


def is_hidden(name: str) -> bool:
    """Returns whether a name starts with a dot or is the name of a system folder."""
    return name.startswith(".") or name.casefold() in _SYSTEM_FOLDERS


def ending(path: str) -> str:
    """Returns the name under which an ignored file is counted, for example ".mov"."""
    *folders, name = path.split("/")
    kind = next((f"{folder}/" for folder in folders if is_hidden(folder)), "")
    if not kind:
        stem, dot, last = name.rpartition(".")
        kind = name if dot else _NO_ENDING
        if stem and dot:
            kind = f"{dot}{last.lower()}"
        if stem.startswith("."):
            kind = f"hidden {kind}"
    is_short = len(kind) <= len("hidden ") + _MAX_ENDING and kind.isprintable()
    return kind if is_short or kind[:-1].casefold() in _SYSTEM_FOLDERS else _OTHERS


def most_frequent(ignored: Mapping[str, int]) -> dict[str, int]:
    """Returns the 20 highest counts in descending order, and the sum of the rest as "others"."""
    ordered = sorted(ignored.items(), key=lambda item: (item[0] == _OTHERS, -item[1], item[0]))
    frequent = dict(ordered[:_MAX_ENDINGS])
    rest = sum(count for _, count in ordered[_MAX_ENDINGS:])
    if rest:
        frequent[_OTHERS] = frequent.get(_OTHERS, 0) + rest
    return frequent


def ignored_in_words(ignored: Mapping[str, int]) -> str:
    """Returns the counts as text, for example "3 files: 2 .heic, 1 .mov"."""
    counts = ", ".join(f"{count:,} {name}" for name, count in most_frequent(ignored).items())
    advice = ""
    unread = sorted(PHOTOGRAPH_EXTENSIONS & ignored.keys())
    if unread:
        advice = f" (photographs in {', '.join(unread)} are not read: convert them to JPEG)"
    return f"{counted(sum(ignored.values()), 'file')}: {counts}{advice}"


def together(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the total count of each extension in all `parts`, as `most_frequent` does."""
    total = Counter[str]()
    for part in parts:
        total.update(part)
    return most_frequent(total)
