"""ImageNet-21K as image-net.org ships it: a tar a class, in one tar or in a folder.

fall11_whole.tar holds the tars of its classes; winter21_whole.tar.gz has to be unpacked into a
folder of them. The tars themselves are read where they lie: nothing of them is extracted.
"""

from __future__ import annotations

import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import editions, ilsvrc, labels, lemmas, source, tar
from imagenet_prep.sources.labels import WNID, ClassList
from imagenet_prep.sources.source import File, IndexTask
from imagenet_prep.storage.archive import ArchiveReader
from imagenet_prep.storage.remote_archives import RemoteArchives, open_archives
from imagenet_prep.storage.remote_path import Location, RemotePath

WHOLE = "fall11_whole.tar"
# What winter21_whole.tar.gz and fall11_whole.tar are unpacked into.
_FOLDERS = ("winter21_whole", "fall11_whole")
_CLASS_TAR = re.compile(rf"({WNID.pattern})\.tar")


class ClassTar(NamedTuple):
    """Where the tar of one class lies: its archive, and its byte range there."""

    wnid: str
    archive: str
    start: int
    stop: int


@dataclass(frozen=True)
class ClassTars(source.Stored):
    """A tar a class; train is the only split.

    Attributes:
      archives: where each lies, by its name.
      tars: sorted by WNID.
    """

    archives: dict[str, Location]
    tars: tuple[ClassTar, ...]

    @property
    def name(self) -> str:
        """What dataset_info.json calls it."""
        return "imagenet2012" if self.classes.official else "imagenet21k"

    @cached_property
    def reader(self) -> ArchiveReader | RemoteArchives:
        """Reads the archives."""
        return open_archives(self.archives)

    def index_tasks(self, split: str) -> list[IndexTask]:
        """Returns one task a class."""
        (part,) = self.parts
        return [
            IndexTask(
                f"{split}-{one.wnid}",
                split,
                part.name,
                self.classes.index[one.wnid],
                one.start,
                one.stop,
            )
            for one in self.tars
        ]

    def index(self, task: IndexTask) -> list[Member]:
        """Returns the images of one class, sorted by key.

        Raises:
          SourceError: the tar is damaged or empty, a key comes twice, or a name contradicts its
            class.
        """
        index = task.class_index
        assert index is not None
        wnid = self.classes.wnids[index]
        archive = self._archive_of[wnid]

        def member(file: tar.TarMember) -> Member:
            where = f"{archive}: byte {file.offset:,}: {file.name!r}"
            base = file.name.rpartition("/")[2]
            key = source.key_of(task.split, wnid, base, self.classes, where)
            return Member(key, archive, file.offset, file.size, index)

        files = tar.files_of(self.reader, archive, task.start, task.stop)
        return source.listed(map(member, files), task, archive)

    def known_md5(self, task: IndexTask) -> str | None:
        """Returns the md5 of the archive of a piece that `index` has listed, if it came along."""
        assert task.class_index is not None
        return self.reader.known_md5(self._archive_of[self.classes.wnids[task.class_index]])

    def count_problems(self, split: str, num_per_class: Sequence[int]) -> list[str]:
        """Returns how counts differ from those of the edition that this should be."""
        num_classes = len(self.classes.wnids)
        expected = editions.called(self.parts[0].name, num_classes)
        if expected is None:
            expected = editions.closest(
                (editions.ILSVRC2012, editions.WINTER21, editions.FALL11), num_classes
            )
        assert expected is not None
        return expected.problems(split, self.classes, num_per_class)

    @cached_property
    def _archive_of(self) -> dict[str, str]:
        return {one.wnid: one.archive for one in self.tars}


def locate(root: Location) -> Location | None:
    """Returns the tar of class tars, or the folder of class tars, that `root` is or holds."""
    return next(_places(root), None)


def _places(root: Location) -> Iterator[Location]:
    if root.is_file():
        # The archives of ILSVRC2012 have an md5 to prove, so their folder is to be named.
        if root.suffix == ".tar" and root.name not in ilsvrc.ARCHIVES.values():
            yield root
        return
    for folder in (root, *(root / name for name in _FOLDERS)):
        if (folder / WHOLE).is_file():
            yield folder / WHOLE
        elif folder.is_dir() and any(_CLASS_TAR.fullmatch(path.name) for path in folder.iterdir()):
            yield folder


