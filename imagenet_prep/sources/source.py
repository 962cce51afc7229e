"""Base classes of sources, and the readers of images in archives.

A `Source` has a class list, files, and images with a key and a class.

`MemberReader` reads images in archives. `TarReader` verifies remote images by their tar headers,
because a remote archive's list of images may be stored next to a dataset, where others can change
it.
"""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from imagenet_prep.core.errors import ImagenetPrepError, SourceError, some
from imagenet_prep.core.small_files import UTF_16, not_utf_8
from imagenet_prep.core.spelling import as_seen
from imagenet_prep.dataset import class_list, keys, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.jpeg import APPLY, NEUTRAL
from imagenet_prep.dataset.keys import WNID, ExportKeys
from imagenet_prep.dataset.member import MAX_IMAGE_BYTES, Member
from imagenet_prep.sources import containers
from imagenet_prep.sources.labels import Statement
from imagenet_prep.sources.layout import OWN_CLASSES, Layout
from imagenet_prep.sources.scan import FoundFile, read_errors, refuse_link_out, require_utf8
from imagenet_prep.storage.archive import Range, RangeReader
from imagenet_prep.storage.remote import stamp
from imagenet_prep.storage.remote_path import Location, RemotePath, open_to_read

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class MemberReader:
    """Reads images at their listed byte ranges; picklable."""

    _header_bytes = 0

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader

    def will_need(self, members: Iterable[Member]) -> None:
        """Announces the images that this thread reads next, in order, for prefetching."""
        self._reader.will_need(map(self._range_of, members))

    def read(self, member: Member) -> bytes:
        """Returns the bytes of an image; a huge image is truncated to a size the codec refuses."""
        return self._reader.read(*self._range_of(member))

    def _range_of(self, member: Member) -> Range:
        start = member.offset - self._header_bytes
        return member.archive, start, min(member.size, MAX_IMAGE_BYTES + 1) + self._header_bytes


class TarReader(MemberReader):
    """Reads images of tars and verifies the name and size of each against its header."""

    _header_bytes = containers.HEADER_BYTES

    def read(self, member: Member) -> bytes:
        """Returns the bytes of an image; raises SourceError if its tar header does not match."""
        data = super().read(member)
        if not _is_of(member, data[: containers.HEADER_BYTES]):
            # A long name is stored in separate headers, before the header of the file.
            size = min(containers.MOST_HEADER_BYTES, member.offset)
            before = self._reader.read(member.archive, member.offset - size, size)
            if not _is_of(member, before):
                raise _wrong(member)
        return data[containers.HEADER_BYTES :]

    def _range_of(self, member: Member) -> Range:
        if member.offset < containers.HEADER_BYTES:
            raise _wrong(member)
        return super()._range_of(member)


def _is_of(member: Member, before: bytes) -> bool:
    """Returns whether the tar headers before an image have its listed name and size."""
    file = containers.file_behind(before, member.archive, member.offset)
    expected = member.filename, member.size
    return file is not None and (file.name.rpartition("/")[2], file.size) == expected


def _wrong(member: Member) -> SourceError:
    return SourceError(
        f"{member.archive}: byte {member.offset:,}: expected {member.key} with {member.size:,} "
        "bytes. The stored list of this archive, in imagenet-prep-lists next to the dataset or in "
        ".work, is damaged. Run the same command again with --rehash to list the archive again."
    )


Encode = Callable[["npt.NDArray[np.uint8]"], bytes]

_MAX_LIST_BYTES = 16 << 20  # the largest known list, of WordNet's words, has 3 MB
_PIECE_BYTES = 1 << 20


class SourcePart(NamedTuple):
    """An archive, file or folder of a source, as listed in the manifest."""

    name: str
    num_bytes: int  # size of the file, or of all images in the folder
    stamp: int | str  # changes with the content: a time in ns, an ETag, or a digest of several
    md5: str | None = None  # published md5, if the file must match it
    path: Location | None = None
    ignored: tuple[tuple[str, int], ...] = ()  # number of files that are not images, by extension
    images: int = 0
    newest: int = 0  # the latest file time in ns


