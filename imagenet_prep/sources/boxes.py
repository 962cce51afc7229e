"""Reads ILSVRC2012's bounding boxes (PASCAL VOC) from its archives or Kaggle's folders."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import SourceError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.keys import WNID
from imagenet_prep.dataset.member import NO_BOXES, Boxes
from imagenet_prep.sources import containers, labels, layout, published, source
from imagenet_prep.sources.labels import Claim, compare
from imagenet_prep.sources.scan import read_errors, scan, subfolders
from imagenet_prep.storage.remote_path import Location, open_to_read

_PUBLISHED = {schema.TRAIN: published.TRAIN_BOXES, schema.VALIDATION: published.VALIDATION_BOXES}
ARCHIVES = {split: archive.name for split, archive in _PUBLISHED.items()}
KAGGLE = "Annotations/CLS-LOC"
_KAGGLE_FOLDERS = {schema.TRAIN: "train", schema.VALIDATION: "val"}

_STEM = {
    schema.TRAIN: re.compile(r"^(n\d{8})_\w+$"),
    schema.VALIDATION: re.compile(r"^(ILSVRC2012_val)_\d{8}$"),
}
# ILSVRC2012's largest XML file has 14 kB; the largest inner train archive has 100 kB.
_MAX_XML_BYTES = 1 << 20
_MAX_INNER_BYTES = 64 << 20
_INNER_SUFFIXES = (".tar.gz", ".tgz")
_MAX_DEPTH = 1  # the train archive contains one compressed tar per class
# ILSVRC2012's annotations unpack to about 1 GB. The lines of `read` for them have 100 MB.
_MAX_UNPACKED_BYTES = 2 << 30
_MAX_LINES_BYTES = 256 << 20
_ADVICE = "Download the annotations again, or add --no-boxes."


class BoxTask(NamedTuple):
    """An archive or folder of annotations, read as one task."""

    name: str
    split: str
    path: Location


@dataclass(frozen=True)
class Annotations:
    """Annotations found next to a source: one part per split, one task per archive or folder."""

    parts: dict[str, source.SourcePart]
    tasks: tuple[BoxTask, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of the names, sizes and stamps of all parts."""
        return strict_json.digest(
            [[part.name, part.num_bytes, part.stamp] for part in self.parts.values()]
        )


class AnnotatedBoxes(NamedTuple):
    """The boxes in the annotations of one task."""

    lines: dict[str, bytearray]  # one line per image, by WNID (train) or split
    images: int
    boxes: int
    dropped: int  # boxes without an area


@read_errors("")
def find(root: Location, splits: Sequence[str], *, official: bool) -> Annotations | None:
    """Returns the annotations next to a source, or None; on a server, only archives are found."""
    parts: dict[str, source.SourcePart] = {}
    tasks: list[BoxTask] = []
    for split in splits:
        archive = root / ARCHIVES[split]
        if archive.is_file():
            md5 = _PUBLISHED[split].md5 if official else None
            parts[split] = source.file_part(archive, md5)
            tasks.append(BoxTask(split, split, archive))
        elif isinstance(root, Path):
            part = f"{KAGGLE}/{_KAGGLE_FOLDERS[split]}"
            below = layout.named_splits(root).base / part
            if below.is_dir():
                parts[split] = source.folder_part(part, [("", scan(below))])
                # All annotations of validation are in one list, so one task reads them.
                classes = subfolders(below) if split == schema.TRAIN else []
                tasks += [BoxTask(f"{split}-{name}", split, below / name) for name in classes]
                if not classes:
                    tasks.append(BoxTask(split, split, below))
    return Annotations(parts, tuple(tasks)) if parts else None


@read_errors("")
def read(task: BoxTask) -> AnnotatedBoxes:
    """Reads the boxes in an archive or folder; raises SourceError for invalid annotations."""
    lines: dict[str, bytearray] = {}
    named: dict[str, str] = {}  # the WNID of the boxes in each annotation
    images = num_boxes = dropped = num_bytes = 0
    class_folder = task.path.name if task.split == schema.TRAIN and task.path.is_dir() else None
    for name, data in _files(task.path):
        where = f"{task.path}: {name}"
        stem = name.rpartition("/")[2].removesuffix(".xml")
        match = _STEM[task.split].match(stem)
        if match is None:
            raise SourceError(f"{where}: is not named like a {task.split} image. {_ADVICE}")
        boxes, bad, wnid = _parse_xml(data, where)
        if wnid is not None:
            named[stem] = wnid
        if class_folder is not None and match[1] != class_folder:
            raise SourceError(f"{where}: is in the wrong class folder, {class_folder}. {_ADVICE}")
        group = match[1] if task.split == schema.TRAIN else task.split
        line = strict_json.dumps([stem, boxes]) + b"\n"
        num_bytes += len(line)
        if num_bytes > _MAX_LINES_BYTES:
            raise SourceError(f"{task.path}: has more boxes than ILSVRC2012. {_ADVICE}")
        lines.setdefault(group, bytearray()).extend(line)
        images += 1
        num_boxes += len(boxes.xmin)
        dropped += bad
    expected = {stem: stem.partition("_")[0] for stem in named}
    if task.split == schema.VALIDATION:
        expected = labels.published_labels_of(named, {*named.values()})
    claims = [Claim("the names of the images", expected), Claim(str(task.path), named)]
    compare("image", claims, _ADVICE)
    return AnnotatedBoxes(lines, images, num_boxes, dropped)


