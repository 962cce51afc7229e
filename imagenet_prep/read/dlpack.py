"""Shares memory with frameworks through DLPack, including bfloat16, and reuses buffers."""

from __future__ import annotations

import ctypes
from collections import deque
from typing import TYPE_CHECKING, Any

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


class Lease(Memory):
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
    return np.asarray(Lease(memory, free))[:num_bytes]


def array_over(buffer: Any) -> npt.NDArray[Any]:
    """Returns a writable array over a DLPack or buffer object; bfloat16 becomes uint16."""
    if not isinstance(buffer, np.ndarray) and hasattr(buffer, "__dlpack__"):
        # DLPack does not say whether memory is writable, so NumPy treats it as read-only.
        return np.asarray(Memory(np.from_dlpack(_Renamed(buffer, _BFLOAT, _UINT))))
    array = buffer if isinstance(buffer, np.ndarray) else np.asarray(memoryview(buffer))
    if not array.flags.writeable:
        raise ValueError("it is read-only")
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
