"""The classes of a dataset, and the published editions of ImageNet with their known counts.

`labels.txt` has one line per class: WNID, space, words.

The face-blurred ILSVRC2012 of 2021 lacks 101 images of train and 3 of validation
(github.com/princetonvisualai/imagenet-face-obfuscation/issues/4). The complete ImageNet has no
validation split. Its edition fall11 is from 2011; winter21 lacks most classes of people.
ImageNet-21K-P is made from both and lacks their rare classes (github.com/Alibaba-MIIL/ImageNet21K).
ImageNet-12k has the most frequent classes of fall11 (github.com/rwightman/imagenet-12k). Its counts
and those of the other WebDataset tars of timm are from their pages: huggingface.co/datasets/timm/
imagenet-12k-wds, imagenet-22k-wds and imagenet-w21-webp-wds. They lack images that are too small.

Evaluation sets have some or all of ILSVRC2012's classes and one split, `test`. Their counts are
from the authors' pages. ImageNet-Sketch has no counts here, since sources disagree, and ObjectNet
has none, since its counts depend on the class mapping.
"""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from imagenet_prep.core.errors import DataDamagedError, UsageError, some
from imagenet_prep.core.spelling import meant_by, suggested
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.keys import WNID

# ImageNet-21K has 21,841 classes.
MOST_CLASSES = 1 << 20
# Limit for a class id and for its words, since messages repeat them. ImageNet's longest has 130.
MOST_CHARACTERS = 4096
OFFICIAL_DIGEST = "70002b0ff5de60a3a17a82dbfcff291931f96225ddf941ad2e182fc39e183d15"


@dataclass(frozen=True)
class ClassList:
    """The classes of a dataset in the order of their indices. ILSVRC2012 sorts them by WNID."""

    wnids: tuple[str, ...]
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        require_short(itertools.chain(self.wnids, self.words), "the source")

    @cached_property
    def index(self) -> dict[str, int]:
        """Class index by WNID."""
        return {wnid: i for i, wnid in enumerate(self.wnids)}

    @cached_property
    def _folded(self) -> dict[str, int | None]:
        """Class index by case-folded, normalized WNID; None if several classes share it."""
        indices: dict[str, int | None] = {}
        for index, wnid in enumerate(self.wnids):
            indices[_folded(wnid)] = None if _folded(wnid) in indices else index
        return indices

    def of_folder(self, name: str) -> int | None:
        """Returns the class index of a folder; ignores case and Unicode form, reads " " as "_"."""
        class_id = "_".join(name.split())
        return self.index.get(class_id, self._folded.get(_folded(class_id)))

    def index_of(self, name: str) -> int | None:
        """Returns the index of the class with this WNID, index or folder, or None.

        If a class is called by a number, as in MNIST, all numbers are names.
        """
        if name in self.index:
            return self.index[name]
        is_index = name.isascii() and name.isdecimal() and not self._has_number
        if is_index and len(name) <= len(str(len(self.wnids))) and int(name) < len(self.wnids):
            return int(name)
        return self.of_folder(name)

    @cached_property
    def _has_number(self) -> bool:
        return any(map(str.isdecimal, self.wnids))

    @cached_property
    def _by_word(self) -> dict[str, list[int]]:
        indices: dict[str, list[int]] = {}
        for index, words in enumerate(self.words):
            for word in {_folded(word.strip()) for word in (words, *words.split(","))} - {""}:
                indices.setdefault(word, []).append(index)
        return indices

    def indices(self, asked: Iterable[str | int]) -> list[int]:
        """Returns the sorted class indices of the classes that a user has named.

        A name is a WNID, a class index, a class folder, or a word such as "planetarium". Unknown
        names, and words that match several classes, raise UsageError.
        """
        indices: set[int] = set()
        unknown: list[str] = []
        for name in asked:
            matches = self._matching(name)
            if not matches:
                unknown.append(str(name))
            elif len(matches) > 1:
                wnids = ", ".join(self.wnids[index] for index in matches)
                raise UsageError(f"{name} is ambiguous: give one of {wnids}")
            indices.update(matches)
        if unknown:
            suggestion = meant_by(unknown[0], [*self.wnids, *self._by_word])
            raise UsageError(
                f"{some(unknown)}: not in the class list, which has "
                f"{counted(len(self.wnids), 'class')} from {self.wnids[0]} (0) to "
                f"{self.wnids[-1]} ({len(self.wnids) - 1}).{suggestion}"
            )
        return sorted(indices)

    def advice(self, name: str) -> str:
        """Returns the first WNIDs and, for a name that is not one, the WNID that may be meant."""
        advice = f"The classes are {some(self.wnids)}."
        matches = self._matching(name)
        if len(matches) == 1:
            return f"{advice} Did you mean {suggested(self.wnids[matches[0]], name)}?"
        return advice + meant_by(name, self.wnids)

    def _matching(self, name: str | int) -> list[int]:
        text = str(name)
        index = self.index_of(text)
        if index is not None:
            return [index]
        # An int is an index, unless a class is called by this number.
        if not isinstance(name, str) and name in range(len(self.wnids)):
            return [int(name)]
        return self._by_word.get(_folded(text), [])

    @cached_property
    def digest(self) -> str:
        """Sha256 of the WNIDs, one per line."""
        return digest_of(self.wnids)

    @property
    def official(self) -> bool:
        """Whether these are ILSVRC2012's 1000 classes."""
        return self.digest == OFFICIAL_DIGEST

    def render(self) -> bytes:
        """Returns the bytes of labels.txt."""
        return "".join(
            f"{wnid} {words}\n" for wnid, words in zip(self.wnids, self.words, strict=True)
        ).encode()


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def digest_of(wnids: Sequence[str]) -> str:
    """Returns the sha256 of WNIDs, one per line."""
    return hashlib.sha256("".join(f"{wnid}\n" for wnid in wnids).encode()).hexdigest()


