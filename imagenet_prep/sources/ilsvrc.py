"""Reads image-net.org's archives of ILSVRC2012 and ImageNet-21K, and the lists next to them.

ILSVRC2012 has train, validation and test tars, and a devkit. ImageNet-21K has a tar per class.
"""

from __future__ import annotations

import csv
import itertools
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.core.small_files import csv_rows
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import class_list, keys, schema
from imagenet_prep.dataset.class_list import FALL11, WINTER21, ClassList
from imagenet_prep.dataset.formats import is_hidden
from imagenet_prep.dataset.keys import VALIDATION_NAME, WNID
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import containers, labels, published, source
from imagenet_prep.sources.labels import Claim, compare
from imagenet_prep.sources.scan import FoundFile, is_called_an_image, read_errors
from imagenet_prep.sources.source import IndexTask, MemberReader, TarReader
from imagenet_prep.storage.archive import ArchiveReader, Range, RemoteArchives, open_archives
from imagenet_prep.storage.remote import stamp
from imagenet_prep.storage.remote_path import Location, RemotePath

# Files with "WNID words" per line: image-net.org's (all of WordNet) and timm's.
_WORD_LISTS = ("words.txt", "imagenet_synset_to_lemma.txt")
# Big Transfer's files: an ID per line, and its lemma on the same line, with "_" for spaces.
_IDS = "imagenet21k_wordnet_ids.txt"
_LEMMAS = "imagenet21k_wordnet_lemmas.txt"


def beside(folders: Iterable[Location]) -> dict[str, str]:
    """Returns words by WNID from the first list in these folders; invalid lines are ignored."""
    for folder in folders:
        for name in _WORD_LISTS:
            if (folder / name).is_file():
                lines = source.read_list(folder / name, lenient=True).splitlines()
                return _words(line.split(None, 1) for line in lines)
        if (folder / _IDS).is_file() and (folder / _LEMMAS).is_file():
            ids, lemmas = (
                source.read_list(folder / n, lenient=True).splitlines() for n in (_IDS, _LEMMAS)
            )
            spaced = (lemma.replace("_", " ") for lemma in lemmas)
            return _words(map(list, zip(ids, spaced, strict=False)))
    return {}


def _words(rows: Iterable[list[str]]) -> dict[str, str]:
    return {
        row[0]: " ".join(row[1].split())
        for row in rows
        if len(row) == 2 and WNID.fullmatch(row[0]) and row[1].strip()
    }


# One WNID per line, in order of the file names (tensorflow/models, research/slim).
SYNSET_LABELS = "imagenet_2012_validation_synset_labels.txt"
# Kaggle's list: "ImageId,PredictionString" with "WNID x y x y ...".
SOLUTION = "LOC_val_solution.csv"
# Tiny ImageNet's list: "FILE WNID x y x y", separated by tabs.
TINY = "val_annotations.txt"


def find_label_lists(folders: Sequence[Location]) -> Iterator[tuple[Location, dict[str, str]]]:
    """Yields the path of each list in these folders, and its WNIDs by name (no extension)."""
    for name, read in _LABEL_LISTS.items():
        for folder in folders:
            path = folder / name
            if path.is_file():
                yield path, _by_name(read(path), path)


def _by_name(rows: Iterable[tuple[str, str]], path: Location) -> dict[str, str]:
    wnids: dict[str, str] = {}
    for number, (name, wnid) in enumerate(rows, start=1):
        if name in wnids:
            raise SourceError(
                f"{path}: entry {number}: expected one entry per image, but {name!r} appears "
                "twice. Get the file again."
            )
        wnids[name] = wnid
    return wnids


def _synset_labels(path: Location) -> Iterator[tuple[str, str]]:
    for number, wnid in enumerate(source.read_list(path).split(), start=1):
        yield keys.validation_stem(number), wnid


def _solution(path: Location) -> Iterator[tuple[str, str]]:
    columns = ["ImageId", "PredictionString"]
    rows = csv_rows(source.read_list(path), strict=False)
    try:
        _, header = next(rows, (0, []))
        if header != columns:
            raise SourceError(
                f"{path}: expected the columns ImageId,PredictionString. Get it again from Kaggle."
            )
        for _, row in rows:
            yield row[0], row[1].partition(" ")[0] if len(row) > 1 else ""
    except csv.Error as error:
        raise SourceError(f"{path}: {error}. Get it again.") from error


def _tiny(path: Location) -> Iterator[tuple[str, str]]:
    for line in source.read_list(path).splitlines():
        file, _, rest = line.strip().partition("\t")
        if file:
            yield file.rpartition(".")[0], rest.partition("\t")[0]


