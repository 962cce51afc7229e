"""What a reader's images show: crops, sizes, filters, mirroring and normalisation.

`CropRecipe` has all of these settings. RECIPES are those with a name, and the arguments of
`make_dataset` change single settings of one of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from imagenet_prep.core.errors import UsageError

Colours = tuple[float, float, float]  # a number for each of R, G, B
Range = tuple[float, float]  # the lowest and the highest value
Filter = Literal["bilinear", "bicubic", "random"]

BILINEAR: Filter = "bilinear"
BICUBIC: Filter = "bicubic"
RANDOM: Filter = "random"

# The usual mean and standard deviation of ImageNet's pixels, times 255.
_MEAN = (123.675, 116.28, 103.53)
_STD = (58.395, 57.12, 57.375)


def refuse_aliasing(filter_: Filter) -> None:
    """Raises UsageError if antialias=False contradicts a filter."""
    if filter_ != BILINEAR:
        raise UsageError(
            f"filter={filter_!r} also filters images when downscaling: remove antialias=False"
        )


def _require_range(name: str, given: Any, *, most: float) -> None:
    if isinstance(given, tuple) and len(given) == 2:
        low, high = given
        if all(_is_number(value) for value in given) and 0 < low <= high <= most:
            return
    limit = f" <= {most:g}" if math.isfinite(most) else ""
    raise UsageError(f"{name}={given!r}: expected (low, high) with 0 < low <= high{limit}")


def _require_colours(name: str, given: Any, above: float) -> None:
    is_triple = isinstance(given, tuple) and len(given) == 3
    if is_triple and all(_is_number(value) and value > above for value in given):
        return
    kind = "numbers above 0" if above == 0 else "numbers"
    raise UsageError(f"{name}={given!r}: expected three {kind}, for R, G and B in [0, 255]")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class CropRecipe:
    """The settings of a preprocessing recipe.

    Attributes:
      mean, std: mean and standard deviation of R, G, B in [0, 255], for normalising images.
      keep_aspect: if True, aspect ratios of crops are measured in image pixels, and the central
        crop has the aspect ratio of the result. If False, crops are chosen as if the image had the
        result's aspect ratio, and evaluation squashes the image.
      share: side of the central crop as a share of the largest crop with its aspect ratio. If
        keep_aspect is False, height and width of the crop as a share of the image's.
      area: the range of crop area / image area in training.
      aspect: the range of width / height of crops in training.
      filter: how crops are resized: "bilinear", "bicubic" (Keys 1981, a = -0.5, as in Pillow), or
        "random": bilinear or bicubic, drawn for each training image; evaluation is bicubic.
      antialias: filter images when downscaling, also in training; bicubic always does.
      mirror: share of the training images that are mirrored.
      padding: None if images are cropped. Otherwise, training shifts complete images by up to this
        number of pixels and fills the gap with black.
      square: if True, the codec crops the central square and resizes it with Pillow's filters.
    """

    mean: Colours
    std: Colours
    keep_aspect: bool = False
    share: float = 1.0
    area: Range = (0.08, 1.0)
    aspect: Range = (3 / 4, 4 / 3)
    filter: Filter = BILINEAR
    antialias: bool = False
    mirror: float = 0.5
    padding: int | None = None
    square: bool = False

    def __post_init__(self) -> None:
        _require_range("area", self.area, most=1.0)
        _require_range("aspect", self.aspect, most=math.inf)
        if not 0 < self.share <= 1:
            raise UsageError(f"share={self.share!r}: expected more than 0, at most 1")
        if not 0 <= self.mirror <= 1:
            raise UsageError(f"mirror={self.mirror!r}: expected a share from 0 to 1")
        if self.filter not in get_args(Filter):
            expected = ", ".join(map(repr, get_args(Filter)))
            raise UsageError(f"filter={self.filter!r}: expected one of {expected}")
        _require_colours("mean", self.mean, -math.inf)
        _require_colours("std", self.std, 0.0)
        # The numbers of torchvision are for pixels in [0, 1].
        if 0 < max(self.mean) < 1 or max(self.std) < 1:
            raise UsageError(
                f"mean={self.mean}, std={self.std}: expected values for R, G and B in [0, 255]. "
                "Multiply values for [0, 1] by 255."
            )

    def changed(self, name: str, wanted: dict[str, Any]) -> CropRecipe:
        """Returns this recipe with other settings; None keeps the recipe's.

        Raises:
          UsageError: a value is invalid, or the recipe, called `name`, has no such setting.
        """
        given = {setting: value for setting, value in wanted.items() if value is not None}
        lacking: list[str] = []
        if self.padding is not None:
            lacking += ["area", "aspect"]
        if self.square:
            lacking += ["share", "keep_aspect", "filter"]
        for setting in lacking:
            if setting in given:
                raise UsageError(
                    f"recipe={name!r} shows complete images or their central square, so it has no "
                    f"{setting}=: remove it, or choose a recipe with crops, such as 'resnet'"
                )
        for setting in ("area", "aspect", "mean", "std"):
            if isinstance(given.get(setting), (Sequence, np.ndarray)):
                given[setting] = tuple(given[setting])
        return replace(self, **given)


# The default, and the same recipe as it was in version 0.1.0.
RESNET = "resnet"
RESNET_1 = "resnet-1"

RECIPES = {
    # Inception crops (Szegedy et al. 2015), as in torchvision. Evaluation crops 224 pixels from an
    # image with a shorter side of 256.
    RESNET: CropRecipe(mean=_MEAN, std=_STD, keep_aspect=True, share=224 / 256, antialias=True),
    RESNET_1: CropRecipe(mean=_MEAN, std=_STD, keep_aspect=True, share=224 / 256),
    # From crop_and_resize_image and cnn_model_function in train_imagenet_resnet_hvd.py (AWS
    # tutorial).
    "tutorial": CropRecipe(mean=(121.0, 115.0, 100.0), std=(70.0, 68.0, 71.0), share=0.8),
    # From train_preprocess_fn in the SageMaker guide. mean and std are of CIFAR-10's train split.
    "cifar10": CropRecipe(mean=(125.3, 123.0, 113.9), std=(63.0, 62.1, 66.7), padding=4),
    # Digits are not shifted or mirrored. mean and std are of MNIST's train split.
    "mnist": CropRecipe(mean=(33.3,) * 3, std=(78.6,) * 3, padding=0, mirror=0.0),
    # The crop of center_crop_arr in guided-diffusion, whose training also mirrors images.
    "adm": CropRecipe(mean=(127.5,) * 3, std=(127.5,) * 3, padding=0, square=True),
    # The defaults of create_transform in timm 1.0: training draws the filter of each image.
    "timm": CropRecipe(
        mean=_MEAN, std=_STD, keep_aspect=True, share=0.875, filter=RANDOM, antialias=True
    ),
    # presets.py and the README of torchvision's reference scripts, for the weights V2: train with
    # image_size=176, evaluate 224 pixels from an image with a shorter side of 232.
    "torchvision-v2": CropRecipe(
        mean=_MEAN, std=_STD, keep_aspect=True, share=224 / 232, antialias=True
    ),
    # main_pretrain.py and util/datasets.py of MAE (He et al. 2022).
    "mae": CropRecipe(
        mean=_MEAN, std=_STD, keep_aspect=True, share=224 / 256, area=(0.2, 1.0), filter=BICUBIC
    ),
}


@dataclass(frozen=True, kw_only=True)
class View:
    """Random crops of one size; a list of them is the argument `views` of `make_dataset`.

    The settings that are None are those of the reader.

    Attributes:
      count: number of independent crops of each image.
      image_size: side, or height and width, in pixels.
      area, aspect, filter: as in `make_dataset`.

    Example:
      >>> from imagenet_prep.read import View, make_dataset
      >>> views = [View(count=2, area=(0.32, 1.0)), View(count=8, image_size=96, area=(0.05, 0.32))]
      >>> reader = make_dataset("/data/imagenet-480", "train", batch_size=8, views=views)
      >>> large, small = next(iter(reader))["images"]
      >>> large.shape, small.shape
      ((8, 2, 224, 224, 3), (8, 8, 96, 96, 3))
    """

    count: int = 1
    image_size: int | tuple[int, int] | None = None
    area: Range | None = None
    aspect: Range | None = None
    filter: Filter | None = None

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 1:
            raise UsageError(f"View(count={self.count!r}): expected at least 1")


def height_and_width(image_size: Any, name: str = "image_size") -> tuple[int, int]:
    """Returns height and width of an argument `name`, which is a side or a pair.

    Raises:
      UsageError: it is neither.
    """
    pair = (image_size, image_size) if isinstance(image_size, (int, np.integer)) else image_size
    if isinstance(pair, Sequence) and len(pair) == 2:
        height, width = pair
        if all(isinstance(side, (int, np.integer)) and side >= 1 for side in pair):
            return int(height), int(width)
    raise UsageError(
        f"{name}={image_size!r}: expected at least 1: a side, or (height, width), in pixels"
    )
