"""Reads datasets with a folder per class, as in torchvision's ImageFolder and on Kaggle.

A split may be in several folders. A validation folder may have no class folders. The labels of its
images then come from the devkit or a list (see `find_label_lists` in `sources.ilsvrc`), else from
the WNIDs in their names. A train folder without class folders needs these WNIDs.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import ClassVar

from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.core.terminal import counted, printable
from imagenet_prep.dataset import class_list, formats, keys, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.formats import ending, ignored_in_words, is_hidden, most_frequent
from imagenet_prep.dataset.member import MAX_IMAGE_BYTES, Member
from imagenet_prep.sources import ilsvrc, labels, layout, scan, source
from imagenet_prep.sources.ilsvrc import SOLUTION, SYNSET_LABELS
from imagenet_prep.sources.labels import CLASSES, LABELS, Claim, Statement, compare
from imagenet_prep.sources.scan import (
    FoundFile,
    SourceProblems,
    hidden_files,
    read_errors,
    subfolders,
)
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.archive import Range
from imagenet_prep.storage.remote import is_newer
from imagenet_prep.storage.remote_path import open_to_read

_DEVKITS = (labels.DEVKIT_NAME, labels.DEVKIT_NAME.removesuffix(".tar.gz"))
# Kaggle's class list: "WNID words" per class.
SYNSET_MAPPING = "LOC_synset_mapping.txt"
_MOST_SHOWN = 100  # characters of a class in a list


class FileReader:
    """Reads complete files; closes each after reading, as there may be a million files."""

    def __init__(self, root: Path, newest: int) -> None:
        self._root = root
        self._newest = newest  # the latest file time when the files were listed

    def read(self, archive: str, offset: int, size: int) -> bytes:
        """Returns the first `size` bytes; raises SourceError if the file has changed."""
        path = self._root / archive
        with read_errors(path, "Check the disk that holds it."), open_to_read(path) as file:
            now = os.fstat(file.fileno())
            data = file.read(offset + size)
        size_differs = now.st_size < size or (now.st_size > size and size <= MAX_IMAGE_BYTES)
        if size_differs or is_newer(now, self._newest):
            sizes = f": has {now.st_size:,} bytes, had {size:,}" if size_differs else ""
            raise SourceError(
                f"{path}: was changed after it was listed{sizes}. Do not change the source while "
                "it is read, and run the same command again."
            )
        return data

    def will_need(self, ranges: Iterable[Range]) -> None:
        """Does nothing: opening a file to prefetch it costs as much as reading it."""


@dataclass(frozen=True)
class FolderSource(source.StoredSource):
    """A source with one folder per class, or with a flat validation folder."""

    decisive: ClassVar[tuple[str, ...]] = ("validation_class_index", "is_own")
    root: Path
    validation_class_index: dict[str, int] | None  # by file name without extension, if flat
    inside: Path | None  # links must stay in this folder, as they may point to private images
    # For custom photographs, the content of a file decides if it is an image, and keys include the
    # folders below the class folder.
    is_own: bool

    @property
    def is_ilsvrc(self) -> bool:
        """Whether the source has ILSVRC2012's classes or a flat validation folder."""
        return super().is_ilsvrc or self.validation_class_index is not None

    @property
    def split_folders(self) -> list[Path]:
        """The folders of the splits that are read."""
        of_tasks = {
            task.archive if task.class_index is None else str(Path(task.archive).parent)
            for task in self.tasks
        }
        return sorted(self.root / path for path in of_tasks)

    @property
    def reader(self) -> FileReader:
        """The reader of the image files."""
        return FileReader(self.root, max(part.newest for part in self.parts))

    def index(self, task: IndexTask) -> list[Member]:
        """Returns the images of one folder, sorted by key."""
        problems = SourceProblems()
        members: list[Member] = []
        files = self._below(task, problems)
        for file in files.images:
            try:
                members.append(self._member(task, file))
            except SourceError as error:
                problems.add(error)
        if not files.images and not problems:
            for other in self.tasks:
                _note_empty(self.root / other.archive, self._below(other), problems)
        problems.raise_all(self.root)
        if files.unread.total() == len(members):
            kinds = ", ".join(f"{number:,} {kind}" for kind, number in files.unread.items())
            raise UsageError(
                f"{self.root / task.archive}: holds only photographs in unsupported formats: "
                f"{kinds}. To read them, {formats.remedy(files.unread)}; or remove the folder."
            )
        return source.sorted_by_key(members, str(self.root))

    def _below(self, task: IndexTask, problems: SourceProblems | None = None) -> scan.Listing:
        folder = self.root / task.archive
        by_content = self.is_own
        return scan.below(folder, self.inside, by_content=by_content, problems=problems)

    @property
    def edition(self) -> class_list.Edition | None:
        """The edition that a folder is named after, or ILSVRC2012 if the source is a part of it."""
        called = (class_list.called(part.name, self.classes) for part in self.parts)
        return next(filter(None, called), super().edition)

    @property
    def if_own(self) -> str:
        """The advice for a source whose edition was recognised, although it is the user's own."""
        for part in self.parts:
            if class_list.called(part.name, self.classes):
                return f"If these are your own images: rename the folder {part.name}."
        return super().if_own

    def _member(self, task: IndexTask, file: FoundFile) -> Member:
        path = f"{task.archive}/{file.path}"
        where = str(self.root / path)
        index = self._labelled(path) if task.class_index is None else task.class_index
        if index is None:
            raise SourceError(
                f"{where}: has no label. Get labels that include this image, or move it away."
            )
        folder = file.path[: file.path.rfind("/") + 1] if self.is_own else ""
        key = self.key_of(task.split, index, path, where, folder)
        return Member(key, path, 0, file.num_bytes, index)

    def _labelled(self, path: str) -> int | None:
        """Returns the class index of an image in a flat folder, by its list or its name."""
        name = path.rpartition("/")[2]
        stem = keys.without_wnid(name).rpartition(".")[0]
        of_name = self.classes.index.get(keys.wnid_in(name) or "")
        return (self.validation_class_index or {}).get(stem, of_name)