_LABEL_LISTS: dict[str, Callable[[Location], Iterator[tuple[str, str]]]] = {
    SYNSET_LABELS: _synset_labels,
    "synset_labels.txt": _synset_labels,
    SOLUTION: _solution,
    TINY: _tiny,
}


_PUBLISHED = {
    schema.TRAIN: published.TRAIN,
    schema.VALIDATION: published.VALIDATION,
    schema.TEST: published.TEST,
}
ARCHIVES = {split: archive.name for split, archive in _PUBLISHED.items()}

_UNLABELLED = ClassList(("unlabelled",), ("unlabelled",))
_UNPACK = (
    "Only the original archive, or a tar of class folders, is read in place. Unpack this one into "
    f"train/<WNID>/ and set --source to the folder that contains {schema.TRAIN}/."
)
CLASS_TAR = re.compile(rf"({keys.WNID.pattern})\.tar")


@dataclass(frozen=True)
class Tars(source.StoredSource):
    """A source of image tars, either separate files or nested in one tar."""

    archives: dict[str, Location]
    validation_class_index: tuple[int, ...] = ()  # in the order of the file names

    @cached_property
    def reader(self) -> ArchiveReader | RemoteArchives:
        """The reader of the archives."""
        return open_archives(self.archives)

    @property
    def images(self) -> MemberReader:
        """The reader of images; it verifies remote images, as their listing is untrusted."""
        kind = TarReader if isinstance(self.reader, RemoteArchives) else MemberReader
        return kind(self.reader)

    def index(self, task: IndexTask) -> list[Member]:
        """Returns the images of one tar, sorted by key."""
        archive = task.archive or task.part
        files = visible_files(self.reader, archive, task.start, task.stop)
        members = source.sorted_by_key((self._member(task, archive, f) for f in files), archive)
        if not members:
            raise SourceError(
                f"{archive}: byte {task.start:,}: {task.name} holds no image. "
                "The archive is incomplete: compare its md5 and download it again."
            )
        return members

    def known_md5(self, task: IndexTask) -> str | None:
        """Returns the md5 stored with an archive's listing, or None."""
        return self.reader.known_md5(task.archive or task.part)

    def _member(self, task: IndexTask, archive: str, file: containers.TarMember) -> Member:
        where = f"{archive}: byte {file.offset:,}: {file.name!r}"
        index = task.class_index
        if index is None and task.split == schema.TRAIN:
            index = self._named(file.name, where)
        elif index is None:
            index = self._numbered(file.name, where)
        key = self.key_of(task.split, index, file.name, where)
        return Member(key, archive, file.offset, file.size, index)

    def _named(self, path: str, where: str) -> int:
        """Returns the class index of a train image from its folder or its name."""
        folder, _, name = path.rpartition("/")
        names = (folder.rpartition("/")[2], keys.wnid_in(name))
        index = next(
            (self.classes.index[wnid] for wnid in names if wnid in self.classes.index), None
        )
        if index is None:
            raise SourceError(
                f"{where}: expected <WNID>.tar, or images with a WNID as folder or in their names. "
                "This is not the train archive of ILSVRC2012."
            )
        return index

    def _numbered(self, path: str, where: str) -> int:
        """Returns the class index of a validation image from its number."""
        match = VALIDATION_NAME.match(keys.without_wnid(path.rpartition("/")[2]))
        if match is None:
            raise SourceError(f"{where}: expected the name ILSVRC2012_val_<8 digits>.JPEG")
        number = int(match[1])
        total = len(self.validation_class_index)
        if not 1 <= number <= total:
            raise SourceError(
                f"{where}: the devkit has labels for images 1 to {total:,}. Archive and "
                "devkit do not match."
            )
        return self.validation_class_index[number - 1]


def visible_files(
    reader: ArchiveReader | RemoteArchives,
    archive: str,
    start: int,
    stop: int,
    *,
    skipping: bool = False,
) -> list[containers.TarMember]:
    """Returns the files of a tar as `containers.files_of` does, without those that macOS adds."""
    files = containers.files_of(reader, archive, start, stop, skipping=skipping)
    return [file for file in files if _is_visible(file.name)]


def _is_visible(path: str) -> bool:
    if "/" not in path:
        return not path.startswith(".")  # fast: the class tars have a million files
    return not any(map(is_hidden, path.removeprefix("./").split("/")))


