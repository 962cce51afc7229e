"""Evaluation datasets with tiny images, in every published layout."""

from __future__ import annotations

import functools
import io
import json
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from imagenet_prep.sources.labels import official_classes, published_labels
from tests.kit.layouts import write

WNIDS = official_classes().wnids
CONTAINERS = ("folder", "tar", "tar.gz", "zip")


class Made(NamedTuple):
    """A dataset in its published form.

    Attributes:
      files: bytes by path.
      class_of: the class index of each image, by key.
    """

    files: dict[str, bytes]
    class_of: dict[str, int]


@functools.cache
def _jpeg(side: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (200, 90, 40)).save(buffer, "JPEG")
    return buffer.getvalue()


def image(text: str, side: int = 8) -> bytes:
    """Returns a JPEG with `text` in a comment, which makes it different from all others."""
    comment = text.encode()
    jpeg = _jpeg(side)
    return jpeg[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + jpeg[2:]


def v2(
    classes: Iterable[int] = range(1000),
    each: int = 10,
    top: str = "imagenetv2-matched-frequency-format-val",
    wnids: bool = False,
) -> Made:
    made = Made({}, {})
    for index in classes:
        folder = WNIDS[index] if wnids else str(index)
        for number in range(each):
            name = f"{index:04x}{number:02x}.jpeg"
            made.files[f"{top}/{folder}/{name}"] = image(f"{index}")
            made.class_of[f"{WNIDS[index]}/{name}"] = index
    return made


def by_wnid(top: str, counts: Mapping[str, int], name: str = "art_{}.jpg") -> Made:
    """Returns a dataset of class folders, with a README next to them; images by WNID."""
    made = Made({f"{top}/README.txt": b"read me\n"}, {})
    for wnid, count in counts.items():
        index = WNIDS.index(wnid)
        for number in range(count):
            base = name.format(number)
            made.files[f"{top}/{wnid}/{base}"] = image(f"{index}")
            made.class_of[f"{wnid}/{base}"] = index
    return made


def corrupted(
    groups: Iterable[tuple[str, int]],
    classes: Iterable[int] = range(1000),
    each: int = 50,
    side: int = 8,
) -> Made:
    """Returns images of ImageNet-C: equally many of each class, corruption and severity."""
    made = Made({}, {})
    of_class: dict[int, list[int]] = {}
    for number, index in enumerate(published_labels(), start=1):
        of_class.setdefault(index, []).append(number)
    numbers = []
    for index in classes:
        names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in of_class[index][:each]]
        numbers += [(index, name) for name in names]
    for corruption, severity in groups:
        for index, name in numbers:
            path = f"{corruption}/{severity}/{WNIDS[index]}/{name}"
            made.files[path] = image(f"{index}", side)
            made.class_of[f"{corruption}/{severity}/{name}"] = index
    return made


OBJECTS = {
    "alarm_clock": ("Alarm clock", (409, 530)),
    "banana": ("Banana", (954,)),
    "air_freshener": ("Air freshener", ()),
}


def objectnet(each: int = 2, top: str = "objectnet-1.0") -> Made:
    """Returns three objects: of two classes, of one, and of none; each image has a red border."""
    words = official_classes().words
    made = Made({}, {})
    for folder, (_, indices) in OBJECTS.items():
        for number in range(each):
            picture = Image.new("RGB", (12, 10), (255, 0, 0))
            picture.paste((0, 0, 255), (1, 1, 11, 9))
            buffer = io.BytesIO()
            picture.save(buffer, "PNG")
            made.files[f"{top}/images/{folder}/{folder}{number}.png"] = buffer.getvalue()
            if indices:
                made.class_of[f"{WNIDS[indices[0]]}/{folder}{number}.png"] = indices[0]
    mapping = {
        "folder_to_objectnet_label": {folder: label for folder, (label, _) in OBJECTS.items()},
        "objectnet_to_imagenet_1k": {
            label: "; ".join(words[index] for index in indices)
            for label, indices in OBJECTS.values()
            if indices
        },
        # A class has the line 999 - index of the list of words.
        "pytorch_to_imagenet_2012_id": {str(index): 999 - index for index in range(1000)},
    }
    for name, content in mapping.items():
        made.files[f"{top}/mappings/{name}.json"] = json.dumps(content).encode()
    lines = "".join(f"{each}\n" for each in reversed(words))
    made.files[f"{top}/mappings/imagenet_to_label_2012_v2"] = lines.encode()
    return made


def put(files: Mapping[str, bytes], root: Path, name: str, container: str) -> Path:
    """Writes files into a folder, or into an archive in it; returns the folder or the archive.

    Args:
      files: bytes by path.
      root: folder to create.
      name: of the archive, without its ending.
      container: one of CONTAINERS; or "plain", a plain tar that is called .tar.gz.
    """
    root.mkdir(parents=True, exist_ok=True)
    if container == "folder":
        for path, data in files.items():
            write(root / path, data)
        return root
    archive = root / f"{name}.{'tar.gz' if container == 'plain' else container}"
    if container == "zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            for path, data in files.items():
                zipped.writestr(path, data)
        return archive
    with tarfile.open(archive, "w:gz" if container == "tar.gz" else "w") as tar:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return archive


def counts_of(wnids: Sequence[str], total: int) -> dict[str, int]:
    """Returns numbers of images by WNID with this total, as equal as possible."""
    return {
        wnid: total // len(wnids) + (number < total % len(wnids))
        for number, wnid in enumerate(wnids)
    }
