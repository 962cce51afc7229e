"""Decides which folders of a source are splits and which are classes.

`split_folders` reads the names of folders, and looks for images only if the names are ambiguous:

    files                                     train           validation  why
    {train,val}/cat/1.jpg                     train           val         preferred names
    {Training,Testing}/cat/1.jpg              Training        Testing     no validation, but labels
    train/cat/1.jpg test/1.jpg                train           -           this test has no labels
    {train,Train_old,val}/cat/1.jpg           train           val         a preferred name wins
    {seg_train,seg_val}/cat/1.jpg             seg_train       seg_val     the same other word
    {seg_train,val}/cat/1.jpg                 -               val         `seg` is in one name only
    {train1,train2}/cat/1.jpg                 train1+train2   -           parts of one split
    train/images/cat/1.jpg                    train/images    -           the only subfolder
    {cat,dog}/1.jpg                           .               -           classes, but no splits
    {train,bus}/1.jpg                         .               -           a class next to a class
    train_val/cat/1.jpg                       .               -           two splits are no split

`class_folders` requires that a class folder directly contains images. A folder with images only in
its subfolders is refused, because the names of the subfolders may be labels:

    files                                     classes         why
    {cat,dog}/1.jpg                           cat+dog         folders with images
    cat/{1.jpg,2021/2.jpg}                    cat             images can be deeper, too
    cat/1.jpg empty/README.md                 cat+empty       an empty folder is reported later
    n01440764/images/1.jpg                    n01440764       a WNID is always a class
    {images,cat}/1.jpg                        cat+images      one name is not neutral
    {images,n01440764}/1.jpg                  images+n01440764  one name is a WNID
    {images,masks}/1.jpg                      refused         all names are neutral
    {a/cat,b/dog}/1.jpg                       refused         are a and b classes, or cat and dog?
    1.jpg                                     refused         no folder

Identifies evaluation datasets, and the classes of their folders.

ImageNetV2's folders are named after class indices. ObjectNet's mapping files contain the classes of
its folders. The folders of all other datasets are named after WNIDs.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.core.terminal import counted, printable
from imagenet_prep.dataset import class_list, keys, schema
from imagenet_prep.dataset.class_list import ClassList, Edition
from imagenet_prep.dataset.formats import ending, is_hidden
from imagenet_prep.dataset.keys import CORRUPTIONS, WNID
from imagenet_prep.sources import labels, scan
from imagenet_prep.sources.scan import read_errors, subfolders

_NUMBER = re.compile(r"0|[1-9][0-9]{0,2}")
_CORRUPTED = re.compile(rf"(?:^|/)((?:{'|'.join(CORRUPTIONS)})/[1-5]/)n[0-9]{{8}}/[^/]+$")
# ObjectNet's mapping files. NUMBERS contains the line number in WORDS of each class.
OBJECTNET_FOLDERS = "mappings/folder_to_objectnet_label.json"
OBJECTS = "mappings/objectnet_to_imagenet_1k.json"
NUMBERS = "mappings/pytorch_to_imagenet_2012_id.json"
WORDS = "mappings/imagenet_to_label_2012_v2"
MAPPING = (OBJECTNET_FOLDERS, OBJECTS, NUMBERS, WORDS)
# For an edition that was recognised, but has other contents.
OWN_CLASSES = "If these are your own classes: unpack an archive, and add --source-kind folder."
_MOST_OBJECTS = 1000  # folders, and classes per object; ObjectNet has 313 folders


@dataclass(frozen=True)
class Layout:
    """The edition of an evaluation dataset, and the classes of its folders."""

    edition: Edition
    is_numbered: bool = False
    # ObjectNet's class indices by folder ([] if an object has none); None for other datasets.
    objects: Mapping[str, Sequence[int]] | None = None
    problems: Sequence[str] = ()  # differences from the published counts, one sentence each

    def place(self, path: str, where: str) -> tuple[int, str] | None:
        """Returns an image's class index and key prefix; None if ObjectNet maps it to no class."""
        folder = path.rpartition("/")[0].rpartition("/")[2]
        if self.objects is not None:
            if not self.objects.get(folder, True):
                return None
            index = next(iter(self.objects.get(folder, ())), None)
            expected = f"those in {OBJECTNET_FOLDERS}"
        elif self.is_numbered:
            index = int(folder) if _NUMBER.fullmatch(folder) else None
            expected = "class indices, 0 to 999 (folders 1 to 1000 would be ILSVRC2012_IDs)"
        else:
            index = labels.official_classes().index.get(folder)
            expected = "WNIDs of ILSVRC2012's 1,000 classes"
            if self.edition.name.startswith(class_list.IMAGENETV2.name):
                expected = "either only class indices (0 to 999) or only WNIDs of ILSVRC2012"
        match = _CORRUPTED.search(path) if self.edition is class_list.IMAGENET_C else None
        if self.edition is class_list.IMAGENET_C and not match:
            index = None
            expected = "CORRUPTION/SEVERITY/WNID, with ImageNet-C's 19 corruptions"
        if index is None:
            raise SourceError(
                f"{where}: its folder is {folder!r}, but {self.edition.name}'s folders are "
                f"{expected}. Move the folder away, or get the original archive. {OWN_CLASSES}"
            )
        return index, match[1] if match else ""

    @property
    def answers(self) -> dict[str, list[str]]:
        """The WNIDs of each ObjectNet object that has several WNIDs, as in `Manifest.answers`."""
        wnids = labels.official_classes().wnids
        several = [indices for indices in (self.objects or {}).values() if len(indices) > 1]
        return {wnids[indices[0]]: [wnids[i] for i in sorted(indices)] for indices in several}


