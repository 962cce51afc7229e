"""The fields of a batch, the allowed arguments of `make_dataset`, and memory for arrays.

`Batch` has the arrays of one step. `Field`, `Framework`, `Dtype` and similar types list the allowed
values of the arguments of `make_dataset`.

`on_device` and `Bfloat16` share memory with frameworks through DLPack, including bfloat16.
`array_over` accepts arrays of frameworks, and `leased` reuses buffers.
"""

from __future__ import annotations

import ctypes
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, get_args

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


# A DLTensor (dlpack.h) starts with the address (8 bytes) and the device type, device number and
# number of axes (4 bytes each). A DLDataType follows, which starts with the type code (1 byte).
_DEVICE_AT = 12
_KIND_AT = 20
_UINT = 1
_BFLOAT = 4


def _field(capsule: Any, of: Any, offset: int) -> Any:
    """Returns the field of ctypes type `of` at an offset in a capsule's DLTensor."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return of.from_address(pointer(capsule, b"dltensor") + offset)


def on_device(array: Any, number: int) -> Any:
    """Returns an array's DLPack capsule with its device number set to `number`."""
    capsule = array.__dlpack__()
    _field(capsule, ctypes.c_int32, _DEVICE_AT).value = number
    return capsule


class _Renamed:
    """A view of an array, with the DLPack type code `other` instead of `kind`."""

    def __init__(self, array: Any, kind: int, other: int) -> None:
        self._array = array
        self._kind = kind
        self._other = other

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self._array.__dlpack__()
        code = _field(capsule, ctypes.c_uint8, _KIND_AT)
        if code.value == self._kind:
            code.value = self._other
        return capsule

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class Bfloat16(_Renamed):
    """A uint16 array that frameworks import as bfloat16, e.g. with torch.from_dlpack."""

    def __init__(self, bits: npt.NDArray[np.uint16]) -> None:
        super().__init__(bits, _UINT, _BFLOAT)
        self.bits = bits
        self.shape = bits.shape


class Memory:
    """Lets NumPy write to an array's memory; NumPy arrays over this memory keep it alive."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


class PooledMemory(Memory):
    """Memory that is added to `free` after use. New memory is slower: the kernel clears it."""

    def __init__(self, array: npt.NDArray[Any], free: deque[npt.NDArray[Any]]) -> None:
        super().__init__(array)
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._array)


def leased(num_bytes: int, free: deque[npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    """Returns memory from `free`, or new memory. Either is added to `free` after its last use."""
    memory = free.pop() if free else np.empty(0, np.uint8)
    # Smaller buffers are dropped, so after a few batches all fit the largest batch.
    if len(memory) < num_bytes:
        memory = np.empty(num_bytes, np.uint8)
    return np.asarray(PooledMemory(memory, free))[:num_bytes]


def array_over(buffer: Any) -> npt.NDArray[Any]:
    """Returns a writable array over a DLPack or buffer object; bfloat16 becomes uint16."""
    if not isinstance(buffer, np.ndarray) and hasattr(buffer, "__dlpack__"):
        # DLPack does not say whether memory is writable, so NumPy treats it as read-only.
        return np.asarray(Memory(np.from_dlpack(_Renamed(buffer, _BFLOAT, _UINT))))
    array = buffer if isinstance(buffer, np.ndarray) else np.asarray(memoryview(buffer))
    if not array.flags.writeable:
        raise ValueError("it is read-only")
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


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
    "images",
    "class_index",
    "mask",
    "key",
    "number",
    "boxes",
    "width",
    "height",
    "mirrored",
    "encoded",
]
Framework = Literal["tensorflow", "numpy", "dlpack", "torch", "jax"]
Layout = Literal["NHWC", "NCHW"]
OnBadRecord = Literal["raise", "skip"]
RecipeName = Literal[
    "resnet",
    "resnet-1",
    "tutorial",
    "cifar10",
    "mnist",
    "adm",
    "timm",
    "torchvision-v2",
    "mae",
]

FIELDS: tuple[Field, ...] = get_args(Field)
DECODED: tuple[Field, ...] = ("images", "class_index", "mask")  # the default of `fields`


class Batch(TypedDict, Generic[Array]):
    """The examples of one step and rank: a dict of arrays with the requested fields.

    The default fields are `images`, `class_index` and `mask`; see `fields` of `make_dataset`. If an
    image has several views, `images`, `boxes` and `mirrored` have an axis for them after the batch
    axis. If `views` is a list, `images` is a tuple with an array [batch, count, ...] for each item;
    `boxes` and `mirrored` have the views of all items, one after the other.
    Type checkers know the arrays of `Batch[numpy.ndarray]` as NumPy arrays; the arrays of
    `Batch` can have any type.

    Attributes:
      images: [batch, height, width, 3] or, with layout="NCHW", [batch, 3, height, width]:
        normalised floats of the type `dtype`, or uint8 from 0 to 255.
      class_index: [batch] int32 from 0 to `Reader.num_classes` - 1; -1 if the mask is False. With
        framework="torch", int64.
      mask: [batch] bool: False for padding in the last evaluation step and for skipped records.
      key: [batch] strings, e.g. n01440764/n01440764_10026.JPEG; empty if the mask is False. With
        framework="torch" or "jax", a list.
      number: [batch] int64: the number that `Reader.example` takes; -1 if the mask is False.
      boxes: [batch, most, 4] float32: left, top, right and bottom in pixels of `images`. Unused
        rows, and boxes outside the crop, are zeros.
      width, height: [batch] int32: size of the stored image in pixels; 0 if the mask is False.
      mirrored: [batch] bool: True if the image is mirrored. With several views, [batch, views].
      encoded: the JPEG of each image as it is stored: a list of bytes, or TensorFlow's tensor of
        strings; empty if the mask is False. `decode` decodes one of them.

    Unpacking a batch gives the names of its fields, as for every dict; `values()` has the arrays.

    The field "column:NAME" holds the rows of a column of the dataset, [batch, ...] in the type of
    the column; zeros if the mask is False. A column of texts gives a list of strings per image,
    or TensorFlow's ragged tensor of strings; empty if the mask is False.

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
    encoded: Any
