"""Images with an EXIF orientation, prepared under each rule."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec.policy import PLANES, PORTABLE, Policy
from imagenet_prep.codec.transform import prove_stored, transform
from imagenet_prep.dataset.jpeg import APPLY, KEEP, NEUTRAL
from tests.kit.messages import says
from tests.kit.photographs import (
    BROKEN,
    HEIGHT,
    WIDTH,
    exif,
    photograph,
    pixels,
    shown,
    sources,
    tagged,
)


@pytest.mark.parametrize("codec", [PLANES, PORTABLE])
@pytest.mark.parametrize("short_side", [None, 48])
@pytest.mark.parametrize("rule", [APPLY, NEUTRAL])
def test_all_decoders_agree_on_the_orientation_afterwards(
    rule: str, short_side: int | None, codec: str
) -> None:
    policy = Policy(short_side, codec=codec, orientation=rule)
    for name, data in sources().items():
        image = transform(data, policy)
        first, other = (shown(image.encoded, obeys=obeys) for obeys in (False, True))
        assert np.array_equal(first, other), name
        assert first.shape == (image.height, image.width, 3), name
        assert not prove_stored(image.encoded, image.height, image.width)
        # And it follows the rule.
        before = shown(data, obeys=rule == APPLY and name not in BROKEN)
        if short_side:
            size = (image.width, image.height)
            small = Image.fromarray(before.astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)
            before = np.asarray(small, dtype=np.int16)
        assert np.abs(first - before).mean() < 6, name


@pytest.mark.parametrize("rule", [APPLY, NEUTRAL])
def test_image_with_tag_1_passes_byte_for_byte(rule: str) -> None:
    policy = Policy(None, orientation=rule)
    for data in (photograph(HEIGHT, WIDTH), sources()["1 II"], sources()["1 MM"]):
        image = transform(data, policy)
        assert image.encoded is data
        assert image.repair is None
        # A downscaled image has the same bytes with and without a rule.
        assert transform(data, Policy(48, orientation=rule)) == transform(data, Policy(48))


def test_neutral_changes_the_tag_and_apply_turns() -> None:
    data = sources()["6 MM"]
    kept = transform(data, Policy(None, orientation=KEEP))
    assert (kept.encoded, kept.repair, kept.turn) == (data, None, 1)

    neutral = transform(data, Policy(None, orientation=NEUTRAL))
    assert sum(a != b for a, b in zip(data, neutral.encoded, strict=True)) == 1
    assert (neutral.height, neutral.width, neutral.turn) == (HEIGHT, WIDTH, 1)
    assert neutral.repair == "orientation"
    assert neutral.detail == (
        "EXIF orientation 6: the tag was set to 1, and nothing else was changed"
    )

    shrunk = transform(data, Policy(48, orientation=NEUTRAL))
    assert shrunk.encoded == transform(data, Policy(48)).encoded
    assert (shrunk.repair, shrunk.resized) == ("orientation", True)

    turned = transform(data, Policy(48, orientation=APPLY))
    assert (turned.height, turned.width, turned.turn) == (80, 48, 6)
    assert (turned.repair, turned.resized) == ("orientation", True)
    assert turned.source_size == (HEIGHT, WIDTH)
    assert says("pixels-turned").search(turned.detail)
    small = transform(data, Policy(None, orientation=APPLY))
    assert (small.height, small.width, small.resized) == (WIDTH, HEIGHT, False)


def test_other_formats_are_turned() -> None:
    buffer = io.BytesIO()
    pixels(HEIGHT, WIDTH).convert("L").save(buffer, "JPEG")
    image = transform(tagged(buffer.getvalue(), 6), Policy(None, orientation=APPLY))
    assert (image.height, image.width, image.repair) == (WIDTH, HEIGHT, "gray+orientation")

    for kind in ("PNG", "WEBP"):
        buffer = io.BytesIO()
        pixels(HEIGHT, WIDTH).save(buffer, kind, exif=exif(8), lossless=True)
        data = buffer.getvalue()
        applied = transform(data, Policy(None, orientation=APPLY))
        assert applied.repair == f"{kind.lower()}+orientation"
        expected = shown(data, obeys=True)
        assert np.abs(shown(applied.encoded, obeys=True) - expected).mean() < 6
        left = transform(data, Policy(None, orientation=NEUTRAL))
        assert (left.height, left.width) == (HEIGHT, WIDTH)
        assert left.repair == f"{kind.lower()}+orientation"
        assert transform(data, Policy(None)).repair == kind.lower()

    # Pillow obeys the tag of a TIFF under every rule, as all its decoders do.
    buffer = io.BytesIO()
    pixels(HEIGHT, WIDTH).save(buffer, "TIFF", tiffinfo={0x0112: 6})
    for rule in (APPLY, NEUTRAL, KEEP):
        image = transform(buffer.getvalue(), Policy(None, orientation=rule))
        assert (image.height, image.width, image.repair) == (WIDTH, HEIGHT, "tiff")


@pytest.mark.parametrize(
    ("kind", "form", "value"),
    [(1, "B", 6), (2, "2s", b"6"), (3, "H", 6), (6, "b", 6), (7, "B", 6), (9, "i", 6)],
)
def test_tiff_is_turned_by_tags_of_any_type(kind: int, form: str, value: object) -> None:
    """Pillow obeys some types only."""
    buffer = io.BytesIO()
    plain = pixels(HEIGHT, WIDTH)
    plain.save(buffer, "TIFF", tiffinfo={0x0112: 6})
    data = buffer.getvalue()
    at = data.index(struct.pack("<HHI", 0x0112, 3, 1))
    entry = struct.pack("<HHI", 0x0112, kind, 2 if kind == 2 else 1)
    entry += struct.pack(f"<{form}", value).ljust(4, b"\0")
    image = transform(data[:at] + entry + data[at + 12 :], Policy(None))
    assert (image.height, image.width) == (WIDTH, HEIGHT)
    expected = np.asarray(plain.transpose(Image.Transpose.ROTATE_270), np.int16)
    assert np.abs(shown(image.encoded, obeys=False) - expected).mean() < 6


def test_verify_reports_a_tag_other_than_1() -> None:
    data = sources()["3 II"]
    assert prove_stored(data, HEIGHT, WIDTH)
    assert not prove_stored(sources()["1 II"], HEIGHT, WIDTH)