def inner_tars(
    files: Iterable[containers.TarMember], archive: str, advice: str
) -> dict[str, Range]:
    """Returns the byte range of each class tar by WNID; error messages end with `advice`."""
    tars: dict[str, Range] = {}
    for inner in files:
        match = CLASS_TAR.fullmatch(inner.name.rpartition("/")[2])
        if match is None:
            raise SourceError(
                f"{archive}: byte {inner.offset:,}: member {inner.name!r}, expected <WNID>.tar. "
                f"{advice}"
            )
        if match[1] in tars:
            raise SourceError(f"{archive}: holds {match[1]} twice. Download it again.")
        tars[match[1]] = archive, inner.offset, inner.size
    if not tars:
        raise SourceError(f"{archive}: holds no class tar. Download it again.")
    return tars


def class_tasks(part: str, tars: Mapping[str, Range], classes: ClassList) -> list[IndexTask]:
    """Returns one task of the train split per class tar."""
    tasks = []
    for wnid, (archive, start, size) in tars.items():
        index = classes.index.get(wnid)
        if index is None:
            raise SourceError(
                f"{archive}: byte {start:,}: class {wnid!r} is not in the class list of "
                f"{counted(len(classes.wnids), 'class')}. Archive and devkit do not match."
            )
        name = f"{schema.TRAIN}-{wnid}"
        tasks.append(IndexTask(name, schema.TRAIN, part, index, start, start + size, archive))
    return tasks


@dataclass(frozen=True)
class Ilsvrc2012(Tars):
    """The train and validation archives of ILSVRC2012."""

    name = "imagenet2012"
    edition = class_list.ILSVRC2012
    decisive = ("validation_class_index",)

    def index_tasks(self, split: str) -> list[IndexTask]:
        """Returns one task per class tar of train, or one task for validation."""
        archive = ARCHIVES[split]
        if split == schema.VALIDATION:
            return [IndexTask(split, split, archive, None, 0, self.reader.size(archive))]
        return self._classes_of_train

    @cached_property
    def _classes_of_train(self) -> list[IndexTask]:
        # Listed on first use, because a run on a finished dataset does not need the class tars.
        archive = ARCHIVES[schema.TRAIN]
        stop = self.reader.size(archive)
        files = visible_files(self.reader, archive, 0, stop, skipping=True)
        if files and is_called_an_image(files[0].name):
            # The archive was repacked: it has class folders, or WNIDs in the names of the images.
            return [IndexTask(schema.TRAIN, schema.TRAIN, archive, None, 0, stop)]
        return class_tasks(archive, inner_tars(files, archive, _UNPACK), self.classes)


@dataclass(frozen=True)
class Unlabelled(Tars):
    """ILSVRC2012's test archive. All images share one class, as their labels are unpublished."""

    name = "imagenet2012_test"
    edition = class_list.ILSVRC2012_TEST


def find(folder: Location, splits: Sequence[str]) -> Ilsvrc2012 | Unlabelled:
    """Returns the source of `splits`; without a devkit, it has ILSVRC2012's published labels."""
    if isinstance(folder, Path) and not folder.is_dir():
        expected = ", ".join(ARCHIVES[split] for split in splits)
        raise UsageError(f"--source {folder}: no such folder. Put {expected} there.")
    archives = {ARCHIVES[split]: folder / ARCHIVES[split] for split in splits}
    devkit_path = folder / labels.DEVKIT_NAME
    missing = [name for name, path in archives.items() if not path.is_file()]
    if missing:
        found = ""
        if folder.is_dir():
            names = sorted(path.name for path in folder.iterdir())
            found = f"; found {some(names) or 'nothing'}"
        raise UsageError(
            f"--source {folder}: {' and '.join(missing)} not found{found}. Get the archives from "
            "image-net.org (login needed), or choose different --splits."
        )
    if schema.TEST in splits:
        if len(splits) > 1:
            raise UsageError(
                "--splits: the test images have no labels, so they cannot be in the same dataset "
                "as other splits. Choose --splits test and a different --out."
            )
        part = source.file_part(archives[ARCHIVES[schema.TEST]], published.TEST.md5)
        task = IndexTask(schema.TEST, schema.TEST, part.name, 0, 0, part.num_bytes)
        return Unlabelled(_UNLABELLED, (part,), archives, tasks=(task,))
    if devkit_path.is_file():
        devkit = labels.read_devkit(devkit_path)
        classes, truth = devkit.classes, devkit.validation_class_index
    else:
        classes = labels.official_classes()
        truth = labels.published_labels()
        listed = [Claim(str(path), wnids) for path, wnids in find_label_lists([folder])]
        of_listed = itertools.chain.from_iterable(claim.classes for claim in listed)
        known = labels.published_labels_of(of_listed, classes.index)
        compare("image", [*listed, Claim(labels.PUBLISHED, known)], labels.RIGHT_LABELS)
    # With a different class list, these are not the published archives: no md5 is known.
    parts = tuple(
        source.file_part(archives[ARCHIVES[s]], _PUBLISHED[s].md5 if classes.official else None)
        for s in splits
    )
    return Ilsvrc2012(classes, parts, archives, truth)


