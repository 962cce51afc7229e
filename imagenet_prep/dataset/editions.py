"""The published editions of ImageNet, and their known counts.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from imagenet_prep.core.errors import some
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.keys import WNID

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
