"""How much memory an image takes while it is decoded, estimated from its header.

What takes more than LIGHT_BYTES waits for its turn (`core/turns`), so that a command on two cores
needs less than a gigabyte over all its workers: its own 100 MB, what one worker may take of light
images, and the heaviest image there may be. The estimates are peaks of `prepare`, measured with
images of 64 MP, the most that the codec takes, less what it needs by itself:

    JPEG    2 bytes for each coefficient, where several scans make them; of what is decoded, which
            may be less than the image, 7 bytes a pixel: 3 of planes or RGB, and their resized copy;
            8 where Pillow decodes it, as for others
    WebP    12 bytes a pixel: two canvases of libwebp, and the picture; as much for AVIF and HEIC:
            planes, RGB, and a copy
    others  8 bytes a pixel: 4 of Pillow's, 3 of RGB, and rows on their way
    TIFF    8, or 4 and one whole tile, which may be larger than the image; strips count as a tile
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

from PIL import Image
from PIL.TiffImagePlugin import BITSPERSAMPLE, TILELENGTH, TILEWIDTH, TiffImageFile

from imagenet_prep.codec import planes
from imagenet_prep.core import turns
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset.jpeg import Frame

LIGHT_BYTES = 128 << 20
# A WebP of 64 MP takes 768,000,000.
MOST_BYTES = 800_000_000

_JPEG, _LARGE, _OTHER, _PILLOW = 7, 12, 8, 4  # bytes a pixel


def of_jpeg(frame: Frame, decoded: int) -> int:
    """Returns an estimate in bytes of a JPEG, decoded to so many pixels if it can be scaled."""
    pixels = frame.height * frame.width
    pixels = min(decoded, pixels) if frame.can_be_scaled else pixels
    return frame.coefficient_bytes + _JPEG * pixels


def of_opened(opened: Image.Image, frame: Frame | None) -> int:
    """Returns an estimate in bytes for a file that Pillow has opened and not read."""
    pixels = opened.width * opened.height
    estimate = (_LARGE if opened.format in ("WEBP", "AVIF", "HEIF") else _OTHER) * pixels
    if frame is not None:
        return frame.coefficient_bytes + estimate
    if isinstance(opened, TiffImageFile):
        estimate = max(estimate, _PILLOW * pixels + _tile_bytes(opened))
    if estimate > MOST_BYTES:
        raise BadImageError("too_many_pixels", f"its tiles need {estimate:,} bytes to be decoded")
    return estimate


def _tile_bytes(opened: TiffImageFile) -> int:
    tags = opened.tag_v2
    width, height = tags.get(TILEWIDTH, opened.width), tags.get(TILELENGTH, opened.height)
    return int(width * height * sum(tags.get(BITSPERSAMPLE, (1,))) // 8)


@contextlib.contextmanager
def room(estimate: int) -> Iterator[None]:
    """Waits until an image of this estimate may be decoded, for as long as the block lasts."""
    if estimate <= LIGHT_BYTES:
        yield
        return
    with turns.turn():
        try:
            yield
        finally:
            planes.forget()
            # glibc keeps hundreds of megabytes of what Pillow frees in pieces of 16 MB.
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)
