"""Reads the samples in WebDataset tars.

Adjacent files form a sample if their paths are equal up to the first dot of the base name. The rest
of the name is the kind of the file: an image, `cls` (the label), `json` (more about the image), or
a kind that is not read. The format is described in webdataset's docs and tariterators.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import SourceError, some
from imagenet_prep.dataset.ignored import ending, is_hidden
from imagenet_prep.dataset.keys import WNID
from imagenet_prep.sources import tar
from imagenet_prep.sources.tar import TarMember
from imagenet_prep.storage.archive import Reads

_IMAGES = frozenset(
    {"jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "avif", "heic", "heif"}
)
_LABEL = "cls"
_ABOUT = "json"
# Fields of the JSON with the number or the name of the class, as in the tars of timm and others.
_LABEL_FIELDS = ("label", "cls", "class_index")
# Fields with the name of the class: `export` writes the first, build_wds.py of ImageNet-22k the
# second.
_NAME_FIELDS = ("wnid", "class_name")
# The fields of all samples that `export` writes.
_OUR_FIELDS = frozenset({"filename", "key", "number", "wnid"})
_MOST_BYTES = {_LABEL: 1 << 12, _ABOUT: 1 << 20}
_MOST_VALUES = 1 << 16
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_WNID_PREFIX = re.compile(rf"({WNID.pattern})_")
_META_FOLDER = re.compile(r"__.*__")  # webdataset ignores such folders
_AGAIN = "Get the tar again, or write it again"


class Sample(NamedTuple):
    """One image and the statements of its sample about label, class and key.

    Attributes:
      name: path of the files in the tar, up to the first dot of the base name.
      label: number of the class, or None if only its name is given.
      class_name: name of the class; "" if there is none.
      filename: original name of the image, with folders; its name in the tar if there is no other.
      key: the key that `export` has written, or "" for samples of other programs.
    """

    name: str
    image: TarMember
    label: int | None
    class_name: str
    filename: str
    key: str = ""

    @property
    def stated_class(self) -> str:
        """The name of the class, or the WNID at the beginning of the file name, or ""."""
        prefix = _WNID_PREFIX.match(self.filename.rpartition("/")[2])
        if self.class_name or prefix is None:
            return self.class_name
        return prefix[1]


@dataclass
class _Files:
    """The files of a sample that have been read so far."""

    where: str
    name: str
    image: TarMember | None = None
    texts: dict[str, str] = field(default_factory=dict)
    others: list[TarMember] = field(default_factory=list)

    def add(self, kind: str, member: TarMember, data: bytes) -> None:
        if kind in _IMAGES:
            if self.image is not None:
                raise SourceError(
                    f"{self.where}: has two images, {self.image.name!r} and {member.name!r}. "
                    f"{_AGAIN} with one image per sample."
                )
            self.image = member
        elif kind in self.texts:
            raise SourceError(f"{self.where}: has two files {kind}. {_AGAIN} with one.")
        elif kind in _MOST_BYTES:
            try:
                self.texts[kind] = data.decode()
            except UnicodeDecodeError as error:
                raise SourceError(
                    f"{self.where}: {kind} is not UTF-8: {error}. {_AGAIN}."
                ) from None
        else:
            self.others.append(member)

    def sample(self) -> Sample | None:
        """Returns the complete sample, or None if it has neither an image nor a label."""
        about = self._about()
        numbers, names = self._classes(about)
        if self.image is None:
            if not numbers and not names:
                return None
            kinds = some([member.name for member in self.others]) or "no other file"
            raise SourceError(
                f"{self.where}: has a label, but no image (jpg, jpeg, png, webp ...); found "
                f"{kinds}. If its image is in a different tar or has dots in its name, write the "
                "tars again."
            )
        if not numbers and not names:
            raise SourceError(
                f"{self.where}: has an image, but no label: neither {_LABEL} nor a field "
                f"{' or '.join(_LABEL_FIELDS)} in {_ABOUT}. If its label is in a different tar, "
                "write the tars again."
            )
        filename = about.get("filename")
        if not isinstance(filename, str) or not filename:
            filename = self.image.name.removeprefix("./")
        is_ours = about.keys() >= _OUR_FIELDS and isinstance(about["key"], str)
        return Sample(
            self.name,
            self.image,
            next(iter(numbers), None),
            next(iter(names), ""),
            filename,
            about["key"] if is_ours else "",
        )

    def _about(self) -> dict[str, Any]:
        text = self.texts.get(_ABOUT)
        if text is None:
            return {}
        try:
            about = canonical.loads(text, _MOST_VALUES)
        except ValueError as error:
            raise SourceError(f"{self.where}: {_ABOUT} is not JSON: {error}. {_AGAIN}.") from None
        return about if isinstance(about, dict) else {}

    def _classes(self, about: dict[str, Any]) -> tuple[list[int], list[str]]:
        """Returns the class numbers and names that the sample states, at most one of each."""
        values: list[Any] = [self.texts[_LABEL]] if _LABEL in self.texts else []
        values += [about[name] for name in _LABEL_FIELDS if about.get(name) is not None]
        numbers: list[int] = []
        names = [about[name] for name in _NAME_FIELDS if isinstance(about.get(name), str)]
        texts: list[str] = []
        for value in values:
            text = str(value).strip()
            if type(value) not in (int, str) or not text:
                raise SourceError(
                    f"{self.where}: its label is {str(value)[:40]!r}, expected a number or a "
                    f"name. {_AGAIN} with one label per image."
                )
            if _NUMBER.fullmatch(text):
                numbers.append(int(text))
            else:
                texts.append(text)
        for stated in (numbers, texts):
            if len({*stated}) > 1:
                raise SourceError(
                    f"{self.where}: has different labels: {' and '.join(map(repr, stated))}. One "
                    f"of them is wrong. {_AGAIN}."
                )
        return numbers[:1], (names + texts)[:1]


def samples(
    reader: Reads, archive: str, stop: int, ignored: Counter[str] | None = None
) -> Iterator[Sample]:
    """Yields the samples of a tar with `stop` bytes; raises SourceError if one is invalid.

    Reads at increasing offsets. Other files are counted in `ignored` by extension.
    """
    files: _Files | None = None
    names: set[str] = set()
    skipped = Counter[str]() if ignored is None else ignored
    for member in tar.members(reader, archive, 0, stop):
        name, kind = _parts(member.name)
        if not name:
            skipped[ending(member.name)] += 1
            continue
        if files is None or files.name != name:
            if files is not None:
                yield from _finished(files, skipped)
            files = _Files(f"{archive}: sample {name!r} at byte {member.offset:,}", name)
            if name in names:
                raise SourceError(
                    f"{files.where}: appears twice. Its files must be next to each other, and "
                    f"names must be unique. {_AGAIN}."
                )
            names.add(name)
        most = _MOST_BYTES.get(kind, 0)
        if most and member.size > most:
            raise SourceError(
                f"{files.where}: {kind} has {member.size:,} bytes, expected at most {most:,}. "
                f"{_AGAIN}."
            )
        files.add(kind, member, reader.read(archive, member.offset, member.size) if most else b"")
    if files is not None:
        yield from _finished(files, skipped)


def _finished(files: _Files, skipped: Counter[str]) -> Iterator[Sample]:
    sample = files.sample()
    if sample is not None:
        yield sample
    skipped.update(ending(member.name) for member in files.others)
    if sample is None:
        skipped.update(f".{kind}" for kind in files.texts)


def _parts(path: str) -> tuple[str, str]:
    """Returns the sample and the kind of a file; the sample is "" if the file is not read."""
    folder, slash, base = path.removeprefix("./").rpartition("/")
    stem, _, kind = base.partition(".")
    folders = folder.split("/")
    if not stem or not kind or any(is_hidden(f) or _META_FOLDER.fullmatch(f) for f in folders):
        return "", ""
    return f"{folder}{slash}{stem}", kind.lower()
