"""The crop of an image, whether it is mirrored, and its colours. Pure; shared by all backends.

The random numbers of an example depend only on seed, epoch and example number, not on batch size,
rank, number of readers, or what was read before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from imagenet_prep.read.order import mix, stream

if TYPE_CHECKING:
    import numpy.typing as npt

_DRAWS, _COLOURS = 3, 4  # other streams than those of read.order
# torchvision's RandomResizedCrop: the least and largest share of the picture's area, and width over
# height, of a training crop; and how many are tried before the largest one in the middle.
_AREA, _ASPECT, _ATTEMPTS = (0.08, 1.0), (3 / 4, 4 / 3), 10

# train_imagenet_resnet_hvd.py with --increased_aug. It adds up to 0.3 to pixels of 0 to 255, as its
# 256 GPUs did: its brightness is not seen. Its hue of 0.13 is times pi.
_BRIGHTNESS, _HUE, _SATURATION, _CONTRAST = 0.3, 0.13 * np.pi, 0.4, 0.4
# R, G, B to Y, I, Q (NTSC 1953), in which tf.contrib's random_hsv_in_yiq turns the hue.
_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


@dataclass(frozen=True)
class Recipe:
    """Constants of one way to show images.

    Attributes:
      mean, std: of R, G, B in [0, 255], for normalised output.
      keep_aspect: crops are squares of the picture; False draws them for a square and
        stretches, as the 2018 tutorial did for training and evaluation alike.
      evaluation: share of the shorter side (of both sides without keep_aspect) that the
        central crop of evaluation shows.
      padding: training shows the whole picture, moved by up to this many pixels over black, and
        evaluation the whole picture; None: crops.
      mirrors: whether half of the training pictures are mirrored.
      square: the codec makes the middle square of the complete image itself, by Pillow's filters.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    keep_aspect: bool = False
    evaluation: float = 1.0
    padding: int | None = None
    mirrors: bool = True
    square: bool = False


RECIPES = {
    # Inception crops (Szegedy et al. 2015, as in torchvision); evaluation is the central 224 of
    # a shorter side of 256; ImageNet's mean and deviation as everyone quotes them, times 255.
    "resnet": Recipe(
        mean=(123.675, 116.28, 103.53),
        std=(58.395, 57.12, 57.375),
        keep_aspect=True,
        evaluation=224 / 256,
    ),
    # train_imagenet_resnet_hvd.py of AWS's tutorial: crop_and_resize_image and cnn_model_function.
    "tutorial": Recipe(
        mean=(121.0, 115.0, 100.0),
        std=(70.0, 68.0, 71.0),
        evaluation=0.8,
    ),
    # train_preprocess_fn of the SageMaker guide; mean and deviation of CIFAR-10's train images.
    "cifar10": Recipe(
        mean=(125.3, 123.0, 113.9),
        std=(63.0, 62.1, 66.7),
        padding=4,
    ),
    # Digits have a place and a side; mean and deviation of MNIST's train images.
    "mnist": Recipe(
        mean=(33.3, 33.3, 33.3),
        std=(78.6, 78.6, 78.6),
        padding=0,
        mirrors=False,
    ),
    # center_crop_arr of guided-diffusion, and the mirroring of its training; only uint8.
    "adm": Recipe(mean=(127.5,) * 3, std=(127.5,) * 3, padding=0, square=True),
}


@dataclass(frozen=True)
class Views:
    """The crops of N images.

    Attributes:
      boxes: [N, 4] int32: top, left, height, width in pixels, inside the image; with a recipe's
        padding they are as large as the image, and what lies outside of it is black.
      mirrored: [N] bool.
      colours: [N, 3, 7] float32, or None: R, G, B of each pixel in [0, 255] become
        colours[:, :3] @ pixel + colours[:, 3:6] @ mean + colours[:, 6], clipped to [0, 255]; mean
        is that of the pixels of the view, crop and resize done.
    """

    boxes: npt.NDArray[np.int32]
    mirrored: npt.NDArray[np.bool_]
    colours: npt.NDArray[np.float32] | None = None


def central_views(
    recipe: Recipe, heights: npt.NDArray[np.int64], widths: npt.NDArray[np.int64]
) -> Views:
    """Returns the crops of evaluation: the middle, never mirrored."""
    sides = (heights, widths)
    if recipe.keep_aspect:
        sides = (np.minimum(heights, widths),) * 2
    shown = [np.maximum(1, np.rint(side * recipe.evaluation)) for side in sides]
    boxes = _boxes(heights, widths, shown[0], shown[1], 0.5, 0.5)
    return Views(boxes, np.zeros(len(heights), bool))


def random_views(
    recipe: Recipe,
    heights: npt.NDArray[np.int64],
    widths: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.int64],
    seed: int,
    epoch: int,
    *,
    colour: bool = False,
    view: int = 0,
) -> Views:
    """Returns the views of training, in one epoch, of the examples with these numbers.

    The area is uniform, the aspect uniform in its logarithm. Ten pairs are drawn, and the first
    that fits into the image is taken. Views of other numbers are independent.
    """
    more = (view,) if view else ()
    draws = _uniform(numbers, stream(seed, epoch, _DRAWS, *more), 2 * _ATTEMPTS + 3)
    if recipe.padding is None:
        boxes = _crops(recipe, heights, widths, draws)
    else:
        moved = np.floor(draws[:, -3:-1] * (2 * recipe.padding + 1)) - recipe.padding
        boxes = np.concatenate([moved, heights[:, None], widths[:, None]], axis=1).astype(np.int32)
    mirrored = (draws[:, -1] < 0.5) & recipe.mirrors
    key = stream(seed, epoch, _COLOURS, *more)
    return Views(boxes, mirrored, _colours(numbers, key) if colour else None)


