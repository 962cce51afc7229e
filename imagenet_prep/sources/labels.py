"""Reads class lists and labels, and compares the statements of a source about them.

ILSVRC2012_validation_ground_truth.txt contains ILSVRC2012_IDs. These IDs are NOT positions in the
sorted WNIDs: meta.mat maps IDs to WNIDs. If the class list is ILSVRC2012's, the validation labels
are compared with the published ones, which are part of this package.

A source says the same thing in several places: in the names of folders and images, in lists next to
them, in the metadata of files. If two of these places disagree, one of them is wrong.

The devkit's meta.mat is a MAT-file of version 5. Its claimed sizes are not trusted: a few hundred
bytes can claim an array of a billion cells.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import struct
import unicodedata
import zlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from imagenet_prep.core.errors import SourceError, some
from imagenet_prep.dataset import keys
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.sources import containers, published
from imagenet_prep.storage.remote_path import Location

CLASSES = "classes"
LABELS = "labels"
EDITION = "edition"
COUNTS = "counts of "

_MOST_SHOWN = 100  # characters of a class, as lists may contain anything


class Claim(NamedTuple):
    """A place in a source, and the class that it names for each label or image."""

    where: str
    classes: Mapping[Any, str]


class Statement(NamedTuple):
    """A statement for the user: its subject, its place, and its content in words."""

    about: str  # CLASSES, LABELS, EDITION, or COUNTS and a split
    where: str  # "" for a conclusion from several places
    says: str


def compare(subject: str, claims: Iterable[Claim], advice: str, *, complete: bool = False) -> None:
    """Raises SourceError if two claims name different classes for the same label or image.

    Args:
      subject: the kind of the keys of `Claim.classes`, such as "label".
      claims: the claims to compare.
      advice: the last sentences of the message.
      complete: whether each claim must have all keys of the first one, and no other keys.
    """
    known: dict[Any, Claim] = {}
    for claim in claims:
        keys = claim.classes.keys()
        compared = keys & known.keys()
        if complete and known:
            compared = keys | known.keys()
        different = [key for key in compared if _class_of(key, known) != claim.classes.get(key)]
        if different:
            key = min(different)
            first = known.get(key) or next(iter(known.values()))
            raise SourceError(
                f"{first.where} and {claim.where} disagree: {subject} {key} is "
                f"{_in_words(first.classes.get(key))} in the first and "
                f"{_in_words(claim.classes.get(key))} in the second; {len(different):,} of "
                f"{len(compared):,} differ. {advice}"
            )
        for key in keys:
            known.setdefault(key, claim)


def _class_of(key: Any, claims: Mapping[Any, Claim]) -> str | None:
    claim = claims.get(key)
    return None if claim is None else claim.classes[key]


def _in_words(name: str | None) -> str:
    return "no class" if name is None else f"class {name[:_MOST_SHOWN]!r}"


def lines(statements: Sequence[Statement]) -> list[str]:
    """Returns a line per subject: the first statement, and the places that say the same."""
    found = []
    for about in dict.fromkeys(statement.about for statement in statements):
        first, *others = (statement for statement in statements if statement.about == about)
        line = f"{about}: {first.says}"
        if first.where:
            line += f" from {first.where}"
        places = [s.where if s.says == first.says else f"{s.where} ({s.says})" for s in others]
        if places:
            line += f", the same as {some(places)}"
        found.append(line)
    return found


# The devkit's file unpacks to 1.5 MB. Eight bytes can become an object of up to 100 bytes.
_MAX_MAT_BYTES = 4 << 20
_MAX_DEPTH = 4
_MAX_DIMENSIONS = 32

_HEADER_BYTES = 128
_MATRIX = 14
_COMPRESSED = 15
_CELL = 1
_STRUCT = 2
_CHAR = 4
_ANY_NUMBER = range(6, 16)
_NUMBER = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_TEXT = {1: "ascii", 2: "ascii", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le", 18: "utf-32-le"}


def read(data: bytes) -> dict[str, Any]:
    """Returns arrays by name, as tuples of numbers, text, lists of cells, or dicts of fields."""
    if data[126:_HEADER_BYTES] != b"IM":
        raise ValueError("it is not a MAT-file of version 5")
    unpacked = bytearray()  # a `bytes` would be copied for each of 500,000 small elements
    for kind, content in _elements(data[_HEADER_BYTES:]):
        if kind == _COMPRESSED:
            room = _MAX_MAT_BYTES - len(unpacked)
            unpacked += zlib.decompressobj().decompress(content, room + 1)
        else:
            unpacked += struct.pack("<II", kind, len(content)) + content
        if len(unpacked) > _MAX_MAT_BYTES:
            raise ValueError(f"it unpacks to more than {_MAX_MAT_BYTES:,} bytes")
    return dict(_array(*element, 0) for element in _elements(bytes(unpacked)))


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        kind, size = struct.unpack_from("<II", data, position)
        head = 8
        if kind >> 16:  # small element: type and size share four bytes
            size = kind >> 16
            kind &= 0xFFFF
            head = 4
        content = data[position + head : position + head + size]
        if len(content) < size:
            raise ValueError("it ends inside an element")
        yield kind, content
        position += head + size
        if kind != _COMPRESSED:
            position += -(head + size) % 8


def _array(kind: int, content: bytes, depth: int) -> tuple[str, Any]:
    if kind != _MATRIX:
        raise ValueError(f"an element of kind {kind}, expected an array")
    if depth > _MAX_DEPTH:
        raise ValueError("its arrays are nested too deeply")
    if not content:
        return "", ()
    (_, flags), sides, (_, name), *parts = _elements(content)
    array = flags[0]
    fields = [b""]
    if array == _CHAR:
        ((kind, text),) = parts
        return name.decode(), text.decode(_TEXT[kind])
    if array == _STRUCT:
        lengths, (_, names), *parts = parts
        (longest,) = _numbers(*lengths)
        fields = [names[i : i + longest].partition(b"\0")[0] for i in range(0, len(names), longest)]
    if array in (_CELL, _STRUCT):
        values: Any = [_array(*part, depth + 1)[1] for part in parts]
    elif array in _ANY_NUMBER:
        (part,) = parts
        values = _numbers(*part)
    else:
        raise ValueError(f"an array of unsupported kind {array}")
    dimensions = _numbers(*sides)
    if len(dimensions) > _MAX_DIMENSIONS or math.prod(dimensions) * len(fields) != len(values):
        raise ValueError(f"an array of {list(dimensions[:4])} has {len(values):,} values")
    if array == _STRUCT:
        values = {field.decode(): values[i :: len(fields)] for i, field in enumerate(fields)}
    return name.decode(), values


def _numbers(kind: int, content: bytes) -> tuple[Any, ...]:
    code = _NUMBER[kind]
    return struct.unpack(f"<{len(content) // struct.calcsize(code)}{code}", content)


DEVKIT_NAME = published.DEVKIT.name
GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
# The devkit has 2.5 MB and unpacks to tens of MB. Two of its files are read.
_MAX_UNPACKED_BYTES = 256 << 20
_MAX_FILE_BYTES = 8 << 20

_MOST_OTHER_WORDS = 20  # classes that other programs call differently: crane_bird, night_snake
_MAX_DIGITS = 10  # the largest ILSVRC2012_ID is 1860; int() rejects more than 4,300 digits
_NO_META = (ValueError, LookupError, TypeError, OverflowError, struct.error, zlib.error)

# The place of the published labels, in messages.
PUBLISHED = "ILSVRC2012's published labels"
RIGHT_LABELS = (
    "One of them is wrong: the number in such a name is neither a class nor an ILSVRC2012_ID. In a "
    "folder, put these images directly into val/ and remove other lists of labels, so that the "
    "published labels are used."
)


@dataclass(frozen=True)
class Devkit:
    """The leaf synsets, sorted by WNID, and the validation labels, in file-name order."""

    classes: ClassList
    validation_class_index: tuple[int, ...]


@cache
def official_classes() -> ClassList:
    """Returns ILSVRC2012's class list, which is part of this package."""
    text = resources.files(__package__).joinpath("ilsvrc2012_synsets.tsv").read_text("utf-8")
    rows = [line.split("\t") for line in text.splitlines()]
    return ClassList(tuple(row[0] for row in rows), tuple(row[1] for row in rows))


