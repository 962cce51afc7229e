"""Keys: what images are called, the same in every layout; and lists of keys in files."""

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

# Room for 2 million keys of ImageNet; even a short one takes 200 bytes of memory. The list may be a
# pipe, as the shell makes for <(…), or a device, which has no end.
_MOST_BYTES, MOST_LINES = 64 << 20, 1 << 21
_ENDS = (b"\n", b"\r")
# Around a key in a list. Other blanks, such as U+00A0, may begin or end the name of a file.
BLANKS = " \t\r\v\f"
# So many keys become one text, and so many bytes are read as one.
_AT_ONCE, _PART_BYTES = 1 << 14, 1 << 20
# A path on Linux has no more (PATH_MAX).
MOST_KEY_BYTES = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# A part of a path that is empty, . or ..; Windows separates parts by backslashes, too.
_LEADS_OUT = re.compile(r"(?:\A|[/\\])\.{0,2}(?:[/\\]|\Z)")
_MOST_SHOWN = 80
# The number that `numbered` adds.
_NUMBER = re.compile(r"~+[0-9]+(?=(?:\.[^./]*)?$)")
WNID = re.compile(r"n\d{8}")
VALIDATION_NAME = re.compile(r"^ILSVRC2012_val_(\d{8})\.[A-Za-z]+$")
# ImageNet-C's, in the order of its paper; the last four are its extra ones, which mCE leaves out.
CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    *("speckle_noise", "gaussian_blur", "spatter", "saturate"),
)
# Corruption, severity and number of an image of ImageNet-C.
CORRUPTED_NAME = re.compile(
    rf"^({'|'.join(CORRUPTIONS)})/([1-5])/ILSVRC2012_val_(\d{{8}})\.[A-Za-z]+$"
)


def key_of(split: str, class_id: str, name: str) -> str:
    """Returns the key of the image with this file name.

    ILSVRC2012's validation images are called by their file name, which is unique; ImageNet-C's by
    corruption, severity and file name; all others by class and file name.
    """
    if split == schema.VALIDATION and VALIDATION_NAME.match(name):
        return name
    if split == schema.TEST and CORRUPTED_NAME.match(name):
        return name
    return f"{class_id}/{name}"


def below_class(path: str, class_id: str) -> str:
    """Returns the part of a path that a key has behind the class.

    Sets of ours have folders below that of the class there, and no others. Other programs may have
    written the whole path of a file, of which ImageNet's keys have the last part.
    """
    folders = path.split("/")[:-1]
    if CORRUPTED_NAME.match(path):
        return path
    if path.startswith("/") or class_id in folders or WNID.fullmatch(class_id):
        return path.rpartition("/")[2]
    return path


def leads_out(key: str) -> bool:
    """Returns whether a key, used as a path, may lead out of its folder."""
    return _LEADS_OUT.search(key) is not None


def name_of(key: str) -> str:
    """Returns a key without the folder of its class: validation's and ImageNet-C's have none."""
    return key if CORRUPTED_NAME.match(key) else key.partition("/")[2] or key


def name_in(key: str, class_id: str) -> str:
    """Returns what an image is called below the folder of a class.

    If it had another class before, it keeps that one's folder: another image may have its name.
    ImageNet's names differ anyway.
    """
    former = key.partition("/")[0]
    return name_of(key) if former == class_id or WNID.fullmatch(former) else key


def numbered(key: str, number: int, tildes: str) -> str:
    """Returns the key of the record that is the `number`-th with this key in its split."""
    folder, slash, name = key.rpartition("/")
    stem, dot, ending = name.rpartition(".") if "." in name else (name, "", "")
    return f"{folder}{slash}{stem}{tildes}{number}{dot}{ending}"


def without_number(key: str) -> str:
    """Returns a key, or a part of one, without what `numbered` adds."""
    return _NUMBER.sub("", key)


