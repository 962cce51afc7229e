"""The sets that networks are evaluated on: ImageNetV2, ImageNet-A, -R, -O, -Sketch, -C, ObjectNet.

They come as tars, packed tars and zips, or as folders of class folders. Plain tars and folders are
read where they lie; all else is unpacked first. `evaluation_layout` says what paths mean.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import ClassVar

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.ignored import ending, most_frequent
from imagenet_prep.dataset.keys import CORRUPTIONS, WNID
from imagenet_prep.dataset.member import MAX_IMAGE_BYTES, Member
from imagenet_prep.sources import (
    containers,
    editions,
    evaluation_layout,
    folder,
    ilsvrc,
    labels,
    layout,
    listing,
    source,
    tar,
)
from imagenet_prep.sources.evaluation_layout import MAPPING, Layout, edition_called, edition_of
from imagenet_prep.sources.scan import subfolders
from imagenet_prep.sources.source import IndexTask, PackedImage
from imagenet_prep.storage.remote_archives import open_archives
from imagenet_prep.storage.remote_path import ARCHIVES, Location, RemotePath

_C = "blur.tar", "digital.tar", "extra.tar", "noise.tar", "weather.tar"
# As they are published: a web server is asked for these.
_PUBLISHED = (
    *(f"imagenetv2-{name}.tar.gz" for name in ("matched-frequency", "threshold0.7", "top-images")),
    *("imagenet-a.tar", "imagenet-r.tar", "imagenet-o.tar", "ImageNet-Sketch.zip", *_C),
    "objectnet-1.0.zip",
)
# So many files of an archive are looked at for its first image.
_LOOKED_AT = 64
# Each file of ObjectNet's mapping has less.
_MAPPING_BYTES = 1 << 20


class _Evaluated(source.Source):
    """What all layouts of evaluation sets have in common."""

    layout: Layout
    is_ilsvrc = False

    @property
    def name(self) -> str:
        """What dataset_info.json calls the data set."""
        return re.sub(r"\W", "_", self.layout.edition.name)

    @property
    def edition(self) -> editions.Edition:
        """Which set it is."""
        return self.layout.edition

    @property
    def border(self) -> int:
        """Pixels at each side that are no part of an image: ObjectNet's are red."""
        return int(self.edition is editions.OBJECTNET)

    @property
    def answers(self) -> dict[str, list[str]]:
        """As for `Manifest`."""
        return self.layout.answers

    def count_problems(self, _split: str, _num_per_class: Sequence[int]) -> list[str]:
        """Returns how counts by folder differ from the published ones, in words."""
        return [*self.layout.problems]

    def member(self, path: str, archive: str, offset: int, size: int) -> Member | None:
        """Returns what a file is, if it is an image of one of the classes; raises SourceError."""
        if not listing.is_called_an_image(path):
            return None
        if (place := self.layout.place(path, path)) is None:
            return None
        key = self.key_of(schema.TEST, place[0], path, path, place[1])
        return Member(key, archive, offset, size, place[0])


@dataclass(frozen=True)
class Tars(_Evaluated, ilsvrc.Tars):
    """Plain tars."""

    layout: Layout = field(kw_only=True)

    def index(self, task: IndexTask) -> list[Member]:
        """Returns the images of one tar, sorted by key; raises as `ilsvrc.Tars.index`."""
        files = tar.files_of(self.reader, task.part, 0, task.stop)
        members = (self.member(file.name, task.part, file.offset, file.size) for file in files)
        return source.sorted_by_key(filter(None, members), task.part)


@dataclass(frozen=True)
class Folder(_Evaluated, folder.Folder):
    """Folders of images."""

    decisive: ClassVar[tuple[str, ...]] = ("called",)
    layout: Layout = field(kw_only=True)

    @property
    def called(self) -> str:
        """What paths of images begin with."""
        return _called(self.root / self.tasks[0].archive)

    def index(self, task: IndexTask) -> list[Member]:
        """Returns the images, sorted by key; raises as `folder.Folder.index`."""
        found = listing.below(self.root / task.archive, self.inside, by_content=False)
        members = (
            self.member(f"{self.called}/{path}", f"{task.archive}/{path}", 0, size)
            for path, size, _ in found.images
        )
        return source.sorted_by_key(filter(None, members), str(self.root))


