"""What a batch says of its examples beside what it shows: keys, numbers, boxes, sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.core.errors import UsageError
from imagenet_prep.read.augment import Views, boxes_in

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.dataset.example import ImageExample

# What decoders hand out, and what every batch holds unless other fields are asked for.
DECODED = ("images", "class_index", "mask")
# Of one image. A batch has room for as many boxes of each image as one of them has.
MOST_BOXES = 5_000
FIELDS = (*DECODED, "key", "number", "boxes", "width", "height")


def sides_of(
    images: Sequence[ImageExample | None], absent: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns heights and widths in pixels; `absent` where there is no image."""
    heights = [image.height if image else absent for image in images]
    widths = [image.width if image else absent for image in images]
    return np.array(heights, np.int64), np.array(widths, np.int64)


def describe(
    field: str,
    images: Sequence[ImageExample | None],
    keys: Sequence[str],
    numbers: npt.NDArray[np.int64],
    views: Sequence[Views],
    side: int,
) -> npt.NDArray[Any]:
    """Returns one field of a batch; empty keys, -1 and zeros where there is no image.

    Args:
      field: one of `FIELDS` that is not decoded.
      images: [batch], None where the mask is False.
      keys: of the images, "" likewise; only for the field "key".
      numbers: of the examples; -1 likewise.
      views: what is shown of the images; boxes have an axis of views where there are several.
      side: height and width of the views in pixels.

    Raises:
      UsageError: an image has more boxes than a batch has room for.
    """
    if field == "key":
        return np.array(keys, np.str_)
    if field == "number":
        return numbers
    heights, widths = sides_of(images, 0)
    if field != "boxes":
        return (heights if field == "height" else widths).astype(np.int32)
    counts = [len(image.boxes.xmin) if image else 0 for image in images]
    most = max(counts)
    if most > MOST_BOXES:
        raise UsageError(
            f"example {numbers[counts.index(most)]} has {most:,} boxes, and a batch has room for "
            f"{MOST_BOXES:,} of each image: leave boxes out of fields=, or leave that example out"
        )
    boxes = np.zeros((len(images), most, 4))
    for of_image, image in zip(boxes, images, strict=True):
        if image:
            found = image.boxes
            of_image[: len(found.xmin)].T[:] = found.xmin, found.ymin, found.xmax, found.ymax
    shown = [boxes_in(each, boxes, heights, widths, side) for each in views]
    return shown[0] if len(shown) == 1 else np.stack(shown, axis=1)