@cache
def published_labels() -> tuple[int, ...]:
    """Returns ILSVRC2012's class index of each validation image, in the order of the file names.

    The labels are part of this package, with 10 bits each, as in the devkit and in
    tensorflow-datasets 4.9.10 (imagenet2012/validation_labels.txt).
    """
    text = resources.files(__package__).joinpath("ilsvrc2012_validation_labels.txt").read_text()
    packed = base64.b64decode(text)
    indices: list[int] = []
    for start in range(0, len(packed), 5):
        four = int.from_bytes(packed[start : start + 5], "big")
        indices += [four >> shift & 0x3FF for shift in (30, 20, 10, 0)]
    return tuple(indices)


def published_labels_of(names: Iterable[str], wnids: Container[str]) -> dict[str, str]:
    """Returns the published WNIDs of those names that are ILSVRC2012's validation images.

    A source may name its own images in the same way, as the demo does. Therefore, the result is
    empty unless most of the published WNIDs are in `wnids`, the classes of the source.
    """
    official = official_classes().wnids
    published = published_labels()
    number_of = {name: keys.validation_number(name) for name in names}
    found = {
        name: official[published[number - 1]]
        for name, number in number_of.items()
        if number is not None and 1 <= number <= len(published)
    }
    in_source = sum(wnid in wnids for wnid in found.values())
    return found if 2 * in_source > len(found) else {}