def parse(data: bytes, where: str) -> ClassList:
    """Parses labels.txt; error messages call the file `where`."""
    advice = "Copy the file again from the original dataset."
    lines = data.count(b"\n") + data.count(b"\r")
    if lines > MOST_CLASSES:
        raise DataDamagedError(
            f"{where}: {lines:,} classes, expected at most {MOST_CLASSES:,}. {advice}"
        )
    try:
        # Split the bytes, since str.splitlines would also split at other characters.
        rows = [line.decode().partition(" ") for line in data.splitlines()]
    except UnicodeDecodeError as error:
        raise DataDamagedError(f"{where}: not UTF-8 ({error}). {advice}") from None
    wnids = tuple(wnid for wnid, *_ in rows)
    words = tuple(words for *_, words in rows)
    require_short(itertools.chain(wnids, words), where)
    return ClassList(wnids, words)


def require_short(texts: Iterable[str], where: str) -> None:
    """Raises DataDamagedError if a class id or its words are too long or have a line break."""
    for text in texts:
        if len(text) > MOST_CHARACTERS or not {"\n", "\r"}.isdisjoint(text):
            raise DataDamagedError(
                f"{where}: the class {text[:60]!r}... has {len(text):,} characters, expected "
                f"at most {MOST_CHARACTERS:,} and no line break. Copy the file again."
            )


_TRAIN, _VALIDATION, _TEST = schema.TRAIN, schema.VALIDATION, schema.TEST