def layout_of(
    names: Sequence[str], sample: str, in_folder: Counter[str], mapping: Mapping[str, bytes]
) -> Layout:
    """Identifies a dataset by its names, its folders and `sample`, the path of an image."""
    where = names[0]
    folders = {path.rpartition("/")[2] for path in in_folder}
    if not sample:
        raise SourceError(f"{where}: holds no image. Get it again.")
    edition = class_list.OBJECTNET if mapping else edition_of(names, folders, sample)
    if edition is None and [*in_folder.values()] == [10] * 1000:
        edition = class_list.IMAGENETV2
    if edition is None:
        raise SourceError(
            f"{where}: matches no known evaluation dataset, neither by its name nor by its "
            f"{counted(len(folders), 'folder')} of images, such as {min(folders)!r}. Rename it to "
            "its published name, or unpack it and add --source-kind folder."
        )
    layout = Layout(
        edition,
        edition.name.startswith(class_list.IMAGENETV2.name)
        and any(map(_NUMBER.fullmatch, folders)),
        _objects(mapping, where) if edition is class_list.OBJECTNET else None,
    )
    counts: dict[str, Counter[int]] = {}
    for path, number in in_folder.items():
        place = layout.place(f"{path}/*", f"{where}: {path or sample}")
        if place:
            counts.setdefault(place[1].rstrip("/") or schema.TEST, Counter())[place[0]] += number
    problems: list[str] = []
    for name in sorted(counts):
        problems += [f"{name} {problem}" for problem in _problems(layout, counts[name])]
    return replace(layout, problems=problems)


def mapped(path: str) -> list[str]:
    """Returns a list with the name of ObjectNet's mapping file at `path`; [] for other files."""
    return [name for name in MAPPING if f"/{path}".endswith(f"/{name}")]


def edition_called(name: str) -> Edition | None:
    """Returns the dataset that the name of an archive or folder matches, or None."""
    for edition in class_list.EVALUATION:
        if re.match(rf"(?:{'|'.join(map(re.escape, edition.names))})(?![a-z0-9])", name.lower()):
            return edition
    return None


def edition_of(names: Iterable[str], folders: Collection[str], sample: str) -> Edition | None:
    """Returns the dataset that matches these names, folders or sample image path, or None."""
    *above, folder, image = ["", *sample.split("/")]
    if _CORRUPTED.search(sample):
        return class_list.IMAGENET_C
    if WNID.fullmatch(folder) and re.fullmatch(r"sketch_\d+\.[A-Za-z]+", image):
        return class_list.IMAGENET_SKETCH
    called = next(filter(None, map(edition_called, [*names, *above])), None)
    # A name alone tells nothing: `sketch` may contain any sketches. ObjectNet has its own classes.
    is_class = folder in labels.official_classes().index
    if called is not None and called.name.startswith(class_list.IMAGENETV2.name):
        is_class = is_class or _NUMBER.fullmatch(folder) is not None
    if called is not class_list.OBJECTNET and not is_class:
        called = None
    # If the image name begins with a WNID, these are ILSVRC2012's train images of some classes.
    if called is not class_list.IMAGENET_O and not WNID.match(image):
        digest = hashlib.sha256("".join(f"{name}\n" for name in sorted(folders)).encode())
        known = {edition.digest: edition for edition in class_list.EVALUATION if edition.digest}
        called = known.get(digest.hexdigest(), called)
    return called


