"""Keys, which identify images independently of the source layout, and files that list keys.

`key_of` returns the key of an image, and `KeyList` has the lines of a file that lists keys.

`ExportKeys` are the keys in an export that readers cannot derive from classes and file names
(`is_derived`). The label of an image in this list is right, even if its name starts with the WNID
of a different class. All other images have the keys that images of other programs would have.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import re
import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError, UsageError, some
from imagenet_prep.core.small_files import csv_rows, not_utf_8
from imagenet_prep.core.spelling import as_seen, same_looking, suggested
from imagenet_prep.core.terminal import counted, say
from imagenet_prep.dataset import schema

# Limits for a list of keys, which may be a pipe, as in <(…), or an endless device. They allow 2
# million keys of ImageNet; even a short key takes 200 bytes of memory.
_MOST_BYTES = 64 << 20
MOST_LINES = 1 << 21
_ENDS = (b"\n", b"\r")
_AT_ONCE = 1 << 14
_PART_BYTES = 1 << 20
# Linux's limit for a path (PATH_MAX).
MOST_KEY_BYTES = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# A part of a path that is empty, . or ..; Windows also separates parts by backslashes.
_LEADS_OUT = re.compile(r"(?:\A|[/\\])\.{0,2}(?:[/\\]|\Z)")
_MOST_SHOWN = 80
_SHARED_KEYS = {schema.TRAIN, schema.HOLDOUT}
_HEADER = ["key", "class"]
# Why a line may name no image. A message has the advice for its lines, and never the lines.
_ADVICE = (
    (
        re.compile(r"[^/]*\S\s+\S[^/]*/"),
        "In the class of a key, blanks are underscores: Urlaub_2021/1.jpg for Urlaub 2021/1.jpg. ",
    ),
    (
        re.compile(r"\s|.*\s\Z"),
        "A blank at the start or end of a line is part of the key. ",
    ),
    (
        re.compile(r"[.~/\\]|[^/]*/.*/"),
        "A key does not contain the path of the prepared folder. ",
    ),
    (
        re.compile(r"[^/]+\\"),
        "In a key, the character after the class is /, also on Windows: cat/1.jpg for cat\\1.jpg. ",
    ),
    (
        re.compile(r'.*[",;\t]'),
        "A line has only a key, without quotes and without further columns. ",
    ),
)
WNID = re.compile(r"n\d{8}")
MOST_BASE_BYTES = 255  # NAME_MAX on Linux; a listing keeps all names in memory
VALIDATION_NAME = re.compile(r"^ILSVRC2012_val_(\d{8})\.[A-Za-z]+$")
# Hugging Face appends the WNID to the names of ILSVRC2012's images, also in validation.
APPENDED_WNID = re.compile(rf"^(?P<stem>.+)_(?P<wnid>{WNID.pattern})(?P<suffix>\.[A-Za-z]+)$")
LEADING_WNID = re.compile(rf"(?P<wnid>{WNID.pattern})_")
# ImageNet-C's corruptions, in the paper's order. mCE does not include the last four.
CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
    "speckle_noise",
    "gaussian_blur",
    "spatter",
    "saturate",
)
CORRUPTED_NAME = re.compile(
    rf"^({'|'.join(CORRUPTIONS)})/([1-5])/ILSVRC2012_val_(\d{{8}})\.[A-Za-z]+$"
)
VALIDATION = "ILSVRC2012_val_"
_VALIDATION_NUMBER = re.compile(rf"(?:^|/){VALIDATION}(\d{{8}})(?=\.[^./]*$|$)")


def key_of(split: str, class_id: str, name: str) -> str:
    """Returns the key of an image: CLASS/NAME in most datasets.

    The key is NAME for ILSVRC2012's validation images, and CORRUPTION/SEVERITY/NAME for ImageNet-C.
    """
    if split == schema.VALIDATION and VALIDATION_NAME.match(name):
        return name
    if split == schema.TEST and CORRUPTED_NAME.match(name):
        return name
    return f"{class_id}/{name}"


def without_wnid(name: str) -> str:
    """Returns a file name without the WNID that Hugging Face appends."""
    return APPENDED_WNID.sub(r"\g<stem>\g<suffix>", name)


def wnid_in(name: str) -> str | None:
    """Returns the WNID at the end or at the start of a file name, or None.

    >>> wnid_in("ILSVRC2012_val_00000001_n01751748.JPEG"), wnid_in("n01440764_36.JPEG")
    ('n01751748', 'n01440764')
    """
    match = APPENDED_WNID.match(name) or LEADING_WNID.match(name)
    return match["wnid"] if match else None


def validation_number(path: str) -> int | None:
    """Returns the number of an image that is named like ILSVRC2012's validation images, or None."""
    if VALIDATION not in path:
        return None  # fast: train has a million names
    match = _VALIDATION_NUMBER.search(path)
    return int(match[1]) if match else None


