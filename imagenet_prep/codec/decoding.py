"""Decodes images of any format to pixels; images that decoder.c does not accept, in the cage."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import ImageFile

from imagenet_prep.codec import cage, opening, planes

if TYPE_CHECKING:
    import numpy.typing as npt

    Pixels = npt.NDArray[np.uint8]


def pixels(
    data: bytes,
    *,
    smallest: int | None = None,
    damaged: bool = False,
    truncated: bool = False,
    only_jpeg: bool = False,
) -> Pixels:
    """Returns the RGB pixels [height, width, 3] of an image; raises BadImageError.

    Args:
      smallest: a JPEG may be downscaled to about this many pixels per side.
      damaged: accept a JPEG with lost pixels.
      truncated: accept an image whose data ends too soon.
      only_jpeg: refuse all other formats.
    """
    options = {
        "smallest": smallest,
        "damaged": damaged,
        "truncated": truncated,
        "only_jpeg": only_jpeg,
    }
    if not cage.is_inside():
        size, found = cage.run("pixels", tuple[int, int], data, **options)
        return cage.array(found, np.uint8, (*size, 3))
    only = ("JPEG",) if only_jpeg else opening.FORMATS
    allowed = _truncated_allowed() if truncated else contextlib.nullcontext()
    with allowed, opening.opened(data, only=only, smallest=smallest, damaged=damaged) as image:
        return opening.pixels(image)


def window(
    data: bytes, box: Sequence[int], shape: tuple[int, int], kernel: int, *, is_mirrored: bool
) -> Pixels | None:
    """Returns a window of a JPEG, resized to RGB pixels [height, width, 3].

    Returns None if libjpeg reports a problem, the format is unsupported, or the window exceeds the
    image. `shape` has the height and width of the result. `box` has the top, left, height and width
    in pixels; `kernel` is one of planes.Look.
    """
    if not cage.is_inside():
        options = {"box": [*box], "shape": [*shape], "kernel": kernel, "is_mirrored": is_mirrored}
        done, found = cage.run("window", bool, data, **options)
        return cage.array(found, np.uint8, (*shape, 3)) if done else None
    made = np.empty((*shape, 3), np.uint8)
    look = planes.Look(*shape, planes.BYTES, kernel)
    return made if look.decode(data, box, made, mirrored=is_mirrored) else None


def require_openable(data: bytes) -> None:
    """Raises BadImageError if a usual decoder cannot open a JPEG of a dataset."""
    try:
        opening.require_openable(data)
    except cage.OutsideError:
        cage.run("require_openable", bool, data)


def size(data: bytes) -> tuple[int, int]:
    """Returns width and height of an image, perhaps a damaged one; raises BadImageError."""
    if cage.is_inside():
        with opening.opened(data, damaged=True) as image:
            return image.size
    try:
        frame = opening.header(data)
        if frame is not None:
            return frame.width, frame.height
    except (cage.OutsideError, planes.CodecUnavailableError):
        pass
    return cage.run("size", tuple[int, int], data)[0]


def digest(data: bytes) -> tuple[tuple[int, int], bytes]:
    """Returns width and height of an image, and the sha256 of its pixels; raises BadImageError."""
    if not cage.is_inside():
        return cage.run("digest", tuple[int, int], data)
    with opening.opened(data) as image:
        return image.size, hashlib.sha256(opening.pixels(image).data).digest()


@contextlib.contextmanager
def _truncated_allowed() -> Iterator[None]:
    before = ImageFile.LOAD_TRUNCATED_IMAGES
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before