def _problems(layout: Layout, counts: Mapping[int, int]) -> list[str]:
    edition = layout.edition
    wnids = labels.official_classes().wnids
    total = sum(counts.values())
    names = [*map(str, range(len(wnids)))] if layout.is_numbered else wnids
    problems = []
    expected = edition.examples.get(schema.TEST, total)
    if total != expected:
        problems.append(f"has {counted(total, 'image')}, expected {expected:,}")
    classes = edition.num_classes or len(counts)
    if classes != len(counts):
        problem = f"has {counted(len(counts), 'class')}, expected {classes:,}"
        if classes == len(wnids):
            absent = [name for index, name in enumerate(names) if index not in counts]
            problem += f", missing {some(absent)}"
        problems.append(problem)
    low, high = edition.class_range.get(schema.TEST, (1, total))
    odd = [f"{names[i]} with {n:,}" for i, n in sorted(counts.items()) if not low <= n <= high]
    if odd:
        problems.append(f"expects {low:,} images per class, got {some(odd)}")
    return problems


def _objects(files: Mapping[str, bytes], where: str) -> Mapping[str, Sequence[int]]:
    try:
        index_of = {words: index for index, words in enumerate(labels.official_classes().words)}
        if NUMBERS in files and WORDS in files:
            lines = dict(enumerate(map(str.strip, files[WORDS].decode().splitlines())))
            numbers = strict_json.parse_record(dict[int, int], files[NUMBERS])
            index_of = {lines[number]: index for index, number in numbers.items()}
        words_of = strict_json.parse_record(dict[str, str], files[OBJECTS])
        folders = strict_json.parse_record(dict[str, str], files[OBJECTNET_FOLDERS])
        most = max([len(folders), *(words.count(";") for words in words_of.values())])
        if most > _MOST_OBJECTS:
            raise ValueError(f"{most:,} folders or classes, expected at most {_MOST_OBJECTS:,}")
        objects = {
            folder: [
                index_of[words.strip()] for words in words_of.get(name, "").split(";") if words
            ]
            for folder, name in folders.items()
        }
        uses = Counter(itertools.chain.from_iterable(objects.values()))
        for indices in objects.values():
            indices.sort(key=uses.__getitem__)  # first the label: no other object has this class
            if indices and (uses[indices[0]] > 1 or not 0 <= min(indices) <= max(indices) < 1000):
                raise ValueError("two objects have the same class, or a class is not in ILSVRC2012")
    except (ValueError, LookupError) as error:
        # The text of a LookupError is only the missing key.
        is_value = isinstance(error, ValueError)
        problem = str(error) if is_value else "its files do not match each other"
        raise SourceError(
            f"{where}: ObjectNet's mapping cannot be read: {problem}. Get its mappings/ again."
        ) from error
    return objects


# Preferred names. Other names are used only if none of these exists.
SPLIT_FOLDERS = {
    schema.TRAIN: ("train", "train_blurred", "imagenet21k_train"),
    schema.VALIDATION: ("val", "validation", "valid", "val_blurred", "imagenet21k_val"),
    schema.HOLDOUT: ("holdout",),
}
KAGGLE = "Data/CLS-LOC"
# Words that do not name a class. They can also be joined to a split word, as in `trainset`.
_NEUTRAL = (
    "(?:(?:data|image|img|photo|picture|pic|file|folder|split|sub)?(?:set|s)?|data|jpe?g|png|"
    "class(?:es)?|categor(?:y|ies)|masks?|labels?|annotations?)"
)
_SPLIT_WORDS = {
    schema.TRAIN: "train|training",
    schema.VALIDATION: "val|valid|validation|validate|dev|devel|development|eval|evaluation",
    schema.HOLDOUT: "holdout",
    schema.TEST: "test|testing",
}
_SPLIT = {s: re.compile(f"{_NEUTRAL}(?:{words}){_NEUTRAL}") for s, words in _SPLIT_WORDS.items()}
# Words that name a part of a split, such as `train.X1` or `train_part2`.
_PART = re.compile("parts?|chunk|[a-z]")
_BETWEEN_WORDS = re.compile(r"[\W\d_]+|(?<=[a-z])(?=[A-Z])")
_TFRECORDS = re.compile(r".*-\d{5}-of-\d{5}|.*\.tfrec(?:ord)?s?(?:-.*)?")
_MOST_LOOKED_AT = 10_000  # files to search for the first image of a folder
_MOST_NAMED = 3