def validation_stem(number: int) -> str:
    """Returns the name, without extension, of a validation image of ILSVRC2012."""
    return f"{VALIDATION}{number:08d}"


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


def spellings(key: str, wnid: str) -> tuple[str, str]:
    """Returns the forms in which users may write the key of an image: NAME and CLASS/NAME."""
    name = key.removeprefix(f"{wnid}/")
    return name, f"{wnid}/{name}"


def numbered(key: str, number: int, tildes: str) -> str:
    """Returns a unique key for the `number`-th record with this key, e.g. n01440764/a~2.JPEG."""
    folder, slash, name = key.rpartition("/")
    stem, dot, ending = name.rpartition(".") if "." in name else (name, "", "")
    return f"{folder}{slash}{stem}{tildes}{number}{dot}{ending}"


def without_number(key: str) -> str:
    """Returns a key, or a part of a key, without the number that `numbered` has added."""
    stem, dot, ending = key.rpartition(".")
    if not dot or "/" in ending:
        return _without_end_number(key)
    return _without_end_number(stem) + dot + _without_end_number(ending)


def _without_end_number(text: str) -> str:
    """Returns a text without the tildes and the number at its end."""
    # A regular expression would need quadratic time for a key of 4,000 tildes.
    base = text.rstrip(string.digits)
    if base == text or not base.endswith("~"):
        return text
    return base.rstrip("~")


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


def salted(salt: str, name: str) -> str:
    """Returns the digest that replaces the key or a sha256 of a forgotten image, as hex digits.

    It is HMAC-SHA256 of the UTF-8 bytes of `name`; `salt` has hex digits.
    """
    return hmac.digest(bytes.fromhex(salt), name.encode(), "sha256").hex()


class ListedFile(NamedTuple):
    """An image file in a list that names images by their bytes, too.

    Attributes:
      line: the line that names the image by its key.
      salt: of a forgotten image, of which the list only has salted digests.
      kept_in: source splits in which a different key of these bytes was kept: there, the list does
        not mean these bytes.
    """

    num_bytes: int
    line: str
    salt: str = ""
    kept_in: frozenset[str] = frozenset()


