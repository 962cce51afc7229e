"""The one place that opens images with Pillow or simplejpeg.

The size comes from the header, before a decoder allocates memory by it. Neither library is asked
for a smaller size than the header's unless the frame type is known to be scaled: for any other one,
libjpeg-turbo may write the full image into the memory of the smaller one.
"""

from __future__ import annotations

import contextlib
import functools
import io
import struct
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from PIL import AvifImagePlugin, Image, UnidentifiedImageError
from PIL.WebPImagePlugin import WebPImageFile

from imagenet_prep.codec import heif, memory
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import formats, jpeg

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL.ImageFile import ImageFile

    Pixels = npt.NDArray[np.uint8]

# Listed, so that a file under a wrong name cannot reach Pillow's other decoders: that for EPS
# starts Ghostscript.
FORMATS = tuple(sorted(name.upper() for name in formats.READ))

# Images are decoded in parallel; threads of a decoder would only take more memory.
AvifImagePlugin.DEFAULT_MAX_THREADS = 1

# Pixels that are converted at a time.
_BAND_PIXELS = 1 << 20


def header(data: bytes, max_pixels: int = jpeg.MAX_PIXELS) -> jpeg.Frame | None:
    """Returns the header of a JPEG with its colour space, None for any other format.

    BadImageError names a broken header, one that claims too much, and a kind that is not decoded.
    """
    import simplejpeg

    if not data:
        raise BadImageError("empty", "zero bytes")
    frame = _frame(data, max_pixels)
    if not data.startswith(jpeg.SOI):
        return None
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError) as error:
        # KeyError: simplejpeg looks up colour spaces that a damaged header makes up.
        raise BadImageError("undecodable", f"JPEG header: {error}") from error
    _refuse_other_size(frame, (width, height))
    return frame._replace(colorspace=colorspace) if frame else None


def _frame(data: bytes, max_pixels: int) -> jpeg.Frame | None:
    """Returns the frame of a JPEG that may be decoded, None for any other format."""
    frame = jpeg.refuse_bombs(data, max_pixels)
    if frame is not None:
        jpeg.refuse_unknown(frame)
    return frame


def _refuse_other_size(frame: jpeg.Frame | None, size: tuple[int, int]) -> None:
    if frame is None or (frame.width, frame.height) != size:
        raise BadImageError("undecodable", "JPEG header: its markers contradict each other")


def decode_jpeg(
    data: bytes, frame: jpeg.Frame, colorspace: str, *, strict: bool = True, **at_least: int
) -> Pixels:
    """Returns the pixels [height, width, channels] of a JPEG; ValueError has libjpeg's message.

    `at_least` is min_height, min_width and min_factor of simplejpeg. A frame that cannot be scaled
    is decoded at full size.
    """
    import simplejpeg

    size = at_least if frame.can_be_scaled else {}
    pixels: Pixels = simplejpeg.decode_jpeg(data, colorspace, strict=strict, **size)
    return pixels


@contextlib.contextmanager
def opened(
    data: bytes,
    max_pixels: int = jpeg.MAX_PIXELS,
    only: tuple[str, ...] = FORMATS,
    *,
    smallest: int | None = None,
    turn: contextlib.ExitStack | None = None,
) -> Iterator[ImageFile]:
    """Opens an image with Pillow, and waits until it may be decoded.

    Anything that Pillow raises in the block becomes a BadImageError. The sides of a JPEG may be
    halved while decoding, as long as `smallest` pixels are left. The memory counts as free after
    the block, or when `turn` ends.
    """
    try:
        # Odd metadata and palettes make Pillow warn; the pixels decide, not the warning.
        with warnings.catch_warnings(action="ignore"), contextlib.ExitStack() as ours:
            frame = _frame(data, max_pixels)
            if only is FORMATS and formats.name_of(data[: formats.HEAD_BYTES]) == formats.HEIC:
                only = _heic()
            for width, height in _canvases(data, max_pixels):
                jpeg.refuse_pixels(height, width, max_pixels)
            image = ours.enter_context(Image.open(io.BytesIO(data), formats=only))
            jpeg.refuse_pixels(image.height, image.width, max_pixels)
            if not image.height or not image.width:
                raise BadImageError("undecodable", f"{image.width} x {image.height} pixels")
            if data.startswith(jpeg.SOI):
                _refuse_other_size(frame, image.size)
            if smallest is not None and frame is not None and frame.can_be_scaled:
                image.draft("RGB", (smallest, smallest))
            (turn or ours).enter_context(memory.room(memory.of_opened(image, frame)))
            yield image
    except UnidentifiedImageError as error:
        head = data[: formats.HEAD_BYTES]
        raise BadImageError("unknown_format", formats.unreadable(head)) from error
    except Image.DecompressionBombError as error:
        raise BadImageError("too_many_pixels", str(error)) from error
    except (BadImageError, MemoryError):
        raise  # A machine without memory says nothing about an image.
    except Exception as error:  # plugins raise whatever their format breaks on
        raise BadImageError("undecodable", f"{type(error).__name__}: {error}") from error


