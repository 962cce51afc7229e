"""Memory that is shared with frameworks: bfloat16, which NumPy does not know, and their buffers."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

# dlpack.h: DLTensor begins with 8 bytes of address, 8 of device and 4 of the number of axes; then
# DLDataType begins with a byte of its kind.
_KIND_AT = 20
_UINT, _BFLOAT = 1, 4
_CPU = (1, 0)


@dataclass(frozen=True)
class Bfloat16:
    """An array that frameworks take as bfloat16, e.g. by torch.from_dlpack; no copy.

    Attributes:
      bits: the numbers, as uint16.
    """

    bits: npt.NDArray[np.uint16]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        return self.bits.shape

    def __dlpack__(self, **_: Any) -> Any:
        """Returns NumPy's capsule, which says uint16, changed to say bfloat16."""
        return _renamed(self.bits.__dlpack__(), _UINT, _BFLOAT)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns (kind, number) of the device: memory of this machine."""
        return _CPU


class Memory:
    """An array's memory, which NumPy may write to; each array of it keeps this object alive."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def array_over(buffer: Any) -> npt.NDArray[Any]:
    """Returns the memory of another library's array, to be written to; bfloat16 is uint16.

    Args:
      buffer: has the DLPack or the buffer protocol, in memory of this machine.

    Raises:
      TypeError, ValueError, BufferError, RuntimeError: it has not, or nobody may write to it.
    """
    if not isinstance(buffer, np.ndarray) and hasattr(buffer, "__dlpack__"):
        # DLPack does not say whether memory may be written to, so NumPy takes it for read-only.
        return np.asarray(Memory(np.from_dlpack(_Uint16(buffer))))
    array = buffer if isinstance(buffer, np.ndarray) else np.asarray(memoryview(buffer))
    if not array.flags.writeable:
        raise ValueError("it is read-only")
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


@dataclass(frozen=True)
class _Uint16:
    """A framework's array, of which NumPy takes bfloat16 as uint16."""

    tensor: Any

    def __dlpack__(self, **_: Any) -> Any:
        return _renamed(self.tensor.__dlpack__(), _BFLOAT, _UINT)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def _renamed(capsule: Any, kind: int, other: int) -> Any:
    """Returns DLPack's capsule with numbers of one kind called another."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found = ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + _KIND_AT)
    if found.value == kind:
        found.value = other
    return capsule