@dataclass(frozen=True)
class KeyList:
    """The lines of a file that lists keys.

    A line is KEY or SPLIT:KEY. Text before the first colon that is the name of a split names this
    split, so a key that begins with "train:" itself is only listed with its split in front.

    Attributes:
      keys: each line, with the line number of its first occurrence.
      sha256: hash of the sorted lines, as printed by `LC_ALL=C sort -u FILE | sha256sum`.
      repeated: numbers of the lines that repeat an earlier line.
      files: the image files that the list names by their bytes, by sha256; see `exclusions`. Of a
        forgotten image, by the salted digests of its hashes and its key, which `Lookup` compares.
      allows_unknown: whether to accept lines of no image, as in a list that is applied repeatedly.
    """

    path: str
    keys: Mapping[str, int]
    sha256: str
    repeated: Sequence[int] = ()
    files: Mapping[str, ListedFile] = field(default_factory=dict)
    allows_unknown: bool = False

    @cached_property
    def salts(self) -> list[str]:
        """The salts of forgotten images."""
        return sorted({file.salt for file in self.files.values()} - {""})

    def find(self, split: str, *hashes: str) -> ListedFile | None:
        """Returns the listed image that has one of these sha256.

        `split` is the source split in which such an image was found.
        """
        for sha256 in hashes:
            for known in (*(salted(salt, sha256) for salt in self.salts), sha256):
                file = self.files.get(known)
                if file is not None and split not in file.kept_in:
                    return file
        return None

    @cached_property
    def by_split(self) -> Mapping[str | None, Mapping[str, int]]:
        """The keys with their line numbers, by the split of their lines; None for plain keys."""
        if not any(split_and_key(line)[0] for line in self.keys):
            return {None: self.keys}
        by_split: dict[str | None, dict[str, int]] = {None: {}}
        for line, number in self.keys.items():
            split, key = split_and_key(line)
            by_split.setdefault(split, {})[key] = number
        return by_split

    def named_in(self, split: str) -> Mapping[str, int]:
        """Returns the keys that name an image of a split, with the numbers of their lines.

        If two lines name the same image, the number is that of the plain line.
        """
        plain = self.by_split[None]
        named = self.by_split.get(split)
        return {**named, **plain} if named else plain

    def named_twice(self) -> list[int]:
        """Returns the numbers of the lines that repeat a line, perhaps with a split in front."""
        numbers = list(self.repeated)
        for split, named in self.by_split.items():
            if split is not None:
                plain = self.by_split[None]
                numbers += [number for key, number in named.items() if key in plain]
        return numbers

    def refuse_unknown(
        self, unknown: Collection[str], where: str, known: Iterable[str] = ()
    ) -> None:
        """Raises UsageError, or prints a line, for `unknown` lines, for which `where` has no image.

        The message has only line numbers and no keys, because the user of an Airflow form may
        choose a file without having permission to read it. The exception is one of the `known`
        lines, with a key of the dataset, if it looks the same as an unknown line.
        """
        if unknown and self.allows_unknown:
            lines = counted(len(unknown), "line")
            # Only for such lines, because all keys are read again.
            odd = [line for line in unknown if not line.isascii() or line != as_seen(line)]
            meant = self._meant(odd, known)
            say(
                f"{self.path}: {lines} with a key of no image of {where} (--allow-unknown)"
                f"{'. ' if meant else ''}{meant.rstrip()}"
            )
        elif unknown:
            numbers = sorted(self.keys[line] for line in unknown)
            noun = "line" if len(numbers) == 1 else "lines"
            raise UsageError(
                f"{self.path}: {noun} {some(numbers)}: no such key in {where}. "
                f"{self._meant(unknown, known)}Write one key per line, such as cat/1.jpg or "
                "train:cat/1.jpg. imagenet-prep show SET --keys prints those of a dataset. "
                f"{_advice(unknown)}For a list that is applied repeatedly, whose images may "
                "already be excluded, add --allow-unknown."
            )

    def _meant(self, unknown: Collection[str], known: Iterable[str]) -> str:
        """Returns sentences about the unknown lines that look the same as a known line."""
        alike = same_looking(unknown, known)
        if not alike:
            return ""
        line = min(alike, key=lambda line: self.keys[line])
        meant = f"Line {self.keys[line]:,}: did you mean {suggested(alike[line], line)}? "
        if len(alike) > 1:
            meant += f"{len(alike):,} of these lines look the same as a key. "
        return meant


def _advice(lines: Collection[str]) -> str:
    keys = [split_and_key(line)[1] for line in lines]
    return "".join(text for pattern, text in _ADVICE if any(map(pattern.match, keys)))