@read_errors("")
def find(
    root: Path,
    splits: Sequence[str],
    *,
    follow_links: bool = False,
    classes: ClassList | None = None,
) -> FolderSource:
    """Returns the source of `splits`.

    The class list is the first available of: `classes`, the devkit's, Kaggle's, ILSVRC2012's (if it
    includes all class folders), and the sorted folder names. With ILSVRC2012's list, a subset of
    its classes keeps the labels of the full dataset.
    """
    names = layout.split_folders(root)
    if schema.HOLDOUT not in splits:
        names.folders.pop(schema.HOLDOUT, None)
    base = names.base
    folders = names.folders
    _require_splits(root, names, splits)
    listed, truths = _read_lists(names.beside)
    class_lists = [Claim(str(path), dict(enumerate(of.wnids))) for path, of in listed.items()]
    compare("label", class_lists, "Remove the list of the other dataset.", complete=True)
    if classes is None:
        classes = next(iter(listed.values())) if listed else _classes_of(base, folders)
    index_of: dict[str, int] | None = None
    if schema.VALIDATION in splits:
        places = [base / path for path in folders[schema.VALIDATION]]
        near = [*names.beside, *places, *(place.parent for place in places)]
        truths += [
            Claim(str(path), of) for path, of in ilsvrc.find_label_lists([*dict.fromkeys(near)])
        ]
        index_of = _indices_by_name(places, truths, classes, root)
    else:
        truths = []
    search = _Search(
        root,
        base,
        classes,
        is_own=index_of is None and not is_imagenet(classes, chain.from_iterable(folders.values())),
        inside=None if follow_links else root,
    )
    parts: list[source.SourcePart] = []
    tasks: list[IndexTask] = []
    for split in splits:
        # Unread folders are counted only once.
        ignored = Counter(() if parts else layout.unread(names))
        name = some(names.names.get(split, [Path(folders[split][0]).name]))
        split_tasks = search.tasks(split, name, folders[split], ignored)
        groups = search.groups(split_tasks, folders[split][0], ignored)
        if split == schema.VALIDATION:
            found = _Labels(folders[split][0], split_tasks, classes, truths)
            part = source.folder_part(name, found.noted(groups))
            truths += found.compare(base / folders[split][0])
        else:
            part = source.folder_part(name, groups)
        parts.append(part._replace(ignored=tuple(most_frequent(ignored).items())))
        # A split may have several folders, each with all classes.
        tasks += sorted(split_tasks, key=lambda task: task.class_index or 0)
    search.problems.raise_all(f"--source {root}")
    return FolderSource(
        classes,
        tuple(parts),
        base,
        index_of,
        search.inside,
        search.is_own,
        tasks=tuple(tasks),
        evidence=(
            *_statements(CLASSES, "class", class_lists),
            *_statements_of_folders(parts, tasks),
            *_statements(LABELS, "image", truths),
        ),
    )


