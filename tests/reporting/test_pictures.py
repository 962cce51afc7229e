"""Thumbnails of any input: truncated files, junk, and images that are too large to decode."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.member import Origin
from imagenet_prep.reporting import sample

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def test_half_an_image_is_decoded() -> None:
    data = encoded(NOISE)
    shown = sample.decode(data[: len(data) // 2])

    assert shown is not None
    assert shown.size == (400, 300)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xd8\xff", b"<svg/>", b"\x89PNG\r\n\x1a\n" + b"\0" * 99, b"BM" + b"\xff" * 60],
)
def test_junk_is_not_decoded(data: bytes) -> None:
    assert sample.decode(data) is None
    assert sample.thumbnail(data) is None


def test_images_larger_than_memory_are_not_decoded() -> None:
    huge = encoded(Image.new("1", (20_000, 20_000)), "PNG")

    assert len(huge) < 1_000_000
    assert sample.decode(huge) is None


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
def test_every_colour_space_becomes_a_small_square(mode: str) -> None:
    uri = sample.thumbnail(encoded(NOISE.convert(mode)), 40, 50)

    assert uri is not None
    assert uri.startswith("data:image/webp;base64,")
    assert len(uri) < 4000


@pytest.mark.parametrize(
    ("source", "stored", "is_compared"),
    [
        (encoded(NOISE), encoded(NOISE.resize((200, 150))), True),
        (encoded(NOISE.rotate(90, expand=True)), encoded(NOISE.resize((200, 150))), False),
        (encoded(NOISE.resize((399, 300))), encoded(NOISE.resize((200, 150))), False),
        (encoded(NOISE), encoded(NOISE.resize((150, 200))), False),
        (encoded(NOISE), b"", False),
        (b"", encoded(NOISE.resize((200, 150))), False),
        (None, encoded(NOISE.resize((200, 150))), False),
    ],
    ids=["sound", "turned", "smaller", "stored turned", "no image", "no source image", "absent"],
)
def test_only_sources_of_the_noted_size_are_compared(
    monkeypatch: pytest.MonkeyPatch, source: bytes | None, stored: bytes, is_compared: bool
) -> None:
    origin = Origin(0, "n1/a.JPEG", "train.tar", 512, len(source or b""), 300, 400)
    example = ImageExample(b"", 150, 200, "a.JPEG", 1, "n1", "a")
    tile = sample.Tile(sample.ShownRecord("shard", 0, "", origin), 0, example, len(stored), "")
    monkeypatch.setattr(sample, "read", lambda *_: example._replace(encoded=stored))
    facts: Any = SimpleNamespace(source_bytes=lambda *_: source)
    sample._compare_with_source(facts, [tile])

    shown = (tile.psnr, tile.before, tile.after)
    assert [each is not None for each in shown] == [is_compared] * 3


@pytest.mark.parametrize("seed", range(5))
def test_every_record_is_selected_at_most_once(seed: int) -> None:
    """Records of known origin come first, and are not drawn again."""
    sizes = {"a": 9, "b": 0, "c": 4, "d": 7}
    origins = {"a": (0, 4, 8), "d": (6,)}
    tasks = [
        SimpleNamespace(
            shard=shard,
            origins=[Origin(number, "n1/x", "t", 0, 1, 1, 1) for number in origins.get(shard, ())],
        )
        for shard in sizes
    ]
    shards = [SimpleNamespace(name=name, examples=size) for name, size in sizes.items()]
    facts: Any = SimpleNamespace(tasks=tasks, shards=shards)
    chosen = [
        (shard, number, origin is not None)
        for shard, records in sample._groups(facts, seed)
        for number, origin in records
    ]

    assert sorted(chosen) == [
        (shard, number, number in origins.get(shard, ()))
        for shard, size in sizes.items()
        for number in range(size)
    ]
    assert [has_origin for _, _, has_origin in chosen] == [True] * 4 + [False] * 16


def test_the_middle_is_cropped_within_the_image() -> None:
    assert sample.middle(NOISE, 100, 1000).size == (100, 300)
    assert np.array_equal(
        np.asarray(sample.middle(NOISE, 2, 2)), np.asarray(NOISE)[149:151, 199:201]
    )
