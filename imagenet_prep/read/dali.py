"""Decodes, crops and resizes with NVIDIA DALI, on the CPU or on a GPU."""

from __future__ import annotations

import importlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from nvidia.dali import fn, math, pipeline_def, types
from nvidia.dali.tensors import TensorCPU, TensorListCPU

from imagenet_prep.read import batch
from imagenet_prep.read.augment import Views
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import EncodedBatch
from imagenet_prep.read.recipes import BICUBIC

if TYPE_CHECKING:
    import numpy.typing as npt

_QUEUE_DEPTH = 2  # batches that DALI prepares ahead
# Number of GPU batches that DALI must not overwrite yet. Frameworks release a batch when its step
# is queued, but the GPU may read the batch until the step ends.
_BATCHES_IN_USE = 2
_CUDA = 2  # kDLCUDA in dlpack.h
# DALI must not apply the EXIF orientation, since crops are drawn for the stored image. On a GPU,
# DALI's default is the nearest chroma sample. Interpolate as on the CPU; otherwise images would
# differ by 2 grey levels on average.
_DECODED = {"output_type": types.RGB, "adjust_orientation": False, "jpeg_fancy_upsampling": True}
_DTYPES = {"uint8": types.UINT8, "float32": types.FLOAT, "float16": types.FLOAT16}


class DaliBackend:
    """Decodes with NVIDIA DALI; `external_source` passes it the images in the reader's order.

    DALI's `readers.tfrecord` is not used, because it shuffles only in a small buffer, and cannot
    resume with a different number of ranks.
    """

    def __init__(self, config: ReadConfig, largest: tuple[int, int]) -> None:
        """Builds the pipeline; allocates nvJPEG's buffers for the `largest` (height, width)."""
        self._in_use: deque[Any] = deque(maxlen=_BATCHES_IN_USE if config.device == "gpu" else 0)
        self._config = config
        self._convert = _CONVERTERS[config.array_framework]
        self._decoder: dict[str, Any] = _DECODED | {"device": "cpu"}
        self._device = config.rank.local_rank if config.device == "gpu" else None
        if config.device == "gpu":
            height, width = largest
            self._decoder |= {
                "device": "mixed",
                "preallocate_height_hint": height,
                "preallocate_width_hint": width,
            }
        self._source = _ExternalSource()
        self._pipeline = self._new_pipeline(self._source)
        self._pipeline.build()
        # A separate pipeline decodes single images, because an error ends a DALI pipeline.
        self._single: Any = None
        self._image: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def _new_pipeline(self, source: _ExternalSource) -> Any:
        return _show(
            source.next,
            self._config,
            self._decoder,
            batch_size=self._config.batch_size,
            num_threads=self._config.decode_threads,
            device_id=self._device,
        )

    def batches(self, encoded: Iterator[EncodedBatch], steps: int) -> Iterator[Any]:
        """Yields the images of each step."""
        if self._source.is_idle:
            self._pipeline.reset()
        else:
            # The last epoch was not read to its end, so the pipeline still has some of its batches,
            # and its loop may continue.
            self._source = _ExternalSource()
            self._pipeline = self._new_pipeline(self._source)
        source = self._source
        pipeline = self._pipeline
        source.encoded = encoded
        source.is_idle = False
        for step in range(steps):
            (images,) = pipeline.run()
            source.is_idle = step == steps - 1
            if source.is_idle:
                source.given.clear()
            tensor = images.as_tensor()
            self._in_use.append(tensor)
            yield self._convert(tensor)

    def decode(self, encoded: bytes) -> None:
        """Decodes one image with DALI."""
        self._image = np.frombuffer(encoded, np.uint8)
        single = self._single or self._new_single()
        self._single = None
        single.run()
        self._single = single

    def _new_single(self) -> Any:
        return _decode_one(
            lambda: self._image, self._decoder, batch_size=1, num_threads=1, device_id=self._device
        )


class _ExternalSource:
    """Passes the images of one loop to a pipeline."""

    def __init__(self) -> None:
        self.encoded: Iterator[EncodedBatch] = iter(())
        # The inputs that DALI may still read, because it does not copy them.
        self.given: deque[tuple[Any, ...]] = deque(maxlen=_QUEUE_DEPTH + 1)
        self.is_idle = True

    def next(self) -> tuple[Any, ...]:
        batch = next(self.encoded)
        # If it got a list of arrays, DALI would iterate over it three times in Python.
        encoded = TensorListCPU([TensorCPU(image) for image in batch.encoded], contiguous=False)
        given = encoded, *itertools.chain.from_iterable(map(_arrays, batch.views))
        self.given.append(given)
        return given


