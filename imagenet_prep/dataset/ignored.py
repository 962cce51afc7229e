"""Counts source files that are not images, by extension, so that no file is dropped silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from imagenet_prep.core.terminal import counted

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
# Extensions of images that are not read: from phones, raw, or of programs. Messages name them.
PHOTOGRAPHS = {
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


def in_words(ignored: Mapping[str, int]) -> str:
    """Returns the counts as text, for example "3 files: 2 .heic, 1 .mov"."""
    counts = ", ".join(f"{count:,} {name}" for name, count in most_frequent(ignored).items())
    advice = ""
    unread = sorted(PHOTOGRAPHS & ignored.keys())
    if unread:
        advice = f" (photographs in {', '.join(unread)} are not read: convert them to JPEG)"
    return f"{counted(sum(ignored.values()), 'file')}: {counts}{advice}"


def together(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the total count of each extension in all `parts`, as `most_frequent` does."""
    total = Counter[str]()
    for part in parts:
        total.update(part)
    return most_frequent(total)