@dataclass(frozen=True)
class Edition:
    """The counts and names that identify one edition."""

    name: str
    # Length of the class list. For an evaluation set, the number of ILSVRC2012's classes that have
    # images; 0 means any number.
    num_classes: int
    examples: dict[str, int]
    # Smallest and largest number of images per class, by split, if known.
    class_range: dict[str, tuple[int, int]] = field(default_factory=dict)
    is_ilsvrc: bool = False
    # Names of archives and folders of this edition. For an evaluation set, prefixes of these names
    # in lower case.
    names: tuple[str, ...] = ()
    digest: str = ""  # for an evaluation set, sha256 of its sorted WNIDs, one per line, if known
    # Side of the evaluation crop as a share of the image's shorter side, if the authors' program
    # crops other shares than for ILSVRC2012 (224/256). None: the crop of the reader's recipe.
    crop: float | None = None

    def problems(self, split: str, classes: ClassList, num_per_class: Sequence[int]) -> list[str]:
        """Returns a sentence for each difference between a split's counts and this edition's."""
        if not self.has(classes):
            number = counted(len(classes.wnids), "class")
            if self.is_ilsvrc:
                return [f"the class list has {number} and differs from {self.name}'s"]
            return [f"the class list has {number}, but {self.name} has {self.num_classes:,}"]
        if split not in self.examples:
            return [f"{self.name} has no split {split}"]
        problems = []
        total = sum(num_per_class)
        expected = self.examples[split]
        if total != expected:
            problems.append(f"{split} has {counted(total, 'image')}, expected {expected:,}")
        absent = [w for w, n in zip(classes.wnids, num_per_class, strict=True) if not n]
        if absent:
            problems.append(f"{split} has no images of {some(absent)}")
        low, high = self.class_range.get(split, (1, total))
        odd = [
            f"{wnid} with {count:,}"
            for wnid, count in zip(classes.wnids, num_per_class, strict=True)
            if count and not low <= count <= high
        ]
        if odd:
            bounds = f"{low:,}" if low == high else f"{low} to {high}"
            problems.append(f"{split} has {some(odd)}, expected {bounds} images per class")
        return problems

    def is_it(self, classes: ClassList, totals: Mapping[str, int]) -> bool:
        """Returns whether the classes and the image counts by split match this edition."""
        return self.has(classes) and all(
            self.examples.get(split) == total for split, total in totals.items()
        )

    def has(self, classes: ClassList) -> bool:
        """Returns whether the classes match; for most editions, only their number is compared."""
        return classes.official if self.is_ilsvrc else len(classes.wnids) == self.num_classes


ILSVRC2012 = Edition(
    "ILSVRC2012",
    schema.OFFICIAL_NUM_CLASSES,
    schema.OFFICIAL_NUM_EXAMPLES,
    schema.OFFICIAL_CLASS_RANGE,
    is_ilsvrc=True,
)
FACE_BLURRED = Edition(
    "ILSVRC2012 face-blurred",
    schema.OFFICIAL_NUM_CLASSES,
    {_TRAIN: 1_281_066, _VALIDATION: 49_997},
    {_TRAIN: (631, 1300), _VALIDATION: (47, 50)},  # the missing images may all be of one class
    is_ilsvrc=True,
    names=("train_blurred", "val_blurred"),
)
FALL11 = Edition(
    "ImageNet-21K fall11",
    21_841,
    {_TRAIN: 14_197_122},
    names=("fall11_whole.tar", "fall11_whole"),
)
WINTER21 = Edition("ImageNet-21K winter21", 19_167, {_TRAIN: 13_153_500}, names=("winter21_whole",))
_PROCESSED = ("imagenet21k_train", "imagenet21k_val")
FALL11_P = Edition(
    "ImageNet-21K-P fall11",
    11_221,
    {_TRAIN: 11_797_632, _VALIDATION: 561_052},
    names=_PROCESSED,
)
WINTER21_P = Edition(
    "ImageNet-21K-P winter21",
    10_450,
    {_TRAIN: 11_060_223, _VALIDATION: 522_500},
    names=_PROCESSED,
)
IMAGENET_12K = Edition("ImageNet-12k", 11_821, {_TRAIN: 12_129_687, _VALIDATION: 472_840})
IMAGENET_22K = Edition("ImageNet-22k", 21_841, {_TRAIN: 13_673_551, _VALIDATION: 472_840})
WINTER21_OF_TIMM = Edition("ImageNet-21K winter21 of timm", 19_167, {_TRAIN: 13_151_276})
# The editions in timm's WebDataset tars, besides ILSVRC2012.
OF_TIMM = (IMAGENET_12K, IMAGENET_22K, WINTER21_OF_TIMM)
# The test images' labels were never published, so all of them are in one class.
ILSVRC2012_TEST = Edition("ILSVRC2012 test", 1, {_TEST: 100_000})
_OTHERS = (FACE_BLURRED, FALL11, WINTER21, FALL11_P, WINTER21_P, *OF_TIMM, ILSVRC2012_TEST)

