"""Writes the three archives of a miniature ILSVRC2012, and lists the properties of each image.

The demo and the tests prepare these archives; tests compare the dataset with `Miniature.images`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import operator
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from imagenet_prep.testing.photographs import (
    FAMILIES,
    IMAGENET_SIZE,
    Camera,
    Family,
    require_photographs,
)

TRAIN_ARCHIVE = "ILSVRC2012_img_train.tar"
VALIDATION_ARCHIVE = "ILSVRC2012_img_val.tar"
DEVKIT_ARCHIVE = "ILSVRC2012_devkit_t12.tar.gz"

_Rng = np.random.Generator

_KEPT = ("large", "exif_rotated", "broken_exif", "trailing_garbage", "one_pixel", "wide")
ODD_KINDS = (  # kind → outcome with the default settings of prepare
    dict.fromkeys(_KEPT, "kept")
    | dict.fromkeys(("png", "cmyk", "grey"), "repaired")
    | dict.fromkeys(("truncated", "empty"), "quarantined")
    | {"exif_rotated": "repaired"}  # stays in its position, because images depend on the order
)
_ODD_VALIDATION_KINDS = ("grey", "cmyk", "truncated", "exif_rotated")

_INNER = (  # WNID, words, parent, height; IDs come after the leaves' IDs, as in the real devkit
    ("n00001740", "entity", "", 19),
    ("n00015388", "animal, animate being, beast, brute, creature, fauna", "n00001740", 16),
    ("n00021939", "artifact, artefact", "n00001740", 15),
)


@dataclass(frozen=True)
class SourceImage:
    """The expected properties of an image in the archives."""

    split: str
    key: str  # "n01440764/n01440764_10026.JPEG" or "ILSVRC2012_val_00000001.JPEG"
    wnid: str
    class_index: int
    kind: str  # "plain" or a key of `ODD_KINDS`
    fate: str  # "kept", "repaired" or "quarantined", with the default settings of prepare
    width: int  # in pixels, before EXIF rotation; 0 if the image cannot be decoded
    height: int
    sha256: str
    num_bytes: int


@dataclass(frozen=True)
class Miniature:
    """The archives in `root`, their classes as sorted pairs of WNID and words, and their images."""

    root: Path
    classes: tuple[tuple[str, str], ...]
    images: tuple[SourceImage, ...]

    def of(self, split: str) -> dict[str, SourceImage]:
        """Returns the images of "train" or "validation" by key."""
        return {image.key: image for image in self.images if image.split == split}


@dataclass(frozen=True)
class Synset:
    """One row of meta.mat, with fields in the order of the real `synsets` array."""

    ilsvrc2012_id: int
    wnid: str
    words: str
    gloss: str = ""  # if empty, `words` is written, because every real row has a gloss
    children: tuple[int, ...] = ()  # ILSVRC2012_IDs; empty for a leaf
    wordnet_height: int = 0
    num_train_images: int = 0


def make_miniature(
    root: Path,
    *,
    num_train: int = 40,
    num_validation: int = 16,
    num_classes: int = 8,
    seed: int = 0,
    odd_files: bool = True,
    size: tuple[int, int] = IMAGENET_SIZE,
) -> Miniature:
    """Writes the train, validation and devkit archives into `root`, and returns their contents.

    The same arguments give the same bytes (with the same Pillow and NumPy). 20,000
    images take up to two minutes on one core.

    The number of classes is 2 to 10. `odd_files` replaces one train image per kind in `ODD_KINDS`,
    and a few validation images; it needs at least 20 train images, and two per class. `size` is
    the (width, height) of most images. At the default size, some are 1600x1200 or 2048x1536.
    """
    families = sorted(FAMILIES[:num_classes])  # by WNID
    require_photographs(families)  # fails before anything is written
    studio = _Studio(root, families, Camera(size, seed), seed)
    rng = np.random.default_rng(seed)
    counts = _class_counts(num_train, num_classes, rng)
    root.mkdir(parents=True, exist_ok=True)
    studio.write_train(counts, _odd_places(counts, rng) if odd_files else {}, rng)
    class_of = rng.permutation(np.arange(num_validation) % num_classes)  # by file number - 1
    odd_validation = {}
    if odd_files and num_validation >= 2 * num_classes:  # or a class could lose its only image
        places = rng.permutation(num_validation)[: num_validation // 4].tolist()
        odd_validation = dict(zip(places, _ODD_VALIDATION_KINDS, strict=False))
    studio.write_validation(class_of.tolist(), odd_validation, rng)
    ids = [place + 1 for place in _scrambled(num_classes, rng)]  # by class index
    leaves = [
        Synset(ids[i], family.wnid, family.words, num_train_images=counts[i])
        for i, family in enumerate(families)
    ]
    ground_truth = [ids[class_index] for class_index in class_of]
    make_devkit(root / DEVKIT_ARCHIVE, leaves, _inner_synsets(families, ids), ground_truth)
    classes = tuple((family.wnid, family.words) for family in families)
    return Miniature(root, classes, tuple(studio.images))


@dataclass
class _Studio:
    """Writes the archives of a miniature, and adds each written image to `images`."""

    root: Path
    families: Sequence[Family]
    camera: Camera
    seed: int
    images: list[SourceImage] = field(default_factory=list)

    def write_train(
        self, counts: Sequence[int], odd: dict[tuple[int, int], str], rng: _Rng
    ) -> None:
        with tarfile.open(self.root / TRAIN_ARCHIVE, "w", format=tarfile.GNU_FORMAT) as outer:
            for index, (family, count) in enumerate(zip(self.families, counts, strict=True)):
                # As in real archives, the numbers have gaps, and are not sorted.
                numbers = rng.choice(np.arange(2, 12_000 + 4 * count), count, replace=False)
                with tempfile.TemporaryFile(dir=self.root) as spool:
                    with tarfile.open(fileobj=spool, mode="w", format=tarfile.GNU_FORMAT) as inner:
                        for ordinal, number in enumerate(numbers):
                            name = f"{family.wnid}_{number}.JPEG"
                            kind = odd.get((index, ordinal), "plain")
                            key = f"{family.wnid}/{name}"
                            data = self._shoot("train", key, index, kind, ordinal)
                            add_file(inner, name, io.BytesIO(data), len(data))
                    add_file(outer, f"{family.wnid}.tar", spool, spool.seek(0, io.SEEK_END))

    def write_validation(self, class_of: Sequence[int], odd: dict[int, str], rng: _Rng) -> None:
        with tarfile.open(self.root / VALIDATION_ARCHIVE, "w", format=tarfile.GNU_FORMAT) as flat:
            for ordinal in _scrambled(len(class_of), rng):
                key = f"ILSVRC2012_val_{ordinal + 1:08d}.JPEG"
                kind = odd.get(ordinal, "plain")
                data = self._shoot("validation", key, class_of[ordinal], kind, ordinal)
                add_file(flat, key, io.BytesIO(data), len(data))

    def _shoot(self, split: str, key: str, class_index: int, kind: str, ordinal: int) -> bytes:
        stream = (self.seed, split == "validation", class_index, ordinal)
        family = self.families[class_index]
        rng = np.random.default_rng(stream)
        kind, width, height, data = self.camera.shoot(family, kind, rng)
        fate = ODD_KINDS.get(kind, "kept")
        sha256 = hashlib.sha256(data).hexdigest()
        names = split, key, family.wnid, class_index
        self.images.append(SourceImage(*names, kind, fate, width, height, sha256, len(data)))
        return data


def _class_counts(num_train: int, num_classes: int, rng: _Rng) -> list[int]:
    counts = [num_train // num_classes + (i < num_train % num_classes) for i in range(num_classes)]
    for i in range(0, num_classes - 1, 2):  # moves images, but leaves at least two per class
        moved = min(int(rng.integers(1, counts[i + 1] // 8 + 2)), counts[i + 1] - 2)
        counts[i] += max(moved, 0)
        counts[i + 1] -= max(moved, 0)
    return counts


def _odd_places(counts: Sequence[int], rng: _Rng) -> dict[tuple[int, int], str]:
    orders = [rng.permutation(count) for count in counts]
    places = {}
    for i, kind in enumerate(ODD_KINDS):
        turn, class_index = divmod(i, len(counts))
        places[class_index, int(orders[class_index][turn])] = kind
    return places


def _scrambled(count: int, rng: _Rng) -> list[int]:
    """Returns a permutation of range(count), without fixed points if possible."""
    while True:
        order = [int(place) for place in rng.permutation(count)]
        if count == 1 or all(i != place for i, place in enumerate(order)):
            return order


def _inner_synsets(families: Sequence[Family], ids: Sequence[int]) -> list[Synset]:
    used = [row for row in _INNER if not row[2] or any(f.parent == row[0] for f in families)]
    id_of = {row[0]: len(ids) + 1 + place for place, row in enumerate(used)}
    synsets = []
    for wnid, words, _, height in used:
        children = [ids[i] for i, family in enumerate(families) if family.parent == wnid]
        children += [id_of[row[0]] for row in used if row[2] == wnid]
        synsets.append(Synset(id_of[wnid], wnid, words, "", tuple(sorted(children)), height))
    return synsets


def make_devkit(
    path: Path, leaves: Sequence[Synset], inner: Sequence[Synset], ground_truth: Sequence[int]
) -> None:
    """Writes a devkit archive: readme, data/meta.mat and the validation ground truth.

    The rows of meta.mat are the `leaves` (synsets of classes) by ID, then the `inner` synsets by
    ID. `ground_truth` has the ILSVRC2012_ID of each validation image, in file-name order.
    """
    import scipy.io

    by_id = operator.attrgetter("ilsvrc2012_id")
    names = "ILSVRC2012_ID WNID words gloss num_children children wordnet_height num_train_images"
    rows = [
        (
            _small_uint(row.ilsvrc2012_id),
            row.wnid,
            row.words,
            row.gloss or row.words,
            _small_uint(len(row.children)),
            _small_uint(*row.children),
            _small_uint(row.wordnet_height),
            _small_uint(row.num_train_images),
        )
        for row in (*sorted(leaves, key=by_id), *sorted(inner, key=by_id))
    ]
    table = np.array(rows, dtype=[(name, object) for name in names.split()])
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"synsets": table[:, None]}, do_compression=True)
    # SciPy writes the current time into the header's 116 bytes of free text.
    header = b"MATLAB 5.0 MAT-file, Platform: GLNXA64, Created on: Thu Jan  1 00:00:00 1970"
    members = {
        "readme.txt": b"A miniature of the ILSVRC2012 development kit, made by imagenet-prep.\n",
        "data/meta.mat": header.ljust(116) + buffer.getvalue()[116:],
        "data/ILSVRC2012_validation_ground_truth.txt": b"".join(b"%d\n" % i for i in ground_truth),
    }
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for name, data in members.items():
            add_file(tar, f"ILSVRC2012_devkit_t12/{name}", io.BytesIO(data), len(data))


def add_file(tar: tarfile.TarFile, name: str, file: IO[bytes], num_bytes: int) -> None:
    """Appends `file` to an archive, without time and owner, to make the archive reproducible."""
    info = tarfile.TarInfo(name)
    info.size = num_bytes
    file.seek(0)
    tar.addfile(info, file)


def _small_uint(*values: int) -> NDArray[np.unsignedinteger]:
    """Returns the values as an array [1, n] of the smallest unsigned type, as MATLAB does."""
    return np.array([values], dtype=np.uint8 if max(values, default=0) < 256 else np.uint16)
