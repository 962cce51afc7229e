"""Reads ImageNet-21K as image-net.org ships it: a tar per class, in one tar or in a folder."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import editions, schema
from imagenet_prep.dataset.editions import FALL11, WINTER21
from imagenet_prep.sources import ilsvrc, labels, lemmas, source
from imagenet_prep.sources.ilsvrc import CLASS_TAR
from imagenet_prep.sources.scan import File, read_errors
from imagenet_prep.storage.archive import open_archives
from imagenet_prep.storage.remote import stamp
from imagenet_prep.storage.remote_path import Location, RemotePath

WHOLE = "fall11_whole.tar"
_FOLDERS = ("winter21_whole", "fall11_whole")


@dataclass(frozen=True)
class ClassTars(ilsvrc.Tars):
    """A source of class tars; all images are in the train split."""

    other_name = "imagenet21k"

    @property
    def edition(self) -> editions.Edition | None:
        """The edition that the source is named after, else the one with the closest class count."""
        known = (editions.ILSVRC2012, WINTER21, FALL11)
        number = len(self.classes.wnids)
        called = editions.called(self.parts[0].name, self.classes)
        return called or editions.closest(known, number)


def locate(root: Location) -> Iterator[Location]:
    """Yields each tar or folder that contains class tars, at or in `root`."""
    if root.is_file():
        # For ILSVRC2012's archives, the source is their folder, so that md5s are verified.
        if root.suffix == ".tar" and root.name not in ilsvrc.ARCHIVES.values():
            yield root
        return
    for folder in (root, *(root / name for name in _FOLDERS)):
        if (folder / WHOLE).is_file():
            yield folder / WHOLE
        elif folder.is_dir() and any(CLASS_TAR.fullmatch(path.name) for path in folder.iterdir()):
            yield folder


def find(root: Location, splits: Sequence[str]) -> ClassTars:
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
        members = ilsvrc.visible_files(reader, part.name, 0, stop, skipping=True)
        tars = ilsvrc.inner_tars(members, part.name, advice)
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
        words = lemmas.beside([place] * place.is_dir() + [place.parent])
        classes = labels.classes_called([*tars], str(place), words)
    tasks = ilsvrc.class_tasks(part.name, tars, classes)
    return ClassTars(classes, (part,), archives, tasks=tuple(tasks))


def _class_files(folder: Location) -> list[File]:
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
            files.append(File(path.name, path.stat.size, path.stat.validator))
            continue
        with read_errors(path):
            status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{path}: is not a regular file. Remove it.")
        files.append(File(path.name, status.st_size, stamp(status)))
    return sorted(files)
