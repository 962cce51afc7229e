"""Sources of `prepare`: folders, class tars, Parquet, RecordIO and Kaggle's folders with boxes."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.kit import layouts
from tests.oracles.chains import pictures
from tests.oracles.chains.pictures import Picture

TRAIN = "train"
VALIDATION = "validation"
FOLDERS = {TRAIN: "train", VALIDATION: "val"}
KINDS = ("splits", "splits", "classes", "tars", "parquet", "recordio", "kaggle")
# WNIDs of no edition, so that no published count or label applies.
_WNIDS = ("n00000011", "n00000022", "n00000033", "n00000044")
# Class names that a writer of folders, lists or tables could get wrong.
_CLASSES = ("cat", "dog", "big bird", "été", "10", "9", "x,y", "-dash", "=eq", "漢字")
_STEMS = ("{}", "IMG_{}", "a b {}", "ü{}", "x,{}", "-{}", "={}", "%2E{}", "a.b.{}", "~{}~2", "#{}")
# Some of these suffixes are unknown to the readers of an exported folder.
_SUFFIXES = {
    "png": (".png", ""),
    "gif": (".gif",),
    "webp": (".webp", ".HEIC"),
}
_JPEG_SUFFIXES = (".jpg", ".JPEG", ".HEIC", "")
_BOX_SIDE = 40


class Place(NamedTuple):
    """The place of an image in a source: its split, its class, and its name in the class."""

    split: str
    class_name: str
    name: str


@dataclass
class Source:
    """The images of a source.

    Attributes:
      class_names: in the order of the labels.
      boxes: pixels (xmin, ymin, xmax, ymax) by split and key; only of Kaggle's folders.
    """

    kind: str
    class_names: tuple[str, ...]
    files: dict[Place, Picture] = field(default_factory=dict)
    boxes: dict[tuple[str, str], list[tuple[int, int, int, int]]] = field(default_factory=dict)
    val_is_flat: bool = False

    @property
    def has_wnids(self) -> bool:
        return self.class_names[0] in _WNIDS

    @property
    def class_ids(self) -> tuple[str, ...]:
        """The classes as labels.txt names them."""
        return tuple(name.replace(" ", "_") for name in self.class_names)

    @property
    def splits(self) -> list[str]:
        return list(dict.fromkeys(place.split for place in self.files))

    def key(self, place: Place) -> str:
        """Returns the key of an image, by docs/data-format.md."""
        if self.kind == "kaggle" and place.split == VALIDATION:
            return place.name
        return f"{class_id(place.class_name)}/{place.name}"

    def keyed(self) -> Iterator[tuple[str, str, str, Picture]]:
        """Yields split, key, class and picture of each file."""
        for place, picture in self.files.items():
            yield place.split, self.key(place), class_id(place.class_name), picture

    def write(self, root: Path) -> None:
        """Writes the source; an earlier one is replaced."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        writers = {"tars": self._tars, "parquet": self._parquet, "recordio": self._recordio}
        writers.get(self.kind, self._folders)(root)

    def path(self, root: Path, place: Place) -> Path:
        """Returns the path of an image in a source of folders."""
        if self.kind == "classes":
            return root / place.class_name / place.name
        folder = FOLDERS[place.split]
        if self.kind == "kaggle":
            root = root / "ILSVRC" / "Data" / "CLS-LOC"
            if place.split == VALIDATION and self.val_is_flat:
                return root / folder / place.name
        return root / folder / place.class_name / place.name

    def _folders(self, root: Path) -> None:
        for place, picture in self.files.items():
            layouts.write(self.path(root, place), picture.data)
        if self.kind == "kaggle":
            self._annotate(root)

    def _annotate(self, root: Path) -> None:
        """Writes Kaggle's lists and annotations; validation's have the layout of its images."""
        names = "".join(f"{wnid} words of {wnid}\n" for wnid in self.class_names)
        layouts.write(root / "LOC_synset_mapping.txt", names.encode())
        solution = ["ImageId,PredictionString"]
        annotations = root / "ILSVRC" / "Annotations" / "CLS-LOC"
        for place in self.files:
            stem = place.name.rpartition(".")[0]
            if place.split == VALIDATION:
                solution.append(f"{stem},{place.class_name} 1 2 3 4")
            boxes = self.boxes.get((place.split, self.key(place)))
            if boxes is None:
                continue
            folder = annotations / FOLDERS[place.split]
            if place.split == TRAIN or not self.val_is_flat:
                folder /= place.class_name
            xml = layouts.voc_xml(_BOX_SIDE, _BOX_SIDE, boxes, place.class_name)
            layouts.write(folder / f"{stem}.xml", xml)
        layouts.write(root / "LOC_val_solution.csv", "\n".join([*solution, ""]).encode())

    def _tars(self, root: Path) -> None:
        for name in self.class_names:
            files = {p.name: image.data for p, image in self.files.items() if p.class_name == name}
            (root / f"{name}.tar").write_bytes(layouts.tar(files))

    def _parquet(self, root: Path) -> None:
        for split in self.splits:
            rows = [
                {
                    "image": {"bytes": picture.data, "path": place.name},
                    "label": self.class_names.index(place.class_name),
                }
                for place, picture in self.files.items()
                if place.split == split
            ]
            layouts.write_parquet(root / f"{split}-00000-of-00001.parquet", rows, self.class_names)

    def _recordio(self, root: Path) -> None:
        for split in self.splits:
            rows = [
                (
                    self.class_names.index(place.class_name),
                    f"{place.class_name}/{place.name}",
                    picture.data,
                )
                for place, picture in self.files.items()
                if place.split == split
            ]
            layouts.write_recordio(root / f"{FOLDERS[split]}.rec", rows)


