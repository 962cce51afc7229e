"""The backend without a framework: odd images, the plain way, and what it hands to others."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec import planes
from imagenet_prep.core.errors import UsageError
from imagenet_prep.read import native
from imagenet_prep.read.augment import RECIPES, Views
from imagenet_prep.read.config import Decoding
from imagenet_prep.read.dlpack import Bfloat16
from imagenet_prep.read.feed import EncodedBatch
from tests.codec import corpus


def wanted(**more: Any) -> Decoding:
    settings: dict[str, Any] = {"batch_size": 1, "image_size": 24, "recipe": RECIPES["resnet"]}
    settings |= {"colour": False, "dtype": "uint8", "layout": "NHWC", "antialias": True}
    return Decoding(**settings | {"num_threads": 1} | more)


def shown(data: bytes, box: list[int], mirrored: bool = False, **more: Any) -> Any:
    views = Views(np.array([box], np.int32), np.array([mirrored]))
    batch = EncodedBatch([data], np.zeros(1, np.int32), np.ones(1, bool), views, np.zeros(1, int))
    (found,) = native.NativeBackend(wanted(**more)).batches(lambda: iter([batch]), 1)
    return found["images"][0].astype(int)


def pillows(data: bytes, box: list[int]) -> Any:
    top, left, height, width = box
    with Image.open(io.BytesIO(data)) as image:
        crop = image.convert("RGB").crop((left, top, left + width, top + height))
    return np.asarray(crop.resize((24, 24), Image.Resampling.BILINEAR)).astype(int)


def jpeg(mode: str, size: tuple[int, int] = (50, 40), **how: Any) -> bytes:
    """A smooth picture."""
    x, y = np.meshgrid(np.linspace(0, 200, size[0]), np.linspace(20, 230, size[1]))
    picture = Image.fromarray(np.stack([x, y, 255 - x], axis=2).astype(np.uint8)).convert(mode)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=95, **how)
    return out.getvalue()


ODD = {
    "4:2:0": jpeg("RGB", subsampling="4:2:0"),
    "4:2:2": jpeg("RGB", subsampling="4:2:2"),
    "4:4:4": jpeg("RGB", subsampling="4:4:4"),
    "grey": jpeg("L"),
    "progressive": jpeg("RGB", progressive=True),
    "restarts": jpeg("RGB", restart_marker_rows=1),
    "CMYK": jpeg("CMYK"),
    "one row": jpeg("RGB", (50, 1)),
    "one pixel": jpeg("RGB", (1, 1)),
}


@pytest.mark.parametrize("hidden", [False, True], ids=["planes", "plain"])
@pytest.mark.parametrize("kind", list(ODD))
def test_odd_images_show_what_pillow_shows(
    monkeypatch: pytest.MonkeyPatch, kind: str, hidden: bool
) -> None:
    def missing() -> None:
        raise UsageError("no compiler")

    if hidden:
        monkeypatch.setattr(planes, "require", missing)
    with Image.open(io.BytesIO(ODD[kind])) as image:
        whole = [0, 0, image.height, image.width]
    for box in (whole, [whole[2] // 4, whole[3] // 3, -(-whole[2] // 2), -(-whole[3] // 2)]):
        found = shown(ODD[kind], box)

        assert np.abs(found - pillows(ODD[kind], box)).mean() < 1
        assert np.array_equal(shown(ODD[kind], box, mirrored=True), found[:, ::-1])
        first = shown(ODD[kind], box, layout="NCHW")
        assert np.array_equal(first.transpose(1, 2, 0), found)


def test_the_plain_way_interpolates_as_the_codec_does(monkeypatch: pytest.MonkeyPatch) -> None:
    box = [3, 5, 30, 41]
    quick = shown(ODD["4:4:4"], box, antialias=False)
    monkeypatch.setattr(native.NativeBackend, "_has_planes", False)

    assert np.abs(shown(ODD["4:4:4"], box, antialias=False) - quick).mean() < 0.7


def test_a_damaged_image_is_an_error() -> None:
    with pytest.raises(OSError, match="image"):
        shown(b"no JPEG", [0, 0, 4, 4])
    with pytest.raises(ValueError, match="the image is 50 x 40"):
        shown(ODD["4:2:0"], [30, 0, 20, 10])


def test_every_sound_file_of_the_codecs_corpus_is_shown() -> None:
    for name, data in corpus.files().items():
        with Image.open(io.BytesIO(data)) as image:
            box = [0, 0, image.height, image.width]
        assert shown(data, box).shape == (24, 24, 3), name


@pytest.mark.tf
def test_bfloat16_is_rounded_to_the_nearest_and_travels_by_dlpack(tf: Any) -> None:
    recipe = RECIPES["resnet"]
    values, full = (
        planes.Values(dtype, recipe.mean, recipe.std).table for dtype in ("bfloat16", "float32")
    )

    found = tf.experimental.dlpack.from_dlpack(Bfloat16(values).__dlpack__())

    assert found.dtype == tf.bfloat16
    assert np.array_equal(tf.cast(full, tf.bfloat16).numpy(), found.numpy())


def test_the_device_of_a_tensor_is_this_machines_memory() -> None:
    tensor = Bfloat16(np.zeros((2, 3), np.uint16))

    assert (tensor.shape, tensor.__dlpack_device__()) == ((2, 3), (1, 0))
