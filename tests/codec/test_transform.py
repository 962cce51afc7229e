"""Preparing an image: kept if it is a sound RGB JPEG, otherwise repaired or refused."""

from __future__ import annotations

import dataclasses
import io
import struct
import tarfile
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from imagenet_prep.codec import opening, planes
from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import prove_stored, transform
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset.jpeg import NEUTRAL
from imagenet_prep.dataset.member import PreparedImage
from imagenet_prep.testing.miniature import TRAIN_ARCHIVE, VALIDATION_ARCHIVE, SourceImage
from tests.kit.codec import jpegs, mutations
from tests.kit.messages import says
from tests.kit.miniature import Miniature

KEEP = Policy(short_side=None)
Pixels = np.ndarray


@pytest.fixture(scope="module")
def images(miniature: Miniature) -> dict[str, tuple[SourceImage, bytes]]:
    """Returns (truth, bytes) of every image of the miniature by key, read by tarfile."""
    found = {}
    with tarfile.open(miniature.root / TRAIN_ARCHIVE) as outer:
        for folder in outer:
            with tarfile.open(fileobj=outer.extractfile(folder)) as inner:
                for info in inner:
                    key = f"{folder.name.removesuffix('.tar')}/{info.name}"
                    found[key] = inner.extractfile(info).read()
    with tarfile.open(miniature.root / VALIDATION_ARCHIVE) as flat:
        found |= {info.name: flat.extractfile(info).read() for info in flat}
    truth = {image.key: image for image in miniature.images}
    assert set(found) == set(truth)
    return {key: (truth[key], data) for key, data in found.items()}


@pytest.fixture(scope="module")
def of_kind(images: dict[str, tuple[SourceImage, bytes]]) -> Callable[[str], bytes]:
    by_kind = {image.kind: data for image, data in images.values()}
    return by_kind.__getitem__


def decoded(data: bytes) -> Pixels:
    return jpegs.decode(data)


def saved(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def gradient(height: int = 60, width: int = 80) -> Image.Image:
    """Returns a smooth RGB image: JPEG changes its pixels by a few units at most."""
    rows, columns = np.mgrid[0:height, 0:width]
    channels = (columns * 255 / max(width - 1, 1), rows * 255 / max(height - 1, 1), rows * 0 + 90)
    return Image.fromarray(np.stack(channels, axis=2).astype(np.uint8))


def mean_difference(first: Pixels, second: Pixels) -> float:
    return float(np.abs(first.astype(float) - second.astype(float)).mean())


def is_420(data: bytes) -> bool:
    with Image.open(io.BytesIO(data)) as image:
        return JpegImagePlugin.get_sampling(image) == 2


def refusal(data: bytes, policy: Policy = KEEP) -> str:
    with pytest.raises(BadImageError) as caught:
        transform(data, policy)
    return caught.value.reason


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(256),
        Policy(64),
        KEEP,
        Policy(None, check="header"),
        Policy(64, check="header"),
    ],
    ids=["default", "256", "64", "keep", "keep-header", "64-header"],
)
def test_every_image_has_the_fate_of_the_truth(
    images: dict[str, tuple[SourceImage, bytes]], policy: Policy
) -> None:
    fates = {}
    policy = dataclasses.replace(policy, orientation=NEUTRAL)
    for key, (truth, data) in images.items():
        try:
            image = transform(data, policy)
        except BadImageError:
            fates[key] = "quarantined"
            continue
        fates[key] = "kept" if image.repair is None else "repaired"
        assert (image.height, image.width) == policy.resized(truth.height, truth.width)
        assert decoded(image.encoded).shape == (image.height, image.width, 3)
        assert image.resized == ((image.height, image.width) != (truth.height, truth.width))

    assert fates == {key: truth.fate for key, (truth, _) in images.items()}


@pytest.mark.parametrize("check", ["decode", "header"])
@pytest.mark.parametrize(
    "kind",
    ["plain", "large", "wide", "exif_rotated", "broken_exif", "trailing_garbage", "one_pixel"],
)
def test_sound_rgb_jpegs_pass_byte_for_byte(
    of_kind: Callable[[str], bytes], kind: str, check: str
) -> None:
    data = of_kind(kind)
    height, width = jpegs.size(data)

    assert transform(data, Policy(None, check=check)) == PreparedImage(
        data, height, width, resized=False, repair=None
    )


