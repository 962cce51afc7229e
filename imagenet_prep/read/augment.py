"""Computes crops, mirroring and colour changes of images for all backends.

The random numbers of an example depend only on the seed, the epoch and the example's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from imagenet_prep.read.order import mix, stream

if TYPE_CHECKING:
    import numpy.typing as npt

# numbers of random streams; read/order.py uses 1 and 2
_DRAWS = 3
_COLOURS = 4
# As in torchvision's RandomResizedCrop: the range of crop area / image area, the range of width /
# height, and the number of attempts before the largest central crop is used.
_AREA = (0.08, 1.0)
_ASPECT = (3 / 4, 4 / 3)
_ATTEMPTS = 10

# The constants of train_imagenet_resnet_hvd.py with --increased_aug, as it ran on 256 GPUs. The
# script adds at most 0.3 to pixels of 0 to 255, so its brightness change is invisible.
_BRIGHTNESS = 0.3
_HUE = 0.13 * np.pi
_SATURATION = 0.4
_CONTRAST = 0.4
# Converts RGB to YIQ (NTSC 1953). tf.contrib's random_hsv_in_yiq rotates the hue in this space.
_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


Colours = tuple[float, float, float]  # a number for each of R, G, B


@dataclass(frozen=True)
class CropRecipe:
    """The constants of a preprocessing recipe.

    Attributes:
      mean, std: mean and standard deviation of R, G, B in [0, 255], for normalising images.
      keep_aspect: if True, aspect ratios of crops are measured in image pixels, and the central
        crop is square. If False, crops are chosen as if the image were square.
      evaluation: side of the central crop as a share of the image's shorter side. If keep_aspect
        is False, height and width of the crop as a share of the image's height and width.
      padding: None if images are cropped. Otherwise, training shifts complete images by up to this
        number of pixels and fills the gap with black.
      square: if True, the codec crops the central square and resizes it with Pillow's filters.
    """

    mean: Colours
    std: Colours
    keep_aspect: bool = False
    evaluation: float = 1.0
    padding: int | None = None
    mirrors: bool = True  # mirror half of the training images
    square: bool = False


RECIPES = {
    # Inception crops (Szegedy et al. 2015), as in torchvision. Evaluation crops 224 pixels from an
    # image with a shorter side of 256. mean and std are the usual ones of ImageNet times 255.
    "resnet": CropRecipe(
        mean=(123.675, 116.28, 103.53),
        std=(58.395, 57.12, 57.375),
        keep_aspect=True,
        evaluation=224 / 256,
    ),
    # From crop_and_resize_image and cnn_model_function in train_imagenet_resnet_hvd.py (AWS
    # tutorial).
    "tutorial": CropRecipe(mean=(121.0, 115.0, 100.0), std=(70.0, 68.0, 71.0), evaluation=0.8),
    # From train_preprocess_fn in the SageMaker guide. mean and std are of CIFAR-10's train split.
    "cifar10": CropRecipe(mean=(125.3, 123.0, 113.9), std=(63.0, 62.1, 66.7), padding=4),
    # Digits are not shifted or mirrored. mean and std are of MNIST's train split.
    "mnist": CropRecipe(mean=(33.3,) * 3, std=(78.6,) * 3, padding=0, mirrors=False),
    # The crop of center_crop_arr in guided-diffusion, whose training also mirrors images.
    "adm": CropRecipe(mean=(127.5,) * 3, std=(127.5,) * 3, padding=0, square=True),
}


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


def central_views(
    recipe: CropRecipe, heights: npt.NDArray[np.int64], widths: npt.NDArray[np.int64]
) -> Views:
    """Returns central crops without mirroring, for evaluation."""
    sides = (heights, widths)
    if recipe.keep_aspect:
        sides = (np.minimum(heights, widths),) * 2
    shown = [np.maximum(1, np.rint(side * recipe.evaluation)) for side in sides]
    boxes = _boxes(heights, widths, shown[0], shown[1], 0.5, 0.5)
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
    """Converts object boxes [N, most, 4] from fractions of image sides to pixels of the views.

    A box is given as left, top, right, bottom. The views have `side` x `side` pixels. Boxes are
    clipped to the view; a box outside it becomes zeros. With `square`, `views.boxes` is ignored,
    and the views show the central square of the image.
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
    shown[~seen] = 0
    return shown


def _crops(
    recipe: CropRecipe,
    heights: npt.NDArray[np.int64],
    widths: npt.NDArray[np.int64],
    draws: npt.NDArray[np.float64],
) -> npt.NDArray[np.int32]:
    area = _AREA[0] + draws[:, :_ATTEMPTS] * (_AREA[1] - _AREA[0])
    low, high = _ASPECT
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
