"""The fields of a batch, and the allowed values of the arguments of `make_dataset`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, get_args

if TYPE_CHECKING:
    # The standard TypeVar has defaults only from Python 3.13 on.
    from typing_extensions import TypeVar

    Array = TypeVar("Array", default=Any)
else:
    from typing import TypeVar

    Array = TypeVar("Array")

Backend = Literal["auto", "tfdata", "dali", "native"]
Device = Literal["cpu", "gpu"]
Dtype = Literal["float32", "bfloat16", "float16", "uint8"]
Field = Literal[
    "images", "class_index", "mask", "key", "number", "boxes", "width", "height", "mirrored"
]
Framework = Literal["tensorflow", "numpy", "dlpack"]
Layout = Literal["NHWC", "NCHW"]
OnBadRecord = Literal["raise", "skip"]
RecipeName = Literal["resnet", "tutorial", "cifar10", "mnist", "adm"]

FIELDS: tuple[Field, ...] = get_args(Field)
DECODED: tuple[Field, ...] = ("images", "class_index", "mask")  # the default of `fields`


class Batch(TypedDict, Generic[Array]):
    """The examples of one step and rank: a dict of arrays with the requested fields.

    The default fields are `images`, `class_index` and `mask`; see `fields` of `make_dataset`. If
    `views` is larger than 1, `images` and `boxes` have an axis of that size after the batch axis.
    Type checkers know the arrays of `Batch[numpy.ndarray]` as NumPy arrays; the arrays of
    `Batch` can have any type.

    Attributes:
      images: [batch, height, width, 3] or, with layout="NCHW", [batch, 3, height, width]:
        normalised floats of the type `dtype`, or uint8 from 0 to 255.
      class_index: [batch] int32 from 0 to `Reader.num_classes` - 1; -1 if the mask is False.
      mask: [batch] bool: False for padding in the last evaluation step and for skipped records.
      key: [batch] strings, e.g. n01440764/n01440764_10026.JPEG; empty if the mask is False.
      number: [batch] int64: the number that `Reader.example` takes; -1 if the mask is False.
      boxes: [batch, most, 4] float32: left, top, right and bottom in pixels of `images`. Unused
        rows, and boxes outside the crop, are zeros.
      width, height: [batch] int32: size of the stored image in pixels; 0 if the mask is False.
      mirrored: [batch] bool: True if the image is mirrored. With several views, [batch, views].

    Unpacking a batch gives the names of its fields, as for every dict; `values()` has the arrays.

    The field "column:NAME" holds the rows of a column of the dataset, [batch, ...] in the type of
    the column; zeros if the mask is False.

    Example:
      >>> from imagenet_prep.read import make_dataset
      >>> reader = make_dataset("/data/imagenet-480", "validation", batch_size=8,
      ...                       backend="native", fields=("key", "boxes"))
      >>> batch = next(iter(reader))
      >>> list(batch), batch["key"].shape, batch["boxes"].shape[::2]
      (['key', 'boxes'], (8,), (8, 4))
    """

    images: Array
    class_index: Array
    mask: Array
    key: Array
    number: Array
    boxes: Array
    width: Array
    height: Array
    mirrored: Array
