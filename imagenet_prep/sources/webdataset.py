"""Reads WebDataset tars in place, such as `timm/imagenet-1k-wds` or those that `export` writes.

`WebDatasetSource` is a source of these tars, and `samples` reads the samples in one of them.

Adjacent files form a sample if their paths are equal up to the first dot of the base name. The rest
of the name is the kind of the file: an image, `cls` (the label), `json` (more about the image), or
a kind that is not read. The format is described in webdataset's docs and tariterators.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import class_list, keys, schema
from imagenet_prep.dataset.class_list import MOST_CLASSES, ClassList
from imagenet_prep.dataset.formats import is_hidden
from imagenet_prep.dataset.keys import LEADING_WNID, WNID
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import containers, ilsvrc, labels, layout, source
from imagenet_prep.sources.containers import TarMember
from imagenet_prep.sources.source import IndexTask, MemberReader
from imagenet_prep.storage.archive import ArchiveReader, Reads, RemoteArchives, open_archives
from imagenet_prep.storage.remote_path import Entry, Location, RemotePath

_IMAGES = frozenset(
    {"jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "avif", "heic", "heif"}
)
_LABEL = "cls"
_ABOUT = "json"
# Fields of the JSON with the number of the class, as in the tars of timm and others.
_LABEL_FIELDS = ("label", "cls", "class_index")
# Fields with the name of the class: `export` writes the first, build_wds.py of ImageNet-22k the
# second.
_NAME_FIELDS = ("wnid", "class_name")
# The fields of all samples that `export` writes.
_OUR_FIELDS = frozenset({"filename", "key", "number", "wnid"})
_MOST_BYTES = {_LABEL: 1 << 12, _ABOUT: 1 << 20}
_MOST_VALUES = 1 << 16
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_META_FOLDER = re.compile(r"__.*__")  # webdataset ignores such folders
_AGAIN = "Get the tar again, or write it again"


class WdsSample(NamedTuple):
    """One image and the statements of its sample about label, class and key.

    Attributes:
      image: the file in the tar.
      label: number of the class.
      class_name: name of the class; "" if there is none.
      filename: original name of the image, with folders; its name in the tar if there is no other.
      key: the key that `export` has written, or "" for samples of other programs.
    """

    image: TarMember
    label: int
    class_name: str
    filename: str
    key: str = ""

    @property
    def stated_class(self) -> str:
        """The name of the class, or the WNID at the beginning of the file name, or ""."""
        prefix = LEADING_WNID.match(self.filename.rpartition("/")[2])
        if self.class_name or prefix is None:
            return self.class_name
        return prefix["wnid"]


@dataclass
class _Files:
    """The files of a sample that have been read so far."""

    where: str
    name: str
    images: list[TarMember] = field(default_factory=list)
    texts: dict[str, bytes] = field(default_factory=dict)

    def samples(self) -> list[WdsSample]:
        """Returns the complete sample; [] if it has neither an image nor a label."""
        about = self._about()
        labels = self._labels(about)
        if not self.images and not labels:
            return []
        if len(self.images) != 1 or len(labels) != 1:
            images = " and ".join(repr(image.name) for image in self.images)
            numbers = " and ".join(map(str, sorted(labels)))
            raise SourceError(
                f"{self.where}: expected one image (jpg, jpeg, png, webp ...) and one label "
                f"({_LABEL}, or {' or '.join(_LABEL_FIELDS)} in {_ABOUT}), found "
                f"{images or 'no image'} and {numbers or 'no label'}. {_AGAIN}. Files of a sample "
                "must be next to each other, and have no dots in their name."
            )
        (image,) = self.images
        names = [about[name] for name in _NAME_FIELDS if isinstance(about.get(name), str)]
        filename = about.get("filename")
        if not isinstance(filename, str) or not filename:
            filename = image.name.removeprefix("./")
        is_ours = about.keys() >= _OUR_FIELDS and isinstance(about["key"], str)
        key = about["key"] if is_ours else ""
        return [WdsSample(image, labels.pop(), next(iter(names), ""), filename, key)]

    def _about(self) -> dict[str, Any]:
        try:
            about = strict_json.loads(self.texts.get(_ABOUT, b"{}").decode(), _MOST_VALUES)
        except ValueError as error:
            raise SourceError(f"{self.where}: {_ABOUT} is not JSON: {error}. {_AGAIN}.") from None
        return about if isinstance(about, dict) else {}

    def _labels(self, about: dict[str, Any]) -> set[int]:
        """Returns the different class numbers that the sample states."""
        values = [about[name] for name in _LABEL_FIELDS if about.get(name) is not None]
        if _LABEL in self.texts:
            values.append(self.texts[_LABEL].decode(errors="replace"))
        numbers: set[int] = set()
        for value in values:
            text = str(value).strip()
            if type(value) not in (int, str) or not _NUMBER.fullmatch(text):
                raise SourceError(
                    f"{self.where}: its label is {text[:40]!r}, expected a number. {_AGAIN} with "
                    "the number of the class."
                )
            numbers.add(int(text))
        return numbers


def samples(reader: Reads, archive: str, stop: int) -> Iterator[WdsSample]:
    """Yields the samples of a tar with `stop` bytes; raises SourceError if one is invalid.

    Reads at increasing offsets.
    """
    files = _Files("", "")
    names: set[bytes] = set()  # hashes, because names can be long
    for member in containers.members(reader, archive, 0, stop):
        name, kind = _parts(member.name)
        if not name:
            continue
        if files.name != name:
            yield from files.samples()
            files = _Files(f"{archive}: sample {name!r} at byte {member.offset:,}", name)
            digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
            if digest in names:
                raise SourceError(
                    f"{files.where}: appears twice. Its files must be next to each other, and "
                    f"names must be unique. {_AGAIN}."
                )
            names.add(digest)
        if kind in _IMAGES:
            files.images.append(member)
        elif kind in _MOST_BYTES:
            most = _MOST_BYTES[kind]
            if member.size > most or kind in files.texts:
                raise SourceError(
                    f"{files.where}: {member.name!r} has {member.size:,} bytes; expected only one "
                    f"file {kind}, with at most {most:,} bytes. {_AGAIN}."
                )
            files.texts[kind] = reader.read(archive, member.offset, member.size)
    yield from files.samples()


def _parts(path: str) -> tuple[str, str]:
    """Returns the sample and the kind of a file; the sample is "" if the file is not read."""
    folder, slash, base = path.removeprefix("./").rpartition("/")
    stem, _, kind = base.partition(".")
    folders = folder.split("/")
    if not stem or not kind or any(is_hidden(f) or _META_FOLDER.fullmatch(f) for f in folders):
        return "", ""
    return f"{folder}{slash}{stem}", kind.lower()


INFO = "_info.json"  # timm's list of the tars of each split
# Lists with a class per line, or with "WNID words". The last ones are timm's.
CLASS_LISTS = (
    "labels.txt",
    "classes.txt",
    "synset.txt",
    "imagenet12k_synsets.txt",
    "imagenet22k_synsets.txt",
)
_NUMBERED = re.compile(r"\d{2,}")
_WNID_AND_WORDS = re.compile(rf"({WNID.pattern})(?:[\s,]+(.*))?")
# Samples at the beginning of a tar that decide whether the classes are ILSVRC2012's. All other
# samples are compared with the classes when they are listed.
_PROBED = 200


@dataclass(frozen=True)
class _InfoSplit:
    filenames: list[str]
    shard_lengths: list[int] = field(default_factory=list)
    alt_label: str | None = None


@dataclass(frozen=True)
class _Info:
    """The content of `_info.json`; only `export` writes `classes`: IDs and words."""

    splits: dict[str, Any]
    classes: list[tuple[str, str]] = field(default_factory=list)

    def num_samples(self, tars: Sequence[str]) -> int | None:
        """Returns the number of samples in a split with these tars, or None if it is unknown."""
        for split in self.splits.values():
            assert isinstance(split, _InfoSplit)
            if not split.alt_label and not {*split.filenames}.isdisjoint(tars):
                return sum(split.shard_lengths)
        return None


@dataclass(frozen=True)
class WebDatasetSource(ilsvrc.Tars):
    """A source of WebDataset tars."""

    # Number of samples by split, if it is known.
    expected: dict[str, int | None] = field(default_factory=dict)
    remark: str = ""  # on tars that are not read

    @property
    def images(self) -> MemberReader:
        """The reader of images; tars have no stored lists, so nothing must be verified."""
        return MemberReader(self.reader)

    @property
    def edition(self) -> class_list.Edition | None:
        """ILSVRC2012, or the edition in the tars of timm that has the same number of WNIDs."""
        if self.is_ilsvrc or not all(map(WNID.fullmatch, self.classes.wnids)):
            return super().edition
        known = (e for e in class_list.OF_TIMM if e.num_classes == len(self.classes.wnids))
        return next(known, None)

    def index(self, task: IndexTask) -> list[Member]:
        """Returns the images of one tar, sorted by key."""
        members: list[Member] = []

        def add(sample: WdsSample) -> None:
            members.append(self._sample_member(task, sample))

        _read(self.reader, task, add)
        if not members:
            raise SourceError(f"{task.part}: holds no sample with an image. Get the tar again.")
        return source.sorted_by_key(members, task.part)

    def count_problems(self, split: str, num_per_class: Sequence[int]) -> list[str]:
        """Returns messages about differences from `_info.json` and from the published counts."""
        expected = self.expected.get(split)
        problems = super().count_problems(split, num_per_class)
        total = sum(num_per_class)
        if expected is not None and expected != total and not problems:
            problems = [f"{split} has {counted(total, 'image')}, but {INFO} says {expected:,}"]
        return problems + source.missing_file_problems(split, self.index_tasks(split))

    def _sample_member(self, task: IndexTask, sample: WdsSample) -> Member:
        image = sample.image
        where = f"{task.part}: byte {image.offset:,}: {image.name!r}"
        index = _class_index(sample, self.classes, where)
        key = sample.key
        problem = keys.problem(key) if key else None
        if problem is not None:
            raise SourceError(f"{where}: {problem}. Export the dataset again.")
        if not key:
            class_id = self.classes.wnids[index]
            folder, slash, _ = sample.filename.removeprefix(f"{class_id}/").rpartition("/")
            if WNID.fullmatch(class_id):
                folder = slash = ""  # ImageNet's names are unique
            key = self.key_of(task.split, index, sample.filename, where, folder + slash)
        return Member(key, task.part, image.offset, image.size, index)


def _class_index(sample: WdsSample, classes: ClassList, where: str) -> int:
    """Returns the class of a sample; raises SourceError if its statements contradict each other."""
    index = sample.label
    if not 0 <= index < len(classes.wnids):
        raise SourceError(
            f"{where}: label {index}, expected 0 to {len(classes.wnids) - 1:,}. Get the tar again, "
            f"or put the class list ({CLASS_LISTS[0]}, one class per line) next to the tars."
        )
    name = sample.stated_class
    named = classes.of_folder(name) if name else None
    if named not in (None, index):
        raise SourceError(
            f"{where}: label {index} is {classes.wnids[index]}, but the sample names the class "
            f"{name}. One of them is wrong. If these are not the classes of the tars, put their "
            f"list ({CLASS_LISTS[0]}, one class per line in the order of the labels) next to them."
        )
    return index


def split_of(path: str) -> str | None:
    """Returns the split in the name of a tar or of its folder, or None."""
    folder, _, base = path.rpartition("/")
    stem = base.removesuffix(".tar")
    return layout.split_in_name(stem) or layout.split_in_name(folder)


def locate(root: Location) -> dict[str, Location]:
    """Returns the WebDataset tars in a folder and in its folders of splits, by relative path."""
    folders = ["", *itertools.chain.from_iterable(layout.SPLIT_FOLDERS.values())]
    tars: dict[str, Location] = {}
    for folder in folders:
        place = root / folder if folder else root
        prefix = f"{folder}/" if folder else ""
        paths = [*place.iterdir()] if place.is_dir() else []
        tars |= {prefix + path.name: path for path in paths if _is_called_so(path.name)}
    if isinstance(root, RemotePath) and not tars:
        # A web server cannot be listed, so only the list of the tars has their names.
        for split in _read_info(root).splits.values():
            tars |= {name: root / name for name in split.filenames}
    return dict(sorted(tars.items()))


def _is_called_so(name: str) -> bool:
    stem, _, suffix = name.rpartition(".")
    is_tar = suffix == "tar" and not is_hidden(name) and not ilsvrc.CLASS_TAR.fullmatch(name)
    return is_tar and bool(_NUMBERED.search(stem) or split_of(name))


def find(root: Location, splits: Sequence[str]) -> WebDatasetSource:
    """Returns the source of `splits`; raises UsageError if a split has no tars."""
    located = locate(root)
    split_of_tar = {name: split_of(name) for name in located}
    if not any(split_of_tar.values()):
        split_of_tar = dict.fromkeys(located, schema.TRAIN)
    tars_by_split = {s: [name for name in located if split_of_tar[name] == s] for s in splits}
    missing = [split for split in splits if not tars_by_split[split]]
    if missing:
        raise UsageError(
            f"--source {root}: no tars of {' and '.join(missing)}; it holds "
            f"{some([*located]) or 'no WebDataset tar'}. Choose different --splits, or add the "
            "name of the split to the names of its tars."
        )
    read = [*itertools.chain.from_iterable(tars_by_split.values())]
    # The lists that are stored for remote archives have no labels.
    archives = {name: _site(located[name], lists=None) for name in read}
    parts = {name: source.file_part(archives[name])._replace(name=name) for name in read}
    tasks: list[IndexTask] = []
    for split, names in tars_by_split.items():
        for number, name in enumerate(names):
            size = parts[name].num_bytes
            tasks.append(IndexTask(f"{split}-{number:05d}", split, name, stop=size))
    info = _read_info(root)
    unread = [name for name in located if name not in archives]
    return WebDatasetSource(
        _classes(root, archives, tasks, info),
        tuple(parts.values()),
        archives,
        tasks=tuple(tasks),
        expected={split: info.num_samples(tars_by_split[split]) for split in splits},
        remark=f"; not read: {some(unread)}" if unread else "",
    )


def _site(path: Location, **changes: Any) -> Location:
    """Returns a remote path with these changes of its site; any other path is not changed."""
    if isinstance(path, RemotePath):
        return dataclasses.replace(path, site=dataclasses.replace(path.site, **changes))
    return path


def _read_info(root: Location) -> _Info:
    """Returns the content of the list of tars; without splits if there is no list."""
    path = root / INFO
    if not path.is_file():
        return _Info({})
    try:
        info = strict_json.parse(_Info, strict_json.loads(source.read_list(path)), others=True)
        splits = {
            name: strict_json.parse(_InfoSplit, split, name, others=True)
            for name, split in info.splits.items()
        }
    except ValueError as error:
        raise SourceError(f"{path}: {error}. Get it again.") from error
    names = itertools.chain.from_iterable(split.filenames for split in splits.values())
    if any(map(keys.leads_out, names)):
        raise SourceError(f"{path}: names a tar outside of its folder. Get it again.")
    return dataclasses.replace(info, splits=splits)


def _classes(
    root: Location, archives: Mapping[str, Location], tasks: Sequence[IndexTask], info: _Info
) -> ClassList:
    """Returns the class list; classes without names are called by their numbers."""
    if info.classes:
        ids = [row[0] for row in info.classes]
        if len({*ids}) != len(ids):
            raise SourceError(f"{root / INFO}: lists a class twice. Export the dataset again.")
        return ClassList(tuple(ids), tuple(row[1] for row in info.classes))
    listed = [name for name in CLASS_LISTS if (root / name).is_file()]
    if len(listed) > 1:
        raise SourceError(
            f"{root}: has the class lists {some(listed)}. Keep only the list in the order of the "
            "labels."
        )
    if listed:
        return list_of(root / listed[0])
    # Tars may be sorted by class, so the first and the last one of each split are read.
    ends: dict[str, IndexTask] = {}
    for _, group in itertools.groupby(tasks, lambda task: task.split):
        split_tasks = [*group]
        ends |= {task.part: task for task in (split_tasks[0], split_tasks[-1])}
    official = labels.official_classes()
    stated: dict[int, str] = {}
    for looked_at, most in ((ends.values(), _PROBED), (tasks, None)):
        stated = _stated_classes(archives, looked_at, most)
        if stated and all(official.index.get(name) == label for label, name in stated.items()):
            return official
    if not stated or not 0 <= min(stated) <= max(stated) < MOST_CLASSES:
        raise SourceError(
            f"{root}: found {some([*map(str, sorted(stated))]) or 'no label'}, expected labels "
            f"from 0 to at most {MOST_CLASSES - 1:,}. Write the tars again, or put the class list "
            f"({CLASS_LISTS[0]}, one class per line) next to them."
        )
    called = [stated.get(label, "") for label in range(max(stated) + 1)]
    if not all(called):
        called = [*map(str, range(len(called)))]
    return labels.classes_called(called, str(root), ilsvrc.beside([root]))


def _stated_classes(
    archives: Mapping[str, Location], tasks: Iterable[IndexTask], most: int | None
) -> dict[int, str]:
    """Returns the class name that the samples of each label state, or "" if they state none.

    Reads `most` samples of each tar, or all. ILSVRC2012's validation images state their classes by
    their file names.
    """
    stated: dict[int, str] = {}
    reader = open_archives({name: _site(path, hashes=False) for name, path in archives.items()})
    for task in tasks:

        def add(sample: WdsSample, tar: str = task.part) -> None:
            name = sample.stated_class or _known_label(sample.filename)
            first = stated.get(sample.label, "") or name
            if name not in ("", first):
                raise SourceError(
                    f"{tar}: {sample.image.name!r}: label {sample.label} is {name}, but {first} in "
                    "an earlier sample. Get the tars again, or write them again."
                )
            stated[sample.label] = first

        _read(reader, task, add, most)
    return stated


def _read(
    reader: ArchiveReader | RemoteArchives,
    task: IndexTask,
    use: Callable[[WdsSample], None],
    most: int | None = None,
) -> None:
    """Calls `use` for `most` samples of a tar, or for all; see `samples`."""

    def listed(reads: Reads) -> Iterator[Entry]:
        for sample in itertools.islice(samples(reads, task.part, task.stop), most):
            use(sample)
            yield sample.image

    # With this method, remote tars are read in large pieces.
    reader.files_of(task.part, 0, task.stop, listed, is_whole=lambda _: True)


def _known_label(filename: str) -> str:
    published = labels.published_labels_of([filename], labels.official_classes().index)
    return published.get(filename, "")


def list_of(path: Location) -> ClassList:
    """Returns the classes of a list with a class or "WNID words" per line, in this order."""
    lines = source.read_list(path).splitlines()
    names: list[str] = []
    words: dict[str, str] = {}
    for line in filter(None, map(str.strip, lines)):
        match = _WNID_AND_WORDS.fullmatch(line)
        names.append(match[1] if match else line)
        if match and match[2]:
            words[match[1]] = match[2]
    known = ilsvrc.beside([path.parent])
    return labels.classes_called(names, str(path), known | words)
