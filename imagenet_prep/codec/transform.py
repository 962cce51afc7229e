"""Converts one source image to the stored RGB JPEG.

The codec `planes` resizes Y, Cb and Cr (planes.py). The codec `portable` resizes RGB: libjpeg
decodes and encodes, and Pillow resizes. Images that `planes` does not support, or that libjpeg
warns about, are always converted to RGB. Results do not depend on the processor, and all steps
release the GIL.
"""

from __future__ import annotations

import contextlib
from types import GenericAlias
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np
from PIL import Image

from imagenet_prep.codec import cage, damage, opening, planes
from imagenet_prep.codec.policy import CHECK_HEADER, PLANES, Policy
from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import jpeg
from imagenet_prep.dataset.jpeg import APPLY, KEEP, JpegFrame
from imagenet_prep.dataset.member import DOUBTFUL, ENCODED_ANEW, MAX_IMAGE_BYTES, PreparedImage

if TYPE_CHECKING:
    import numpy.typing as npt

    Pixels = npt.NDArray[np.uint8]

_MAX_SIDE = 65_500  # libjpeg-turbo's JPEG_MAX_DIMENSION

# The best JPEG quality. A photograph of 32 x 32 pixels then has a PSNR of 50.7 dB in 2.7 kB.
# Quality 98 gives 44.4 dB in 2.0 kB; quality 90 with 4:2:0 gives 32.1 dB in 1.1 kB.
_RAW_QUALITY = 100
RAW_ENCODING = f"JPEG 4:4:4 at quality {_RAW_QUALITY}"

_WITH_EXIF = ("PNG", "WEBP", "AVIF")
# One of these is in every file with an orientation: of JPEG, PNG, WebP, and AVIF (the last two).
_MARKS = (b"Exif", b"eXIf", b"Raw profile type", b"EXIF", b"irot", b"imir")
_UPRIGHT = Policy(None, check=CHECK_HEADER, orientation=APPLY)
_RGB = ("YCbCr", "RGB")
_PLANAR = ("YCbCr", "Gray")


def transform(data: bytes, policy: Policy) -> PreparedImage:
    """Returns the image in its stored form.

    An undamaged RGB JPEG that is neither resized nor turned keeps its bytes, except that an EXIF
    orientation may be set to 1. Other images are decoded, resized, turned and encoded as 4:2:0.
    """
    if len(data) > MAX_IMAGE_BYTES:
        raise BadImageError("too_many_bytes", f"more than {MAX_IMAGE_BYTES:,} bytes")
    try:
        return _transform(data, policy)
    except cage.OutsideError:
        return _in_cage("transform", data, policy=strict_json.fields(policy))


def upright(data: bytes) -> bytes:
    """Returns an image as `prepare` stores photographs: turned by its EXIF orientation.

    Most images have none, and are returned unchanged. Raises BadImageError for an unusable image.
    """
    if not any(mark in data for mark in _MARKS):
        return data
    made = transform(data, _UPRIGHT)
    return data if made.turn == jpeg.UPRIGHT else made.encoded


def _in_cage(function: str, data: bytes, **arguments: Any) -> PreparedImage:
    # The child sends the bytes apart from the other fields.
    _, *kinds = get_type_hints(PreparedImage).values()
    kind: Any = GenericAlias(tuple, tuple(kinds))
    facts, encoded = cage.run(function, kind, data, **arguments)
    return PreparedImage(encoded or data, *facts)


def _transform(data: bytes, policy: Policy) -> PreparedImage:
    header = opening.header(data, policy.max_pixels)
    if header is None or policy.border or header.is_lossless or header.repair:
        return _from_other(data, policy, header)
    try:
        return _from_usual_jpeg(data, header, policy)
    except _DeclinedError as error:
        return _from_other(data, policy, header._replace(repair=str(error)))


class _DeclinedError(Exception):
    """A JPEG is complete, but only Pillow can decode it; str() is the reason for the repair."""


def _from_usual_jpeg(data: bytes, header: JpegFrame, policy: Policy) -> PreparedImage:
    """Converts a JPEG to its stored form; raises _DeclinedError if only Pillow can decode it."""
    height, width = policy.resized(header.height, header.width)
    # libjpeg may decode to fewer pixels, but not below four times the target's height and width.
    with opening.room(opening.of_jpeg(header, 64 * height * width)):
        tags = None if policy.orientation == KEEP else jpeg.of_jpeg(data, header)
        turn = tags.turn if tags and policy.orientation == APPLY else jpeg.UPRIGHT
        made = _from_jpeg(data, header, height, width, policy, turn)
        if tags and made.encoded is data:
            made = made._replace(encoded=jpeg.changed(data, tags))
        return _with_orientation(made, tags, turn)


