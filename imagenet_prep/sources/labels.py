"""Reads class lists and the labels in the devkit, and detects wrong labels.

ILSVRC2012_validation_ground_truth.txt contains ILSVRC2012_IDs. These IDs are NOT positions in the
sorted WNIDs: meta.mat maps IDs to WNIDs. If the class list is ILSVRC2012's, the validation labels
are compared with the published ones, which are part of this package.
"""

from __future__ import annotations

import base64
import dataclasses
import struct
import unicodedata
import zlib
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from imagenet_prep.core.errors import SourceError, some
from imagenet_prep.dataset import keys
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.sources import mat, published, tar
from imagenet_prep.sources.evidence import Claim, compare
from imagenet_prep.storage.remote_path import Location

DEVKIT = published.DEVKIT.name
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
    meta, truth = tar.small_files(
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


_ADVICE = f"Use the original {DEVKIT} (md5 {published.DEVKIT.md5})."


def _leaf_synsets(path: Location, meta: bytes) -> list[tuple[int, str, str]]:
    """Returns (ILSVRC2012_ID, WNID, words) of the synsets without children."""
    try:
        synsets = mat.read(meta)["synsets"]
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
