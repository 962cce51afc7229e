"""Pixels of downscaled images, compared with a float Lanczos filter and Pillow's filters."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import transform
from imagenet_prep.testing.miniature import TRAIN_ARCHIVE, VALIDATION_ARCHIVE
from tests.kit.codec import jpegs
from tests.kit.lengths import long_except
from tests.kit.miniature import Miniature

MAX_LOSS_DB = 0.3


@pytest.fixture(scope="module")
def photographs(miniature: Miniature) -> list[bytes]:
    kinds = {image.key: image.kind for image in miniature.images}
    found = []
    with tarfile.open(miniature.root / TRAIN_ARCHIVE) as outer:
        for folder in outer:
            with tarfile.open(fileobj=outer.extractfile(folder)) as inner:
                found += [
                    inner.extractfile(info).read()
                    for info in inner
                    if kinds[f"{folder.name[:-4]}/{info.name}"] in ("plain", "large")
                ]
    with tarfile.open(miniature.root / VALIDATION_ARCHIVE) as flat:
        found += [flat.extractfile(i).read() for i in flat if kinds[i.name] == "plain"]
    assert len(found) >= 40
    return found


def lanczos(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    channels = [
        np.asarray(
            Image.fromarray(pixels[:, :, c].astype(np.float32)).resize(
                (width, height), Image.Resampling.LANCZOS
            )
        )
        for c in range(3)
    ]
    return np.clip(np.stack(channels, axis=2), 0, 255)


def psnr(expected: np.ndarray, found: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((expected - found.astype(np.float32)) ** 2)))


@pytest.mark.slow
@pytest.mark.parametrize("short_side", long_except([64, 187, 320], [64, 128, 187, 256, 320]))
def test_downscaled_images_are_close_to_lanczos(photographs: list[bytes], short_side: int) -> None:
    policy = Policy(short_side)
    ours = []
    box = []
    bilinear = []
    for data in photographs:
        source = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        if min(source.shape[:2]) <= short_side:
            continue
        image = transform(data, policy)
        expected = lanczos(source, image.width, image.height)
        ours.append(psnr(expected, jpegs.decode(image.encoded)))
        for found, kind in ((box, Image.Resampling.BOX), (bilinear, Image.Resampling.BILINEAR)):
            peer = Image.fromarray(source).resize((image.width, image.height), kind)
            stored = jpegs.encode(np.asarray(peer), 90, "420")
            found.append(psnr(expected, jpegs.decode(stored)))

    assert len(ours) >= 40
    print(f"{short_side}: {np.mean(ours):.2f} {np.mean(box):.2f} {np.mean(bilinear):.2f} dB")
    assert np.mean(ours) > np.mean(box) - MAX_LOSS_DB
    assert np.mean(ours) > np.mean(bilinear) - MAX_LOSS_DB


def test_no_new_pattern_appears() -> None:
    # Stripes too fine for the target must become grey, not coarser stripes.
    stripes = np.zeros((600, 800, 3), np.uint8)
    stripes[:, ::2] = 255
    data = jpegs.encode(stripes, 95, "444")

    for short_side in (150, 250, 299, 301, 400):
        found = jpegs.grey(transform(data, Policy(short_side)).encoded)
        middle = found[8:-8, 8:-8].astype(float)
        assert abs(middle.mean() - 127.5) < 3, short_side
        # Pillow's bilinear filter leaves up to 20 at these factors.
        assert middle.std() < 45, short_side


def test_image_is_not_shifted() -> None:
    # A cross in the very middle stays there, whatever the factor.
    source = np.zeros((601, 801, 3), np.uint8)
    source[290:311, :] = 255
    source[:, 390:411] = 255
    data = jpegs.encode(source, 95, "444")

    for short_side in (61, 100, 151, 300, 401, 555):
        image = transform(data, Policy(short_side))
        found = jpegs.grey(image.encoded).astype(float)
        rows = found[:, 4] + found[:, -4]
        columns = found[4] + found[-4]
        middle = (rows * np.arange(image.height)).sum() / rows.sum()
        assert abs(middle - (image.height - 1) / 2) < 0.5, short_side
        middle = (columns * np.arange(image.width)).sum() / columns.sum()
        assert abs(middle - (image.width - 1) / 2) < 0.5, short_side