@dataclass(frozen=True)
class _Search:
    """Lists the class folders and images of a source, and collects their problems."""

    root: Path
    base: Path
    classes: ClassList
    is_own: bool
    inside: Path | None
    problems: SourceProblems = field(default_factory=SourceProblems)

    def tasks(
        self, split: str, name: str, paths: Sequence[str], ignored: Counter[str]
    ) -> list[IndexTask]:
        """Returns a task per class folder or flat folder; adds files next to classes to `ignored`.

        `name` is the name of the split's part, and `paths` are the folders of the split.
        """
        tasks: list[IndexTask] = []
        for number, path in enumerate(paths):
            folder = self.base / path
            # The name of a class folder may be invalid as the name of a receipt.
            suffix = f".{number}" if number else ""
            is_flat = not subfolders(folder)
            if is_flat and (split == schema.VALIDATION or layout.wnids_in_names(folder)):
                tasks.append(IndexTask(split + suffix, split, name, archive=path))
                continue
            _refuse_numbers(folder)
            for index, class_name in _class_folders(folder, self.classes, self.problems).items():
                archive = f"{path}/{class_name}"
                # `export` creates empty folders for classes that a split does not have.
                is_export = (self.root / schema.EXPORT).is_file()
                if not is_export or any((self.base / archive).iterdir()):
                    task = f"{split}-{index:05d}{suffix}"
                    tasks.append(IndexTask(task, split, name, index, archive=archive))
            ignored.update(_loose_files(folder, self.is_own, self.problems))
        return tasks

    def groups(
        self, tasks: Iterable[IndexTask], first: str, ignored: Counter[str]
    ) -> Iterator[tuple[str, list[FoundFile]]]:
        """Yields images class by class, since the names of 13 million files take gigabytes."""
        empty = []
        for task in tasks:
            folder = self.base / task.archive
            before = self.problems.number
            files = scan.below(folder, self.inside, by_content=self.is_own, problems=self.problems)
            ignored.update(files.ignored)
            if not files.images and self.problems.number == before:
                empty.append((folder, files))
            yield _group(task, first), files.images
        # If there are no other problems, `index` reports empty folders when it reads their class.
        if self.problems:
            for folder, files in empty:
                _note_empty(folder, files, self.problems)


class _Labels:
    """The labels of validation images in class folders, to compare them with the lists."""

    def __init__(
        self, first: str, tasks: Iterable[IndexTask], classes: ClassList, lists: Sequence[Claim]
    ) -> None:
        self._classes = classes
        self._lists = lists
        self._wnids = {
            _group(task, first): classes.wnids[task.class_index]
            for task in tasks
            if task.class_index is not None
        }
        self._found: dict[str, str] = {}

    def noted(
        self, groups: Iterable[tuple[str, list[FoundFile]]]
    ) -> Iterator[tuple[str, list[FoundFile]]]:
        """Yields `groups`, and keeps the labels of images that a list may contain."""
        listed = set().union(*(claim.classes for claim in self._lists))
        for name, files in groups:
            if name in self._wnids:
                stems = {_stem(file.path) for file in files}
                numbered = {stem for stem in stems if keys.validation_number(stem) is not None}
                self._found |= dict.fromkeys(stems & listed | numbered, self._wnids[name])
            yield name, files

    def compare(self, folder: Path) -> list[Claim]:
        """Raises SourceError if a label differs; returns the published labels unless in a list."""
        published: list[Claim] = []
        if not (folder.parent / schema.EXPORT).is_file():
            known = {claim.where for claim in self._lists}
            new = _published(self._found, self._classes)
            published = [claim for claim in new if claim.where not in known]
        for claim in (*self._lists, *published):
            compare("image", [Claim(str(folder), self._found), claim], labels.RIGHT_LABELS)
        return published


def _read_lists(folders: Sequence[Path]) -> tuple[dict[Path, ClassList], list[Claim]]:
    """Returns the class lists next to a source, and the devkit's labels of validation images."""
    listed: dict[Path, ClassList] = {}
    truths: list[Claim] = []
    archive = _first(folders, *_DEVKITS)
    if archive is not None:
        devkit = labels.read_devkit(archive)
        listed[archive] = devkit.classes
        wnids = [devkit.classes.wnids[index] for index in devkit.validation_class_index]
        of_name = {keys.validation_stem(n): wnid for n, wnid in enumerate(wnids, start=1)}
        truths.append(Claim(str(archive), of_name))
    mapping = _first(folders, SYNSET_MAPPING)
    if mapping is not None:
        listed[mapping] = _read_mapping(mapping)
    return listed, truths