def problem(key: str) -> str | None:
    """Returns the reason why an image must not have this key, or None.

    A key is in a line of a table of samples, and exports name files by it. Control characters would
    end the line, or move the cursor of a terminal.
    """
    try:
        num_bytes = len(key.encode())
    except UnicodeEncodeError:
        return "its name is no Unicode text"
    if num_bytes > MOST_KEY_BYTES:
        return f"its name has {num_bytes:,} bytes, expected {MOST_KEY_BYTES:,} at most"
    if not key or _CONTROL.search(key):
        return f"its name {key[:_MOST_SHOWN]!r} is empty or holds a control character"
    if leads_out(key):
        return f"its name {key[:_MOST_SHOWN]!r} has a part that is empty, . or .."
    return None


class KeyList(NamedTuple):
    """The keys that a file lists.

    Attributes:
      keys: each once, with the number of its first line; at least one.
      sha256: of the sorted keys, one per line: what `LC_ALL=C sort -u FILE | sha256sum` prints.
      repeated: the numbers of the lines whose key an earlier line has.
    """

    path: str
    keys: Mapping[str, int]
    sha256: str
    repeated: Sequence[int] = ()

    @property
    def summary(self) -> Json:
        """What a manifest says of the list."""
        return {"images": len(self.keys), "sha256": self.sha256}

    def refuse_unknown(self, unknown: Collection[str], where: str) -> None:
        """Raises UsageError where some of the keys belong to no image of `where`.

        Lines are named by their numbers and never shown: whoever may choose the file, but not read
        it, as in a form of Airflow, would read it in this message.
        """
        if unknown:
            numbers = sorted(self.keys[key] for key in unknown)
            raise UsageError(
                f"{self.path}: line{'s' * (len(numbers) > 1)} {some(numbers)}: no such key in "
                f"{where}. Keys are written as in quarantine.jsonl, one a line: "
                "n01440764/n01440764_10026.JPEG"
            )

    def refuse_ambiguous(self, keys: Collection[str]) -> None:
        """Raises UsageError where some of the keys belong to an image of train and of validation.

        Folders of classes may hold files of the same names.
        """
        if keys:
            raise UsageError(
                f"{self.path}: {some(sorted(keys))}: train and validation have an image of this "
                "key each, so it does not say which is meant. Rename one of the files, or choose "
                "--splits."
            )


def read_list(path: str | os.PathLike[str]) -> KeyList:
    """Returns the keys in a file, one a line; empty lines are ignored."""
    file = io.BytesIO(read_bytes(path))
    keys: dict[str, int] = {}
    repeated: list[int] = []
    number = start = 0
    # A part at a time: all lines as text would take ten times their bytes.
    while lines := file.readlines(_PART_BYTES):
        # Editors of Windows begin a file with a mark, which would become a part of the first key.
        try:
            text = b"".join(lines).decode("utf-8" if start else "utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{path}: the list of keys is not UTF-8: byte {start + error.start:,}"
            ) from None
        listed = [key.strip(BLANKS) for key in text.split("\n")][: len(lines)]
        numbers = [*range(number + 1, number + 1 + len(lines))]
        firsts = list(map(keys.setdefault, listed, numbers))
        if firsts != numbers:
            each = zip(listed, firsts, numbers, strict=True)
            repeated += [line for key, first, line in each if key and first != line]
        number, start = numbers[-1], file.tell()
    keys.pop("", None)
    if not keys:
        raise UsageError(f"{path}: lists no key, expected one a line. A pipe must have a writer.")
    ordered, digest = sorted(keys), hashlib.sha256()
    for first in range(0, len(ordered), _AT_ONCE):
        digest.update("".join(f"{key}\n" for key in ordered[first : first + _AT_ONCE]).encode())
    return KeyList(str(path), keys, digest.hexdigest(), repeated)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Returns the content of a list of keys; raises UsageError as `read_list`."""
    try:
        # Opened so, a pipe without a writer is empty; otherwise it would be waited for without end.
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