def _from_jpeg(
    data: bytes, header: JpegFrame, height: int, width: int, policy: Policy, turn: int
) -> PreparedImage:
    """Resizes a JPEG to height x width pixels, then turns it."""
    shrinks = (height, width) != (header.height, header.width)
    repair = None if header.colorspace in _RGB else header.colorspace.lower()
    if repair is None and not shrinks and turn == jpeg.UPRIGHT:
        repair = _prove(data, header, policy)
        if repair is None and opening.is_refused(data, header):
            repair = damage.HEADER
        if repair is None:
            return PreparedImage(data, height, width, resized=False, repair=None)
    encoded = None
    if policy.codec == PLANES and header.colorspace in _PLANAR:
        if turn == jpeg.UPRIGHT:
            ours = planes.allowed_here()
            encoded = ours.shrink(data, height, width, policy.quality, policy.max_pixels)
        else:
            pixels = np.empty((height, width, 3), np.uint8)
            look = planes.Look(height, width, planes.BYTES, planes.BICUBIC)
            if look.decode(data, None, pixels, within=planes.allowed_here()):
                encoded = _encode(pixels, height, width, policy, turn)
    if encoded is None:
        pixels, surplus = _decode(data, header, height, width)
        encoded = _encode(pixels, height, width, policy, turn)
        repair = surplus or repair
    size = jpeg.turned_size(height, width, turn)
    return PreparedImage(encoded, *size, shrinks, repair, (header.height, header.width))


def _with_orientation(image: PreparedImage, tags: jpeg.Tags | None, turn: int) -> PreparedImage:
    """Adds to `repair` and `detail` how the EXIF orientation was handled, if there was one."""
    if tags is None:
        return image
    detail = f"EXIF orientation {tags.value}: "
    if turn != jpeg.UPRIGHT:
        detail += f"its pixels were turned by it; {ENCODED_ANEW}"
    elif image.source_size is None:
        detail += "the tag was set to 1, and nothing else was changed"
    else:
        detail += f"it was left out, and the pixels lie as they did; {ENCODED_ANEW}"
    repair = "+".join(filter(None, [image.repair, jpeg.REASON]))
    if image.repair == DOUBTFUL:
        repair = DOUBTFUL
    return image._replace(repair=repair, detail=detail, turn=turn)


def encode_raw(pixels: Pixels) -> bytes:
    """Encodes RGB pixels [height, width, 3] of a source that has arrays instead of image files."""
    return planes.allowed_here().encode(pixels, _RAW_QUALITY, "444")


def _prove(data: bytes, frame: JpegFrame, policy: Policy) -> str | None:
    """Returns None for an undamaged JPEG, or the repair reason; BadImageError if it lost pixels."""
    # Look behind the headers, since an EXIF thumbnail also has an end marker.
    if policy.check == CHECK_HEADER and data.rfind(jpeg.EOI) >= frame.first_scan:
        return None
    return read_through(data, frame)


def read_through(data: bytes, frame: JpegFrame) -> str | None:
    """Reads all of a JPEG; returns the repair reason or None; BadImageError if pixels are lost."""
    if frame.repair or planes.proves(data):
        return frame.repair or None
    try:
        opening.read_jpeg(data, frame)
    except ValueError as error:
        return damage.repaired(data, frame, str(error))[0]
    return None


def _decode(data: bytes, header: JpegFrame, height: int, width: int) -> tuple[Pixels, str | None]:
    """Returns RGB pixels [>= height, >= width, 3], and the repair reason or None."""
    # libjpeg's scaling to less than four times the target is up to 3 dB worse than resizing the
    # full image.
    least = 4 * height, 4 * width
    try:
        return opening.decode_jpeg(data, header, *least), None
    except ValueError as error:
        repair, data = damage.repaired(data, header, str(error))
    try:
        return opening.decode_jpeg(data, header, *least, strict=False), repair
    except ValueError:
        raise _DeclinedError(repair or damage.HEADER) from None


def _from_other(data: bytes, policy: Policy, header: JpegFrame | None) -> PreparedImage:
    """Converts an image that Pillow decodes at full size; the result is marked as repaired."""
    with opening.opened(data, policy.max_pixels) as opened:
        pixels = opening.pixels(opened)
        name = (opened.format or "other").lower()
        # Read EXIF after the pixels, which it may follow in a PNG. Pillow has already applied the
        # orientation of a TIFF.
        exif = _exif(opened.info) if opened.format in _WITH_EXIF else b""
    del opened
    tags = jpeg.of_exif(exif)
    if header is not None and (header.is_lossless or header.repair):
        name = "lossless"
        tags = jpeg.of_jpeg(data, header)
        if header.repair:
            name = header.repair if header.colorspace in _RGB else header.colorspace.lower()
    if policy.orientation == KEEP:
        tags = None
    turn = tags.turn if tags and policy.orientation == APPLY else jpeg.UPRIGHT
    before = pixels.shape[:2]
    border = policy.border
    if border:
        pixels = pixels[border:-border, border:-border]
        if not pixels.size:
            raise BadImageError("undecodable", f"nothing is left within a border of {border}")
    whole = pixels.shape[:2]
    height, width = policy.resized(*whole)
    encoded = _encode(pixels, height, width, policy, turn)
    size = jpeg.turned_size(height, width, turn)
    made = PreparedImage(encoded, *size, (height, width) != whole, name, before)
    return _with_orientation(made, tags, turn)