def _require_splits(root: Path, names: layout.Splits, splits: Sequence[str]) -> None:
    missing = [split for split in splits if split not in names.folders]
    if not missing:
        for split in splits:
            _require_parts(root, names.base, names.folders[split])
        return
    if schema.TRAIN in names.folders:
        layout.class_folders(names.base / names.folders[schema.TRAIN][0])
    expected = [", ".join(f"{name}/" for name in layout.SPLIT_FOLDERS[split]) for split in missing]
    existing = subfolders(names.top, any_name=True) if names.top.is_dir() else []
    raise UsageError(
        f"--source {root}: no folder for {' and '.join(missing)}; expected one of "
        f"{' and one of '.join(expected)}. Choose splits with --splits. Found: "
        f"{printable(some([f'{name}/' for name in existing])) or 'no folders'}."
    )


def _require_parts(root: Path, base: Path, folders: Sequence[str]) -> None:
    """Raises UsageError if folders named like one split are not its parts, but copies of it."""
    if len(folders) == 1:
        return
    folders_of = Counter[str]()
    for folder in folders:
        folders_of.update({name.casefold() for name in subfolders(base / folder) or [""]})
    first_in: dict[str, str] = {}
    for folder in folders:
        for name in subfolders(base / folder) or [""]:
            # The 13 million names of ImageNet-21K, in parts by class, would take gigabytes.
            is_shared = folders_of[name.casefold()] > 1
            for path in layout.files_below(base / folder / name) if is_shared else ():
                file = path.removeprefix(f"{base / folder}/")
                first = first_in.setdefault(file.casefold(), folder)
                if first != folder and scan.is_called_an_image(file):
                    raise UsageError(
                        printable(
                            f"--source {root}: holds {' and '.join(folders)}. Keep only one of "
                            "them: they are not parts of one split, since "
                            f"{first} and {folder} have {file}."
                        )
                    )


def is_imagenet(classes: ClassList, folders: Iterable[str]) -> bool:
    """Returns whether the images are from ImageNet, judged by class and folder names."""
    names = {path.rpartition("/")[2] for path in folders}
    editions_called = (class_list.called(name, classes) for name in names)
    return classes.official or any(editions_called) or all(map(keys.WNID.fullmatch, classes.wnids))


def _group(task: IndexTask, first: str) -> str:
    """Returns the folder of a task, relative to the first folder of its split."""
    return f"{task.archive}/".removeprefix(f"{first}/").removesuffix("/")


def _note_empty(folder: Path, files: scan.Listing, problems: SourceProblems) -> None:
    if not files.images:
        others = f", but {ignored_in_words(files.ignored)}" if files.ignored else ""
        problems.add(f"{folder}: holds no image{others}. Add images to it, or remove the folder.")


def _first(folders: Sequence[Path], *names: str) -> Path | None:
    for name in names:
        for folder in folders:
            if (folder / name).exists():
                return folder / name
    return None


def _published(stems: Iterable[str], classes: ClassList) -> list[Claim]:
    """Returns the published labels of images by name, if these are ILSVRC2012's images."""
    published = labels.published_labels_of(stems, classes.index)
    return [Claim(labels.PUBLISHED, published)] if published else []


def _stem(path: str) -> str:
    """Returns the name of an image in a list of labels."""
    return Path(keys.without_wnid(Path(path).name)).stem


def _stems(folders: Iterable[Path]) -> set[str]:
    stems: set[str] = set()
    for folder in folders:
        stems.update(map(_stem, layout.files_below(folder, below=False)))
    return stems


def _statements(about: str, noun: str, claims: Iterable[Claim]) -> Iterator[Statement]:
    for claim in claims:
        yield Statement(about, Path(claim.where).name, counted(len(claim.classes), noun))


def _statements_of_folders(
    parts: Iterable[source.SourcePart], tasks: Sequence[IndexTask]
) -> Iterator[Statement]:
    for part in parts:
        number = sum(task.part == part.name and task.class_index is not None for task in tasks)
        if number:
            yield Statement(CLASSES, f"{part.name}/", counted(number, "class folder"))


def _indices_by_name(
    places: Iterable[Path], lists: list[Claim], classes: ClassList, root: Path
) -> dict[str, int] | None:
    """Returns class indices by validation file name (no extension), from all lists of labels.

    Adds the published labels, if any, to `lists`. Returns None if the labels are in the names of
    folders or files.
    """
    flat = [place for place in places if not subfolders(place)]
    if not flat:
        return None
    lists += _published(_stems(flat), classes)
    if not lists and all(map(layout.wnids_in_names, flat)):
        return None
    if not lists:
        raise UsageError(
            f"--source {root}: the validation folder has no class folders and its labels are "
            f"missing. Put {labels.DEVKIT_NAME}, {SYNSET_LABELS} or {SOLUTION} there, or create "
            "folders."
        )
    compare("image", lists, labels.RIGHT_LABELS)
    indices: dict[str, int] = {}
    for claim in lists:
        for stem, wnid in claim.classes.items():
            if wnid not in classes.index:
                raise SourceError(
                    f"{claim.where}: {stem}: {wnid[:_MOST_SHOWN]!r} is not in the class list of "
                    f"{counted(len(classes.wnids), 'class')}. Get the file again."
                )
            indices[stem] = classes.index[wnid]
    return indices