class IndexTask(NamedTuple):
    """A task that lists the images in an archive, in part of an archive, or in a folder."""

    name: str  # unique and valid as a file name
    split: str
    part: str
    class_index: int | None = None  # the only class in it; None if it may contain several
    start: int = 0  # first byte in the archive, if only a byte range is listed
    stop: int = 0
    archive: str = ""  # path of the archive or folder, if the part is a folder
    num_bytes: int = 0  # approximate unpacked size of its images; 0 if they are not packed
    memory: int = 0  # bytes of memory for unpacking its images, if they need much
    pieces: tuple[IndexTask, ...] = ()  # the tasks of the same part that it combines

    @property
    def simple_tasks(self) -> tuple[IndexTask, ...]:
        """The tasks that it combines, or only itself."""
        return self.pieces or (self,)


class PackedImage(NamedTuple):
    """One image unpacked from a file; `data` may be overwritten when the next one is unpacked."""

    key: str
    class_index: int
    data: bytes | memoryview


@dataclass(frozen=True)
class Source(ABC):
    """Base class of source datasets; picklable."""

    # Names of further attributes for `identity`.
    decisive: ClassVar[tuple[str, ...]] = ()
    other_name: ClassVar[str] = "images"  # the dataset's name if it is not ILSVRC2012
    classes: ClassList
    parts: tuple[SourcePart, ...]
    # Sorted by class if each task has one class; empty if `index_tasks` lists them later.
    tasks: tuple[IndexTask, ...] = field(default=(), kw_only=True)
    evaluation: Layout | None = field(default=None, kw_only=True)
    keys: ExportKeys = field(default_factory=dict, kw_only=True)
    # Whether `export` wrote the source: it may have labels that `amend` has changed.
    is_export: bool = field(default=False, kw_only=True)
    evidence: tuple[Statement, ...] = field(default=(), kw_only=True, compare=False)

    @property
    def name(self) -> str:
        """The dataset's name, from which `dataset.tfds` derives the TFDS name."""
        if self.evaluation is not None:
            return re.sub(r"\W", "_", self.evaluation.edition.name)
        return "imagenet2012" if self.is_ilsvrc else self.other_name

    @property
    def is_ilsvrc(self) -> bool:
        """Whether the source is ILSVRC2012 or a part of it."""
        return self.evaluation is None and self.classes.official

    @property
    def is_imagenet(self) -> bool:
        """Whether the source is a published edition, or all its classes are WNIDs."""
        return self.edition is not None or all(map(WNID.fullmatch, self.classes.wnids))

    @property
    def default_orientation(self) -> str:
        """The rule for EXIF orientations: photographs are turned, images of ImageNet are not."""
        return NEUTRAL if self.is_imagenet else APPLY

    @property
    def identity(self) -> list[object]:
        """JSON values on which the index depends: if one changes, the index is rebuilt."""
        return [
            type(self).__name__,
            [[part.name, part.num_bytes, part.stamp] for part in self.parts],
            self.classes.digest,
            # The words of ILSVRC2012's classes never change.
            *([] if self.classes.official else [self.classes.words]),
            *([self.evaluation.objects] if self.evaluation else []),
            *(getattr(self, name) for name in self.decisive),
            *self.keys.items(),
        ]

    @cached_property
    def _listed_keys(self) -> dict[str, frozenset[str]]:
        return {split: frozenset(names.values()) for split, names in self.keys.items()}

    @cached_property
    def _keys_as_seen(self) -> dict[str, dict[str, str]]:
        """The keys of an export, by split and place as seen; without places that look the same."""
        found: dict[str, dict[str, str]] = {}
        for split, names in self.keys.items():
            places = Counter(map(as_seen, names))
            found[split] = {
                as_seen(place): key for place, key in names.items() if places[as_seen(place)] == 1
            }
        return found

    def key_of(
        self, split: str, class_index: int, path: str, where: str, folder: str = "", place: str = ""
    ) -> str:
        """Returns the key of the image at `path`; `folder` ("" or "x/") precedes the base name.

        If an export lists a key for the `place` (by default the path), this is the key. A copy of
        an export, as on a Mac, may have names in a different Unicode form.
        """
        listed = self.keys.get(split, {})
        key = listed.get(place or path)
        if key is None and listed:
            key = self._keys_as_seen[split].get(as_seen(place or path))
        if key is None:
            key = self._derived_key(split, class_index, path, where, folder)
            if key in self._listed_keys.get(split, ()):
                raise SourceError(
                    f"{where}: its key is {key!r}, but {schema.EXPORT_KEYS} gives this key to a "
                    "different image. Rename the file, or remove the key from the list."
                )
        problem = keys.problem(key)
        if problem is not None:
            raise SourceError(f"{where}: {problem}. Rename it, or get the original archives.")
        return key

    def _derived_key(self, split: str, class_index: int, path: str, where: str, folder: str) -> str:
        base, class_id = path.rpartition("/")[2], self.classes.wnids[class_index]
        if len(base.encode()) > keys.MOST_BASE_BYTES:
            raise SourceError(
                f"{where}: its name has {len(base.encode()):,} bytes; file names have at most "
                f"{keys.MOST_BASE_BYTES}. Rename it, or get the original archives."
            )
        appended = keys.APPENDED_WNID.match(base)
        for match, end in ((keys.LEADING_WNID.match(base), "starts"), (appended, "ends")):
            wnid = match["wnid"] if match else class_id
            if wnid != class_id and wnid in self.classes.index:
                raise SourceError(
                    f"{where}: is in class {class_id}, but its name {end} with {wnid}. One of "
                    "them is wrong: compare with the original archives."
                )
        if appended is not None and appended["wnid"] == class_id:
            base = keys.without_wnid(base)
        return keys.key_of(split, class_id, folder + base)

    def index_tasks(self, split: str) -> list[IndexTask]:
        """Returns the tasks that list the images of a split."""
        return [task for task in self.tasks if task.split == split]

    @property
    def edition(self) -> class_list.Edition | None:
        """The published edition that this source should match, or None."""
        if self.evaluation is not None:
            return self.evaluation.edition
        return class_list.ILSVRC2012 if self.is_ilsvrc else None

    @property
    def if_own(self) -> str:
        """The advice for a source whose edition was recognised, although it is the user's own."""
        return OWN_CLASSES if self.evaluation is not None else ""

    def count_problems(self, split: str, num_per_class: Sequence[int]) -> list[str]:
        """Returns messages about differences from the published counts per class."""
        if self.evaluation is not None:
            return [*self.evaluation.problems]
        return self.edition.problems(split, self.classes, num_per_class) if self.edition else []

    def file_problems(self, num_images: Mapping[str, int]) -> list[str]:  # noqa: ARG002
        """Returns messages about missing images, given the number found in each file."""
        return []