WHOLE = "fall11_whole.tar"
_FOLDERS = ("winter21_whole", "fall11_whole")


@dataclass(frozen=True)
class ClassTars(Tars):
    """A source of class tars; all images are in the train split."""

    other_name = "imagenet21k"

    @property
    def edition(self) -> class_list.Edition | None:
        """The edition that the source is named after, else the one with the closest class count."""
        known = (class_list.ILSVRC2012, WINTER21, FALL11)
        number = len(self.classes.wnids)
        called = class_list.called(self.parts[0].name, self.classes)
        return called or class_list.closest(known, number)


def locate(root: Location) -> Iterator[Location]:
    """Yields each tar or folder that contains class tars, at or in `root`."""
    if root.is_file():
        # For ILSVRC2012's archives, the source is their folder, so that md5s are verified.
        if root.suffix == ".tar" and root.name not in ARCHIVES.values():
            yield root
        return
    for folder in (root, *(root / name for name in _FOLDERS)):
        if (folder / WHOLE).is_file():
            yield folder / WHOLE
        elif folder.is_dir() and any(CLASS_TAR.fullmatch(path.name) for path in folder.iterdir()):
            yield folder


def find_class_tars(root: Location, splits: Sequence[str]) -> ClassTars:
    """Returns the source; uses ILSVRC2012's class list if that has all classes of the source."""
    places = [*locate(root)]
    if len(places) > 1:
        names = " and ".join(place.name for place in places)
        raise UsageError(f"--source {root}: holds {names}. Set --source to one of them.")
    if not places:
        raise UsageError(
            f"--source {root}: has neither {WHOLE} nor class tars (nNNNNNNNN.tar). Get them "
            "from image-net.org (login needed), and unpack .tar.gz files."
        )
    (place,) = places
    if schema.VALIDATION in splits:
        raise UsageError(
            f"--source {root}: ImageNet-21K has no validation split. Choose --splits train, or add "
            "--holdout-per-class N, which moves N images of each class to validation."
        )
    archives: dict[str, Location]
    if place.is_file():
        archives = {place.name: place}
        part = source.file_part(place)
        advice = "Unpack the archive: only a tar of class tars is read directly."
        reader = open_archives(archives)
        stop = reader.size(part.name)
        members = visible_files(reader, part.name, 0, stop, skipping=True)
        tars = inner_tars(members, part.name, advice)
    else:
        files = _class_files(place)
        # These paths are relative to the source, so that `report` finds the tars.
        below = f"{place.name}/" if place != root else ""
        archives = {below + file.path: place / file.path for file in files}
        # No md5 was published for the 19,167 class tars, so the manifest lists the folder.
        part = source.folder_part(place.name, [("", files)])
        tars = {
            file.path.removesuffix(".tar"): (below + file.path, 0, file.num_bytes) for file in files
        }
    tars = dict(sorted(tars.items()))
    classes = labels.official_classes()
    if not tars.keys() <= classes.index.keys():
        words = beside([place] * place.is_dir() + [place.parent])
        classes = labels.classes_called([*tars], str(place), words)
    tasks = class_tasks(part.name, tars, classes)
    return ClassTars(classes, (part,), archives, tasks=tuple(tasks))


def _class_files(folder: Location) -> list[FoundFile]:
    files = []
    with read_errors(folder):
        paths = [*folder.iterdir()]
    for path in paths:
        if path.suffix != ".tar" or path.name.startswith("."):
            continue
        if CLASS_TAR.fullmatch(path.name) is None:
            raise SourceError(
                f"{path}: is next to class tars, but is not named <WNID>.tar. Move it away."
            )
        if isinstance(path, RemotePath):
            files.append(FoundFile(path.name, path.stat.size, path.stat.validator))
            continue
        with read_errors(path):
            status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{path}: is not a regular file. Remove it.")
        files.append(FoundFile(path.name, status.st_size, stamp(status)))
    return sorted(files)
