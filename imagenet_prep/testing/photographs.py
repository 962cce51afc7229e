"""Makes test images by cropping photographs in the packages scikit-image and scikit-learn."""

from __future__ import annotations

import functools
import importlib.util
import io
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from imagenet_prep.codec import planes
from imagenet_prep.core.errors import UsageError

_Rng = np.random.Generator
_LANCZOS = Image.Resampling.LANCZOS

IMAGENET_SIZE = (500, 375)  # (width, height): the most frequent size in ILSVRC2012
# of plain images, only at IMAGENET_SIZE
_LARGE_SHARE = 0.03
_HUGE_SHARE = 0.004
_LARGE_SIZE = (1600, 1200)
_HUGE_SIZE = (2048, 1536)
_WIDE_SIZE = (4000, 300)
_ZOOMS = (1.0, 1.2, 1.45)
# Upscaled photographs compress too well. With grain, files are as large as in ILSVRC2012.
_GRAIN_SIGMA = 3.0


class Family(NamedTuple):
    """A class and its photographs."""

    wnid: str
    words: str
    parent: str  # WNID of the synset above it
    folder: str  # of the files; the first part is the name of the Python package
    files: tuple[str, ...]


# fmt: off
FAMILIES = (  # classes of ILSVRC2012; the words describe the photographs if possible
    Family("n02123045", "tabby, tabby cat", "n00015388", "skimage/data", ("chelsea.png",)),
    Family("n07920052", "espresso", "n00001740", "skimage/data", ("coffee.png",)),
    Family("n03773504", "missile", "n00021939", "skimage/data", ("rocket.jpg",)),
    Family("n03791053", "motor scooter, scooter", "n00021939", "skimage/data",
            ("motorcycle_left.png", "motorcycle_right.png")),
    Family("n11939491", "daisy", "n00001740", "sklearn/datasets/images", ("flower.jpg",)),
    Family("n03877845", "palace", "n00021939", "sklearn/datasets/images", ("china.jpg",)),
    Family("n04266014", "space shuttle", "n00021939", "skimage/data", ("astronaut.png",)),
    Family("n03956157", "planetarium", "n00021939", "skimage/data", ("hubble_deep_field.jpg",)),
    Family("n07747607", "orange", "n00001740", "skimage/data", ("retina.jpg",)),
    Family("n03920288", "Petri dish", "n00021939", "skimage/data", ("ihc.png",)),
)
# fmt: on


