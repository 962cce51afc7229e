"""Decodes single images: `decode`, and the part of the native backend that uses Pillow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from imagenet_prep.codec import cage, decoding, planes
from imagenet_prep.core.errors import BadImageError, DataDamagedError, UsageError
from imagenet_prep.dataset import jpeg
from imagenet_prep.read.recipes import (
    BICUBIC,
    BILINEAR,
    Filter,
    height_and_width,
    refuse_aliasing,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Pixels = npt.NDArray[np.uint8]


def decode(
    encoded: bytes | memoryview,
    *,
    window: Sequence[int] | None = None,
    size: int | tuple[int, int] | None = None,
    filter: Filter = BILINEAR,
    antialias: bool = True,
    mirrored: bool = False,
) -> Pixels:
    """Decodes an image, as the native backend does.

    Args:
      encoded: the bytes of a JPEG, or of any other format that `prepare` reads.
      window: top, left, height and width of the part to decode, in pixels; None for all.
      size: side, or height and width, of the result; None for the size of the window.
      filter: how the window is resized: "bilinear" or "bicubic".
      antialias: filter when downscaling, as Pillow does; bicubic always does.
      mirrored: mirror the result.

    Returns:
      RGB pixels, [height, width, 3] uint8.

    Raises:
      UsageError: the window is not inside the image, an argument is invalid, or `encoded` is empty,
        as in the padding of a batch.
      DataDamagedError: the image cannot be decoded.

    Example:
      >>> from imagenet_prep.read import decode, make_dataset
      >>> reader = make_dataset("/data/imagenet-480", "train", batch_size=8)
      >>> example = reader.example(0)
      >>> decode(example.encoded, size=(96, 128), filter="bicubic").shape
      (96, 128, 3)
    """
    if filter not in (BILINEAR, BICUBIC):
        raise UsageError(f"filter={filter!r}: expected {BILINEAR!r} or {BICUBIC!r}")
    if not antialias:
        refuse_aliasing(filter)
    data = bytes(encoded)
    if not data:
        raise UsageError(
            "there is no image: padding and skipped records of a batch have zero bytes. Exclude "
            "examples with the mask False."
        )
    try:
        return _decoded(data, window, size, filter, antialias, mirrored)
    except BadImageError as error:
        raise DataDamagedError(f"the image cannot be decoded: {error}") from error


def _decoded(
    data: bytes,
    window: Sequence[int] | None,
    size: int | tuple[int, int] | None,
    filter_: Filter,
    antialias: bool,
    mirrored: bool,
) -> Pixels:
    """See `decode`; raises BadImageError."""
    width, height = decoding.size(data)
    box = [0, 0, height, width] if window is None else [*window]
    if len(box) != 4 or not all(isinstance(side, (int, np.integer)) for side in box):
        raise UsageError(f"window={window!r}: expected top, left, height and width in pixels")
    top, left, tall, wide = box
    is_inside = 0 <= top < top + tall <= height and 0 <= left < left + wide <= width
    if not is_inside:
        raise UsageError(f"window={window!r}: the image has {height} x {width} pixels")
    shape = (tall, wide) if size is None else height_and_width(size, "size")
    kernel = kernel_of(is_cubic=filter_ == BICUBIC, antialias=antialias)
    has_planes = planes.is_available()
    if has_planes:
        pixels = np.empty((*shape, 3), np.uint8)
        look = planes.Look(*shape, planes.BYTES, kernel)
        # Images that decoder.c does not accept are decoded in the cage.
        with contextlib.suppress(cage.OutsideError):
            if look.decode(data, box, pixels, mirrored=mirrored):
                return pixels
    pixels = decode_in_cage(
        data, box, shape, kernel, is_mirrored=mirrored, uses_codec=has_planes, only_jpeg=False
    )
    return np.ascontiguousarray(pixels)


def kernel_of(*, is_cubic: bool, antialias: bool) -> int:
    """Returns a filter of crops, as `planes.Look` numbers it."""
    if is_cubic:
        return planes.KEYS
    return planes.LINEAR if antialias else planes.NEIGHBOURS


def decode_in_cage(
    data: bytes,
    box: Sequence[int],
    shape: tuple[int, int],
    kernel: int,
    *,
    is_mirrored: bool,
    uses_codec: bool,
    only_jpeg: bool = True,
) -> Pixels:
    """Decodes a window that decoder.c does not accept: with libjpeg if `uses_codec`, or Pillow."""
    if uses_codec:
        pixels = decoding.window(data, box, shape, kernel, is_mirrored=is_mirrored)
        if pixels is not None:
            return pixels
    pixels = resized(cropped(data, box, only_jpeg=only_jpeg), shape, kernel)
    return pixels[:, ::-1] if is_mirrored else pixels


def cropped(data: bytes, box: Sequence[int], *, only_jpeg: bool = True) -> Image.Image:
    """Returns a crop of an image in RGB; pixels outside the image are black."""
    top, left, height, width = box
    image = Image.fromarray(decoding.pixels(data, only_jpeg=only_jpeg))
    return image.crop((left, top, left + width, top + height))


def resized(image: Image.Image, shape: tuple[int, int], kernel: int) -> Pixels:
    """Resizes an image to RGB pixels [height, width, 3], with a filter of `planes.Look`."""
    height, width = shape
    if kernel == planes.SQUARE:
        return _middle_square(image, height)
    if kernel == planes.NEIGHBOURS:
        return interpolate(np.asarray(image), shape)
    filters = {planes.LINEAR: Image.Resampling.BILINEAR, planes.KEYS: Image.Resampling.BICUBIC}
    return np.asarray(image.resize((width, height), filters[kernel]))


def _middle_square(image: Image.Image, side: int) -> Pixels:
    """Returns the crop that guided-diffusion's center_crop_arr makes, [side, side, 3]."""
    width, height = image.size
    while min(width, height) >= 2 * side:
        width = width // 2
        height = height // 2
        image = image.resize((width, height), Image.Resampling.BOX)
    # Crop very long images, to limit memory. The result then only approximates center_crop_arr.
    most = max(1, jpeg.MAX_PIXELS // side**2) * min(width, height)
    if most < max(width, height):
        left = max(0, width - most) // 2
        top = max(0, height - most) // 2
        width = min(width, most)
        height = min(height, most)
        image = image.crop((left, top, left + width, top + height))
    scale = side / min(width, height)
    width = round(width * scale)
    height = round(height * scale)
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    top = (height - side) // 2
    left = (width - side) // 2
    return pixels[top : top + side, left : left + side]


def interpolate(pixels: Pixels, shape: tuple[int, int]) -> Pixels:
    """Resizes an image [height, width, 3] to the height and width `shape`, linearly."""
    for axis, side in enumerate(shape):
        length = pixels.shape[axis]
        at = np.clip((np.arange(side) + 0.5) * length / side - 0.5, 0, length - 1)
        low = np.floor(at).astype(np.intp)
        weights = (-1, 1, 1) if axis == 0 else (1, -1, 1)
        share = (at - low).astype(np.float32).reshape(weights)
        first, second = (
            np.take(pixels, index, axis).astype(np.float32)
            for index in (low, np.minimum(low + 1, length - 1))
        )
        pixels = np.rint(first + (second - first) * share).astype(np.uint8)
    return pixels


def problem(encoded: bytes, decode: Callable[[bytes], None], backend: str) -> str | None:
    """Returns why Pillow or the backend cannot decode a JPEG; None if both can."""
    try:
        decoding.pixels(encoded, only_jpeg=True)
    except BadImageError as error:
        return f"does not decode: {error}"
    try:
        decode(encoded)
    except Exception as error:  # noqa: BLE001 - each framework has its own errors
        return (
            f"backend {backend!r} cannot decode it, but Pillow can: {_reason(error)}. Use "
            "backend='native' or on_bad_record='skip'"
        )
    return None


def _reason(error: Exception) -> str:
    """Returns the line of a framework's error message that states the reason."""
    lines = str(error).partition("encountered:")[2] or str(error)
    return next((line.strip() for line in lines.splitlines() if line.strip()), type(error).__name__)