def _classes_of(base: Path, folders: dict[str, list[str]]) -> ClassList:
    paths = next(iter(folders.values()))
    where = base / paths[0]
    official = labels.official_classes()
    wnids_by_path = [layout.wnids_in_names(base / path) for path in paths]
    if schema.TRAIN not in folders and not wnids_by_path[0] and not subfolders(where):
        return official  # the labels are in a list
    for path, wnids in zip(paths, wnids_by_path, strict=True):
        wnids.update(() if wnids else layout.class_folders(base / path))
    names = sorted(set().union(*wnids_by_path))
    known = [name for name in names if name in official.index]
    if len(known) == len(names):
        return official
    if Path(paths[0]).name in class_list.WINTER21_P.names:
        words = ilsvrc.beside([base, base.parent])
        return labels.classes_called(names, str(where), words)
    # An extra folder must not turn ILSVRC2012 into a dataset of 1001 classes.
    if 2 * len(known) > len(names):
        strangers = sorted(set(names) - set(known))
        raise SourceError(
            f"{where}: {len(known):,} of {len(names):,} folders are classes of ILSVRC2012, "
            f"but these are not: {some(strangers)}. Move them away."
        )
    return labels.classes_called(names, str(where))


def _refuse_numbers(folder: Path) -> None:
    """Raises SourceError if numbered class folders hold validation images of ILSVRC2012."""
    numbers = [name for name in subfolders(folder) if name.isdecimal()]
    for path in map(Path, layout.files_below(folder / numbers[0])) if numbers else ():
        if keys.validation_number(path.name) is not None:
            raise SourceError(
                f"{folder}: its folders are numbers ({some(numbers)}), but they hold validation "
                f"images of ILSVRC2012, such as {path.relative_to(folder)}. Such numbers may be "
                "ILSVRC2012_IDs or class indices, so they are not read. Put the images directly "
                "into val/, without class folders: their published labels are used. If these are "
                "your own classes: give the folders names."
            )


def _class_folders(folder: Path, classes: ClassList, problems: SourceProblems) -> dict[int, str]:
    names: dict[int, str] = {}
    for name in layout.class_folders(folder, classes):
        index = classes.of_folder(name)
        if index is None and not any((folder / name).iterdir()):
            continue  # Tiny ImageNet's val/images/, after its images were moved
        if index is None:
            problems.add(
                f"{folder / name}: is not in the class list of "
                f"{counted(len(classes.wnids), 'class')}. {classes.advice(name)} Rename it, move "
                "it away, or get a list that has it."
            )
        elif index in names:
            problems.add(
                f"{folder}: {names[index]!a} and {name!a} are the same class (spaces become '_'; "
                "case and Unicode form are ignored). Put their images into one folder, or rename "
                "one."
            )
        else:
            names[index] = name
    return dict(sorted(names.items()))


def _loose_files(folder: Path, by_content: bool, problems: SourceProblems) -> Counter[str]:
    ignored = Counter[str]()
    loose: list[str] = []
    for path in folder.iterdir():
        if is_hidden(path.name):
            ignored.update(map(ending, hidden_files(folder, path.name)))
        elif path.is_file():
            if scan.is_image(path, by_content=by_content):
                loose.append(path.name)
            ignored[ending(path.name)] += 1
    if loose:
        problems.add(
            f"{folder}: {counted(len(loose), 'image')} next to the class folders, and so without a "
            f"class: {some(sorted(loose))}. Move them into the folder of their class, or away. If "
            f"{folder.name} itself is a class, give the folder above it."
        )
    return ignored


def _read_mapping(path: Path) -> ClassList:
    lines = source.read_list(path).splitlines()
    rows = sorted(line.partition(" ")[::2] for line in lines if line.strip())
    odd = [wnid for wnid, _ in rows if not keys.WNID.fullmatch(wnid)]
    if odd or not rows or len({wnid for wnid, _ in rows}) != len(rows):
        raise SourceError(
            f"{path}: expected one line 'WNID words' per class. Get it again from Kaggle."
        )
    classes = ClassList(tuple(row[0] for row in rows), tuple(row[1].strip() for row in rows))
    return labels.official_classes() if classes.official else classes
