"""RGB by libjpeg, for the codec `portable`: the bytes and pixels of simplejpeg 1.9."""

from __future__ import annotations

import hashlib
import io
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec import cage, opening, planes
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset.jpeg import JpegFrame
from tests.kit.codec import corpus, frames, jpegs

# The digests of simplejpeg 1.9.0, with libjpeg-turbo 3.1.2.
ENCODED = {
    "444": "7bc78eca82cdf965adc5e49085d1fcfa51e8f01b1dd3055171067962d5eb7482",
    "422": "93c562c218ff8e01f99277e992342388ab1377b653630b7ea8cda7c9bf725db5",
    "420": "86236545cf198f57bb20dc281f81d6a428e826db72cdb5229a357b310201eca6",
    "440": "8e9cd609bd78e12aec718a1aa2ddc8a844d379aec1dc71a5988ef3fa4c80b9a1",
    "411": "f979c05c4c8e26c9c59504a03c2aa08237fd94877c6f989e67dfb7b19d059b2a",
}
HEADERS = "c3ba7855ac65e3bb0057848657ecb87ac3f6144a04c6a354f4feb3335c26ecd4"
PIXELS = "66a63c5bf5a310a62d76f7b34fe5d33801dc18158fdc56378859288d58b3a0f8"
SIZES = ((1, 1), (1, 70), (7, 5), (16, 16), (17, 33), (96, 131))


@pytest.fixture(autouse=True)
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cage, "_is_inside", True)


