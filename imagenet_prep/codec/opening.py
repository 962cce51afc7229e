"""Opens images with Pillow or libjpeg, and estimates their memory; no other module opens them.

The size in the header is checked before a decoder allocates memory. Downscaling is requested only
for JPEG frame types that support it; libjpeg decodes others at full size, which planes.c refuses.

Images that need more than cage.LIGHT_BYTES are decoded one at a time (`core/limits`). So a command
on two cores needs about 1.2 GB: 150 MB for itself, and memory for one light and one heavy image.
The estimates are peak values of `prepare`, measured with images of 64 MP, which is the limit:

    JPEG        7 bytes per decoded pixel (decoding may downscale): 3 for planes or RGB, and the
                resized copy. With several scans, also 2 bytes per coefficient
    WebP, HEIF  12 bytes per pixel: two canvases of libwebp, or planes, RGB, and a copy
    other       8 bytes per pixel: 4 for Pillow, 3 for RGB, and the current rows

They only decide which images wait. The cage limits the memory for all images that decoder.c does
not take.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from PIL import AvifImagePlugin, Image, TiffImagePlugin, UnidentifiedImageError
from PIL.TiffImagePlugin import (
    BITSPERSAMPLE,
    COMPRESSION,
    PHOTOMETRIC_INTERPRETATION,
    SAMPLESPERPIXEL,
)
from PIL.WebPImagePlugin import WebPImageFile

from imagenet_prep.codec import cage, damage, planes
from imagenet_prep.core import limits
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import formats, jpeg
from imagenet_prep.dataset.jpeg import JpegFrame

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL.ImageFile import ImageFile

    Pixels = npt.NDArray[np.uint8]


# bytes per pixel
_JPEG = 7
_LARGE = 12
_OTHER = 8
_LARGE_FORMATS = ("WEBP", "AVIF", "HEIF")


def of_jpeg(frame: JpegFrame, decoded: int) -> int:
    """Estimates the memory for decoding a JPEG, downscaled to `decoded` pixels if possible."""
    pixels = frame.height * frame.width
    pixels = min(decoded, pixels) if frame.can_be_scaled else pixels
    return frame.coefficient_bytes + _JPEG * pixels


def of_opened(opened: Image.Image, frame: JpegFrame | None) -> int:
    """Estimates the memory for decoding a file that Pillow has opened."""
    coefficient_bytes = 0 if frame is None else frame.coefficient_bytes
    per_pixel = _LARGE if opened.format in _LARGE_FORMATS else _OTHER
    return coefficient_bytes + per_pixel * opened.width * opened.height


@contextlib.contextmanager
def room(estimate: int) -> Iterator[None]:
    """Waits until the `with` block may decode an image that needs `estimate` bytes."""
    if estimate <= cage.LIGHT_BYTES:
        yield
        return
    with limits.turn():
        try:
            yield
        finally:
            release()


def release() -> None:
    """Gives memory back to the system that this thread needed for a large image."""
    planes.forget()
    # glibc keeps hundreds of megabytes that Pillow frees in blocks of 16 MB.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


# Allow only these formats, because some of Pillow's decoders are risky: EPS runs Ghostscript.
FORMATS = tuple(sorted(name.upper() for name in formats.READ))

# Many images are decoded in parallel, so threads within a decoder would only use more memory.
AvifImagePlugin.DEFAULT_MAX_THREADS = 1

_PNG = b"\x89PNG\r\n\x1a\n"
_METADATA = (b"iCCP", b"tEXt", b"zTXt", b"iTXt")
_EXIF_TEXT = re.compile(rb"Raw profile type (exif|APP1)\0")
_MAX_TEXT = 1 << 16
# Scales for decoding smaller, in eighths of the size.
_SCALES = (1, 2, 3, 4)
_FULL_SIZE = 8
# Key in the `info` of a 16-bit image, for the scale and offset that convert a sample to 8 bits.
_GREY = "imagenet_prep.grey"
_BAND_PIXELS = 1 << 20
_TIFF_HEADER_BYTES = 8
_PHOTOMETRIC = {0: "grey", 1: "grey", 2: "RGB", 8: "CIELAB"}
# Metadata of which Pillow parses more than libjpeg, so that it may refuse the file: MPF, blocks
# of Photoshop, and EXIF unless its horizontal resolution (tag 11A) is one rational number (type 5),
# as in photographs; and JFIF, ICC and Adobe segments that are shorter than Pillow expects.
_PILLOW_PARSES = re.compile(
    rb"\xff(?:\xe0\0[\0-\x08]JFIF|\xe2(?:\0[\0-\x0f]ICC_PROFILE|..MPF\0)"
    rb"|\xed..Photoshop 3\.0\0|\xee\0[\0-\x08]Adobe"
    rb"|\xe1..Exif\0\0(?!II\*\0\x08\0\0\0..(?:.{12}){,40}?\x1a\x01\x05\0\x01\0\0\0"
    rb"|MM\0\*\0\0\0\x08..(?:.{12}){,40}?\x01\x1a\0\x05\0\0\0\x01))",
    re.DOTALL,
)


def header(data: bytes, max_pixels: int = jpeg.MAX_PIXELS) -> jpeg.JpegFrame | None:
    """Returns the header of a JPEG, or None for other formats.

    Raises BadImageError if it is damaged, OutsideError if only libjpeg reads it, and
    CodecUnavailableError.
    """
    if not data:
        raise BadImageError("empty", "zero bytes")
    frame = _frame(data, max_pixels)
    if not data.startswith(jpeg.SOI):
        return None
    read = planes.allowed_here().header(data)
    if read is None:
        with opened(data, max_pixels, ("JPEG",), damaged=True) as image:
            colorspace = {"L": "Gray", "RGB": "YCbCr"}.get(image.mode, image.mode)
            if frame is None:
                return None
            repair, _ = damage.repaired(data, frame)
            return frame._replace(colorspace=colorspace, repair=repair or "sampling")
    height, width, colorspace = read
    _refuse_other_size(frame, (width, height))
    return frame._replace(colorspace=colorspace) if frame else None


def _frame(data: bytes, max_pixels: int) -> jpeg.JpegFrame | None:
    if data.startswith(jpeg.SOI):
        damage.refuse_translated(data)
    frame = jpeg.refuse_bombs(data, max_pixels)
    if frame is not None:
        jpeg.refuse_unknown(frame)
    return frame


def is_refused(data: bytes, frame: jpeg.JpegFrame) -> bool:
    """Returns whether Pillow or DALI refuses a JPEG because of its header, which libjpeg reads.

    Other decoders use libjpeg, and refuse nothing more.
    """
    if frame.has_odd_marker:
        return True
    if not _PILLOW_PARSES.search(data, 0, frame.first_scan):
        return False
    cage.require_cage()
    try:
        Image.open(io.BytesIO(data), formats=("JPEG",))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - Pillow's plugins raise many types of exceptions
        return True
    return False


def require_openable(data: bytes, frame: jpeg.JpegFrame | None = None) -> None:
    """Raises BadImageError if a usual decoder cannot open a JPEG of a dataset.

    Pillow needs an end marker. `verify`, `report` and `duplicates` use this rule.
    """
    frame = frame or _frame(data, jpeg.MAX_PIXELS)
    if frame is None:
        return
    if data.rfind(jpeg.EOI) < frame.first_scan:
        raise BadImageError("truncated", "no end-of-image marker behind the scan")
    if is_refused(data, frame):
        said = "Pillow or DALI cannot open it, because of the metadata in its header"
        raise BadImageError("undecodable", f"{said}: resize or adopt --rewrite encodes it again")


def _refuse_other_size(frame: jpeg.JpegFrame | None, size: tuple[int, int]) -> None:
    if frame is None or (frame.width, frame.height) != size:
        raise BadImageError("undecodable", "JPEG header: its markers contradict each other")


def decode_jpeg(
    data: bytes, frame: jpeg.JpegFrame, height: int, width: int, *, strict: bool = True
) -> Pixels:
    """Returns the RGB pixels [>= height, >= width, 3] of a JPEG; ValueError if it is damaged.

    If the frame type supports downscaling, it is decoded to at most half of its size, if that is
    not below `height` and `width`.
    """
    cage.require_cage()
    eighths = _eighths(frame, height, width)
    size = _scaled(frame, eighths)
    return planes.allowed_here().pixels(data, *size, eighths, strict=strict)


def read_jpeg(data: bytes, frame: jpeg.JpegFrame) -> None:
    """Reads a JPEG to its end; ValueError if it is damaged."""
    cage.require_cage()
    # Decoding to grey at 1/8 size reads all entropy-coded data, in half the time.
    eighths = min(_SCALES) if frame.can_be_scaled else _FULL_SIZE
    planes.allowed_here().read_through(data, *_scaled(frame, eighths), eighths)


def _scaled(frame: jpeg.JpegFrame, eighths: int) -> tuple[int, int]:
    """Returns (height, width) after decoding at a scale."""
    return -(-frame.height * eighths // 8), -(-frame.width * eighths // 8)


def _eighths(frame: jpeg.JpegFrame, height: int, width: int) -> int:
    """Returns the least scale that gives height x width pixels or more, or all pixels."""
    if not frame.can_be_scaled:
        return _FULL_SIZE
    least = min(height, frame.height), min(width, frame.width)
    for eighths in _SCALES:
        size = _scaled(frame, eighths)
        if size[0] >= least[0] and size[1] >= least[1]:
            # As TurboJPEG, take the largest of the scales that give the same size.
            scales = range(eighths, _FULL_SIZE + 1)
            return max(scale for scale in scales if _scaled(frame, scale) == size)
    return _FULL_SIZE


@contextlib.contextmanager
def opened(
    data: bytes,
    max_pixels: int = jpeg.MAX_PIXELS,
    only: tuple[str, ...] = FORMATS,
    *,
    smallest: int | None = None,
    damaged: bool = False,
) -> Iterator[ImageFile]:
    """Opens an image with Pillow for a `with` block, after waiting for memory (`room`).

    Exceptions in the block become BadImageError, except MemoryError. With `smallest`, a JPEG may be
    downscaled to about this many pixels per side. A JPEG with lost pixels raises BadImageError
    unless `damaged` is set.
    """
    cage.require_cage()
    try:
        with contextlib.ExitStack() as ours:
            frame = _frame(data, max_pixels)
            if only is FORMATS and formats.name_of(data[: formats.HEAD_BYTES]) == formats.HEIC:
                only = allow_heic()
            image = ours.enter_context(_image(data, only))
            if not image.height or not image.width:
                raise BadImageError("undecodable", f"{image.width} x {image.height} pixels")
            jpeg.refuse_pixels(image.height, image.width, max_pixels)
            if data.startswith(jpeg.SOI):
                _refuse_other_size(frame, image.size)
            _understand_values(image, data)
            if smallest is not None and frame is not None and frame.can_be_scaled:
                image.draft("RGB", (smallest, smallest))
            ours.enter_context(room(of_opened(image, frame)))
            if frame and not damaged and planes.is_available() and not planes.proves(data):
                _, whole = damage.repaired(data, frame)
                if whole is not data:
                    image = ours.enter_context(_image(whole, only))
            yield image
    except UnidentifiedImageError as error:
        head = data[: formats.HEAD_BYTES]
        raise BadImageError("unknown_format", formats.unreadable(head)) from error
    except Image.DecompressionBombError as error:
        raise BadImageError("too_many_pixels", str(error)) from error
    except (BadImageError, MemoryError):
        raise
    except Exception as error:  # Pillow's plugins raise many types of exceptions
        raise BadImageError("undecodable", f"{type(error).__name__}: {error}") from error


@functools.cache
def allow_heic() -> tuple[str, ...]:
    """Registers the HEIC plugin with Pillow; returns the name that Pillow uses for the format."""
    if not formats.is_readable(formats.HEIC):
        raise UnidentifiedImageError
    import pillow_heif

    pillow_heif.register_heif_opener(thumbnails=False, decode_threads=1)
    return ("HEIF",)


def _image(data: bytes, only: tuple[str, ...]) -> ImageFile:
    """Opens an image with Pillow; if a known format is damaged, raises the error of its plugin."""
    file = _without_metadata(data) if data.startswith(_PNG) else io.BytesIO(data)
    if data.startswith((b"II*\0", b"MM\0*")):
        tags = jpeg.of_exif(data)
        if tags:
            # Pillow ignores an orientation that is stored with an unusual data type.
            file = io.BytesIO(jpeg.changed(data, tags, tags.turn))
    try:
        return Image.open(file, formats=only)
    except UnidentifiedImageError:
        name = formats.name_of(data[: formats.HEAD_BYTES]) or ""
        plugin = "HEIF" if name == formats.HEIC else name.upper()
        if plugin not in only or not formats.is_readable(name):
            raise
    try:
        file.seek(0)
        return Image.OPEN[plugin][0](file, "")
    except Exception as error:
        kind = _kind_of_tiff(data) if plugin == "TIFF" else ""
        said = f"a {name} {kind}that Pillow does not read: {error}"
        raise BadImageError("undecodable", said) from error


def _kind_of_tiff(data: bytes) -> str:
    """Describes the samples of a TIFF, or returns "" if its directory is damaged."""
    file = io.BytesIO(data)
    try:
        tags = TiffImagePlugin.ImageFileDirectory_v2(file.read(_TIFF_HEADER_BYTES))
        file.seek(tags.next)
        tags.load(file)
        bands = tags.get(SAMPLESPERPIXEL, 1)
        bits = tags.get(BITSPERSAMPLE, (1,))[0]
        colours = _PHOTOMETRIC.get(tags.get(PHOTOMETRIC_INTERPRETATION, 1), "unknown colours")
        return f"({bands} bands of {bits} bits, {colours}, compression {tags.get(COMPRESSION, 1)}) "
    except Exception:  # noqa: BLE001 - Pillow's parser raises many types of exceptions
        return ""


def _without_metadata(data: bytes) -> io.BytesIO:
    """Removes a PNG's texts (except EXIF) and colour profile, because Pillow rejects large ones."""
    view = memoryview(data)
    file = io.BytesIO()
    start = 0
    at = len(_PNG)
    while (end := at + 12 + int.from_bytes(data[at : at + 4], "big")) <= len(data):
        is_text = data[at + 4 : at + 8] in _METADATA
        if is_text and (end - at > _MAX_TEXT or not _EXIF_TEXT.match(data, at + 8)):
            file.write(view[start:at])
            start = end
        at = end
    file.write(view[start:])
    file.seek(0)
    return file