@pytest.mark.parametrize("kind", sorted(set(mutations.sources()) - {"grey", "cmyk"}))
def test_every_encoding_of_rgb_passes_byte_for_byte(kind: str) -> None:
    data = mutations.sources()[kind]

    assert transform(data, KEEP).encoded == data
    assert transform(data, Policy(None, check="header")).encoded == data


def test_jpeg_in_rgb_instead_of_ycbcr_passes() -> None:
    data = saved(gradient(), keep_rgb=True)

    assert opening.header(data).colorspace == "RGB"
    assert transform(data, KEEP).encoded == data


@pytest.mark.parametrize(
    ("kind", "reason"), [("png", "png"), ("cmyk", "cmyk"), ("grey", "gray")], ids=str
)
def test_repairs_name_the_original_kind(
    of_kind: Callable[[str], bytes], kind: str, reason: str
) -> None:
    image = transform(of_kind(kind), KEEP)

    assert image.repair == reason
    assert not image.resized
    assert is_420(image.encoded)


@pytest.mark.parametrize(
    ("kind", "reason"), [("empty", "empty"), ("truncated", "truncated")], ids=str
)
@pytest.mark.parametrize("policy", [KEEP, Policy(64)], ids=["keep", "shrink"])
def test_bad_images_name_their_reason(
    of_kind: Callable[[str], bytes], kind: str, reason: str, policy: Policy
) -> None:
    assert refusal(of_kind(kind), policy) == reason


def test_repaired_grey_image_keeps_its_pixels(of_kind: Callable[[str], bytes]) -> None:
    data = of_kind("grey")
    found = decoded(transform(data, KEEP).encoded)
    grey = np.asarray(Image.open(io.BytesIO(data)))

    assert mean_difference(found, np.stack([grey] * 3, axis=2)) < 2


@pytest.mark.parametrize("policy", [KEEP, Policy(64)], ids=["keep", "shrink"])
def test_cmyk_colours_equal_those_of_pillow(
    of_kind: Callable[[str], bytes], policy: Policy
) -> None:
    # Adobe writes inverted CMYK; ignoring it would store negatives.
    data = of_kind("cmyk")
    image = transform(data, policy)
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    expected = expected.resize((image.width, image.height), Image.Resampling.BOX)

    assert mean_difference(decoded(image.encoded), np.asarray(expected)) < 6


def test_cmyk_primaries_become_right_rgb() -> None:
    stripes = np.zeros((32, 96, 4), np.uint8)
    for place in range(3):  # cyan, magenta, yellow
        stripes[:, 32 * place : 32 * place + 32, place] = 255
    data = saved(Image.fromarray(stripes, "CMYK"), quality=95)
    found = decoded(transform(data, KEEP).encoded)

    for place, colour in enumerate([(0, 255, 255), (255, 0, 255), (255, 255, 0)]):
        middle = found[8:24, 32 * place + 8 : 32 * place + 24].reshape(-1, 3).mean(axis=0)
        assert np.abs(middle - colour).max() < 12, place