def parse(lines: bytes, where: str) -> dict[str, Boxes]:
    """Returns the boxes in the lines from `read`, by image name (without extension)."""
    by_name: dict[str, Boxes] = {}
    for line in io.BytesIO(lines):
        try:
            stem, sides = strict_json.loads(line)
            boxes = Boxes(*map(tuple, sides))
        except (ValueError, TypeError) as error:
            raise SourceError(
                f"{where}: the list of boxes is damaged ({error}). Remove the folder that "
                "contains this list, then run the same command again."
            ) from error
        if by_name.setdefault(str(stem), boxes) is not boxes:
            raise SourceError(f"{where}: {stem}.xml appears twice. {_ADVICE}")
    return by_name


def _files(path: Location) -> Iterator[tuple[str, bytes]]:
    with containers.errors(path, _ADVICE):
        if isinstance(path, Path) and path.is_dir():
            for file in scan(path):
                if file.path.endswith(".xml"):
                    with open_to_read(path / file.path) as opened:
                        yield file.path, opened.read(_MAX_XML_BYTES + 1)
        else:
            with containers.unpacked(path) as stream:
                allowance = containers.Allowance(_MAX_UNPACKED_BYTES)
                yield from _archived(stream, path.name, allowance, 0)


def _archived(
    stream: io.BufferedIOBase, name: str, allowance: containers.Allowance, depth: int
) -> Iterator[tuple[str, bytes]]:
    """Yields the XML files in a tar and in the compressed tars that it contains."""
    for member, read_up_to in containers.stream_contents(stream, name, allowance):
        if member.name.endswith(".xml"):
            yield member.name, read_up_to(_MAX_XML_BYTES + 1)
        elif member.name.endswith(_INNER_SUFFIXES):
            if member.size > _MAX_INNER_BYTES:
                raise SourceError(f"{name}: {member.name} has {member.size:,} bytes. {_ADVICE}")
            if depth == _MAX_DEPTH:
                raise SourceError(f"{name}: {member.name} is nested too deeply. {_ADVICE}")
            with containers.gunzip(io.BytesIO(read_up_to(member.size))) as inner:
                yield from _archived(inner, f"{name}: {member.name}", allowance, depth + 1)


def _parse_xml(data: bytes, where: str) -> tuple[Boxes, int, str | None]:
    """Returns the boxes clipped to [0, 1], the number of boxes with no area, and their WNID.

    The WNID is None if the objects have different names, or words: in ILSVRC2012, many dogs do.
    """
    if len(data) > _MAX_XML_BYTES:
        raise SourceError(f"{where}: has more than {_MAX_XML_BYTES:,} bytes. {_ADVICE}")
    try:
        # Parse text, not bytes: in bytes, a declared encoding could hide a DOCTYPE.
        text = data.decode("utf-8")
        # Refuse a DOCTYPE: its entities can expand without limit or read local files.
        if "<!DOCTYPE" in text:
            raise SourceError(f"{where}: has a document type declaration (DOCTYPE). {_ADVICE}")
        root = ET.fromstring(text)  # noqa: S314 - without a DOCTYPE there are no entities
        width, height = (float(root.findtext(f"size/{side}", "")) for side in ("width", "height"))
        corners = [
            [float(box.findtext(side, "")) for side in Boxes._fields] for box in root.iter("bndbox")
        ]
        if not all(map(math.isfinite, itertools.chain([width, height], *corners))):
            raise ValueError("a size or coordinate is not finite")
    except (ValueError, ET.ParseError) as error:
        raise SourceError(f"{where}: is not a PASCAL VOC annotation: {error}. {_ADVICE}") from error
    if width <= 0 or height <= 0:
        raise SourceError(f"{where}: has an image size of {width:g} x {height:g}. {_ADVICE}")
    clipped = []
    for corner in corners:
        x1, x2 = sorted(min(max(value / width, 0.0), 1.0) for value in corner[:2])
        y1, y2 = sorted(min(max(value / height, 0.0), 1.0) for value in corner[2:])
        if x1 < x2 and y1 < y2:
            clipped.append((x1, x2, y1, y2))
    boxes = Boxes(*zip(*clipped, strict=True)) if clipped else NO_BOXES
    names = {name.text or "" for name in root.iterfind("object/name")}
    wnid = names.pop() if len(names) == 1 else ""
    return boxes, len(corners) - len(clipped), wnid if WNID.fullmatch(wnid) else None