def _arrays(views: Views) -> tuple[Any, ...]:
    """Returns the crops' anchors, shapes and mirroring, and the two matrices of `colours`."""
    boxes, colours = views.boxes, views.colours
    shown = (
        np.ascontiguousarray(boxes[:, :2]),
        np.ascontiguousarray(boxes[:, 2:]),
        views.mirrored.astype(np.int32),
    )
    if colours is None:
        return shown
    return *shown, np.ascontiguousarray(colours[:, :, :3]), np.ascontiguousarray(colours[:, :, 3:])


@pipeline_def(exec_dynamic=True, prefetch_queue_depth=_QUEUE_DEPTH)  # type: ignore[untyped-decorator]
def _show(source: Callable[[], Any], config: ReadConfig, decoder: dict[str, Any]) -> Any:
    """Defines the pipeline; `source` returns encoded images and the arrays from `_arrays`."""
    ((shown,),) = config.shown
    per_view = 5 if config.is_coloured else 3  # The number of arrays that `_arrays` returns.
    encoded, *arrays = fn.external_source(
        source=source, num_outputs=1 + shown.count * per_view, batch=True, no_copy=True
    )
    images = [
        _view(config, decoder, encoded, *arrays[first : first + per_view])
        for first in range(0, len(arrays), per_view)
    ]
    return images[0] if shown.count == 1 else fn.stack(*images)


@pipeline_def(exec_async=False, exec_pipelined=False)  # type: ignore[untyped-decorator]
def _decode_one(source: Callable[[], Any], decoder: dict[str, Any]) -> Any:
    return fn.decoders.image(fn.external_source(source=source, batch=False), **decoder)


def _view(
    config: ReadConfig,
    decoder: dict[str, Any],
    encoded: Any,
    anchor: Any,
    shape: Any,
    mirrored: Any,
    *colours: Any,
) -> Any:
    crop = {"axes": [0, 1], "normalized_anchor": False, "normalized_shape": False}
    ((shown,),) = config.shown
    if shown.crops.padding is None:
        pixels = fn.decoders.image_slice(encoded, anchor, shape, **crop, **decoder)
    else:
        pixels = fn.decoders.image(encoded, **decoder)
        pixels = fn.slice(
            pixels, anchor, shape, out_of_bounds_policy="pad", fill_values=[0], **crop
        )
    pixels = fn.resize(
        pixels,
        resize_x=shown.width,
        resize_y=shown.height,
        interp_type=types.INTERP_CUBIC if shown.crops.filter == BICUBIC else types.INTERP_LINEAR,
        antialias=shown.antialias,
        # Colours are computed from unrounded pixels.
        dtype=types.FLOAT if config.is_coloured else types.UINT8,
    )
    if config.is_coloured:
        of_pixel, of_mean = colours
        mean = fn.reductions.mean(pixels, axes=[0, 1], keep_dims=True)
        pixels = fn.coord_transform(pixels, M=of_pixel) + fn.coord_transform(mean, MT=of_mean)
        pixels = math.clamp(pixels, 0.0, 255.0)
    normalise = config.array_dtype != "uint8"
    return fn.crop_mirror_normalize(
        pixels,
        mirror=mirrored,
        mean=list(shown.crops.mean) if normalise else [0.0] * 3,
        std=list(shown.crops.std) if normalise else [1.0] * 3,
        dtype=_DTYPES[config.array_dtype],
        output_layout=config.layout[1:],
    )


def _to_tensorflow(tensor: Any) -> Any:
    """Converts a DALI tensor; copies it only if TensorFlow cannot use the tensor's GPU."""
    import tensorflow as tf

    kind, number = tensor.__dlpack_device__()
    visible = [gpu.name.rpartition(":")[2] for gpu in tf.config.get_visible_devices("GPU")]
    if kind == _CUDA and str(number) in visible:
        # DALI numbers all GPUs, TensorFlow only the visible ones.
        capsule = batch.on_device(tensor, visible.index(str(number)))
    else:
        capsule = tensor.as_cpu().__dlpack__()
    return tf.experimental.dlpack.from_dlpack(capsule)


def _to_torch(tensor: Any) -> Any:
    import torch

    return torch.from_dlpack(tensor)


def _to_jax(tensor: Any) -> Any:
    jax: Any = importlib.import_module("jax")
    return jax.dlpack.from_dlpack(tensor)


# A DALI tensor supports DLPack itself.
_CONVERTERS = {
    "dlpack": lambda tensor: tensor,
    "numpy": lambda tensor: np.array(tensor.as_cpu()),
    "tensorflow": _to_tensorflow,
    "torch": _to_torch,
    "jax": _to_jax,
}