@dataclass(frozen=True)
class Unpacked(_Evaluated, source.Packed):
    """Packed tars and zips.

    Attributes:
      archives: where each lies, by its name.
      num_bytes: of the images in each.
    """

    archives: dict[str, Location]
    num_bytes: dict[str, int]
    layout: Layout = field(kw_only=True)

    def unpacked_bytes(self, task: IndexTask) -> int:
        """Returns how many bytes the images of an archive take."""
        return self.num_bytes[task.part]

    def images(self, task: IndexTask) -> Iterator[PackedImage]:
        """Yields the images of one archive; raises SourceError."""
        for file, read in containers.contents(self.archives[task.part]):
            if (member := self.member(file.name, task.part, 0, file.size)) is not None:
                data = read(min(file.size, MAX_IMAGE_BYTES + 1))
                yield PackedImage(member.key, member.class_index, data)


AnySet = Tars | Folder | Unpacked


def locate(root: Location) -> list[Location]:
    """Returns the archives or the folder of an evaluation set that `root` is or holds.

    Several are one set only where all are archives of ImageNet-C.
    """
    if root.is_file():
        return [root] * (root.name.endswith(ARCHIVES) and _holds_class_folders(root))
    if isinstance(root, RemotePath):
        there = {path.name for path in root.iterdir()} if root.is_dir() else None
        return [
            root / name
            for name in _PUBLISHED
            if ((root / name).is_file() if there is None else name in there)
        ]
    if not root.is_dir() or layout.named_splits(root).folders:
        return []
    # What is called like a set comes before what looks like one.
    below = [root / name for name in subfolders(root)]
    if found := [path for path in below if edition_called(path.name) and _is_set(path)]:
        return [*found]
    if _is_set(root):
        return [root]
    archives = [
        path
        for path in sorted(root.iterdir())
        if path.name.endswith(ARCHIVES) and (path.name in _C or edition_called(path.name))
    ]
    return [*archives] or [path for path in below if _is_set(path)]


def _holds_class_folders(archive: Location) -> bool:
    """Returns whether an archive is called like a set, or its first image lies like one's."""
    if edition_called(archive.name):
        return True
    try:
        files = (file.name for file, _ in islice(containers.contents(archive), _LOOKED_AT))
        sample = next(filter(listing.is_called_an_image, files), "")
    except SourceError:
        return False  # who reads it says what is wrong with it
    called = sample.rpartition("/")[0].rpartition("/")[2]
    return bool(WNID.fullmatch(called) or called.isdigit())


def _called(place: Path) -> str:
    """Returns the name of a folder, below that of its corruption if it holds one severity of it."""
    above = place.parent.name
    return f"{above}/{place.name}" if above in CORRUPTIONS else place.name


def _is_set(place: Path) -> bool:
    """Returns whether the folders in a folder are those of an evaluation set."""
    place, folders = place.resolve(), subfolders(place)
    if not folders:
        return False
    # One image is enough; below a folder for each class, it is soon found.
    images = (
        f"{_called(place)}/{Path(base, name).relative_to(place)}"
        for base, _, names in os.walk(place / folders[0])
        for name in names
        if listing.is_called_an_image(name)
    )
    sample = next(images, f"{place.name}/{folders[0]}/")
    has_mapping = (place / evaluation_layout.FOLDERS).is_file()
    return edition_of([place.name], folders, sample, has_mapping=has_mapping) is not None


def find(root: Location, splits: Sequence[str], *, follow_links: bool) -> AnySet:
    """Returns the evaluation set; its class list is ILSVRC2012's.

    Raises:
      UsageError: there is none, or several, or another split than `test` is asked for.
      SourceError: an archive is damaged, or it is not clear what its folders mean.
    """
    places = locate(root) or [root] * root.is_file()
    names = [place.name for place in places]
    if not places:
        raise UsageError(
            f"--source {root}: holds no evaluation set. It may be one of the archives "
            f"{', '.join(_PUBLISHED)}, or a folder that one was unpacked to."
        )
    if len(places) > 1 and not {*names} <= {*_C}:
        raise UsageError(
            f"--source {root}: holds {' and '.join(names)}: name the one that is to be read."
        )
    # Where these are the defaults, nobody has asked for other splits.
    if tuple(splits) not in (schema.SOURCE_SPLITS, (schema.TEST,)):
        raise UsageError(
            f"--source {root}: {names[0]} is a set to evaluate on and has the split test alone. "
            "Choose --splits test, or leave it out."
        )
    (place, *_) = places
    if isinstance(place, Path) and place.is_dir():
        return _folder(place.resolve(), None if follow_links else Path(str(root)))
    return _archives({place.name: place for place in places})


