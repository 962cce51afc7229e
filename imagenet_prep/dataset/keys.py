"""Keys, which identify images independently of the source layout, and files that list keys."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import UsageError, some
from imagenet_prep.dataset import schema

# Limits for a list of keys, which may be a pipe, as in <(…), or an endless device. They allow 2
# million keys of ImageNet; even a short key takes 200 bytes of memory.
_MOST_BYTES, MOST_LINES = 64 << 20, 1 << 21
_ENDS = (b"\n", b"\r")
# Removed around keys in a list. Other blanks, such as U+00A0, may be part of a file name.
BLANKS = " \t\r\v\f"
_AT_ONCE, _PART_BYTES = 1 << 14, 1 << 20
# Linux's limit for a path (PATH_MAX).
MOST_KEY_BYTES = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# A part of a path that is empty, . or ..; Windows also separates parts by backslashes.
_LEADS_OUT = re.compile(r"(?:\A|[/\\])\.{0,2}(?:[/\\]|\Z)")
_MOST_SHOWN = 80
_NUMBER = re.compile(r"~+[0-9]+(?=(?:\.[^./]*)?$)")
WNID = re.compile(r"n\d{8}")
VALIDATION_NAME = re.compile(r"^ILSVRC2012_val_(\d{8})\.[A-Za-z]+$")
# ImageNet-C's corruptions, in the paper's order. mCE does not include the last four.
CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    *("speckle_noise", "gaussian_blur", "spatter", "saturate"),
)
CORRUPTED_NAME = re.compile(
    rf"^({'|'.join(CORRUPTIONS)})/([1-5])/ILSVRC2012_val_(\d{{8}})\.[A-Za-z]+$"
)


def key_of(split: str, class_id: str, name: str) -> str:
    """Returns the key of an image: CLASS/NAME in most datasets.

    The key is NAME for ILSVRC2012's validation images, and CORRUPTION/SEVERITY/NAME for ImageNet-C.
    """
    if split == schema.VALIDATION and VALIDATION_NAME.match(name):
        return name
    if split == schema.TEST and CORRUPTED_NAME.match(name):
        return name
    return f"{class_id}/{name}"


def below_class(path: str, class_id: str) -> str:
    """Returns the part of a key that follows the class, given the file name in a record.

    In our datasets, the file name is the path below the class folder. Other programs may write the
    full path; then only its last part is used.
    """
    folders = path.split("/")[:-1]
    if CORRUPTED_NAME.match(path):
        return path
    if path.startswith("/") or class_id in folders or WNID.fullmatch(class_id):
        return path.rpartition("/")[2]
    return path


def leads_out(key: str) -> bool:
    """Returns whether a key, used as a path, could leave its folder."""
    return _LEADS_OUT.search(key) is not None


def name_of(key: str) -> str:
    """Returns a key without its class folder; keys of validation and ImageNet-C have none."""
    return key if CORRUPTED_NAME.match(key) else key.partition("/")[2] or key


def name_in(key: str, class_id: str) -> str:
    """Returns the path of an image below its class folder.

    The path of a relabelled image includes the former class, to avoid a name collision. ImageNet's
    paths do not need this, since its file names are unique.
    """
    former = key.partition("/")[0]
    return name_of(key) if former == class_id or WNID.fullmatch(former) else key


def numbered(key: str, number: int, tildes: str) -> str:
    """Returns a unique key for the `number`-th record with this key, e.g. n01440764/a~2.JPEG."""
    folder, slash, name = key.rpartition("/")
    stem, dot, ending = name.rpartition(".") if "." in name else (name, "", "")
    return f"{folder}{slash}{stem}{tildes}{number}{dot}{ending}"


def without_number(key: str) -> str:
    """Returns a key, or a part of a key, without the number that `numbered` has added."""
    return _NUMBER.sub("", key)


def problem(key: str) -> str | None:
    """Returns the reason why a key is invalid, or None.

    Keys are written to CSV lines and become file names in exports. A control character could end
    the line or move a terminal's cursor.
    """
    try:
        num_bytes = len(key.encode())
    except UnicodeEncodeError:
        return "its name is not Unicode text"
    if num_bytes > MOST_KEY_BYTES:
        return f"its name has {num_bytes:,} bytes, expected at most {MOST_KEY_BYTES:,}"
    if not key or _CONTROL.search(key):
        return f"its name {key[:_MOST_SHOWN]!r} is empty or contains a control character"
    if leads_out(key):
        return f"its name {key[:_MOST_SHOWN]!r} has a part that is empty, . or .."
    return None


class KeyList(NamedTuple):
    """The keys listed in a file.

    Attributes:
      keys: each key, with the line number of its first occurrence; at least one key.
      sha256: hash of the sorted keys, as printed by `LC_ALL=C sort -u FILE | sha256sum`.
    """

    path: str
    keys: Mapping[str, int]
    sha256: str
    repeated: Sequence[int] = ()  # numbers of the lines that repeat a key

    @property
    def summary(self) -> Json:
        """The number of keys and their sha256, as stored in a manifest."""
        return {"images": len(self.keys), "sha256": self.sha256}

    def refuse_unknown(self, unknown: Collection[str], where: str) -> None:
        """Raises UsageError if there are `unknown` keys, for which `where` has no image.

        The message has only line numbers and no keys, because the user of an Airflow form may
        choose a file without having permission to read it.
        """
        if unknown:
            numbers = sorted(self.keys[key] for key in unknown)
            raise UsageError(
                f"{self.path}: line{'s' * (len(numbers) > 1)} {some(numbers)}: no such key in "
                f"{where}. Write one key per line, as in quarantine.jsonl: "
                "n01440764/n01440764_10026.JPEG"
            )

    def refuse_ambiguous(self, keys: Collection[str]) -> None:
        """Raises UsageError if both train and validation have an image with one of the keys."""
        if keys:
            raise UsageError(
                f"{self.path}: {some(sorted(keys))}: train and validation both have an image with "
                "this key. Rename one of the files, or choose one split with --splits."
            )


def read_list(path: str | os.PathLike[str]) -> KeyList:
    """Returns the keys in a file, one per line; empty lines are ignored."""
    file = io.BytesIO(read_bytes(path))
    keys: dict[str, int] = {}
    repeated: list[int] = []
    number = start = 0
    # Read the list in parts, because all lines as strings would take ten times the file's size.
    while lines := file.readlines(_PART_BYTES):
        # Remove the byte order mark that Windows editors write.
        try:
            text = b"".join(lines).decode("utf-8" if start else "utf-8-sig")
        except UnicodeDecodeError as error:
            at = start + error.start
            raise UsageError(f"{path}: the list of keys is not UTF-8 at byte {at:,}") from None
        listed = [key.strip(BLANKS) for key in text.split("\n")][: len(lines)]
        numbers = [*range(number + 1, number + 1 + len(lines))]
        firsts = list(map(keys.setdefault, listed, numbers))
        if firsts != numbers:
            rows = zip(listed, firsts, numbers, strict=True)
            repeated += [line for key, first, line in rows if key and first != line]
        number, start = numbers[-1], file.tell()
    keys.pop("", None)
    if not keys:
        raise UsageError(f"{path}: no keys, expected one per line. For a pipe, start its writer.")
    ordered, digest = sorted(keys), hashlib.sha256()
    for first in range(0, len(ordered), _AT_ONCE):
        digest.update("".join(f"{key}\n" for key in ordered[first : first + _AT_ONCE]).encode())
    return KeyList(str(path), keys, digest.hexdigest(), repeated)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Returns the bytes of a list of keys; raises UsageError if it is unreadable or too large."""
    try:
        # With O_NONBLOCK, a pipe without a writer reads as empty instead of blocking forever.
        descriptor = os.open(Path(path).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            os.set_blocking(descriptor, True)
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: the list of keys cannot be read: {error.strerror}") from error
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path}: the list of keys has more than {_MOST_BYTES:,} bytes")
    if max(map(data.count, _ENDS)) > MOST_LINES:
        raise UsageError(f"{path}: the list of keys has more than {MOST_LINES:,} lines")
    return data