class Splits(NamedTuple):
    """The folders of the splits in a source."""

    base: Path
    folders: dict[str, list[str]]  # the folders of each split, relative to `base`
    beside: list[Path]  # folders that may contain label lists
    top: Path
    names: dict[str, list[str]]  # all folders in `top` named like a split, except classes

    @property
    def places(self) -> list[Path]:
        """The paths of the folders of all splits."""
        return [self.base / name for name in chain.from_iterable(self.folders.values())]


class _Name(NamedTuple):
    """The parts of a folder name."""

    split: str | None  # the split that the name matches
    others: str  # the words that do not name a split; another split must share them


def split_in_name(name: str) -> str | None:
    """Returns the split that a folder's name matches, or None."""
    return _parse_name(name).split


def _parse_name(name: str) -> _Name:
    """Divides a folder name into a split and other words.

    >>> splits = ["train", "Testing", "TrainingData", "train2017"]
    >>> parts = ["train.X1", "train_part2", "val-b"]
    >>> are_splits_only_in_pairs = ["seg_test", "passenger_train"]  # with `seg_train`
    >>> others = ["train_val", "trainer", "images", "7", "class 7"]
    >>> for name in splits + parts + are_splits_only_in_pairs + others:
    ...     print(f"{name:15}", *map(repr, _parse_name(name)))
    train           'train' ''
    Testing         'test' ''
    TrainingData    'train' ''
    train2017       'train' ''
    train.X1        'train' ''
    train_part2     'train' ''
    val-b           'validation' ''
    seg_test        'test' 'seg'
    passenger_train 'train' 'passenger'
    train_val       None ''
    trainer         None 'trainer'
    images          None ''
    7               None '7'
    class 7         None 'class 7'
    """
    words = [word.casefold() for word in _BETWEEN_WORDS.split(name) if word]
    split_of: dict[str, str] = {}
    for split, pattern in _SPLIT.items():
        split_of |= dict.fromkeys(filter(pattern.fullmatch, words), split)
    others = [w for w in words if w not in split_of and not re.fullmatch(_NEUTRAL, w)]
    if split_of:
        others = [word for word in others if not _PART.fullmatch(word)]
    elif not words or any(map(str.isdigit, name)):
        others = [name]  # `7` and `class 7` are classes; `train2017` is a split
    splits = {*split_of.values()}
    return _Name(splits.pop() if len(splits) == 1 else None, " ".join(others))


@read_errors("")
def split_folders(root: Path) -> Splits:
    """Returns the splits in a folder; a folder that contains classes instead is the train split."""
    named = named_splits(root)
    if named.folders:
        inner: dict[str, list[str]] = {}
        for split, names in named.folders.items():
            inner[split] = [_content_folder(named.base, name) for name in names]
        return named._replace(folders=inner)
    below = subfolders(root) if root.is_dir() else []
    if not any(has_image(root / name, below=True) for name in below):
        return named
    train = root.resolve()
    return Splits(train.parent, {schema.TRAIN: [train.name]}, [root], train, {})


def has_only_classes(root: Path) -> bool:
    """Returns whether a folder contains folders of classes, and no folders of splits."""
    splits = split_folders(root)
    return bool(splits.folders) and not splits.names


@read_errors("")
def named_splits(root: Path) -> Splits:
    """Returns the splits in a folder, found by the names of its subfolders."""
    kaggle = _kaggle(root)
    base = kaggle or root
    prefix = f"{KAGGLE}/" if kaggle else ""
    top = base / prefix
    below = subfolders(top, any_name=True) if top.is_dir() else []
    chosen = _splits_by_name(below)
    if chosen and _are_classes(top, chosen, below):
        chosen = {}
    if {*chosen} - {schema.HOLDOUT} == {schema.TRAIN, schema.TEST}:
        chosen[schema.VALIDATION] = _labelled_tests(top, chosen)
    folders: dict[str, list[str]] = {}
    for split in SPLIT_FOLDERS:
        if chosen.get(split):
            folders[split] = [prefix + name for name in chosen[split]]
    # Kaggle's lists are in ILSVRC/ or next to it.
    beside = [base, base.absolute().parent] if kaggle else [base]
    return Splits(base, folders, beside, top, chosen)


