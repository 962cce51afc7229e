"""Untrusted images: known formats only, sizes from the header, no scaled decoding on a guess."""

from __future__ import annotations

import functools
import hashlib
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import AvifImagePlugin, Image

from imagenet_prep.codec import decoding, likeness, opening, planes, transform
from imagenet_prep.codec.policy import PLANES, PORTABLE, Policy
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import jpeg
from tests.kit.codec import frames, jpegs, mutations
from tests.kit.codec.calls import CALLS
from tests.kit.hostile import images
from tests.kit.installed import Installed
from tests.kit.messages import says

LOSSLESS = {"rgb": 3, "grey": 1}  # components
_lossless_jpeg = functools.cache(images.lossless_jpeg)


def saved(format_name: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(mutations.photograph()).save(buffer, format_name, **options)
    return buffer.getvalue()


FOREIGN = {
    "eps": images.eps,
    **{
        name: lambda name=name: saved(name)
        for name in ("PCX", "TGA", "JPEG2000", "ICO", "PPM", "SGI", "DDS")
    },
}


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `gs` on PATH that records its start; returns the record."""
    note = tmp_path / "started"
    program = tmp_path / "gs"
    program.write_text(f'#!/bin/sh\necho "$@" >> {note}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return note


@pytest.mark.parametrize("call", CALLS)
def test_unlisted_formats_are_refused_and_start_no_program(call: str, ghostscript: Path) -> None:
    for name, make in FOREIGN.items():
        with pytest.raises(BadImageError) as caught:
            CALLS[call](make())
        assert caught.value.reason in {"unknown_format", "wrong_colorspace", "undecodable"}, name
    assert not ghostscript.exists()


@pytest.mark.parametrize("codec", [PLANES, PORTABLE])
@pytest.mark.parametrize("short_side", [None, 32])
@pytest.mark.parametrize("check", ["decode", "header"])
@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_jpeg_is_decoded_completely_and_encoded(
    kind: str, check: str, short_side: int | None, codec: str
) -> None:
    policy = Policy(short_side, check=check, codec=codec)
    made = transform.transform(_lossless_jpeg(420, LOSSLESS[kind]), policy)

    assert made.repair == "lossless"
    side = short_side or 420
    transform.prove_stored(made.encoded, side, side)
    with Image.open(io.BytesIO(_lossless_jpeg(420, LOSSLESS[kind]))) as opened:
        truth = opened.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
    got = jpegs.decode(made.encoded).astype(int)
    assert abs(got - np.asarray(truth)).mean() < 40  # noise, at 4:2:0


def test_lossless_jpeg_is_turned_by_its_exif() -> None:
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:, :10] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    content = exif.tobytes()
    data = frames.lossless(pixels)
    data = data[:2] + b"\xff\xe1" + (len(content) + 2).to_bytes(2, "big") + content + data[2:]

    made = transform.transform(data, Policy(None, orientation="apply"))

    got = jpegs.decode(made.encoded)
    assert got.shape == (60, 40, 3)
    assert got[:8].mean() > 200
    assert got[20:].mean() < 50


@pytest.mark.parametrize("look", ["hash", "proof", "equal pixels", "report", "reader"])
@pytest.mark.parametrize("kind", LOSSLESS)
def test_all_calls_decode_a_lossless_jpeg_completely(kind: str, look: str) -> None:
    assert CALLS[look](_lossless_jpeg(420, LOSSLESS[kind])) is not None


def test_lossless_jpeg_has_the_means_of_its_pixels() -> None:
    pixels = np.asarray(Image.fromarray(mutations.photograph()).convert("L"))
    found = likeness.means(frames.lossless(pixels[:, :, None]))
    assert np.array_equal(found, likeness.means_of_pixels(pixels))


@pytest.mark.parametrize("look", ["adopt", "verify"])
@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_jpeg_is_refused_in_a_dataset(kind: str, look: str) -> None:
    """TensorFlow and DALI do not decode it."""
    with pytest.raises(BadImageError, match="undecodable: lossless"):
        CALLS[look](_lossless_jpeg(420, LOSSLESS[kind]))


def doubtful() -> dict[str, bytes]:
    """Returns files that may have a frame type without scaled decoding."""
    found = {}
    for name, data in frames.files().items():
        try:
            frame = jpeg.refuse_bombs(data)
        except BadImageError:
            continue
        if frame is None or not frame.can_be_scaled:
            found[name] = data
    return found


def test_only_frames_that_scale_are_decoded_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any other frame may be written at full size into the memory of the smaller one."""
    # An error raised here would make a bad image. So these calls are recorded.
    asked: list[str] = []
    read = planes.Workspace._read

    def watched(space: planes.Workspace, data: bytes, eighths: int, *arguments: Any) -> None:
        if eighths != 8:
            asked.append(f"libjpeg: {eighths} / 8")
        read(space, data, eighths, *arguments)

    def drafted(*size: object) -> None:
        asked.append(f"Pillow: {size}")

    monkeypatch.setattr(planes.Workspace, "_read", watched)
    monkeypatch.setattr("PIL.JpegImagePlugin.JpegImageFile.draft", drafted)
    CALLS["report"](mutations.sources()["420"])
    assert len(asked) == 1
    asked.clear()
    files = doubtful()
    assert {"lossless rgb", "arithmetic rgb", "420, then c3", "grey as c3"} <= files.keys()
    assert not {"420", "progressive", "420 as c1", "420, hidden c3"} & files.keys()
    for data in files.values():
        for call in ("prepare", "prepare, portable", "verify", "report"):
            try:
                CALLS[call](data)
            except BadImageError:
                continue
    assert asked == []


@pytest.mark.parametrize("codec", [PLANES, PORTABLE])
def test_arithmetic_coding_changes_no_pixel(codec: str) -> None:
    """The same coefficients, decoded at full size or by our own decoder's rules."""
    pixels = mutations.photograph()
    for progressive in (False, True):
        data = frames.arithmetic(pixels, progressive=progressive)
        kept = transform.transform(data, Policy(None, codec=codec))
        assert kept.encoded is data
        shrunk = transform.transform(data, Policy(50, codec=codec))
        plain = transform.transform(saved("JPEG", quality=85), Policy(50, codec=codec))
        assert shrunk.encoded == plain.encoded


@pytest.mark.parametrize("marker", [0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF])
def test_frame_types_that_no_decoder_reads_are_named(marker: int) -> None:
    data = frames.with_marker(mutations.sources()["420"], marker)
    for call in ("prepare", "prepare, headers", "adopt", "verify", "hash", "reader"):
        with pytest.raises(BadImageError, match=f"undecodable.*SOF{marker - 0xC0}, 8 bits"):
            CALLS[call](data)


@pytest.mark.parametrize("bits", [12, 16])
def test_samples_of_more_than_8_bits_are_named(bits: int) -> None:
    data = frames.lossless(np.zeros((8, 8, 1), np.uint16), bits=bits)
    with pytest.raises(BadImageError, match=says("bits-per-sample-no-decoder", "SOF3", bits)):
        transform.transform(data, Policy(None, check="header"))


def test_several_frames_are_named() -> None:
    for data in (
        frames.hierarchical(mutations.sources()["420"]),
        frames.with_two_frames(mutations.sources()["420"], 0xC3),
    ):
        with pytest.raises(BadImageError, match="undecodable: several frame headers"):
            transform.transform(data, Policy(None))


def test_digest_of_pixels_includes_all_of_them() -> None:
    data = saved("PNG")
    size, digest = decoding.digest(data)
    assert (size, digest) == ((160, 120), hashlib.sha256(mutations.photograph()).digest())


@pytest.mark.parametrize("side", ["width", "height"])
@pytest.mark.parametrize("decoder", ["decoder.c", "libjpeg", "Pillow"])
def test_header_that_parsers_read_differently_is_refused(
    side: str, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size that was checked must be the size for which the decoder allocates memory."""
    read = jpeg.refuse_bombs

    def misread(data: bytes, *most: int) -> jpeg.JpegFrame | None:
        frame = read(data, *most)
        assert frame is not None
        return frame._replace(**{side: getattr(frame, side) + 1})

    data = mutations.sources()["420"]
    assert opening.header(data) is not None
    monkeypatch.setattr(jpeg, "refuse_bombs", misread)
    if decoder == "libjpeg":
        monkeypatch.setenv(planes.JPEG_VARIABLE, planes.LIBJPEG)
    with pytest.raises(BadImageError) as caught:
        if decoder == "Pillow":
            with opening.opened(data):
                pass
        else:
            opening.header(data)
    assert caught.value.reason == "undecodable"


def test_size_is_read_without_the_codec(installed: Installed) -> None:
    data = mutations.sources()["420"]
    installed.no_planes()

    assert decoding.size(data) == (160, 120)
    with pytest.raises(planes.CodecUnavailableError):
        opening.header(data)


def test_large_texts_of_a_png_are_removed() -> None:
    random = np.random.default_rng(0).bytes(1 << 20).hex().encode()
    text = b"Raw profile type exif\0\0" + zlib.compress(random)
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text
    chunk += struct.pack(">I", zlib.crc32(b"zTXt" + text))
    data = saved("PNG")
    end_of_header = 33
    data = data[:end_of_header] + chunk + data[end_of_header:]

    with opening.opened(data) as image:
        assert image.info.keys().isdisjoint({"Raw profile type exif", "exif"})
        assert np.array_equal(opening.pixels(image), mutations.photograph())


@pytest.mark.parametrize("size", [(1 << 20, 2), ((1 << 20) + 1, 2), (3, (1 << 20) + 1)])
def test_images_of_any_shape_are_converted_in_bands(size: tuple[int, int]) -> None:
    """A band has at most a million pixels, or one row."""
    width, height = size
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[-1, -1] = (1, 2, 3)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)

    with opening.opened(buffer.getvalue()) as image:
        assert np.array_equal(opening.pixels(image), pixels)


def test_an_avif_is_decoded_by_one_thread() -> None:
    assert AvifImagePlugin.DEFAULT_MAX_THREADS == 1
