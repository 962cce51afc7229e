"""Reads class lists and the labels in the devkit, and detects wrong labels.

ILSVRC2012_validation_ground_truth.txt contains ILSVRC2012_IDs. These IDs are NOT positions in the
sorted WNIDs: meta.mat maps IDs to WNIDs. If the class list is ILSVRC2012's, the validation labels
are verified by their known SHA-256.
"""

from __future__ import annotations

import dataclasses
import struct
import unicodedata
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from imagenet_prep.core.errors import SourceError, some
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList, digest_of
from imagenet_prep.sources import mat, published, tar
from imagenet_prep.storage.remote_path import Location

DEVKIT = published.DEVKIT.name
GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
# The devkit has 2.5 MB and unpacks to tens of MB. Two of its files are read.
_MAX_UNPACKED_BYTES = 256 << 20
_MAX_FILE_BYTES = 8 << 20

_MAX_DIGITS = 10  # the largest ILSVRC2012_ID is 1860; int() rejects more than 4,300 digits
_NO_META = (ValueError, LookupError, TypeError, OverflowError, struct.error, zlib.error)

# SHA-256 of the 50,000 validation WNIDs in file-name order, one per line.
OFFICIAL_VALIDATION_DIGEST = "313fc3f23c864dde9183c9a368809065765dd1b657a6904fded44e3e46d34604"
# The first ten of these WNIDs. The first is class 65; if sorted by ILSVRC2012_ID, it is 489.
CANARIES = (
    "n01751748",
    "n09193705",
    "n02105855",
    "n04263257",
    "n03125729",
    "n01735189",
    "n02346627",
    "n02776631",
    "n03794056",
    "n02328150",
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


def classes_called(
    names: Sequence[str], where: str, lemmas: Mapping[str, str] | None = None
) -> ClassList:
    """Returns a class list with these names, in this order; in class IDs, "_" replaces spaces."""
    words = dict(zip(*dataclasses.astuple(official_classes()), strict=True)) | dict(lemmas or {})
    ids = tuple("_".join(name.split()) for name in names)
    forms = Counter(unicodedata.normalize("NFC", name) for name in ids)
    if odd := sorted({i for i in ids if forms[unicodedata.normalize("NFC", i)] > 1 or not i}):
        raise SourceError(
            f"{where}: class names that are empty or not unique: {some([*map(ascii, odd)])} "
            "(spaces become '_'; Unicode form is ignored). Give each class a different name."
        )
    return ClassList(ids, tuple(words.get(name, " ".join(name.split())) for name in names))


def check_validation(classes: ClassList, class_index: dict[int, int], where: str) -> None:
    """Verifies the class of each validation file, if all 50,000 files are present."""
    numbers = range(1, schema.OFFICIAL_NUM_EXAMPLES[schema.VALIDATION] + 1)
    if classes.official and class_index.keys() == set(numbers):
        check_canaries([classes.wnids[class_index[number]] for number in numbers], where)


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
        check_canaries([classes.wnids[index] for index in labels], path)
    return Devkit(classes, tuple(labels))


def check_canaries(wnids: Sequence[str], path: Location | str) -> None:
    """Raises SourceError if `wnids` are not ILSVRC2012's validation labels in file-name order."""
    for number, (wnid, expected) in enumerate(zip(wnids, CANARIES, strict=False), start=1):
        if wnid != expected:
            raise SourceError(
                f"{path}: ILSVRC2012_val_{number:08d}.JPEG has label {wnid}, expected {expected}: "
                f"the labels are not in the order of the file names. {_ADVICE}"
            )
    if digest_of(wnids) != OFFICIAL_VALIDATION_DIGEST:
        raise SourceError(
            f"{path}: the {len(wnids):,} validation labels differ from ILSVRC2012's. {_ADVICE}"
        )


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