def _kaggle(root: Path) -> Path | None:
    """Returns Kaggle's folder ILSVRC if `root` contains it, is it, or is one of its folders."""
    path = root.resolve()
    inside = [base for base in path.parents[:2] if (base / KAGGLE).is_relative_to(path)]
    bases = (base for base in (root / "ILSVRC", root, *inside) if (base / KAGGLE).is_dir())
    return next(bases, None)


def _splits_by_name(below: Sequence[str]) -> dict[str, list[str]]:
    """Returns the folders of each split: those with preferred names, else those like a split."""
    # Folders with the same other words belong together: `seg_train` and `seg_test`.
    groups: dict[str, dict[str, list[str]]] = {}
    for name in below:
        split, others = _parse_name(name)
        if split is not None:
            groups.setdefault(others, {}).setdefault(split, []).append(name)
    found: dict[str, list[str]] = {}
    for others, group in groups.items():
        if not others or len(group) > 1:
            for split, names in group.items():
                found.setdefault(split, []).extend(names)
    for split, preferred in SPLIT_FOLDERS.items():
        exact = [name for name in below if name.casefold() in preferred]
        if exact:
            found[split] = exact
    return found


def _are_classes(top: Path, names: dict[str, list[str]], below: Sequence[str]) -> bool:
    """Returns whether folders named like one split are classes, such as `train` next to `bus`."""
    if len(names) > 1:
        return False
    (folders,) = names.values()
    if any(subfolders(top / name) or not has_image(top / name) for name in folders):
        return False
    others = (name for name in below if name not in folders and _parse_name(name).others)
    return any(has_image(top / name) for name in others)


def _labelled_tests(top: Path, names: dict[str, list[str]]) -> list[str]:
    """Returns the test folders that have classes of train, and so can be used for validation."""
    classes: set[str] = set()
    for name in names[schema.TRAIN]:
        classes.update(subfolders(top / _content_folder(top, name)))
    tests = names[schema.TEST]
    return [n for n in tests if not classes.isdisjoint(subfolders(top / _content_folder(top, n)))]


def _content_folder(base: Path, folder: str) -> str:
    """Returns a split's folder, or its only subfolder: seg_train/seg_train, val/images."""
    below = subfolders(base / folder)
    if len(below) != 1 or has_image(base / folder):
        return folder
    inner = f"{folder}/{below[0]}"
    split, others = _parse_name(below[0])
    name = folder.rpartition("/")[2]
    is_alike = below[0] == name or (not others and split in (None, split_in_name(name)))
    is_empty = not subfolders(base / inner) and not has_image(base / inner)
    return folder if is_empty or not is_alike else _content_folder(base, inner)


@read_errors("")
def wnids_in_names(root: Path) -> set[str]:
    """Returns the WNIDs in the names of the images directly in a folder without class folders.

    Returns an empty set if any image has no WNID in its name.
    """
    wnids = set[str]()
    for path in () if subfolders(root) else files_below(root, below=False):
        name = Path(path).name
        if scan.is_called_an_image(name):
            wnid = keys.wnid_in(name)
            if wnid is None:
                return set()
            wnids.add(wnid)
    return wnids


@read_errors("")
def class_folders(root: Path, known: ClassList | None = None) -> list[str]:
    """Returns the class folders: WNIDs, classes in `known`, and folders that contain images."""
    names = subfolders(root)
    if not names:
        raise without_classes(root, "images and " if has_image(root) else "no images and ")
    if (root.parent / schema.EXPORT).is_file():
        return names  # images of exported classes can be in subfolders
    unknown = [name for name in names if not keys.WNID.fullmatch(name)]
    if known is not None:
        unknown = [name for name in unknown if known.of_folder(name) is None]
    direct = [name for name in unknown if has_image(root / name)]
    # If only names such as `images` and `masks` exist, the folders are not classes.
    if direct and unknown == names and not any(_parse_name(name).others for name in direct):
        raise without_classes(root, f"{some([f'{name}/' for name in direct])}, but ")
    inner = {name: _with_images(root / name) for name in unknown if name not in direct}
    indirect = {name: below for name, below in inner.items() if below}
    if indirect:
        raise _no_classes(root, indirect)
    return names