def boxes_in(
    views: Views,
    boxes: npt.NDArray[np.float64],
    heights: npt.NDArray[np.int64],
    widths: npt.NDArray[np.int64],
    side: int,
    *,
    square: bool = False,
) -> npt.NDArray[np.float32]:
    """Returns [N, most, 4]: left, top, right, bottom of objects in pixels of square views.

    They are clipped to the view, whose `side` is in pixels; zeros if no area of a box is seen. The
    `boxes` have the same shape and order, as shares of the image's sides. With `square`, the views
    show the middle square of the image.
    """
    left_top, extent = (views.boxes[:, None, places] for places in ([1, 0, 1, 0], [3, 2, 3, 2]))
    sides = np.stack([widths, heights, widths, heights], axis=1)[:, None, :]
    if square:
        extent = sides.min(axis=2, keepdims=True)
        left_top = (sides - extent) / 2
    pixels = boxes * sides
    shown = np.clip((pixels - left_top) * (side / extent), 0, side).astype(np.float32)
    mirrored = shown[..., [2, 1, 0, 3]]
    mirrored[..., ::2] = side - mirrored[..., ::2]
    shown = np.where(views.mirrored[:, None, None], mirrored, shown)
    seen = (shown[..., 0] < shown[..., 2]) & (shown[..., 1] < shown[..., 3])
    found: npt.NDArray[np.float32] = np.where(seen[..., None], shown, np.float32(0))
    return found


def _crops(
    recipe: Recipe,
    heights: npt.NDArray[np.int64],
    widths: npt.NDArray[np.int64],
    draws: npt.NDArray[np.float64],
) -> npt.NDArray[np.int32]:
    area = _AREA[0] + draws[:, :_ATTEMPTS] * (_AREA[1] - _AREA[0])
    low, high = _ASPECT
    aspect = low * (high / low) ** draws[:, _ATTEMPTS : 2 * _ATTEMPTS]
    whole_height, whole_width = heights.astype(np.float64), widths.astype(np.float64)
    # Without keep_aspect a crop is drawn from a square and stretched with the picture.
    side = np.sqrt(whole_height * whole_width)[:, None]
    stretch = 1.0 if recipe.keep_aspect else np.sqrt(whole_width / whole_height)[:, None]
    tall = np.rint(side * np.sqrt(area / aspect) / stretch)
    wide = np.rint(side * np.sqrt(area * aspect) * stretch)
    fits = (tall <= whole_height[:, None]) & (wide <= whole_width[:, None])
    first = np.argmax(fits, axis=1)[:, None]
    crop_height = np.take_along_axis(tall, first, axis=1)[:, 0]
    crop_width = np.take_along_axis(wide, first, axis=1)[:, 0]
    top, left = draws[:, -3], draws[:, -2]
    # In a very long image no crop may fit. Then the largest allowed part of its middle is taken.
    none = ~fits.any(axis=1)
    if none.any():
        crop_height[none] = np.minimum(whole_height, np.rint(whole_width / low))[none]
        crop_width[none] = np.minimum(whole_width, np.rint(whole_height * high))[none]
        top[none] = left[none] = 0.5
    return _boxes(heights, widths, crop_height, crop_width, top, left)


def _colours(numbers: npt.NDArray[np.int64], key: np.uint64) -> npt.NDArray[np.float32]:
    """Returns the tutorial's brightness, hue, saturation and contrast, in this order, as `Views`.

    Brightness adds d to R, G, B. Hue turns I, Q by an angle, saturation multiplies them. Contrast c
    draws pixels away from their mean m. As all are affine and grey stays grey in YIQ, together they
    are M (c x + (1 - c) m) + d, where M turns and multiplies.
    """
    draws = 2 * _uniform(numbers, key, 4) - 1
    brightness, hue = _BRIGHTNESS * draws[:, 0], _HUE * draws[:, 1]
    saturation, contrast = 1 + _SATURATION * draws[:, 2], 1 + _CONTRAST * draws[:, 3]
    turn = np.zeros((len(numbers), 3, 3))
    turn[:, 0, 0] = 1
    turn[:, 1, 1] = turn[:, 2, 2] = saturation * np.cos(hue)
    turn[:, 2, 1] = saturation * np.sin(hue)
    turn[:, 1, 2] = -turn[:, 2, 1]
    matrix = np.linalg.inv(_YIQ) @ turn @ _YIQ
    share = contrast[:, None, None]
    offset = np.repeat(brightness, 3).reshape(-1, 3, 1)
    return np.concatenate([matrix * share, matrix * (1 - share), offset], 2).astype(np.float32)


def _boxes(
    heights: npt.NDArray[np.int64],
    widths: npt.NDArray[np.int64],
    crop_height: npt.NDArray[np.float64],
    crop_width: npt.NDArray[np.float64],
    top: npt.NDArray[np.float64] | float,
    left: npt.NDArray[np.float64] | float,
) -> npt.NDArray[np.int32]:
    """Places crops; `top` and `left` in [0, 1) choose among the positions where they fit."""
    crop_height = np.clip(crop_height, 1, heights)
    crop_width = np.clip(crop_width, 1, widths)
    y = np.floor(top * (heights - crop_height + 1))
    x = np.floor(left * (widths - crop_width + 1))
    return np.stack([y, x, crop_height, crop_width], axis=1).astype(np.int32)


def _uniform(numbers: npt.NDArray[np.int64], key: np.uint64, count: int) -> npt.NDArray[np.float64]:
    """Returns [N, count] numbers in [0, 1) from the 53 high bits of splitmix64 counters."""
    states = mix(numbers.astype(np.uint64) ^ key)[:, None]
    counters = np.arange(count, dtype=np.uint64)[None, :]
    bits = mix(mix(states ^ counters) ^ key)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