def find(root: Location, splits: Sequence[str]) -> ClassTars:
    """Returns the class tars, and the class list: sorted WNIDs, with words where they lie beside.

    ILSVRC2012's class list is taken where it has all of them, so that labels never shift.

    Raises:
      UsageError: there are no class tars, or two editions of them, or validation is asked for,
        which there is none of.
      SourceError: a tar is damaged, is of no class, or comes twice.
    """
    places = [*_places(root)]
    if len(places) > 1:
        raise UsageError(
            f"--source {root}: holds {' and '.join(place.name for place in places)}: name the one "
            "that is to be read."
        )
    if not places:
        raise UsageError(
            f"--source {root}: neither {WHOLE} nor the tars of classes, nNNNNNNNN.tar, are there. "
            "Get them from image-net.org (login needed), and unpack what is a .tar.gz."
        )
    (place,) = places
    if schema.VALIDATION in splits:
        raise UsageError(
            f"--source {root}: ImageNet-21K has no validation split. Take one out of train by "
            "--holdout-per-class N, or choose --splits train."
        )
    archives: dict[str, Location]
    if place.is_file():
        archives = {place.name: place}
        part = source.file_part(place)
        tars = _inner_tars(open_archives(archives), place.name)
    else:
        files = _class_files(place)
        # Relative to the source, so that `report` finds them.
        below = f"{place.name}/" if place != root else ""
        archives = {below + file.path: place / file.path for file in files}
        # An md5 of each would be 19,167 lines of the manifest, and none of them was published.
        part = source.folder_part(place.name, [("", files)])
        tars = [
            ClassTar(file.path.removesuffix(".tar"), below + file.path, 0, file.num_bytes)
            for file in files
        ]
    wnids = [one.wnid for one in tars]
    if twice := sorted(wnid for wnid, count in Counter(wnids).items() if count > 1):
        raise SourceError(f"{place}: holds {some(twice)} twice")
    return ClassTars(_classes(wnids, place), (part,), archives, tuple(sorted(tars)))


def _classes(wnids: Sequence[str], place: Location) -> ClassList:
    official = labels.official_classes()
    if all(wnid in official.index for wnid in wnids):
        return official
    folders = [place] * place.is_dir() + [place.parent]
    return labels.classes_called(sorted(wnids), str(place), lemmas.beside(folders))


def _inner_tars(reader: ArchiveReader | RemoteArchives, archive: str) -> list[ClassTar]:
    tars = []
    for inner in tar.files_of(reader, archive, 0, reader.size(archive), skipping=True):
        match = _CLASS_TAR.fullmatch(inner.name.rpartition("/")[2])
        if match is None:
            raise SourceError(
                f"{archive}: byte {inner.offset:,}: member {inner.name!r}, expected <WNID>.tar. "
                "Of tars, only one of class tars is read as it is: unpack any other."
            )
        tars.append(ClassTar(match[1], archive, inner.offset, inner.offset + inner.size))
    if not tars:
        raise SourceError(f"{archive}: holds no tar of a class. Download it again.")
    return tars


def _class_files(folder: Location) -> list[File]:
    """Returns the class tars of a folder; what is no tar is left alone."""
    files = []
    for path in folder.iterdir():
        if path.suffix != ".tar" or path.name.startswith("."):
            continue
        if _CLASS_TAR.fullmatch(path.name) is None:
            raise SourceError(
                f"{path}: lies among the tars of classes and is called after no WNID. Move it away."
            )
        if isinstance(path, RemotePath):
            files.append(File(path.name, path.stat.size, path.stat.validator))
            continue
        try:
            status = path.stat()
        except OSError as error:
            raise SourceError(
                f"{path}: cannot be read: {error.strerror}. Check links and permissions."
            ) from error
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{path}: is no file. Remove it.")
        files.append(File(path.name, status.st_size, status.st_mtime_ns))
    return sorted(files)
