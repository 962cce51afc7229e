"""120 files as in a typical folder of photographs: phones, downloads, old habits."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from tests.kit.photographs import exif, photograph, pixels

JXL = b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(200)
CLASSES = ("cats", "dogs", "Häuser am See")
# Files that are no photographs by their content. No command reads them.
NO_IMAGES = {
    ".DS_Store": b"\0\0\0\1Bud1",
    "cats/.DS_Store": b"\0\0\0\1Bud1",
    "cats/._IMG_0001.jpg": b"\0\5\26\7",
    "dogs/film.mov": b"\0\0\0\x14ftypqt  " + bytes(200),
    "dogs/Thumbs.db": b"\xd0\xcf\x11\xe0" + bytes(100),
    "Häuser am See/Preise.txt": b"BM 3.500",
}
# Photographs by name or content that cannot be used.
UNUSABLE = {
    "dogs/IMG_0007.heic": JXL,
    "cats/from a telephone.jpg": JXL,
    "dogs/empty.jpg": b"",
    "Häuser am See/cut off.jpg": photograph(60, 80, 999)[:700],
}
_TOTAL = 120


def _saved(kind: str, mode: str = "RGB", seed: int = 0) -> bytes:
    buffer = io.BytesIO()
    pixels(60, 80, seed).convert(mode).save(buffer, kind)
    return buffer.getvalue()


def _sixty_megapixels() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (9000, 6700), (90, 120, 200)).save(buffer, "JPEG", quality=50)
    return buffer.getvalue()


def files() -> dict[str, bytes]:
    """Returns the 120 files of the folder by name."""
    odd = {
        "cats/a.png": _saved("PNG", "RGBA", 1),
        "cats/b.webp": _saved("WEBP", seed=2),
        "cats/printed.jpg": _saved("JPEG", "CMYK", 3),
        "cats/grey.jpg": _saved("JPEG", "L", 4),
        "dogs/PNG that is called.jpg": _saved("PNG", seed=5),
        "dogs/large.jpg": _sixty_megapixels(),
        "dogs/IMG_0008.HEIC": photograph(60, 80, 6),
        "dogs/a.avif": _saved("AVIF", seed=6),
        "Häuser am See/Ferien 2021/Kätzchen vor dem Haus.JPG": photograph(60, 80, 7),
        # A camera that restarts its numbers each year.
        "cats/2020/IMG_0001.jpg": photograph(60, 80, 8),
        "cats/2021/IMG_0001.jpg": photograph(60, 80, 9),
        "cats/IMG_0001.jpg": photograph(60, 80, 10),
    }
    turned = {
        f"dogs/turned {value}.jpg": photograph(60, 80, 20 + value, exif=exif(value))
        for value in range(1, 9)
    }
    found = {**NO_IMAGES, **UNUSABLE, **odd, **turned}
    for number in range(_TOTAL - len(found)):
        name = f"{CLASSES[number % 3]}/DSC{number:05d}.jpg"
        found[name] = photograph(60 + number % 7, 80, 100 + number)
    return found


def make(root: Path) -> dict[str, bytes]:
    """Writes them below a folder."""
    made = files()
    for name, data in made.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return made
