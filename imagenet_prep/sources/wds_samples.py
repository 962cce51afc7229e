"""Reads the samples in WebDataset tars.

Adjacent files form a sample if their paths are equal up to the first dot of the base name. The rest
of the name is the kind of the file: an image, `cls` (the label), `json` (more about the image), or
a kind that is not read. The format is described in webdataset's docs and tariterators.py.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import SourceError
from imagenet_prep.dataset.ignored import is_hidden
from imagenet_prep.dataset.keys import LEADING_WNID
from imagenet_prep.sources import tar
from imagenet_prep.sources.tar import TarMember
from imagenet_prep.storage.archive import Reads

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


class Sample(NamedTuple):
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

    def samples(self) -> list[Sample]:
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
        return [Sample(image, labels.pop(), next(iter(names), ""), filename, key)]

    def _about(self) -> dict[str, Any]:
        try:
            about = canonical.loads(self.texts.get(_ABOUT, b"{}").decode(), _MOST_VALUES)
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


def samples(reader: Reads, archive: str, stop: int) -> Iterator[Sample]:
    """Yields the samples of a tar with `stop` bytes; raises SourceError if one is invalid.

    Reads at increasing offsets.
    """
    files = _Files("", "")
    names: set[bytes] = set()  # hashes, because names can be long
    for member in tar.members(reader, archive, 0, stop):
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