class Lookup:
    """Finds the images that a list names: looks up the keys of each split, then checks all lines.

    This is the only place that decides which image a line means.
    """

    def __init__(
        self,
        listed: KeyList,
        splits: Iterable[str],
        chosen: Collection[str],
        split_of: Mapping[str, str] | None = None,
    ) -> None:
        """Looks up keys in `splits`; the list is for the `chosen` ones, and ignored in others.

        `split_of` maps additional names of splits to the splits.
        """
        self.listed = listed
        self._chosen = chosen
        self.named = {split: listed.named_in(split) for split in splits}
        self._split_of = dict(zip(self.named, self.named, strict=True))
        for name, split in (split_of or {}).items():
            self._split_of[name] = split
            self.named[split] = {**listed.by_split.get(name, {}), **self.named[split]}
        last = max(listed.keys.values(), default=0)
        self._found = {split: bytearray(last + 1) for split in self.named}
        self.recognised: set[str] = set()  # lines whose images were found by bytes, or a digest
        self._by_bytes: list[str] = []  # images that only their bytes name
        # The lines of forgotten images and their numbers, by the digest of the key.
        self._forgotten = {split: self._forgotten_in(split) for split in self.named}

    @property
    def num_images(self) -> int:
        """The number of images that the list names in the chosen splits."""
        plain = len(self.listed.by_split[None])
        return plain + sum(len(self.named[split]) - plain for split in self._chosen)

    def lines(self, split: str, keys: Collection[str]) -> list[int]:
        """Returns, for each image of a split, the number of the line that names it, or 0.

        In a split that is not chosen, no line names an image.
        """
        named, found = self.named[split], self._found[split]
        numbers = [named.get(key, 0) for key in keys]
        if self.listed.salts:
            for position, key in enumerate(keys):
                line, number, _ = self._forgotten_with(split, key)
                numbers[position] = numbers[position] or number
                self.recognised.add(line)
        for number in numbers:
            found[number] = 1
        return numbers if split in self._chosen else [0] * len(keys)

    def salt_of(self, split: str, key: str) -> str:
        """Returns the salt of the forgotten image with a key in a split, or ""."""
        return self._forgotten_with(split, key)[2]

    def _forgotten_with(self, split: str, key: str) -> tuple[str, int, str]:
        """Returns the line of the forgotten image with a key, its number, and its salt."""
        for salt in self.listed.salts:
            line, number = self._forgotten[split].get(salted(salt, key), ("", 0))
            if number:
                return line, number, salt
        return "", 0, ""

    def _forgotten_in(self, split: str) -> dict[str, tuple[str, int]]:
        digests: dict[str, tuple[str, int]] = {}
        if not self.listed.salts:
            return digests
        for name, named in self.listed.by_split.items():
            # Train and its holdout share one set of keys.
            is_shared = {name, split} == _SHARED_KEYS
            if name is None or is_shared or self._split_of.get(name) == split:
                for digest, number in named.items():
                    digests[digest] = (with_split(name, digest) if name else digest, number)
        return digests

    def recognise(self, split: str, key: str, file: ListedFile) -> None:
        """Records that `file` of the list names an image of a split by its bytes."""
        self.recognised.add(file.line)
        if key not in self.named[split] and not file.salt:
            self._by_bytes.append(with_split(split, key))

    def check(self, where: str, images: Iterable[tuple[str, str]]) -> None:
        """Raises UsageError if a line names no image, or images of several chosen splits.

        `where` describes the images that were looked up. `images` yields the split and key of all
        of them, and is only read for an error. Prints the images that only their bytes
        name: in a list of an earlier version, they may be copies that its dataset has kept.
        """
        if self._by_bytes:
            num_images = counted(len(self._by_bytes), "image")
            say(
                f"{self.listed.path}: {num_images} excluded under a different key than in the "
                f"list, with the bytes of a listed image: {some(sorted(self._by_bytes))}"
            )
        by_split = self.listed.by_split
        in_any = self._num_found(self.named)
        in_chosen = self._num_found(self._chosen)
        plain = by_split[None].items()
        unknown = [key for key, number in plain if not in_any[number]]
        ambiguous = [key for key, number in plain if in_chosen[number] > 1]
        for name, named in by_split.items():
            if name is not None:
                unknown += [with_split(name, key) for key in named if not self._is_known(name, key)]
        unknown = [line for line in unknown if line not in self.recognised]
        self.listed.refuse_unknown(unknown, where, self._lines_for(images))
        if ambiguous:
            first = min(ambiguous)
            splits = [split for split in self._chosen if self._has(split, first)]
            choices = " or ".join(with_split(split, first) for split in splits)
            raise UsageError(
                f"{self.listed.path}: {some(sorted(ambiguous))}: {' and '.join(splits)} each have "
                f"an image with this key. Write {choices}."
            )

    def _lines_for(self, images: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Yields the lines that could name each image."""
        for split, key in images:
            yield key
            for name, split_of_name in self._split_of.items():
                if split_of_name == split:
                    yield with_split(name, key)

    def _num_found(self, splits: Iterable[str]) -> Sequence[int]:
        """Returns, for each line number, the number of splits with an image that the line names."""
        return [sum(flags) for flags in zip(*(self._found[split] for split in splits), strict=True)]

    def _is_known(self, name: str, key: str) -> bool:
        """Returns whether a split has this name, and the image unless the list is not for it."""
        split = self._split_of.get(name)
        return split is not None and (split not in self._chosen or self._has(split, key))

    def _has(self, split: str, key: str) -> bool:
        return self._found[split][self.named[split][key]] == 1


def split_and_key(line: str) -> tuple[str | None, str]:
    """Returns the split that a line of a list names, or None, and the key."""
    split, _, key = line.partition(":")
    return (split, key) if split in schema.SPLITS and split != line else (None, line)


def with_split(split: str, key: str) -> str:
    """Returns the line that names an image of a split."""
    return f"{split}:{key}"


def read_list(path: str | os.PathLike[str], *, allows_unknown: bool = False) -> KeyList:
    """Returns the lines of a list of keys, exactly as they are; lines of blanks are ignored.

    A blank at the start or end of a line is part of the key, since file names may have it. A
    carriage return at the end, as in files from Windows, is not.
    """
    return parse_list(path, read_bytes(path), allows_unknown=allows_unknown)


def parse_list(
    path: str | os.PathLike[str], data: bytes, *, allows_unknown: bool = False
) -> KeyList:
    """Returns the lines of the list of keys in the content of a file; see `read_list`.

    Without `allows_unknown`, a file without keys is refused. A list that is applied repeatedly can
    be empty.
    """
    file = io.BytesIO(data)
    keys: dict[str, int] = {}
    repeated: list[int] = []
    number = start = 0
    # Read the list in parts, because all lines as strings would take ten times the file's size.
    while lines := file.readlines(_PART_BYTES):
        # Remove the byte order mark that Windows editors write.
        try:
            text = b"".join(lines).decode("utf-8" if start else "utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError(not_utf_8(path, error, start)) from None
        for line in text.split("\n")[: len(lines)]:
            number += 1
            key = line.removesuffix("\r")
            if key and not key.isspace() and keys.setdefault(key, number) != number:
                repeated.append(number)
        start = file.tell()
    if not keys and not allows_unknown:
        raise UsageError(
            f"{path}: no keys, expected one per line. For a pipe, start its writer. For a list "
            "that is applied repeatedly and may be empty, add --allow-unknown."
        )
    ordered = sorted(keys)
    digest = hashlib.sha256()
    for first in range(0, len(ordered), _AT_ONCE):
        digest.update("".join(f"{key}\n" for key in ordered[first : first + _AT_ONCE]).encode())
    return KeyList(str(path), keys, digest.hexdigest(), repeated, allows_unknown=allows_unknown)


def rows_with_class(text: str) -> Iterator[tuple[int, str, str]]:
    """Yields line number, key and class of each row of a CSV list with the header key,class.

    The fields are exactly as they are in the file.

    Raises:
      ValueError: the header or a row is different. The message has the number of a line, but no
        field, and the names of columns only if `key` and `class` are among them.
      csv.Error: a row is no CSV.
    """
    rows = csv_rows(text)
    number, header = next(rows, (1, []))
    if header != _HEADER:
        found = counted(len(header), "column")
        if {*_HEADER} <= {name.strip().casefold() for name in header}:
            found = f"the columns {some([ascii(name[:_MOST_SHOWN]) for name in header])}"
        raise ValueError(
            f"line {number}: expected the header {','.join(_HEADER)}, with a comma, a semicolon or "
            f"a tab, found {found}"
        )
    for number, row in rows:
        if len(row) != len(_HEADER):
            fields = counted(len(row), "field")
            raise ValueError(f"line {number:,}: expected two fields, key,class, found {fields}")
        key, name = row
        if not key:
            raise ValueError(f"line {number:,}: expected a key and its class, found no key")
        yield number, key, name


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Returns the bytes of a list of keys; raises UsageError if it is unreadable or too large."""
    try:
        # With O_NONBLOCK, a pipe without a writer reads as empty instead of blocking forever.
        descriptor = os.open(Path(path).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            os.set_blocking(descriptor, True)
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{path}: the list of keys cannot be read: {error.strerror}. Give a file with one key "
            "per line."
        ) from error
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{path}: the list of keys has more than {_MOST_BYTES:,} bytes")
    if max(map(data.count, _ENDS)) > MOST_LINES:
        raise UsageError(f"{path}: the list of keys has more than {MOST_LINES:,} lines")
    return data


# Keys by split and place: the path of an image file, or FILE:NUMBER for a record of a file.
ExportKeys = Mapping[str, Mapping[str, str]]


def is_derived(key: str, split: str, class_id: str, name: str) -> bool:
    """Returns whether every reader derives `key` from `name`, the path below the class folder."""
    base = name.rpartition("/")[2]
    prefixes = {match[0] for match in map(WNID.match, (name, base)) if match}
    return (
        key == key_of(split, class_id, below_class(name, class_id))
        and prefixes <= {class_id}
        and len(base.encode()) <= MOST_BASE_BYTES
    )


def parse(data: bytes, where: str) -> ExportKeys:
    """Returns the keys in the file `where`, unchecked; raises DataDamagedError if it is damaged."""
    try:
        return strict_json.parse_record(dict[str, dict[str, str]], data)
    except ValueError as error:
        raise DataDamagedError(f"{where}: {error}. Export the dataset again.") from None