class Camera:
    """Crops and encodes photographs. `size` is the (width, height) of most images."""

    def __init__(self, size: tuple[int, int], seed: int) -> None:
        self._size = size
        grain = np.random.default_rng((seed, 0xC0FFEE)).normal(0.0, _GRAIN_SIGMA, (640, 640))
        self._grain = np.rint(grain).astype(np.int16)
        self._scaled = functools.lru_cache(maxsize=64)(self._scale)

    def shoot(self, family: Family, kind: str, rng: _Rng) -> tuple[str, int, int, bytes]:
        """Returns the kind ("plain" may become "large"), width, height and bytes of an image."""
        draw = rng.random() if kind == "plain" and self._size == IMAGENET_SIZE else 1.0
        if draw < _LARGE_SHARE:
            kind = "large"
        if kind == "empty":
            return kind, 0, 0, b""
        path = photograph_path(family, int(rng.integers(len(family.files))))
        if kind == "large" and self._size == IMAGENET_SIZE:
            width, height = _HUGE_SIZE if draw < _HUGE_SHARE else _LARGE_SIZE
        elif kind == "large":
            width = self._size[0] * 16 // 5
            height = self._size[1] * 16 // 5
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
        long = max(self._size)
        short = min(self._size)
        draw = rng.random()
        if draw < 0.45:
            return self._size
        if draw < 0.60:
            return self._size[1], self._size[0]
        second = long * 2 // 3 + int(rng.integers(2))  # 3:2, such as 500x333 or 500x334
        if draw > 0.90:
            second = int(rng.integers(short * 3 // 4, long + 1))
        return (long, second) if draw < 0.80 else (second, long)

    def _window(self, path: Path, width: int, height: int, rng: _Rng) -> NDArray[np.uint8]:
        """Returns a random, perhaps flipped crop of a photograph, [height, width, 3] uint8 RGB."""
        if max(width, height) <= max(self._size):
            photo = self._scaled(path, _ZOOMS[int(rng.integers(len(_ZOOMS)))])
            left = int(rng.integers(photo.shape[1] - width + 1))
            top = int(rng.integers(photo.shape[0] - height + 1))
            window = photo[top : top + height, left : left + width]
        else:  # large sizes are rare, and a cache for them would take hundreds of MB
            full = _open_rgb(path)
            scale = float(rng.uniform(1.0, 1.3)) * max(width / full.width, height / full.height)
            box_width = width / scale
            box_height = height / scale
            x = float(rng.random()) * (full.width - box_width)
            y = float(rng.random()) * (full.height - box_height)
            box = (x, y, x + box_width, y + box_height)
            window = np.asarray(_resampled(full, (width, height), box))
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
        # Rounded up, so that every window fits into the photograph, portrait or landscape.
        size = (int(photo.width * scale) + 1, int(photo.height * scale) + 1)
        return np.asarray(_resampled(photo, size))


def _encode(pixels: NDArray[np.uint8], kind: str, rng: _Rng) -> bytes:
    quality = int(rng.integers(90, 96))
    if kind in ("png", "cmyk", "grey"):
        image = Image.fromarray(pixels)
        buffer = io.BytesIO()
        if kind == "png":
            image.save(buffer, "PNG")
        else:
            image.convert({"cmyk": "CMYK", "grey": "L"}[kind]).save(buffer, "JPEG", quality=quality)
        return buffer.getvalue()
    sampling = "444" if rng.random() < 0.1 else "420"
    data = planes.allowed_here().encode(pixels, quality, sampling)
    match kind:
        case "exif_rotated":  # one directory entry: Orientation, SHORT, 1 value, 6
            entry = (0x112, 3, 1, 6, 0)
            return _with_exif(data, struct.pack("<2sHLHHHLHHL", b"II", 42, 8, 1, *entry, 0))
        case "broken_exif":  # claims to have 65,535 directory entries, but has none
            return _with_exif(data, b"MM\x00\x2a\x00\x00\x00\x08\xff\xff" + rng.bytes(7))
        case "trailing_garbage":
            return data + b"\x00\x00<!-- not an image -->" + rng.bytes(500)
    return data


def _with_exif(jpeg: bytes, payload: bytes) -> bytes:
    """Inserts an APP1 segment after APP0, as cameras and Pillow do."""
    stop = 4 + int.from_bytes(jpeg[4:6], "big")
    segment = b"Exif\x00\x00" + payload
    return jpeg[:stop] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + jpeg[stop:]


def _resampled(
    image: Image.Image, size: tuple[int, int], box: tuple[float, float, float, float] | None = None
) -> Image.Image:
    """Resizes a box of an image, first its width, then its height; Pillow may swap this order."""
    left, top, right, bottom = box or (0, 0, *image.size)
    rows = image.resize((size[0], image.height), _LANCZOS, (left, 0, right, image.height))
    return rows.resize(size, _LANCZOS, (0, top, size[0], bottom))


@functools.lru_cache(maxsize=len(FAMILIES) + 1)
def _open_rgb(path: Path) -> Image.Image:
    with Image.open(path) as photo:
        return photo.convert("RGB")


def require_photographs(families: Sequence[Family] = FAMILIES) -> None:
    """Raises UsageError if a package with photographs of these classes is not installed."""
    for family in families:
        photograph_path(family, 0)


@functools.cache
def photograph_path(family: Family, place: int) -> Path:
    """Returns the path of a photograph; raises UsageError if the package is not installed."""
    package, _, folder = family.folder.partition("/")
    spec = importlib.util.find_spec(package)  # does not import the package, which takes a second
    for location in (spec and spec.submodule_search_locations) or ():
        path = Path(location, folder, family.files[place])
        if path.is_file():
            return path
    raise UsageError(
        "the photographs of scikit-image and scikit-learn are missing. Run: "
        "pip install 'imagenet-prep[demo]'"
    )