def without_classes(root: Path, content: str = "images and ") -> UsageError:
    """Returns the error for a folder of images without labels."""
    paths = islice(files_below(root), _MOST_LOOKED_AT)
    names = [Path(path).name for path in paths if scan.is_called_an_image(path)]
    if any("\\" in name for name in names):
        advice = (
            "The backslashes in the file names were folders: the archive was packed on Windows. "
            "Unpack it again with 7z or a newer unzip."
        )
    elif has_shards(root) and not names:
        advice = use_shards(root.parent)
    elif names and all(map(keys.wnid_in, names)):
        advice = (
            "The file names contain WNIDs, but not the split. Move the images into a folder train/ "
            f"or val/, such as {root / 'train'}, and set --source to the folder that contains it."
        )
    else:
        advice = (
            "Put the images of each class into a folder named after the class: labels in file "
            "names or in unknown lists are not read."
        )
    return UsageError(printable(f"{root}: holds {content}no class folders. {advice}"))


def has_shards(root: Path) -> bool:
    """Returns whether a folder directly contains TFRecord files, judged by their names."""
    return any(_TFRECORDS.fullmatch(Path(path).name) for path in files_below(root, below=False))


def use_shards(root: Path) -> str:
    """Returns the advice for a folder with TFRecord files or with folders of them."""
    folder = shlex.quote(str(root))
    return (
        "It holds TFRecord files, which other verbs read. To use them as they are, run "
        f"imagenet-prep adopt {folder}; to resize their images, run imagenet-prep resize -i "
        f"{folder} -o OUT."
    )


def _no_classes(root: Path, inner: dict[str, list[str]]) -> UsageError:
    """Returns the error for folders with images only in their subfolders `inner`."""
    count = Counter(chain.from_iterable(inner.values()))
    repeated = [name for name in count if count[name] > 1]
    hint = ""
    if repeated:
        hint = f"Their subfolders have the same names ({some(repeated)}), as in splits. "
    first, below = next(iter(inner.items()))
    sources = [shlex.quote(str(_source_in(root / name))) for name in islice(inner, _MOST_NAMED)]
    return UsageError(
        printable(
            f"{root}: these folders are not classes: {some([f'{name}/' for name in inner])}. They "
            f"contain only folders such as {first}/{below[0]}/ and no images. {hint}Use one of "
            "them as source: "
            f"{' or '.join(sources)}. Or rename splits to train, val and test; or move all class "
            "folders into one folder; or move an image of each class directly into its folder."
        )
    )


def _source_in(folder: Path) -> Path:
    """Returns the folder to suggest as a source: the outermost one with splits or classes."""
    below = _with_images(folder)
    if len(below) > 1 or named_splits(folder).folders or has_image(folder / below[0]):
        return folder
    return _source_in(folder / below[0])


def unread(splits: Splits) -> Counter[str]:
    """Counts unread images: by folder or, for those directly in the source, by extension."""
    counts = Counter[str]()
    top = splits.top
    if not splits.names:
        return counts
    read = set[str]()
    for name in chain(*splits.folders.values()):
        read.add((splits.base / name).relative_to(top).parts[0])
    for name in subfolders(top, any_name=True):
        if name not in read and has_image(top / name, below=True, by_content=False):
            text = name.encode(errors="backslashreplace").decode()
            counts[f"{text}/"] = sum(map(scan.is_called_an_image, files_below(top / name)))
    loose = filter(scan.is_called_an_image, files_below(top, below=False))
    counts.update(ending(Path(path).name) for path in loose)
    return counts


def _with_images(folder: Path) -> list[str]:
    return [name for name in subfolders(folder) if has_image(folder / name, below=True)]


def has_image(folder: Path, *, below: bool = False, by_content: bool = True) -> bool:
    """Returns whether a folder contains an image; if `below`, subfolders are searched too."""
    files = islice(files_below(folder, below=below), _MOST_LOOKED_AT)
    return any(scan.is_image(Path(path), by_content=by_content) for path in files)


def files_below(folder: Path, *, below: bool = True) -> Iterator[str]:
    """Yields the paths of files; skips unreadable folders, which `scan` reports later."""
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if below and not is_hidden(name)]
        yield from (f"{path}/{name}" for name in names)
