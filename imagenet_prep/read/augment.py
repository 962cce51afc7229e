"""Computes crops, mirroring and colour changes of images for all backends.

The random numbers of an example depend only on the seed, the epoch and the example's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from imagenet_prep.read.order import mix, stream
from imagenet_prep.read.recipes import RANDOM, CropRecipe

if TYPE_CHECKING:
    import numpy.typing as npt

# numbers of random streams; read/order.py uses 1 and 2
_DRAWS = 3
_COLOURS = 4
_FILTERS = 5
# As in torchvision's RandomResizedCrop: attempts before the largest central crop is used.
_ATTEMPTS = 10

# The constants of train_imagenet_resnet_hvd.py with --increased_aug, as it ran on 256 GPUs. The
# script adds at most 0.3 to pixels of 0 to 255, so its brightness change is invisible.
_BRIGHTNESS = 0.3
_HUE = 0.13 * np.pi
_SATURATION = 0.4
_CONTRAST = 0.4
# Converts RGB to YIQ (NTSC 1953). tf.contrib's random_hsv_in_yiq rotates the hue in this space.
_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


@dataclass(frozen=True)
class Views:
    """The crops of N images."""

    # [N, 4]: top, left, height, width in pixels, inside the image. If the recipe has padding, the
    # crop has the size of the image, and its pixels outside the image are black.
    boxes: npt.NDArray[np.int32]
    mirrored: npt.NDArray[np.bool_]  # [N]
    # [N, 3, 7], or None for unchanged colours: an RGB pixel in [0, 255] becomes colours[:, :3] @
    # pixel + colours[:, 3:6] @ mean + colours[:, 6], clipped to [0, 255]. `mean` is the mean pixel
    # of the cropped and resized image.
    colours: npt.NDArray[np.float32] | None = None
    # [N]: whether the image is resized with the bicubic filter; None if all have the same filter.
    cubic: npt.NDArray[np.bool_] | None = None


def central_views(
    recipe: CropRecipe,
    heights: npt.NDArray[np.int64],
    widths: npt.NDArray[np.int64],
    size: tuple[int, int],
) -> Views:
    """Returns central crops without mirroring, for evaluation at `size`, which is height, width."""
    whole_height = heights.astype(np.float64)
    whole_width = widths.astype(np.float64)
    if recipe.keep_aspect:
        height, width = size
        # Products of integers, so a square result gets the same crop for every side.
        covered = np.minimum(whole_height * width, whole_width * height)
        whole_height = covered / width
        whole_width = covered / height
    tall = np.maximum(1, np.rint(whole_height * recipe.share))
    wide = np.maximum(1, np.rint(whole_width * recipe.share))
    boxes = _boxes(heights, widths, tall, wide, 0.5, 0.5)
    return Views(boxes, np.zeros(len(heights), bool))


def random_views(
    recipe: CropRecipe,
    heights: npt.NDArray[np.int64],
    widths: npt.NDArray[np.int64],
    numbers: npt.NDArray[np.int64],
    seed: int,
    epoch: int,
    *,
    colour: bool = False,
    view: int = 0,
) -> Views:
    """Returns random training crops of the examples with these `numbers` for an epoch.

    Area and log aspect ratio are drawn uniformly, up to ten times, until the crop fits into the
    image. Each value of `view` gives an independent set of crops.
    """
    more = (view,) if view else ()
    draws = _uniform(numbers, stream(seed, epoch, _DRAWS, *more), 2 * _ATTEMPTS + 3)
    if recipe.padding is None:
        boxes = _crops(recipe, heights, widths, draws)
    else:
        moved = np.floor(draws[:, -3:-1] * (2 * recipe.padding + 1)) - recipe.padding
        boxes = np.concatenate([moved, heights[:, None], widths[:, None]], axis=1).astype(np.int32)
    mirrored = draws[:, -1] < recipe.mirror
    colours = None
    if colour:
        colours = _colours(numbers, stream(seed, epoch, _COLOURS, *more))
    cubic = None
    if recipe.filter == RANDOM:
        cubic = _uniform(numbers, stream(seed, epoch, _FILTERS, *more), 1)[:, 0] < 0.5
    return Views(boxes, mirrored, colours, cubic)


def boxes_in(
    views: Views,
    boxes: npt.NDArray[np.float64],
    heights: npt.NDArray[np.int64],
    widths: npt.NDArray[np.int64],
    size: tuple[int, int],
    *,
    square: bool = False,
) -> npt.NDArray[np.float32]:
    """Converts object boxes [N, most, 4] from fractions of image sides to pixels of the views.

    A box is given as left, top, right, bottom. The views have height and width `size`. Boxes are
    clipped to the view; a box outside it becomes zeros. With `square`, `views.boxes` is ignored,
    and the views show the central square of the image.
    """
    left_top, extent = (views.boxes[:, None, places] for places in ([1, 0, 1, 0], [3, 2, 3, 2]))
    sides = np.stack([widths, heights, widths, heights], axis=1)[:, None, :]
    if square:
        extent = sides.min(axis=2, keepdims=True)
        left_top = (sides - extent) / 2
    pixels = boxes * sides
    height, width = size
    view_sides = np.array([width, height, width, height])
    shown = np.clip((pixels - left_top) * (view_sides / extent), 0, view_sides).astype(np.float32)
    mirrored = shown[..., [2, 1, 0, 3]]
    mirrored[..., ::2] = width - mirrored[..., ::2]
    shown = np.where(views.mirrored[:, None, None], mirrored, shown)
    seen = (shown[..., 0] < shown[..., 2]) & (shown[..., 1] < shown[..., 3])
    shown[~seen] = 0
    return shown


def _crops(
    recipe: CropRecipe,
    heights: npt.NDArray[np.int64],
    widths: npt.NDArray[np.int64],
    draws: npt.NDArray[np.float64],
) -> npt.NDArray[np.int32]:
    least, most = recipe.area
    area = least + draws[:, :_ATTEMPTS] * (most - least)
    low, high = recipe.aspect
    aspect = low * (high / low) ** draws[:, _ATTEMPTS : 2 * _ATTEMPTS]
    whole_height = heights.astype(np.float64)
    whole_width = widths.astype(np.float64)
    side = np.sqrt(whole_height * whole_width)[:, None]
    stretch = 1.0 if recipe.keep_aspect else np.sqrt(whole_width / whole_height)[:, None]
    tall = np.rint(side * np.sqrt(area / aspect) / stretch)
    wide = np.rint(side * np.sqrt(area * aspect) * stretch)
    fits = (tall <= whole_height[:, None]) & (wide <= whole_width[:, None])
    first = np.argmax(fits, axis=1)[:, None]
    crop_height = np.take_along_axis(tall, first, axis=1)[:, 0]
    crop_width = np.take_along_axis(wide, first, axis=1)[:, 0]
    top, left = draws[:, -3], draws[:, -2]
    # If no crop fits into a very long image, use the largest allowed crop in its centre.
    none = ~fits.any(axis=1)
    if none.any():
        crop_height[none] = np.minimum(whole_height, np.rint(whole_width / low))[none]
        crop_width[none] = np.minimum(whole_width, np.rint(whole_height * high))[none]
        top[none] = left[none] = 0.5
    return _boxes(heights, widths, crop_height, crop_width, top, left)


def _colours(numbers: npt.NDArray[np.int64], key: np.uint64) -> npt.NDArray[np.float32]:
    """Returns random `Views.colours`: brightness, hue, saturation and contrast changes.

    With mean pixel m, contrast c and brightness d, a pixel x becomes M (c x + (1 - c) m) + d. The
    matrix M rotates (hue) and scales (saturation) the components I and Q of YIQ.
    """
    draws = 2 * _uniform(numbers, key, 4) - 1
    brightness = _BRIGHTNESS * draws[:, 0]
    hue = _HUE * draws[:, 1]
    saturation = 1 + _SATURATION * draws[:, 2]
    contrast = 1 + _CONTRAST * draws[:, 3]
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
    crop_height = np.clip(crop_height, 1, heights)
    crop_width = np.clip(crop_width, 1, widths)
    y = np.floor(top * (heights - crop_height + 1))
    x = np.floor(left * (widths - crop_width + 1))
    return np.stack([y, x, crop_height, crop_width], axis=1).astype(np.int32)


def _uniform(numbers: npt.NDArray[np.int64], key: np.uint64, count: int) -> npt.NDArray[np.float64]:
    """Returns [N, count] random numbers in [0, 1), from the top 53 bits of splitmix64."""
    states = mix(numbers.astype(np.uint64) ^ key)[:, None]
    counters = np.arange(count, dtype=np.uint64)[None, :]
    bits = mix(mix(states ^ counters) ^ key)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