def png_16(pixels: Pixels) -> bytes:
    """Returns a 16-bit RGB PNG; Pillow cannot write one."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">L", len(body)) + kind + body + struct.pack(">L", zlib.crc32(kind + body))
        )

    header = struct.pack(">LLBBBBB", width, height, 16, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def grey_16() -> bytes:
    ramp = np.linspace(0, 65_535, 80).astype(np.uint16)
    return saved(Image.fromarray(np.tile(ramp, (60, 1))), "PNG")


OPAQUE = {
    "png": saved(gradient(), "PNG"),
    "png-palette": saved(gradient().quantize(256), "PNG"),
    "png-16-bit": png_16(np.asarray(gradient()).astype(np.uint16) * 257),
    "png-interlaced": saved(gradient(), "PNG", optimize=True),
    "gif": saved(gradient().quantize(256), "GIF"),
    "bmp": saved(gradient(), "BMP"),
    "webp": saved(gradient(), "WEBP", lossless=True),
    "tiff": saved(gradient(), "TIFF"),
}


@pytest.mark.parametrize("kind", OPAQUE)
def test_other_formats_become_rgb_jpegs_of_equal_pixels(kind: str) -> None:
    image = transform(OPAQUE[kind], KEEP)
    palette = kind in ("png-palette", "gif")
    expected = gradient().quantize(256).convert("RGB") if palette else gradient()

    assert mean_difference(decoded(image.encoded), np.asarray(expected)) < 4
    assert image.repair == kind.partition("-")[0]
    assert is_420(image.encoded)
    assert not image.resized


@pytest.mark.parametrize("kind", OPAQUE)
def test_other_formats_are_downscaled_like_jpegs(kind: str) -> None:
    image = transform(OPAQUE[kind], Policy(30))

    assert (image.height, image.width, image.resized) == (30, 40, True)
    assert decoded(image.encoded).shape == (30, 40, 3)


@pytest.mark.parametrize("size", [(102, 701), (17, 900), (375, 500), (500, 375)])
def test_rows_are_downscaled_before_columns(size: tuple[int, int]) -> None:
    """Pillow 13 starts with the columns of some portrait images, which changes bytes."""
    pixels = np.random.default_rng(sum(size)).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    policy = Policy(16)
    height, width = policy.resized(*pixels.shape[:2])
    rows = Image.fromarray(pixels).resize((width, size[1]), Image.Resampling.BICUBIC)
    expected = np.asarray(rows.resize((width, height), Image.Resampling.BICUBIC))

    made = transform(saved(Image.fromarray(pixels), "PNG"), policy)

    assert made.encoded == jpegs.encode(expected, policy.quality, "420")


def test_grey_of_16_bits_is_scaled_not_clipped() -> None:
    found = decoded(transform(grey_16(), KEEP).encoded)

    assert mean_difference(found[:, :, 0], np.tile(np.linspace(0, 255, 80), (60, 1))) < 3
    assert found[:, :4].mean() < 16
    assert 110 < found[:, 38:42].mean() < 146
    assert found[:, -4:].mean() > 240


@pytest.mark.parametrize("mode", ["RGBA", "LA", "palette"])
def test_transparency_is_blended_with_white(mode: str) -> None:
    pixels = np.zeros((32, 64, 4), np.uint8)
    pixels[:, :32, 3] = 255  # black on the left, transparent on the right
    image = Image.fromarray(pixels, "RGBA")
    if mode == "palette":
        data = saved(image.quantize(4), "PNG")
    else:
        data = saved(image.convert(mode), "PNG")
    found = decoded(transform(data, KEEP).encoded)

    assert found[:, :24].mean() < 10
    assert found[:, 40:].mean() > 245


def test_gif_with_a_transparent_colour_becomes_white() -> None:
    image = Image.new("P", (32, 32), 1)
    image.putpalette([255, 0, 0, 0, 0, 0])
    found = decoded(transform(saved(image, "GIF", transparency=1), KEEP).encoded)

    assert found.mean() > 245


def test_first_frame_of_an_animation_is_used() -> None:
    frames = [Image.new("L", (32, 32), shade) for shade in (250, 5)]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])

    assert decoded(transform(data, KEEP).encoded).mean() > 240


def test_bits_become_black_and_white() -> None:
    image = Image.new("1", (64, 32))
    image.paste(1, (32, 0, 64, 32))
    found = decoded(transform(saved(image, "PNG"), KEEP).encoded)

    assert found[:, :24].mean() < 10
    assert found[:, 40:].mean() > 245


@pytest.mark.parametrize(
    "options",
    [{"progressive": True}, {"subsampling": "4:4:4"}, {"subsampling": "4:2:2"}, {"keep_rgb": True}],
    ids=["progressive", "444", "422", "rgb"],
)
def test_downscaled_image_is_stored_as_420(options: dict[str, object]) -> None:
    image = transform(saved(gradient(240, 320), quality=95, **options), Policy(60))
    expected = gradient(240, 320).resize((80, 60), Image.Resampling.BOX)

    assert (image.height, image.width, image.resized, image.repair) == (60, 80, True, None)
    assert is_420(image.encoded)
    assert mean_difference(decoded(image.encoded), np.asarray(expected)) < 4


@pytest.mark.parametrize("factor", [1.01, 1.5, 2, 3, 4, 8, 16])
def test_resized_includes_scaling_by_the_decoder(factor: float) -> None:
    # At a factor of 2, 4 or 8, libjpeg's scaled decoding directly gives the final size.
    image = transform(saved(gradient(round(60 * factor), round(80 * factor))), Policy(60))

    assert (image.height, image.width, image.resized) == (60, 80, True)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_cut_border_is_no_resizing(kind: str) -> None:
    data = saved(gradient(60, 80), kind)
    cut = transform(data, Policy(None, border=2))
    assert (cut.height, cut.width, cut.resized, cut.source_size) == (56, 76, False, (60, 80))
    smaller = transform(data, Policy(28, border=2))
    assert (smaller.height, smaller.width, smaller.resized) == (28, 38, True)


@pytest.mark.parametrize(("height", "width"), [(4, 9), (9, 4), (3, 9), (1, 1)])
def test_image_within_its_border_is_refused(height: int, width: int) -> None:
    assert refusal(saved(gradient(height, width)), Policy(None, border=2)) == "undecodable"


def test_quality_changes_the_bytes_of_encoded_images() -> None:
    data = mutations.sources()["444"]
    sizes = [len(transform(data, Policy(60, quality=q)).encoded) for q in (10, 50, 90, 100)]

    assert sizes == sorted(set(sizes))


def test_orientation_is_applied_only_if_requested(of_kind: Callable[[str], bytes]) -> None:
    data = of_kind("exif_rotated")
    height, width = jpegs.size(data)
    image = transform(data, Policy(64))
    plain = Image.open(io.BytesIO(data)).resize((image.width, image.height), Image.Resampling.BOX)

    assert (image.height, image.width) == Policy(64).resized(height, width)
    assert mean_difference(decoded(image.encoded), np.asarray(plain)) < 8


def with_size(jpeg: bytes, height: int, width: int) -> bytes:
    """Returns a JPEG with a frame header that claims a different size."""
    start = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:start] + struct.pack(">HH", height, width) + jpeg[start + 4 :]


def png_claiming(height: int, width: int) -> bytes:
    header = struct.pack(">LLBBBBB", width, height, 8, 2, 0, 0, 0)
    crc = struct.pack(">L", zlib.crc32(b"IHDR" + header))
    data = saved(gradient(), "PNG")
    return data[:16] + header + crc + data[33:]


def gif_claiming(height: int, width: int) -> bytes:
    data = saved(gradient().quantize(16), "GIF")
    return data[:6] + struct.pack("<HH", width, height) + data[10:]


@pytest.mark.parametrize(
    "policy",
    [KEEP, Policy(64), Policy(None, check="header")],
    ids=["keep", "shrink", "keep-header"],
)
@pytest.mark.parametrize(
    "data",
    [
        with_size(saved(gradient()), 65_000, 65_000),
        with_size(saved(gradient()), 8_001, 8_001),
        png_claiming(8_001, 8_001),
        png_claiming(12_000, 12_000),
        png_claiming(60_000, 60_000),
        png_claiming(2_000_000_000, 2_000_000_000),
        gif_claiming(65_535, 65_535),
    ],
    ids=["jpeg-4-gp", "jpeg-64-mp", "png-64-mp", "png-144-mp", "png-4-gp", "png-max", "gif-4-gp"],
)
def test_pixel_bomb_is_refused_without_decoding(
    monkeypatch: pytest.MonkeyPatch, data: bytes, policy: Policy
) -> None:
    def fail(*args: object, **options: object) -> None:
        pytest.fail("the image was decoded")

    monkeypatch.setattr(planes.Workspace, "pixels", fail)
    monkeypatch.setattr(Image.Image, "convert", fail)

    assert refusal(data, policy) == "too_many_pixels"


def test_bound_on_pixels_is_that_of_the_policy() -> None:
    data = saved(gradient(60, 80))

    assert transform(data, Policy(None, max_pixels=4800)).encoded == data
    assert refusal(data, Policy(None, max_pixels=4799)) == "too_many_pixels"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"\0", "unknown_format"),
        (b"<html>Please log in</html>", "unknown_format"),
        (bytes(5000), "unknown_format"),
        (b"%PDF-1.7" + bytes(100), "unknown_format"),
        (b"\xff\xd8", "unknown_format"),
        (b"\xff\xd8\xff", "undecodable"),
        (b"\xff\xd8\xff\xd9", "undecodable"),
        (saved(gradient(), "PNG")[:150], "undecodable"),
        (saved(gradient(), "GIF")[:1000], "undecodable"),
        (saved(gradient(), "WEBP")[:100], "undecodable"),
        (saved(gradient(), "TIFF")[:1000], "undecodable"),
    ],
    ids=[
        "empty",
        "zero",
        "login-page",
        "zeros",
        "pdf",
        "two-bytes",
        "three-bytes",
        "no-image",
        "cut-png",
        "cut-gif",
        "cut-webp",
        "cut-tiff",
    ],
)
def test_file_that_is_no_image_is_refused(data: bytes, reason: str) -> None:
    assert refusal(data, KEEP) == reason
    assert refusal(data, Policy(16)) == reason
    assert refusal(data, Policy(None, check="header")) == reason


@pytest.mark.parametrize("size", [(2, 66_000), (66_000, 2)], ids=["high", "wide"])
def test_image_longer_than_the_jpeg_limit_is_refused(size: tuple[int, int]) -> None:
    data = saved(Image.new("RGB", size), "PNG")

    assert refusal(data, KEEP) in ("undecodable", "too_many_pixels")


@pytest.mark.parametrize(
    "shape", [(480, 40_000), (1200, 32_000), (33_000, 500), (3, 65_000)], ids=str
)
def test_very_long_images_are_downscaled(shape: tuple[int, int]) -> None:
    height, width = shape
    policy = Policy(min(400, height - 1))
    image = transform(saved(Image.new("RGB", (width, height), "red")), policy)

    assert (image.height, image.width) == policy.resized(height, width)
    assert decoded(image.encoded).shape == (image.height, image.width, 3)


# By the size of the rest: none of the magic, of the header, of the pixels, of the end.
CUT = {"unknown_format", "undecodable", "corrupt", "truncated"}


def with_thumbnail(jpeg: bytes) -> bytes:
    """Returns `jpeg` with a complete JPEG inside its EXIF, as cameras write it."""
    thumbnail = saved(gradient(12, 16))
    exif = b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0" + thumbnail
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]


@pytest.mark.parametrize("check", ["decode", "header"])
def test_sound_image_with_a_thumbnail_passes(check: str) -> None:
    data = with_thumbnail(saved(gradient()))

    assert transform(data, Policy(None, check=check)).encoded == data


@pytest.mark.parametrize("check", ["decode", "header"])
@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
def test_truncation_is_noticed_despite_a_thumbnail(check: str, progressive: bool) -> None:
    data = with_thumbnail(saved(gradient(), progressive=progressive))

    for length in range(1, len(data) - 2):
        assert refusal(data[:length], Policy(None, check=check)) in CUT, length
    assert transform(data[:-2], Policy(None, check=check)).repair == "no_end_marker"


@pytest.mark.parametrize("kind", sorted(mutations.sources()))
def test_truncation_is_noticed_when_an_image_is_encoded(kind: str) -> None:
    data = mutations.sources()[kind]

    # The last two bytes are the end marker, without which the image is still complete.
    for length in [*range(1, len(data) - 2, 41), *range(len(data) - 30, len(data) - 2)]:
        assert refusal(data[:length], Policy(60)) in CUT, length


@pytest.mark.parametrize("check", ["decode", "header"])
@pytest.mark.parametrize(
    "tail",
    [b"\0", bytes(1000), b"\xff\xda in a comment", b"\xff\xd8\xff\xe0", b"\n", b"\xff\xd9" * 3],
    ids=["zero", "padding", "start-of-scan", "start-of-image", "line-end", "ends"],
)
def test_bytes_after_the_end_marker_are_allowed(tail: bytes, check: str) -> None:
    data = saved(gradient()) + tail

    assert transform(data, Policy(None, check=check)).encoded == data


def test_image_with_surplus_bytes_in_scan_is_repaired() -> None:
    data = saved(gradient())
    stuffed = data[:-2] + bytes(64) + data[-2:]
    image = transform(stuffed, KEEP)

    assert image.repair == "surplus_data"
    assert mean_difference(decoded(image.encoded), np.asarray(gradient())) < 4


def test_stored_image_is_verified_by_its_pixels() -> None:
    data = saved(gradient())

    prove_stored(data, 60, 80)
    for height, width in ((80, 60), (60, 81), (0, 0)):
        with pytest.raises(BadImageError, match=says("record-says-x", "80 x 60", width, height)):
            prove_stored(data, height, width)
    with pytest.raises(BadImageError, match="truncated"):
        prove_stored(data[:-200], 60, 80)
    with pytest.raises(BadImageError, match="empty"):
        prove_stored(b"", 60, 80)


def test_lack_of_memory_makes_no_bad_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The image would be excluded from the dataset, and the exit code would be 0."""

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    png = io.BytesIO()
    Image.new("RGB", (20, 20)).save(png, "PNG")
    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(MemoryError):
        transform(png.getvalue(), Policy())
