"""Converts NumPy arrays to arrays of the framework of a reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from imagenet_prep.core.errors import UsageError
from imagenet_prep.read.dlpack import Bfloat16

if TYPE_CHECKING:
    import numpy.typing as npt


def _to_numpy(array: npt.NDArray[Any], bits: bool) -> Any:
    if not bits:
        return array
    try:
        import ml_dtypes
    except ImportError as error:
        raise UsageError(
            "NumPy has no bfloat16: pip install ml-dtypes, or choose framework='dlpack' or a "
            "different dtype"
        ) from error
    return array.view(ml_dtypes.bfloat16)


def _to_tensorflow(array: npt.NDArray[Any], bits: bool) -> Any:
    from imagenet_prep.read.tfdata import from_numpy

    return from_numpy(array, bits)


# A converter's arguments are an array, and whether its uint16 values are the bits of bfloat16.
CONVERTERS: dict[str, Callable[[npt.NDArray[Any], bool], Any]] = {
    "numpy": _to_numpy,
    "dlpack": lambda array, bits: Bfloat16(array) if bits else array,
    "tensorflow": _to_tensorflow,
}