def classes_called(
    names: Sequence[str], where: str, lemmas: Mapping[str, str] | None = None
) -> ClassList:
    """Returns a class list with these names, in this order; in class IDs, "_" replaces spaces.

    ILSVRC2012's words in its order give its list. Otherwise, a second class with the same name gets
    a number.
    """
    if are_official_words(names):
        return official_classes()
    words = dict(zip(*dataclasses.astuple(official_classes()), strict=True)) | dict(lemmas or {})
    ids = tuple("_".join(name.split()) for name in _distinct(names))
    forms = Counter(unicodedata.normalize("NFC", name) for name in ids)
    odd = sorted({i for i in ids if forms[unicodedata.normalize("NFC", i)] > 1 or not i})
    if odd:
        raise SourceError(
            f"{where}: class names that are empty or not unique: {some([*map(ascii, odd)])} "
            "(spaces become '_'; Unicode form is ignored). Give each class a different name."
        )
    return ClassList(ids, tuple(words.get(name, " ".join(name.split())) for name in names))


def are_official_words(names: Sequence[str]) -> bool:
    """Returns whether the names are the words of ILSVRC2012's classes, in its order.

    Other programs write some words differently, because two classes are "crane" and two "maillot".
    A word at the wrong place is never accepted.
    """
    official = [_first_word(words) for words in official_classes().words]
    if len(names) != len(official):
        return False
    pairs = zip(map(_first_word, names), official, strict=True)
    different = {name for name, expected in pairs if name != expected}
    return len(different) <= _MOST_OTHER_WORDS and different.isdisjoint(official)


def _first_word(words: str) -> str:
    first, *_ = words.replace("_", " ").split(",")
    return " ".join(first.split()).casefold()


def _distinct(names: Sequence[str]) -> list[str]:
    """Returns the names; if several are equal, those behind the first get a number: crane_2."""
    seen: Counter[str] = Counter()
    found: list[str] = []
    for name in names:
        seen[name] += 1
        found.append(f"{name}_{seen[name]}" if seen[name] > 1 and name.strip() else name)
    return found


def check_validation(
    classes: ClassList,
    class_of: Mapping[str, int],
    where: str,
    advice: str = RIGHT_LABELS,
    wnids: Container[str] | None = None,
) -> None:
    """Compares the class indices of images, by name, with ILSVRC2012's published labels.

    Only names of ILSVRC2012's validation images are compared. `wnids` are the classes of the source
    if they are fewer than those in the class list. Raises SourceError if a label differs.
    """
    expected = published_labels_of(class_of, classes.index if wnids is None else wnids)
    found = {name: classes.wnids[class_of[name]] for name in expected}
    compare("image", [Claim(where, found), Claim(PUBLISHED, expected)], advice)


def read_devkit(path: Location) -> Devkit:
    """Returns the class list and validation labels of a devkit, archived or extracted."""
    meta, truth = containers.small_files(
        path,
        ("data/meta.mat", f"data/{GROUND_TRUTH}"),
        max_bytes=_MAX_FILE_BYTES,
        max_unpacked_bytes=_MAX_UNPACKED_BYTES,
        advice=_ADVICE,
    )
    rows = sorted(_leaf_synsets(path, meta), key=lambda row: row[1])
    classes = ClassList(tuple(row[1] for row in rows), tuple(row[2] for row in rows))
    index_of_id = {row[0]: classes.index[row[1]] for row in rows}
    if len(index_of_id) != len(rows) or len(classes.index) != len(rows):
        raise SourceError(f"{path}: meta.mat lists a WNID or an ILSVRC2012_ID twice. {_ADVICE}")
    labels = []
    for number, line in enumerate(truth.split(), start=1):
        index = index_of_id.get(int(line)) if line.isdigit() and len(line) < _MAX_DIGITS else None
        if index is None:
            raise SourceError(
                f"{path}: ground truth line {number}: expected the ILSVRC2012_ID of a leaf synset "
                f"in meta.mat. {_ADVICE}"
            )
        labels.append(index)
    if classes.official:
        numbered = enumerate(labels, start=1)
        named = {keys.validation_stem(number): index for number, index in numbered}
        check_validation(classes, named, str(path), _ADVICE)
        expected = len(published_labels())
        if len(labels) != expected:
            raise SourceError(
                f"{path}: has {len(labels):,} validation labels, expected {expected:,}. {_ADVICE}"
            )
    return Devkit(classes, tuple(labels))


_ADVICE = f"Use the original {DEVKIT_NAME} (md5 {published.DEVKIT.md5})."


def _leaf_synsets(path: Location, meta: bytes) -> list[tuple[int, str, str]]:
    """Returns (ILSVRC2012_ID, WNID, words) of the synsets without children."""
    try:
        synsets = read(meta)["synsets"]
        columns = (synsets[name] for name in ("ILSVRC2012_ID", "num_children", "WNID", "words"))
        rows = [
            (int(number), str(wnid), str(words))
            for (number,), (children,), wnid, words in zip(*columns, strict=True)
            if children == 0
        ]
    except _NO_META as error:
        raise SourceError(f"{path}: meta.mat cannot be read: {error!r}. {_ADVICE}") from error
    if not rows:
        raise SourceError(f"{path}: meta.mat lists no leaf synset. {_ADVICE}")
    return rows