@functools.cache
def _heic() -> tuple[str, ...]:
    """Returns the format as Pillow names it."""
    if not formats.is_readable(formats.HEIC):
        raise UnidentifiedImageError
    import pillow_heif

    pillow_heif.register_heif_opener(thumbnails=False, decode_threads=1)
    return ("HEIF",)


def _canvases(data: bytes, max_pixels: int) -> Iterator[tuple[int, int]]:
    """Yields the widths and heights that Pillow allocates while it opens or decodes an image.

    Of GIF, PNG, WebP, AVIF and HEIC.
    """

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little")

    if data.startswith(b"GIF8"):
        yield number(6, 2), number(8, 2)
    elif data.startswith(b"RIFF"):
        if data[12:16] == b"VP8X":
            yield number(24, 3) + 1, number(27, 3) + 1
        elif data[12:16] == b"VP8L":
            yield (number(21, 4) & 0x3FFF) + 1, (number(21, 4) >> 14 & 0x3FFF) + 1
        else:
            yield number(26, 2) & 0x3FFF, number(28, 2) & 0x3FFF
    elif data[4:8] == b"ftyp":
        yield from heif.sizes(data, max_pixels)
    elif data.startswith(b"\x89PNG"):
        at = 8
        # Pillow believes the last of several headers.
        while (head := data[at : at + 16])[4:8] not in (b"", b"IDAT", b"fdAT"):
            length, kind, width, height = struct.unpack(">I4sII", head.ljust(16, b"\0"))
            if kind == b"IHDR":
                yield width, height
            at += 12 + length


def picture(image: ImageFile) -> Image.Image:
    """Returns the first picture of an opened image, in the memory that it was made in.

    When Pillow loads a WebP, two canvases and two copies are in memory at once: 16 bytes a pixel.
    Of an AVIF it would keep the decoder's planes and a copy.
    """
    if isinstance(image, AvifImagePlugin.AvifImageFile):
        shown = Image.frombytes(image.mode, image.size, image._decoder.get_frame(0)[0])
        image._decoder = None
        return shown
    if not isinstance(image, WebPImageFile):
        return image
    made = image._decoder.get_next()
    image._decoder = None  # this frees the canvases
    if made is None:
        raise ValueError("libwebp cannot decode its first frame")
    return Image.frombuffer(image.rawmode, image.size, made[0], "raw", image.rawmode, 0, 1)


def rgb(image: Image.Image) -> Image.Image:
    """Returns an image in RGB, as Pillow converts it."""
    return image.convert("RGB")


def pixels(image: ImageFile, convert: Callable[[Image.Image], Image.Image] = rgb) -> Pixels:
    """Returns the pixels [height, width, ...] of an opened image, converted band by band.

    All of them at once would take a gigabyte at 64 MP.
    """
    shown = picture(image)
    first = np.asarray(convert(shown.crop((0, 0, 1, 1))))
    found = np.empty((shown.height, shown.width, *first.shape[2:]), np.uint8)
    rows = max(1, _BAND_PIXELS // shown.width)
    for top in range(0, shown.height, rows):
        bottom = min(top + rows, shown.height)
        found[top:bottom] = np.asarray(convert(shown.crop((0, top, shown.width, bottom))))
    return found