def sha256(parts: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def saved(mode: str, height: int = 40, width: int = 61, **options: object) -> bytes:
    buffer = io.BytesIO()
    pixels = corpus.photograph(height, width)
    Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", quality=90, **options)
    return buffer.getvalue()


def ycck() -> bytes:
    """Returns a CMYK file whose Adobe segment says that it is YCCK."""
    data = bytearray(saved("CMYK"))
    data[data.index(b"Adobe") + 11] = 2
    return bytes(data)


def files() -> dict[str, bytes]:
    """Returns undamaged and damaged JPEGs of every colour space and frame type."""
    found = {**corpus.files(), **frames.files(), "CMYK": saved("CMYK"), "YCCK": ycck()}
    found["RGB"] = saved("RGB", keep_rgb=True)
    found["cut"] = saved("RGB")[:-100]
    found["garbage"] = saved("RGB") + b"garbage"
    return found


def frame_of(data: bytes) -> JpegFrame | None:
    """Returns the frame of a JPEG that `opening.header` accepts."""
    try:
        frame = opening.header(data)
    except BadImageError:
        return None
    return None if frame is None or frame.repair else frame


def decoded() -> Iterator[bytes]:
    """Yields the pixels of all files at the sizes for several targets; b"" for a damaged file."""
    for data in files().values():
        frame = frame_of(data)
        if frame is None:
            continue
        for divisor in (1, 2, 3, 5, 8, 13):
            least = max(1, frame.height // divisor), max(1, frame.width // (divisor + 1))
            try:
                pixels = opening.decode_jpeg(data, frame, *least)
            except ValueError:
                yield b""
                continue
            yield repr(pixels.shape).encode() + pixels.tobytes()


@pytest.mark.parametrize("sampling", ENCODED)
def test_encoded_bytes_are_those_of_simplejpeg(sampling: str) -> None:
    photographs = [corpus.photograph(*size) for size in SIZES]

    pairs = itertools.product(range(1, 101), photographs)

    made = [jpegs.encode(pixels, quality, sampling) for quality, pixels in pairs]

    assert sha256(made) == ENCODED[sampling]


@pytest.mark.parametrize("decoder", [planes.OWN, planes.LIBJPEG])
def test_headers_are_those_of_simplejpeg(decoder: str) -> None:
    workspace = planes.workspace(jpeg=decoder)
    found = [repr(workspace.header(data)).encode() for data in files().values()]

    assert len(set(found)) > 20
    assert sha256(found) == HEADERS


def test_pixels_are_those_of_simplejpeg() -> None:
    found = [*decoded()]

    assert len(found) > 600
    assert 0 < found.count(b"") < len(found) / 2
    assert sha256(found) == PIXELS


@pytest.mark.parametrize("data", [saved("RGB"), saved("L"), saved("RGB", keep_rgb=True)])
def test_pixels_at_full_size_are_those_of_pillow(data: bytes) -> None:
    assert np.array_equal(jpegs.decode_strictly(data), jpegs.decode(data))


def test_cmyk_is_converted_by_its_black() -> None:
    data = saved("CMYK")
    with Image.open(io.BytesIO(data)) as image:
        inverted = 255 - np.asarray(image).astype(int)
    black = inverted[..., 3:]
    expected = black - ((255 - inverted[..., :3]) * black >> 8)

    assert np.array_equal(jpegs.decode_strictly(data), expected)


@pytest.mark.parametrize("sides", [(8, 8), (9, 17), (40, 61), (1, 300), (600, 450)])
def test_scale_is_the_least_that_is_large_enough(sides: tuple[int, int]) -> None:
    frame = frame_of(jpegs.encode(np.zeros((*sides, 3), np.uint8), 90, "420"))
    assert frame is not None
    for divisor in range(1, 20):
        least = [max(1, side // divisor) for side in sides]
        eighths = opening._eighths(frame, *least)
        sizes = {scale: [-(-side * scale // 8) for side in sides] for scale in range(1, 9)}
        enough = [scale for scale in range(1, 5) if np.all(np.less_equal(least, sizes[scale]))]

        assert sizes[eighths] == sizes[min(enough, default=8)]
        assert eighths == 8 or sizes[eighths] != sizes[eighths + 1]


def test_warnings_are_ignored_only_on_request() -> None:
    sound = saved("RGB")
    cut = sound[:-100]
    with pytest.raises(ValueError, match="Premature end of JPEG file"):
        planes.workspace().pixels(cut, 40, 61, 8, strict=True)
    with pytest.raises(ValueError, match="Premature end of JPEG file"):
        planes.workspace().read_through(cut, 5, 8, 1)

    pixels = planes.workspace().pixels(cut, 40, 61, 8, strict=False)

    assert np.array_equal(pixels[:16], jpegs.decode(sound)[:16])
    planes.workspace().read_through(sound, 5, 8, 1)


def test_warning_about_a_header_is_never_ignored() -> None:
    """As in simplejpeg: Pillow then decodes the file, so its bytes are the same as before."""
    data = bytearray(saved("RGB"))
    data[data.index(b"JFIF") + 5] = 2  # the major version

    assert planes.workspace().header(bytes(data)) == (40, 61, "YCbCr")
    for strict in (True, False):
        with pytest.raises(ValueError, match="JFIF"):
            planes.workspace().pixels(bytes(data), 40, 61, 8, strict=strict)


@pytest.mark.parametrize("size", [(41, 61, 8), (39, 61, 8), (40, 62, 8), (40, 60, 8), (40, 61, 4)])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_frame_of_another_size_is_refused(mode: str, size: tuple[int, int, int]) -> None:
    """libjpeg would write behind the memory for the expected size."""
    with pytest.raises(ValueError, match="size"):
        planes.workspace().pixels(saved(mode), *size, strict=False)


@pytest.mark.parametrize(
    ("factors", "is_named"),
    [
        ((0x11, 0x11, 0x11), True),
        ((0x21, 0x11, 0x11), True),
        ((0x22, 0x11, 0x11), True),
        ((0x12, 0x11, 0x11), True),
        ((0x41, 0x11, 0x11), True),
        ((0x22, 0x12, 0x12), True),  # 4:2:2
        ((0x22, 0x21, 0x21), True),  # 4:4:0
        ((0x31, 0x31, 0x31), True),  # 4:4:4
        ((0x21, 0x21, 0x21), True),
        ((0x22, 0x22, 0x22), False),
        ((0x14, 0x11, 0x11), False),
        ((0x31, 0x11, 0x11), False),
        ((0x42, 0x11, 0x11), False),
        ((0x24, 0x11, 0x11), False),
        ((0x22, 0x12, 0x21), False),
        ((0x22, 0x11, 0x12), False),
        ((0x21, 0x12, 0x12), False),
        ((0x21, 0x21, 0x11), False),
        ((0x11, 0x11, 0x11, 0x11), True),
        ((0x22, 0x11, 0x11, 0x22), True),
        ((0x22, 0x11, 0x11, 0x11), False),
    ],
)
def test_header_names_the_samplings_of_turbojpeg(factors: tuple[int, ...], is_named: bool) -> None:
    data = bytearray(saved("RGB" if len(factors) == 3 else "CMYK"))
    frame = data.index(b"\xff\xc0")
    for component, each in enumerate(factors):
        data[frame + 11 + 3 * component] = each

    for decoder in (planes.OWN, planes.LIBJPEG):
        found = planes.workspace(jpeg=decoder).header(bytes(data))
        assert (found is not None) == is_named


def test_libjpeg_reads_no_file_outside_the_cage() -> None:
    outside = planes.workspace(jpeg=planes.ONLY_OWN)
    data = saved("RGB", progressive=True)
    for read in (
        lambda: outside.header(data),
        lambda: outside.pixels(data, 40, 61, 8, strict=True),
        lambda: outside.read_through(data, 40, 61, 8),
        lambda: outside.warnings(data),
    ):
        with pytest.raises(cage.OutsideError):
            read()

    pixels = corpus.photograph(40, 61)
    assert outside.encode(pixels, 90, "420") == planes.workspace().encode(pixels, 90, "420")


def test_pixels_of_any_layout_are_encoded() -> None:
    pixels = corpus.photograph(40, 61)
    turned = np.ascontiguousarray(pixels[::-1, ::-1])

    assert jpegs.encode(pixels[::-1, ::-1], 90, "444") == jpegs.encode(turned, 90, "444")


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (1, 65_501), (65_501, 1)])
def test_sizes_that_no_jpeg_has_are_not_encoded(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="image"):
        jpegs.encode(np.zeros((*size, 3), np.uint8), 90, "420")