@dataclass
class _Seen:
    """What is counted of the files of a set: images by folder; bytes, and what is ignored."""

    images: Counter[str] = field(default_factory=Counter)
    num_bytes: Counter[str] = field(default_factory=Counter)
    ignored: dict[str, Counter[str]] = field(default_factory=dict)
    sample: str = ""
    mapping: dict[str, bytes] = field(default_factory=dict)

    def add(self, archive: str, path: str, size: int, read: Callable[[int], bytes]) -> None:
        """Counts a file of an archive, or keeps it if it belongs to ObjectNet's mapping."""
        ignored = self.ignored.setdefault(archive, Counter())
        if listing.is_called_an_image(path):
            self.images[path.rpartition("/")[0]] += 1
            self.num_bytes[archive] += size
            self.sample = self.sample or path
            return
        ignored[ending(path)] += 1
        for name in MAPPING:
            if f"/{path}".endswith(f"/{name}"):
                self.mapping[name] = read(min(size, _MAPPING_BYTES))

    def settle(self, parts: Sequence[source.Part]) -> tuple[tuple[source.Part, ...], Layout]:
        """Returns the parts with what is ignored in each, and what the folders mean."""
        names = [part.name for part in parts]
        if not self.images:
            raise SourceError(f"{names[0]}: holds no image. Get it again.")
        found = evaluation_layout.layout_of(names, self.images, self.sample, self.mapping)
        for path, number in self.images.items():
            # Most of ObjectNet's objects are of none of ILSVRC2012's classes.
            if found.place(f"{path}/*", path) is None:
                self.ignored[names[0]]["of other objects"] += number
        return tuple(
            part._replace(ignored=tuple(most_frequent(self.ignored[part.name]).items()))
            for part in parts
        ), found


def _folder(place: Path, inside: Path | None) -> Folder:
    found, seen = listing.below(place, inside, by_content=False), _Seen()
    for path, size, _ in found.images:
        seen.add(place.name, f"{_called(place)}/{path}", size, bytes)
    seen.ignored[place.name] = found.ignored
    seen.mapping = {
        name: source.read_list(place / name).encode()
        for name in MAPPING
        if (place / name).is_file()
    }
    parts, meant = seen.settle([source.folder_part(place.name, [("", found.images)])])
    task = IndexTask(schema.TEST, schema.TEST, place.name, archive=place.name)
    classes = labels.official_classes()
    return Folder(
        classes, parts, place.parent, None, inside, is_own=False, layout=meant, tasks=(task,)
    )


def _archives(archives: dict[str, Location]) -> Tars | Unpacked:
    seen, are_plain = _Seen(), all(map(containers.is_plain_tar, archives.values()))
    reader, parts = open_archives(archives), [*map(source.file_part, archives.values())]
    for name, size, *_ in parts:
        if are_plain:
            for path, offset, num_bytes in tar.files_of(reader, name, 0, size):
                seen.add(name, path, num_bytes, partial(reader.read, name, offset))
        else:
            for file, read in containers.contents(archives[name]):
                seen.add(name, file.name, file.size, read)
    tasks = tuple(
        IndexTask(f"{schema.TEST}-{number:02d}", schema.TEST, name, stop=size)
        for number, (name, size, *_) in enumerate(parts)
    )
    given, meant = seen.settle(parts)
    if are_plain:
        return Tars(labels.official_classes(), given, archives, layout=meant, tasks=tasks)
    unpacked = {**seen.num_bytes}
    return Unpacked(labels.official_classes(), given, archives, unpacked, layout=meant, tasks=tasks)
