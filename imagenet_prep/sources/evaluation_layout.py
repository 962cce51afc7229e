"""Identifies evaluation datasets, and the classes of their folders.

ImageNetV2's folders are named after class indices. ObjectNet's mapping files contain the classes of
its folders. The folders of all other datasets are named after WNIDs.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from imagenet_prep.core import records
from imagenet_prep.core.errors import SourceError, some
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import editions, schema
from imagenet_prep.dataset.editions import Edition
from imagenet_prep.dataset.keys import CORRUPTIONS, WNID
from imagenet_prep.sources import labels

_NUMBER = re.compile(r"0|[1-9][0-9]{0,2}")
_CORRUPTED = re.compile(rf"(?:^|/)((?:{'|'.join(CORRUPTIONS)})/[1-5]/)n[0-9]{{8}}/[^/]+$")
# ObjectNet's mapping files. NUMBERS contains the line number in WORDS of each class.
FOLDERS = "mappings/folder_to_objectnet_label.json"
OBJECTS = "mappings/objectnet_to_imagenet_1k.json"
NUMBERS = "mappings/pytorch_to_imagenet_2012_id.json"
WORDS = "mappings/imagenet_to_label_2012_v2"
MAPPING = (FOLDERS, OBJECTS, NUMBERS, WORDS)
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
            expected = f"those in {FOLDERS}"
        elif self.is_numbered:
            index = int(folder) if _NUMBER.fullmatch(folder) else None
            expected = "class indices, 0 to 999 (folders 1 to 1000 would be ILSVRC2012_IDs)"
        else:
            index = labels.official_classes().index.get(folder)
            expected = "WNIDs of ILSVRC2012's 1,000 classes"
            if self.edition.name.startswith(editions.IMAGENETV2.name):
                expected = "either only class indices (0 to 999) or only WNIDs of ILSVRC2012"
        match = _CORRUPTED.search(path) if self.edition is editions.IMAGENET_C else None
        if self.edition is editions.IMAGENET_C and not match:
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
    edition = editions.OBJECTNET if mapping else edition_of(names, folders, sample)
    if edition is None and [*in_folder.values()] == [10] * 1000:
        edition = editions.IMAGENETV2
    if edition is None:
        raise SourceError(
            f"{where}: matches no known evaluation dataset, neither by its name nor by its "
            f"{counted(len(folders), 'folder')} of images, such as {min(folders)!r}. Rename it to "
            "its published name, or unpack it and add --source-kind folder."
        )
    layout = Layout(
        edition,
        edition.name.startswith(editions.IMAGENETV2.name) and any(map(_NUMBER.fullmatch, folders)),
        _objects(mapping, where) if edition is editions.OBJECTNET else None,
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
    for edition in editions.EVALUATION:
        if re.match(rf"(?:{'|'.join(map(re.escape, edition.names))})(?![a-z0-9])", name.lower()):
            return edition
    return None


def edition_of(names: Iterable[str], folders: Collection[str], sample: str) -> Edition | None:
    """Returns the dataset that matches these names, folders or sample image path, or None."""
    *above, folder, image = ["", *sample.split("/")]
    if _CORRUPTED.search(sample):
        return editions.IMAGENET_C
    if WNID.fullmatch(folder) and re.fullmatch(r"sketch_\d+\.[A-Za-z]+", image):
        return editions.IMAGENET_SKETCH
    called = next(filter(None, map(edition_called, [*names, *above])), None)
    # A name alone tells nothing: `sketch` may contain any sketches. ObjectNet has its own classes.
    is_class = folder in labels.official_classes().index
    if called is not None and called.name.startswith(editions.IMAGENETV2.name):
        is_class = is_class or _NUMBER.fullmatch(folder) is not None
    if called is not editions.OBJECTNET and not is_class:
        called = None
    # If the image name begins with a WNID, these are ILSVRC2012's train images of some classes.
    if called is not editions.IMAGENET_O and not WNID.match(image):
        digest = hashlib.sha256("".join(f"{name}\n" for name in sorted(folders)).encode())
        known = {edition.digest: edition for edition in editions.EVALUATION if edition.digest}
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
            numbers = records.loads(dict[int, int], files[NUMBERS])
            index_of = {lines[number]: index for index, number in numbers.items()}
        words_of = records.loads(dict[str, str], files[OBJECTS])
        folders = records.loads(dict[str, str], files[FOLDERS])
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