def _understand_values(image: ImageFile, data: bytes) -> None:
    """Stores the range of 16-bit samples in `image.info`; rejects samples of unknown range."""
    tags = getattr(image, "tag_v2", {})
    if image.mode in ("I", "F"):
        said = "floating-point, signed and 32-bit values have no agreed range"
        raise BadImageError("unsupported", f"{said}: convert the image to 8 bits per sample")
    if image.mode.startswith("I;16"):
        bits = tags.get(BITSPERSAMPLE, (16,))[0]
        scale = 1 / (1 << bits - 8)
        is_inverted = tags.get(PHOTOMETRIC_INTERPRETATION) == 0
        image.info[_GREY] = (-scale, 256 - scale) if is_inverted else (scale, 0)
    elif data.startswith(_PNG) and data[24] == 16 and "transparency" in image.info:
        said = "its transparent colour has 16 bits per sample, of which Pillow keeps 8"
        raise BadImageError("unsupported", f"{said}: save it with an alpha channel")


def picture(image: ImageFile) -> Image.Image:
    """Returns the first frame of an opened image; frees the copies that Pillow would keep.

    For a WebP, Pillow keeps two canvases and two copies, which take 16 bytes per pixel.
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
    """Converts an image to RGB; scales 16-bit grey to 8 bits, and composites alpha on white."""
    if image.mode.startswith("I;16"):
        # Pillow clips 16-bit grey to 255 instead of scaling it.
        scale, offset = image.info.get(_GREY, (1 / 256, 0))
        wide = image.convert("I")
        image = wide.point(lambda value: value * scale + offset).convert("L")
        key = image.info.pop("transparency", None)
        if key is not None:
            image.putalpha(Image.fromarray(np.asarray(wide) != key))
    elif image.mode == "La":
        image = image.convert("LA")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        ground = Image.new("RGBA", layer.size, "white")
        image = Image.alpha_composite(ground, layer)
    return image.convert("RGB")


def pixels(image: ImageFile, convert: Callable[[Image.Image], Image.Image] = rgb) -> Pixels:
    """Returns the pixels [height, width, ...]; converts them in bands of rows to save memory."""
    shown = picture(image)
    first = np.asarray(convert(shown.crop((0, 0, 1, 1))))
    found = np.empty((shown.height, shown.width, *first.shape[2:]), np.uint8)
    rows = max(1, _BAND_PIXELS // shown.width)
    for top in range(0, shown.height, rows):
        bottom = min(top + rows, shown.height)
        found[top:bottom] = np.asarray(convert(shown.crop((0, top, shown.width, bottom))))
    return found