class StoredSource(Source):
    """A source of images that can be read at any position, without unpacking."""

    @property
    @abstractmethod
    def reader(self) -> RangeReader:
        """The reader of byte ranges in the archives or files that contain the images."""

    @property
    def images(self) -> MemberReader:
        """The reader that returns the bytes of an image, given its `Member`."""
        return MemberReader(self.reader)

    @abstractmethod
    def index(self, task: IndexTask) -> list[Member]:
        """Returns the images of a task, sorted by key; raises SourceError if they are invalid."""

    def known_md5(self, task: IndexTask) -> str | None:  # noqa: ARG002
        """Returns the md5 stored with an archive's listing, or None."""
        return None


class Packed(Source):
    """A source of images that must be unpacked first, because its files allow no random access."""

    @abstractmethod
    def images(self, task: IndexTask) -> Iterator[PackedImage]:
        """Yields the images of a task in stored order; raises SourceError if they are invalid."""


@dataclass(frozen=True)
class Pixels(Packed):
    """A source of raw pixels; `encode` makes an image file from uint8 RGB [height, width, 3]."""

    decisive = ("encoding",)
    encode: Encode
    encoding: str


# The number of a file, such as those of train-0007.tar and val-00003-of-00016.tar.
_NUMBERED = re.compile(r"(.*?)(\d+)(-of-(\d+))?(\.[a-z]+)", re.DOTALL)
_MOST_FILES = 1_000_000


def family_of(name: str) -> tuple[str, str, str] | None:
    """Returns the parts of a numbered file's name without the number; None for other names."""
    match = _NUMBERED.fullmatch(name)
    return None if match is None else (match[1], match[3] or "", match[5])


