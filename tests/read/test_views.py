"""Views of several sizes and areas: their shapes, their pixels, and one decode for all of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec import planes
from imagenet_prep.core.world import World
from imagenet_prep.read import Reader, View, make_dataset
from tests.kit.codec import corpus
from tests.kit.reading import NUM_TRAIN

FIELDS = ("images", "number", "mirrored", "boxes")
GLOBAL = View(count=2, image_size=48, area=(0.3, 1.0))
LOCAL = View(count=3, image_size=(20, 24), area=(0.05, 0.3), filter="bicubic")


def opened(root: Path, **settings: Any) -> Reader:
    usual = {"framework": "numpy", "dtype": "uint8", "fields": FIELDS, "seed": 4}
    return make_dataset(root, "train", 4, backend="native", world=World(), **usual | settings)


def by_number(reader: Reader, array: int | None = None) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for batch in reader:
        images = batch["images"] if array is None else batch["images"][array]
        found |= zip(batch["number"].tolist(), images, strict=True)
    return found


def test_each_view_has_an_array_of_its_size(scenes: Path) -> None:
    batch = next(iter(opened(scenes, views=[GLOBAL, LOCAL])))
    shapes = [images.shape for images in batch["images"]]
    assert shapes == [(4, 2, 48, 48, 3), (4, 3, 20, 24, 3)]
    assert batch["mirrored"].shape == (4, 5)
    assert batch["boxes"].shape[:2] == (4, 5)


def test_layout_and_type_hold_for_each_array(scenes: Path) -> None:
    reader = opened(scenes, views=[GLOBAL, LOCAL], layout="NCHW", dtype="float32")
    images = next(iter(reader))["images"]
    assert [array.shape for array in images] == [(4, 2, 3, 48, 48), (4, 3, 3, 20, 24)]
    assert {array.dtype for array in images} == {np.dtype("float32")}


def test_single_view_in_a_list_has_an_axis(scenes: Path) -> None:
    batch = next(iter(opened(scenes, views=[View(image_size=32)])))
    (images,) = batch["images"]
    assert images.shape == (4, 1, 32, 32, 3)
    assert batch["mirrored"].shape == (4, 1)
    assert batch["boxes"].shape[:2] == (4, 1)


def test_views_have_the_pixels_of_single_readers(scenes: Path) -> None:
    together = opened(scenes, views=[GLOBAL, LOCAL])
    large = by_number(together, 0)
    alone = opened(scenes, views=2, image_size=48, area=(0.3, 1.0))
    assert len(large) == NUM_TRAIN // 4 * 4
    for number, images in by_number(alone).items():
        assert np.array_equal(large[number], images)

    small = by_number(opened(scenes, views=[GLOBAL, LOCAL]), 1)
    # The first two views only fill the places before those of LOCAL.
    settings = {"image_size": (20, 24), "area": (0.05, 0.3), "filter": "bicubic"}
    for number, images in by_number(opened(scenes, views=5, **settings)).items():
        assert np.array_equal(small[number], images[2:])


def test_views_without_settings_are_those_of_the_reader(scenes: Path) -> None:
    plain = by_number(opened(scenes, views=2, image_size=40, aspect=(1.0, 2.0)))
    listed = by_number(opened(scenes, views=[View(count=2)], image_size=40, aspect=(1.0, 2.0)), 0)
    for number, expected in plain.items():
        assert np.array_equal(listed[number], expected)


def test_boxes_are_in_the_pixels_of_each_view(scenes: Path) -> None:
    for batch in opened(scenes, views=[GLOBAL, LOCAL]):
        boxes = batch["boxes"]
        assert boxes[:, :2].max(initial=0) <= 48
        assert boxes[:, 2:, :, 1::2].max(initial=0) <= 20
        assert boxes[:, 2:, :, ::2].max(initial=0) <= 24


def test_coloured_views_have_their_own_colours(scenes: Path) -> None:
    plain = opened(scenes, views=[GLOBAL, LOCAL])
    coloured = opened(scenes, views=[GLOBAL, LOCAL], colour=True)
    for first, second in zip(plain, coloured, strict=True):
        for before, after in zip(first["images"], second["images"], strict=True):
            assert before.shape == after.shape
            assert not np.array_equal(before, after)


def jobs_of(
    data: bytes, windows: list[list[int]], looks: list[planes.Look], arrays: list[Any]
) -> Any:
    jobs = []
    for window, look, array in zip(windows, looks, arrays, strict=True):
        box = np.array([window], np.int32)
        jobs.append(look.jobs([data], box, np.array([False]), array[None]))
    return np.concatenate(jobs)


KERNELS = (planes.LINEAR, planes.NEIGHBOURS, planes.KEYS, planes.BICUBIC)


@pytest.mark.parametrize("seed", range(8))
def test_decoding_together_equals_decoding_alone(seed: int) -> None:
    """Views differ in window, size, filter and scale; one may have the size of its window."""
    random = np.random.default_rng(seed)
    for name, data in corpus.files().items():
        height, width = corpus_size(data)
        windows, looks, arrays = [], [], []
        for view in range(5):
            tall, wide = random.integers(1, height + 1), random.integers(1, width + 1)
            top, left = random.integers(0, height - tall + 1), random.integers(0, width - wide + 1)
            windows.append([int(top), int(left), int(tall), int(wide)])
            size = (tall, wide) if view == 4 else random.integers(1, 40, 2)
            kernel = int(random.choice(KERNELS))
            looks.append(planes.Look(int(size[0]), int(size[1]), planes.BYTES, kernel))
            arrays.append(np.zeros((int(size[0]), int(size[1]), 3), np.uint8))
        jobs = jobs_of(data, windows, looks, arrays)
        done = looks[0].decode_many(jobs)
        for view, look in enumerate(looks):
            alone = np.zeros_like(arrays[view])
            single = look.jobs([data], jobs["window"][[view]], np.array([False]), alone[None])
            (is_done,) = look.decode_many(single)
            assert is_done == done[view], name
            if is_done:
                assert np.array_equal(alone, arrays[view]), (name, windows[view])


def corpus_size(data: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(data)) as image:
        return image.height, image.width


def test_views_that_fail_leave_the_others_alone() -> None:
    data = corpus.files()["96x128 420"]
    look = planes.Look(10, 10, planes.BYTES, planes.LINEAR)
    arrays = [np.zeros((10, 10, 3), np.uint8) for _ in range(3)]
    windows = [[0, 0, 50, 50], [90, 0, 50, 50], [40, 40, 50, 50]]
    done = look.decode_many(jobs_of(data, windows, [look] * 3, arrays))
    assert done.tolist() == [True, False, True]
    assert arrays[0].any()
    assert arrays[2].any()


def test_many_views_are_decoded_in_groups() -> None:
    """A group has at most 64 views."""
    data = corpus.files()["96x128 444"]
    look = planes.Look(6, 7, planes.BYTES, planes.KEYS)
    arrays = [np.zeros((6, 7, 3), np.uint8) for _ in range(150)]
    windows = [[view % 40, view % 60, 30, 31] for view in range(150)]
    done = look.decode_many(jobs_of(data, windows, [look] * 150, arrays))
    assert done.all()
    for window, array in zip(windows, arrays, strict=True):
        alone = np.zeros_like(array)
        assert look.decode(data, window, alone)
        assert np.array_equal(array, alone)