_A = "9826a24166e74ce62fb87b27889874ca26917542c745712309d6e25855d63bc2"
_R = "a6a0729f7a99230280639cab6e51e01485a3b41a676ea35621a501c9d6e83ca4"
# hendrycks/robustness, ImageNet-C/test.py: CenterCrop(224) of images of 224 x 224 pixels, which
# make_imagenet_c.py made with Resize(256) and CenterCrop(224) before it corrupted them.
# abarbu/objectnet-template-pytorch, model/data_transform_description.py: Resize(224) and
# CenterCrop(224).
_COMPLETE_SQUARE = 1.0
# Columns: name, classes, images, images per class (0: not checked), digest, crop, other names. A
# name must precede its prefixes. ImageNet-C's numbers are for one corruption at one severity. In
# docs/evaluation.md, the sources of all crops are listed.
EVALUATION = tuple(
    Edition(
        name,
        classes,
        {_TEST: images} if images else {},
        {_TEST: (per_class, per_class)} if per_class else {},
        is_ilsvrc=True,
        names=(name, *others),
        digest=digest,
        crop=crop,
    )
    for name, classes, images, per_class, digest, crop, *others in (
        ("imagenetv2-matched-frequency", 1000, 10_000, 10, "", None),
        ("imagenetv2-threshold0.7", 1000, 10_000, 10, "", None),
        ("imagenetv2-top-images", 1000, 10_000, 10, "", None),
        ("imagenetv2", 1000, 10_000, 10, "", None),
        ("imagenet-a", 200, 7_500, 0, _A, None),
        ("imagenet-r", 200, 30_000, 0, _R, None),
        ("imagenet-o", 200, 2_000, 0, "", None),
        ("imagenet-sketch", 1000, 0, 0, "", None, "sketch"),
        ("imagenet-c", 1000, 50_000, 50, "", _COMPLETE_SQUARE),
        (schema.OBJECTNET, 0, 0, 0, "", _COMPLETE_SQUARE),
    )
)
(IMAGENETV2, IMAGENET_A, IMAGENET_R, IMAGENET_O, IMAGENET_SKETCH, IMAGENET_C, OBJECTNET) = (
    EVALUATION[3:]
)


def recognised(classes: ClassList, totals: Mapping[str, int], names: Sequence[str] = ()) -> str:
    """Returns the name of the edition with these classes and counts, quarantined images included.

    Returns "" for the original ILSVRC2012 and for unknown editions. A single split with the counts
    of a face-blurred edition may also be ILSVRC2012 with lost files. So such an edition is only
    recognised if all its splits are present, or by the name of an archive or folder.
    """
    for edition in _OTHERS:
        is_sure = (
            not edition.is_ilsvrc
            or totals.keys() == edition.examples.keys()
            or not set(names).isdisjoint(edition.names)
        )
        if is_sure and totals and edition.is_it(classes, totals):
            return edition.name
    return ""


def named(name: str) -> Edition | None:
    """Returns the edition with this name in a manifest, or None."""
    return next((edition for edition in (*_OTHERS, *EVALUATION) if edition.name == name), None)


def called(name: str, classes: ClassList) -> Edition | None:
    """Returns the edition that has an archive or folder with this name, or None.

    The classes of these editions are WNIDs. Other classes in a folder `train_blurred` are custom.
    """
    if not all(map(WNID.fullmatch, classes.wnids)):
        return None
    named_so = (edition for edition in _OTHERS if name in edition.names)
    return closest(named_so, len(classes.wnids))


def closest(editions: Iterable[Edition], num_classes: int) -> Edition | None:
    """Returns the edition with the most similar number of classes; None if `editions` is empty."""
    return min(editions, key=lambda e: abs(e.num_classes - num_classes), default=None)