def missing_files(names: Iterable[str]) -> list[str]:
    """Returns the names that are missing among numbered files.

    If the names have no total, these are the gaps in the numbers, unless most are missing: numbers
    such as dates count no files.
    """
    families: dict[tuple[str, str, str], dict[int, int]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        family = family_of(name)
        if match and family:
            families.setdefault(family, {})[int(match[2])] = len(match[2])
    missing: list[str] = []
    for (start, of, end), numbers in families.items():
        expected = range(min(numbers), max(numbers) + 1)
        most = 2 * len(numbers) - 1
        if of:
            total = int(of.removeprefix("-of-"))
            expected = range(total in numbers, total + (total in numbers))
            most = _MOST_FILES
        if expected.stop - expected.start <= most:
            width = min(numbers.values())
            absent = (number for number in expected if number not in numbers)
            missing += (f"{start}{number:0{width}}{of}{end}" for number in absent)
    return sorted(missing)


def missing_file_problems(split: str, tasks: Iterable[IndexTask]) -> list[str]:
    """Returns a message if numbered files of a split are missing; see `missing_files`."""
    missing = missing_files(task.part for task in tasks)
    return [f"{split} has no {some(missing)}"] if missing else []


def file_part(path: Location, md5: str | None = None) -> SourcePart:
    """Returns the part for a file; raises ImagenetPrepError if it cannot be opened."""
    require_utf8(path.parent, [path.name])
    if isinstance(path, RemotePath):
        stat = path.require_ranges()
        return SourcePart(path.name, stat.size, stat.validator, md5, path)
    try:
        with open_to_read(path) as file:
            status = os.fstat(file.fileno())
    except OSError as error:
        raise ImagenetPrepError(
            f"{path}: cannot be opened: {error.strerror}. Check the path and the permissions."
        ) from error
    changed = stamp(status)
    return SourcePart(path.name, status.st_size, changed, md5, path, newest=changed)


def sorted_by_key(members: Iterable[Member], where: str) -> list[Member]:
    """Returns members sorted by key; raises SourceError for a duplicate key."""
    by_key: dict[str, Member] = {}
    for member in members:
        first = by_key.setdefault(member.key, member)
        if first is not member:
            places = f"in {first.archive} and in {member.archive}"
            if first.archive == member.archive:
                places = f"at bytes {first.offset:,} and {member.offset:,}"
            raise SourceError(f"{where}: {member.key!r} appears twice, {places}. Remove one.")
    return [by_key[key] for key in sorted(by_key)]


def read_list(path: Location, *, lenient: bool = False, most: int = _MAX_LIST_BYTES) -> str:
    """Reads a small text file; if `lenient`, a file that is not UTF-8 is read as Latin-1."""
    if not isinstance(path, RemotePath):
        refuse_link_out(path)
    data = bytearray()
    with read_errors(path, "Get it again."), open_to_read(path) as file:
        # Read in pieces, because `read` allocates the full size that is requested.
        while len(data) <= most and (part := file.read(_PIECE_BYTES)):
            data += part
    if len(data) > most:
        raise SourceError(f"{path}: has more than {most:,} bytes. Get it again.")
    try:
        return data.decode("utf-8-sig")  # without the byte order mark that Windows editors write
    except UnicodeDecodeError as error:
        if lenient and not data.startswith(UTF_16):
            return data.decode("latin-1")
        raise SourceError(not_utf_8(path, error)) from None


def folder_part(name: str, groups: Iterable[tuple[str, Sequence[FoundFile]]]) -> SourcePart:
    """Returns one part for scanned folders; its stamp is a digest of names, sizes and times."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            f"the source: the name of its folder, {os.fsencode(name)!r}, is not UTF-8. "
            "Rename the folder."
        ) from error
    digest = hashlib.blake2b(digest_size=16)
    num_bytes = images = newest = 0
    for group, files in groups:
        digest.update(f"{group}\0{files!r}".encode())
        num_bytes += sum(file.num_bytes for file in files)
        images += len(files)
        newest = max([newest, *(file.stamp for file in files if isinstance(file.stamp, int))])
    return SourcePart(name, num_bytes, digest.hexdigest(), images=images, newest=newest)