def _exif(info: dict[Any, Any]) -> bytes:
    """Returns the EXIF block of a PNG, WebP or AVIF, even if a PNG stores it as text."""
    for name in ("exif", "Raw profile type exif", "Raw profile type APP1"):
        block = info.get(name)
        if isinstance(block, bytes):
            return block
        with contextlib.suppress(ValueError):
            if block:
                return bytes.fromhex("".join(str(block).split("\n")[3:]))
    return b""


def _encode(
    pixels: Pixels, height: int, width: int, policy: Policy, turn: int = jpeg.UPRIGHT
) -> bytes:
    """Resizes pixels to height x width, turns them, and returns them as a 4:2:0 JPEG."""
    if max(height, width) > _MAX_SIDE:
        raise BadImageError("too_many_pixels", f"{width} x {height}, JPEG allows {_MAX_SIDE}")
    if pixels.shape[:2] != (height, width):
        # Pillow's bicubic filter computes with integers, so the bytes are always the same. Resize
        # rows first, since Pillow 13 would resize the columns of some portraits first.
        rows = Image.fromarray(pixels).resize((width, len(pixels)), Image.Resampling.BICUBIC)
        pixels = np.asarray(rows.resize((width, height), Image.Resampling.BICUBIC))
    if turn != jpeg.UPRIGHT:
        pixels = jpeg.turned(pixels, turn)
    return planes.allowed_here().encode(pixels, policy.quality, "420")


def keep(data: bytes) -> PreparedImage:
    """Returns a JPEG of any colour space unchanged, with the size from its header.

    A JPEG whose header Pillow or DALI refuses is encoded again.
    """
    try:
        return _keep(data)
    except cage.OutsideError:
        return _in_cage("keep", data)


def _keep(data: bytes) -> PreparedImage:
    header = _stored(data)
    if header is None:
        raise BadImageError("unknown_format", f"not a JPEG: it starts with {data[:8]!r}")
    if opening.is_refused(data, header):
        return transform(data, Policy(None))
    return PreparedImage(data, header.height, header.width, resized=False, repair=None)


def is_rgb(encoded: bytes) -> bool:
    """Returns True if the header of a JPEG says that it is YCbCr or RGB."""
    header = _header(encoded)
    return header is not None and header.colorspace in _RGB


def _header(encoded: bytes) -> JpegFrame | None:
    try:
        return opening.header(encoded)
    except cage.OutsideError:
        return cage.run("header", JpegFrame, encoded)[0]


def _stored(encoded: bytes) -> JpegFrame | None:
    header = _header(encoded)
    if header is not None and header.is_lossless:
        raise BadImageError("undecodable", "lossless JPEG, which TensorFlow and DALI do not decode")
    return header


def prove_stored(
    encoded: bytes, height: int, width: int, *, any_size: bool = False, any_colorspace: bool = False
) -> bool:
    """Verifies all of a stored JPEG; returns True if it has an EXIF orientation other than 1.

    `any_size` ignores `height` and `width`. `any_colorspace` accepts all colour spaces, e.g. CMYK.
    """
    options = {"any_size": any_size, "any_colorspace": any_colorspace}
    try:
        return _prove_stored(encoded, height, width, **options)
    except cage.OutsideError:
        size = {"height": height, "width": width}
        return cage.run("prove_stored", bool, encoded, **size, **options)[0]


def _prove_stored(
    encoded: bytes, height: int, width: int, *, any_size: bool, any_colorspace: bool
) -> bool:
    header = _stored(encoded)
    if header is None or not (any_colorspace or header.colorspace in _RGB):
        what = header.colorspace if header else "no JPEG"
        raise BadImageError("wrong_colorspace", f"is {what}, its record says RGB JPEG")
    opening.require_openable(encoded, header)
    with opening.room(opening.of_jpeg(header, header.height * header.width // 64)):
        read_through(encoded, header)
    if not any_size and (header.height, header.width) != (height, width):
        found = f"{header.width} x {header.height}"
        raise BadImageError("wrong_size", f"is {found}, its record says {width} x {height}")
    return jpeg.of_jpeg(encoded, header) is not None
