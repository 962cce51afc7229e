"""A miniature ILSVRC2012: the three archives in their real layout, and the truth about each image.

The images are windows cut from photographs that scikit-image and scikit-learn ship inside their
wheels, one family of photographs per class, so nothing is downloaded. It reads no archives: the
demo and the tests hand what it made to the real readers and compare with `Miniature.images`.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
import io
import struct
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from imagenet_prep.core.errors import UsageError

TRAIN_ARCHIVE = "ILSVRC2012_img_train.tar"
VALIDATION_ARCHIVE = "ILSVRC2012_img_val.tar"
DEVKIT_ARCHIVE = "ILSVRC2012_devkit_t12.tar.gz"

_Rng = np.random.Generator

IMAGENET_SIZE = (500, 375)  # (width, height): the most frequent size in ILSVRC2012
_KEPT = (
    "large",
    "exif_rotated",
    "broken_exif",
    "trailing_garbage",
    "one_pixel",
    "wide",
)
ODD_KINDS = (  # kind → fate under the default policy
    dict.fromkeys(_KEPT, "kept")
    | dict.fromkeys(("png", "cmyk", "grey"), "repaired")
    | dict.fromkeys(("truncated", "empty"), "quarantined")
)
_ODD_VALIDATION_KINDS = (
    "grey",
    "cmyk",
    "truncated",
    "exif_rotated",
)  # at most 1/4 of the split

_LARGE_SHARE, _HUGE_SHARE = 0.03, 0.004  # of plain images, at IMAGENET_SIZE only
_LARGE_SIZE, _HUGE_SIZE, _WIDE_SIZE = (1600, 1200), (2048, 1536), (4000, 300)
_ZOOMS = (1.0, 1.2, 1.45)
_GRAIN_SIGMA = (
    3.0  # upscaled photographs compress too well; with grain they weigh what real ones do
)
_MISSING = (
    "the miniature needs photographs from scikit-image and scikit-learn: "
    "pip install 'imagenet-prep[demo]'"
)


class _Family(NamedTuple):
    wnid: str
    words: str
    parent: str
    folder: str  # begins with the installed package's name
    files: tuple[str, ...]


# fmt: off
_FAMILIES = (  # true members of the 1000; each named for what its photographs show, where possible
    _Family("n02123045", "tabby, tabby cat", "n00015388", "skimage/data", ("chelsea.png",)),
    _Family("n07920052", "espresso", "n00001740", "skimage/data", ("coffee.png",)),
    _Family("n03773504", "missile", "n00021939", "skimage/data", ("rocket.jpg",)),
    _Family("n03791053", "motor scooter, scooter", "n00021939", "skimage/data",
            ("motorcycle_left.png", "motorcycle_right.png")),
    _Family("n11939491", "daisy", "n00001740", "sklearn/datasets/images", ("flower.jpg",)),
    _Family("n03877845", "palace", "n00021939", "sklearn/datasets/images", ("china.jpg",)),
    # The astronaut stands before a space shuttle.
    _Family("n04266014", "space shuttle", "n00021939", "skimage/data", ("astronaut.png",)),
    _Family("n03956157", "planetarium", "n00021939", "skimage/data", ("hubble_deep_field.jpg",)),
    _Family("n07747607", "orange", "n00001740", "skimage/data", ("retina.jpg",)),
    _Family("n03920288", "Petri dish", "n00021939", "skimage/data", ("ihc.png",)),
)
_INNER = (  # wnid, words, parent, height; numbered after the leaves, as in the real devkit
    ("n00001740", "entity", "", 19),
    ("n00015388", "animal, animate being, beast, brute, creature, fauna", "n00001740", 16),
    ("n00021939", "artifact, artefact", "n00001740", 15),
)
# fmt: on


@dataclass(frozen=True)
class SourceImage:
    """The truth about one source image.

    Attributes:
      split: "train" or "validation".
      key: "n01440764/n01440764_10026.JPEG" or "ILSVRC2012_val_00000001.JPEG".
      wnid: the class it belongs to.
      class_index: position of `wnid` in the sorted WNIDs of the miniature, from 0.
      kind: "plain" or a key of `ODD_KINDS`.
      fate: "kept", "repaired" or "quarantined": what the default policy makes of it.
      width: stored pixels, EXIF rotation not applied; 0 where undecodable.
      height: likewise.
      sha256: hexadecimal digest of the source bytes.
      num_bytes: length of the source bytes.
    """

    split: str
    key: str
    wnid: str
    class_index: int
    kind: str
    fate: str
    width: int
    height: int
    sha256: str
    num_bytes: int


@dataclass(frozen=True)
class Miniature:
    """The archives under `root` and the truth about them.

    Attributes:
      root: the directory that holds the three archives.
      classes: (wnid, words) of the devkit's leaf synsets, sorted by wnid.
      images: every source image, in the order of the archives' members.
    """

    root: Path
    classes: tuple[tuple[str, str], ...]
    images: tuple[SourceImage, ...]

    def of(self, split: str) -> dict[str, SourceImage]:
        """Returns the images of "train" or "validation" by key."""
        return {image.key: image for image in self.images if image.split == split}


@dataclass(frozen=True)
class Synset:
    """One row of meta.mat, fields in the order of the real `synsets` array."""

    ilsvrc2012_id: int
    wnid: str
    words: str
    gloss: str = ""  # `words` where empty: no real row lacks one
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
    """Writes the train, validation and devkit archives into `root` and returns the truth.

    The same arguments give byte-identical archives (with the same Pillow, NumPy and simplejpeg).
    One image is held in memory at a time; 20,000 images take a minute or two on one core.

    Args:
      root: created if missing; archives that are already there are replaced.
      num_train: train images over all classes; the classes get slightly different counts.
      num_validation: validation images, as equally spread over the classes as possible.
      num_classes: 2 to 10, one family of photographs each.
      seed: not negative; decides every random choice.
      odd_files: whether one train image of each kind in `ODD_KINDS` and a few validation images
        replace plain ones.
      size: (width, height) in pixels of the most frequent image; the others are portrait or
        jittered. At the default size some plain images are 1600x1200 or 2048x1536.

    Raises:
      UsageError: the photographs are not installed, or the numbers do not fit together.
    """
    least = max(20, 2 * num_classes) if odd_files else num_classes
    if not 2 <= num_classes <= len(_FAMILIES):
        raise UsageError(f"num_classes={num_classes}: expected 2 to {len(_FAMILIES)}")
    if num_train < least or num_validation < 1:
        raise UsageError(
            f"num_train={num_train}, num_validation={num_validation}: expected at least {least} and"
            f" 1 with num_classes={num_classes}, odd_files={odd_files}"
        )
    if min(size) < 16 or seed < 0:
        raise UsageError(f"size={size!r}, seed={seed}: sides start at 16 pixels, seeds at 0")
    families = sorted(_FAMILIES[:num_classes])  # by WNID
    for family in families:
        _photograph_path(family, 0)  # complains before anything is written
    camera = _Camera(size, seed)
    rng = np.random.default_rng(seed)
    counts = _class_counts(num_train, num_classes, rng)
    root.mkdir(parents=True, exist_ok=True)

    images: list[SourceImage] = []

    def shoot(split: str, key: str, class_index: int, kind: str, ordinal: int) -> bytes:
        stream = (seed, split == "validation", class_index, ordinal)
        family, rng = families[class_index], np.random.default_rng(stream)
        kind, width, height, data = camera.shoot(family, kind, rng)
        fate, digest = ODD_KINDS.get(kind, "kept"), hashlib.sha256(data).hexdigest()
        truth = (
            split,
            key,
            family.wnid,
            class_index,
            kind,
            fate,
            width,
            height,
            digest,
            len(data),
        )
        images.append(SourceImage(*truth))
        return data

    odd_train = _odd_places(counts, rng) if odd_files else {}
    with tarfile.open(root / TRAIN_ARCHIVE, "w", format=tarfile.GNU_FORMAT) as outer:
        for class_index, (family, count) in enumerate(zip(families, counts, strict=True)):
            # Like the real ones: gaps, numbers of different lengths, no order.
            numbers = rng.choice(np.arange(2, 12_000 + 4 * count), count, replace=False)
            with tempfile.TemporaryFile(dir=root) as spool:
                with tarfile.open(fileobj=spool, mode="w", format=tarfile.GNU_FORMAT) as inner:
                    for ordinal, number in enumerate(numbers):
                        name = f"{family.wnid}_{number}.JPEG"
                        kind = odd_train.get((class_index, ordinal), "plain")
                        data = shoot("train", f"{family.wnid}/{name}", class_index, kind, ordinal)
                        _add(inner, name, io.BytesIO(data), len(data))
                _add(outer, f"{family.wnid}.tar", spool, spool.seek(0, io.SEEK_END))

    class_of = rng.permutation(np.arange(num_validation) % num_classes)  # by file number - 1
    odd_validation = {}
    if odd_files and num_validation >= 2 * num_classes:  # else a class might lose its only image
        places = rng.permutation(num_validation)[: num_validation // 4].tolist()
        odd_validation = dict(zip(places, _ODD_VALIDATION_KINDS, strict=False))
    with tarfile.open(root / VALIDATION_ARCHIVE, "w", format=tarfile.GNU_FORMAT) as flat:
        for ordinal in _scrambled(num_validation, rng):
            key = f"ILSVRC2012_val_{ordinal + 1:08d}.JPEG"
            kind = odd_validation.get(ordinal, "plain")
            data = shoot("validation", key, int(class_of[ordinal]), kind, ordinal)
            _add(flat, key, io.BytesIO(data), len(data))

    ids = [place + 1 for place in _scrambled(num_classes, rng)]  # by class index
    leaves = [
        Synset(ids[i], family.wnid, family.words, num_train_images=counts[i])
        for i, family in enumerate(families)
    ]
    ground_truth = [ids[class_index] for class_index in class_of]
    make_devkit(root / DEVKIT_ARCHIVE, leaves, _inner_synsets(families, ids), ground_truth)
    return Miniature(root, tuple((family.wnid, family.words) for family in families), tuple(images))


def make_devkit(
    path: Path,
    leaves: Sequence[Synset],
    inner: Sequence[Synset],
    ground_truth: Sequence[int],
) -> None:
    """Writes a devkit archive: readme, data/meta.mat and the validation ground truth.

    Args:
      path: where to write ILSVRC2012_devkit_t12.tar.gz.
      leaves: the classes, no children. Rows of meta.mat are sorted by ID, leaves before inner.
      inner: synsets above the leaves.
      ground_truth: ILSVRC2012_ID of each validation image, in file-name order.
    """
    import scipy.io

    def by_id(synset: Synset) -> int:
        return synset.ilsvrc2012_id

    fields = "ILSVRC2012_ID WNID words gloss num_children children wordnet_height num_train_images"
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
        for row in sorted(leaves, key=by_id) + sorted(inner, key=by_id)
    ]
    synsets = np.array(rows, dtype=[(field, object) for field in fields.split()])
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"synsets": synsets[:, None]}, do_compression=True)
    # SciPy writes the time of day into the header's 116 bytes of free text.
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
            _add(tar, f"ILSVRC2012_devkit_t12/{name}", io.BytesIO(data), len(data))


class _Camera:
    """Cuts windows from photographs and encodes them; scaled photographs are cached."""

    def __init__(self, size: tuple[int, int], seed: int) -> None:
        self._size = size
        grain = np.random.default_rng((seed, 0xC0FFEE)).normal(0.0, _GRAIN_SIGMA, (640, 640))
        self._grain = np.rint(grain).astype(np.int16)
        self._scaled = functools.lru_cache(maxsize=64)(self._scale)

    def shoot(self, family: _Family, kind: str, rng: _Rng) -> tuple[str, int, int, bytes]:
        """Returns kind ("plain" may become "large"), stored width and height, and file bytes."""
        draw = rng.random() if kind == "plain" and self._size == IMAGENET_SIZE else 1.0
        if draw < _LARGE_SHARE:
            kind = "large"
        if kind == "empty":
            return kind, 0, 0, b""
        path = _photograph_path(family, int(rng.integers(len(family.files))))
        if kind == "large" and self._size == IMAGENET_SIZE:
            width, height = _HUGE_SIZE if draw < _HUGE_SHARE else _LARGE_SIZE
        elif kind == "large":
            width, height = self._size[0] * 16 // 5, self._size[1] * 16 // 5
        elif kind == "wide":
            width, height = _WIDE_SIZE
        else:
            width, height = (1, 1) if kind == "one_pixel" else self._jittered(rng)
        pixels = self._window(path, width, height, rng)
        data = _encode(pixels, kind, rng)
        if kind == "truncated":
            return kind, 0, 0, data[: len(data) * 3 // 5]
        return kind, width, height, data

    def _jittered(self, rng: _Rng) -> tuple[int, int]:
        long, short = max(self._size), min(self._size)
        draw = rng.random()
        if draw < 0.45:
            return self._size
        if draw < 0.60:
            return self._size[1], self._size[0]
        other = long * 2 // 3 + int(rng.integers(2))  # 3:2 film: 500x333, 500x334
        if draw > 0.90:
            other = int(rng.integers(short * 3 // 4, long + 1))
        return (long, other) if draw < 0.80 else (other, long)

    def _window(self, path: Path, width: int, height: int, rng: _Rng) -> NDArray[np.uint8]:
        """Returns [height, width, 3] uint8 RGB: a random offset, flip, brightness and grain."""
        if max(width, height) <= max(self._size):
            photo = self._scaled(path, _ZOOMS[int(rng.integers(len(_ZOOMS)))])
            left = int(rng.integers(photo.shape[1] - width + 1))
            top = int(rng.integers(photo.shape[0] - height + 1))
            window = photo[top : top + height, left : left + width]
        else:  # rare sizes are scaled alone: caching them would take hundreds of MB
            full = _open_rgb(path)
            scale = float(rng.uniform(1.0, 1.3)) * max(width / full.width, height / full.height)
            box_width, box_height = width / scale, height / scale
            x = float(rng.random()) * (full.width - box_width)
            y = float(rng.random()) * (full.height - box_height)
            box = (x, y, x + box_width, y + box_height)
            window = np.asarray(full.resize((width, height), Image.Resampling.LANCZOS, box=box))
        if rng.random() < 0.5:
            window = window[:, ::-1]
        dy, dx = rng.integers(640, size=2)
        grain = self._grain.take(np.arange(dy, dy + height), 0, mode="wrap")
        grain = grain.take(np.arange(dx, dx + width), 1, mode="wrap")
        grain += np.int16(rng.integers(-20, 21))  # brightness
        pixels: NDArray[np.uint8] = np.clip(window + grain[:, :, None], 0, 255).astype(np.uint8)
        return pixels

    def _scale(self, path: Path, zoom: float) -> NDArray[np.uint8]:
        photo = _open_rgb(path)
        scale = zoom * max(self._size) / min(photo.size)
        # Rounded up: every window of this size, portrait or landscape, must fit.
        size = (int(photo.width * scale) + 1, int(photo.height * scale) + 1)
        return np.asarray(photo.resize(size, Image.Resampling.LANCZOS))


def _encode(pixels: NDArray[np.uint8], kind: str, rng: _Rng) -> bytes:
    quality = int(rng.integers(90, 96))
    if kind in ("png", "cmyk", "grey"):
        image, buffer = Image.fromarray(pixels), io.BytesIO()
        if kind == "png":
            image.save(buffer, "PNG")
        else:
            image.convert({"cmyk": "CMYK", "grey": "L"}[kind]).save(buffer, "JPEG", quality=quality)
        return buffer.getvalue()
    sampling = "444" if rng.random() < 0.1 else "420"
    pixels = np.ascontiguousarray(pixels)
    data: bytes = simplejpeg.encode_jpeg(pixels, quality, "RGB", sampling)
    match kind:
        case "exif_rotated":  # one directory entry: Orientation, SHORT, 1 value, 6
            entry = (0x112, 3, 1, 6, 0)
            return _with_exif(data, struct.pack("<2sHLHHHLHHL", b"II", 42, 8, 1, *entry, 0))
        case "broken_exif":  # promises 65,535 directory entries, holds none
            return _with_exif(data, b"MM\x00\x2a\x00\x00\x00\x08\xff\xff" + rng.bytes(7))
        case "trailing_garbage":
            return data + b"\x00\x00<!-- not an image -->" + rng.bytes(500)
    return data


def _with_exif(jpeg: bytes, payload: bytes) -> bytes:
    """Returns `jpeg` with an APP1 segment after its APP0, where cameras and Pillow put it."""
    stop = 4 + int.from_bytes(jpeg[4:6], "big")
    segment = b"Exif\x00\x00" + payload
    return jpeg[:stop] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + jpeg[stop:]


@functools.lru_cache(maxsize=len(_FAMILIES) + 1)
def _open_rgb(path: Path) -> Image.Image:
    with Image.open(path) as photo:
        return photo.convert("RGB")


@functools.cache
def _photograph_path(family: _Family, place: int) -> Path:
    package, _, folder = family.folder.partition("/")
    spec = importlib.util.find_spec(package)  # finds without importing: scikit-learn takes a second
    for location in (spec and spec.submodule_search_locations) or ():
        path = Path(location, folder, family.files[place])
        if path.is_file():
            return path
    raise UsageError(_MISSING)


def _class_counts(num_train: int, num_classes: int, rng: _Rng) -> list[int]:
    counts = [num_train // num_classes + (i < num_train % num_classes) for i in range(num_classes)]
    for i in range(0, num_classes - 1, 2):  # neighbours trade, at least two stay
        moved = min(int(rng.integers(1, counts[i + 1] // 8 + 2)), counts[i + 1] - 2)
        counts[i] += max(moved, 0)
        counts[i + 1] -= max(moved, 0)
    return counts


def _odd_places(counts: Sequence[int], rng: _Rng) -> dict[tuple[int, int], str]:
    """Returns (class index, ordinal in the class) → kind, dealt to the classes in turn."""
    orders = [rng.permutation(count) for count in counts]
    places = {}
    for i, kind in enumerate(ODD_KINDS):
        turn, class_index = divmod(i, len(counts))
        places[class_index, int(orders[class_index][turn])] = kind
    return places


def _scrambled(count: int, rng: _Rng) -> list[int]:
    """Returns a permutation of range(count), without fixed points as far as that is possible."""
    while True:
        order = [int(place) for place in rng.permutation(count)]
        if count == 1 or all(i != place for i, place in enumerate(order)):
            return order


def _inner_synsets(families: Sequence[_Family], ids: Sequence[int]) -> list[Synset]:
    """Returns the inner synsets that have a leaf below them, numbered after the leaves."""
    used = [row for row in _INNER if not row[2] or any(f.parent == row[0] for f in families)]
    id_of = {row[0]: len(ids) + 1 + place for place, row in enumerate(used)}
    synsets = []
    for wnid, words, _, height in used:
        children = [ids[i] for i, family in enumerate(families) if family.parent == wnid]
        children += [id_of[row[0]] for row in used if row[2] == wnid]
        synsets.append(Synset(id_of[wnid], wnid, words, "", tuple(sorted(children)), height))
    return synsets


def _small_uint(*values: int) -> NDArray[np.unsignedinteger]:
    """Returns [1, n] in the smallest type that holds the values, as MATLAB stores them."""
    return np.array([values], dtype=np.uint8 if max(values, default=0) < 256 else np.uint16)


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes], num_bytes: int) -> None:
    """Appends a member read from the start of `file`, without time, owner or trace of this host."""
    info = tarfile.TarInfo(name)
    info.size = num_bytes
    file.seek(0)
    tar.addfile(info, file)