def class_id(class_name: str) -> str:
    """Returns the name of a class in labels.txt."""
    return class_name.replace(" ", "_")


class Numbers:
    """Gives each picture of a chain its own number."""

    def __init__(self) -> None:
        self._next = 0

    def picture(self, rng: random.Random, kind: str) -> Picture:
        self._next += 1
        return pictures.draw(rng, self._next, kind)


def draw(rng: random.Random, numbers: Numbers) -> Source:
    """Draws a source; equal file names in several classes and splits are frequent."""
    kind = rng.choice(KINDS)
    has_wnids = kind in ("tars", "kaggle") or rng.random() < 0.3
    names = sorted(rng.sample(_WNIDS if has_wnids else _CLASSES, rng.randint(2, 4)))
    if kind in ("parquet", "recordio") and not has_wnids:
        rng.shuffle(names)
    source = Source(kind, tuple(names), val_is_flat=rng.random() < 0.5)
    splits = [TRAIN] if kind in ("classes", "tars") else [TRAIN, VALIDATION]
    for split in splits:
        for name in names:
            for position in range(rng.randint(3, 8) if split == TRAIN else rng.randint(1, 4)):
                add(source, rng, numbers, split, name, always_sound=position < 2)
    return source


def add(
    source: Source,
    rng: random.Random,
    numbers: Numbers,
    split: str,
    class_name: str,
    *,
    always_sound: bool = False,
) -> Place:
    """Adds a picture to a class; returns its place."""
    is_damaged = not always_sound and rng.random() < 0.08
    kind = rng.choice(pictures.DAMAGED if is_damaged else pictures.SOUND)
    picture = numbers.picture(rng, kind)
    place = _place(source, rng, split, class_name, picture)
    while _is_taken(source, place):
        place = _place(source, rng, split, class_name, picture)
    source.files[place] = picture
    if source.kind == "kaggle" and rng.random() < 0.8:
        corner = rng.randint(1, 9)
        boxes = [(corner, 5 * number, corner + 20, 30) for number in range(rng.randint(1, 3))]
        source.boxes[split, source.key(place)] = boxes
    return place


def _is_taken(source: Source, place: Place) -> bool:
    """Returns whether a file or folder of a class has this name, or a part of it."""
    names = [other.name for other in source.files if other[:2] == place[:2]]
    return any(
        f"{name}/".startswith(f"{place.name}/") or f"{place.name}/".startswith(f"{name}/")
        for name in names
    )


def _place(
    source: Source, rng: random.Random, split: str, class_name: str, picture: Picture
) -> Place:
    if source.kind == "kaggle" and split == VALIDATION:
        return Place(split, class_name, f"ILSVRC2012_val_{picture.number:08d}.JPEG")
    # Small numbers make names that other classes and splits have as well.
    number = rng.choice((picture.number, rng.randint(1, 6)))
    if source.has_wnids:
        return Place(split, class_name, f"{class_name}_{number}.JPEG")
    suffixes: tuple[str, ...] = _SUFFIXES.get(picture.kind, _JPEG_SUFFIXES)
    if not picture.is_sound:
        suffixes = (".jpg",)
    stem = rng.choice(_STEMS).format(number)
    folder = ""
    if source.kind in ("splits", "classes") and rng.random() < 0.2:
        folder = rng.choice(("deep/", "deep/er/", f"{source.class_names[0]}/"))
    return Place(split, class_name, f"{folder}{stem}{rng.choice(suffixes)}")


def boxes_of(source: Source) -> Mapping[tuple[str, str], list[tuple[float, ...]]]:
    """Returns the boxes as fractions of the sides: (xmin, xmax, ymin, ymax), by split and key."""
    return {
        name: [(b[0] / _BOX_SIDE, b[2] / _BOX_SIDE, b[1] / _BOX_SIDE, b[3] / _BOX_SIDE) for b in of]
        for name, of in source.boxes.items()
    }
