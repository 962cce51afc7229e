"""A simulated GPU: DALI decodes on the CPU, and its tensors claim to be on a GPU."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import pytest

from imagenet_prep.read import backend


class Images:
    """A tensor of DALI in the CPU's memory that claims to be on a GPU."""

    def __init__(self, tensor: Any, gpu: int) -> None:
        self._tensor = tensor
        self._gpu = gpu

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._gpu  # kDLCUDA

    def __dlpack__(self, **_: Any) -> Any:
        return self._tensor.__dlpack__()

    def as_cpu(self) -> Any:
        raise AssertionError("the images make a trip to the host")


class Decoded(NamedTuple):
    """A batch that DALI has decoded: the number of its GPU, and the address of its images."""

    gpu: int
    address: int


def install(monkeypatch: pytest.MonkeyPatch, gpus: int = 1) -> list[Decoded]:
    """Lets each rank find this number of GPUs; returns the list of all batches that they decode."""
    from imagenet_prep.read import dali

    decoded: list[Decoded] = []

    class Pipeline:
        def __init__(self, of: Any, source: Any) -> None:
            made = {"batch_size": of._config.batch_size, "num_threads": 1, "device_id": None}
            self._pipeline = dali._show(source.next, of._config, {**of._decoder, **on_cpu}, **made)
            self._gpu = of._device
            self.build, self.reset = self._pipeline.build, self._pipeline.reset

        def run(self) -> tuple[Any]:
            ((self._images),) = self._pipeline.run()
            return (self,)

        def as_tensor(self) -> Images:
            tensor = self._images.as_tensor()
            decoded.append(Decoded(self._gpu, tensor.data_ptr()))
            return Images(tensor, self._gpu)

    def new_pipeline(of: Any, source: Any) -> Pipeline:
        return Pipeline(of, source)

    on_cpu = {"device": "cpu", "preallocate_height_hint": 0, "preallocate_width_hint": 0}
    monkeypatch.setattr(backend, "gpus", lambda: gpus)
    monkeypatch.setattr(backend, "gpus_of", lambda _: gpus)
    monkeypatch.setattr("imagenet_prep.core.imports.on_cpu_only", lambda _: None)
    monkeypatch.setattr(dali.DaliBackend, "_new_pipeline", new_pipeline)
    return decoded


def address(capsule: Any) -> int:
    """Returns the memory address of a DLPack capsule."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_void_p.from_address(pointer(capsule, b"dltensor")).value or 0
