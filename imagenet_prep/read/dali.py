"""Decodes, crops and resizes with NVIDIA DALI, on the CPU or on a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from nvidia.dali import fn, math, pipeline_def, types
from nvidia.dali.tensors import TensorCPU, TensorListCPU

from imagenet_prep.read.augment import Views
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import EncodedBatch

# Batches that DALI makes ahead.
_QUEUE_DEPTH = 2
_DTYPES = {"uint8": types.UINT8, "float32": types.FLOAT, "float16": types.FLOAT16}


class DaliBackend:
    """Turns encoded batches into DLPack tensors.

    DALI reads through `external_source`, in our order. Its own `readers.tfrecord` shuffles in a
    small buffer only, assigns shards to ranks by itself, cannot be resumed by another number of
    ranks, and would not agree with the other backends.
    """

    def __init__(self, wanted: ReadConfig, device_id: int | None, largest: tuple[int, int]) -> None:
        """Builds the pipeline.

        Args:
          wanted: what is asked for; antialias and the number of threads are decided.
          device_id: of the GPU; None decodes on the CPU.
          largest: height and width of the data set's largest image, for nvJPEG's buffers.
        """
        self._feed: Iterator[EncodedBatch] = iter(())
        # What DALI may still be reading, since it copies nothing of what it is given.
        self._given: deque[tuple[Any, ...]] = deque(maxlen=_QUEUE_DEPTH + 1)
        self._wanted = wanted
        self._device_id = device_id
        self._decoder: dict[str, Any] = {"device": "cpu"}
        if device_id is not None:
            height, width = largest
            self._decoder = {
                "device": "mixed",
                "preallocate_height_hint": height,
                "preallocate_width_hint": width,
            }
        self._pipeline = self._new_pipeline()
        self._pipeline.build()
        self._idle = True

    def _new_pipeline(self) -> Any:
        return _show(
            self._next,
            self._wanted,
            self._decoder,
            batch_size=self._wanted.batch_size,
            num_threads=self._wanted.num_threads,
            device_id=self._device_id,
        )

    def batches(self, feed: Callable[[], Iterator[EncodedBatch]], steps: int) -> Iterator[Any]:
        """Yields the images of each step."""
        if self._idle:
            self._pipeline.reset()
        else:
            # The last epoch was not read to its end: the pipeline still holds batches of it.
            self._pipeline = self._new_pipeline()
        self._feed = feed()
        self._idle = False
        for step in range(steps):
            (images,) = self._pipeline.run()
            self._idle = step == steps - 1
            if self._idle:
                self._given.clear()
            yield images.as_tensor()

    def _next(self) -> tuple[Any, ...]:
        batch = next(self._feed)
        # Given to DALI as they are, a list of arrays would be gone through three times in Python.
        images = [TensorCPU(encoded) for encoded in batch.encoded]
        encoded = TensorListCPU(images, contiguous=False)
        given = encoded, *(array for each in batch.views for array in _arrays(each))
        self._given.append(given)
        return given


def _arrays(views: Views) -> tuple[Any, ...]:
    """Returns anchors, shapes and mirroring of crops, and both parts of their colours."""
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
def _show(source: Callable[[], Any], wanted: ReadConfig, decoder: dict[str, Any]) -> Any:
    """Defines the pipeline: `source` is `DaliBackend._next`, `decoder` where and how it decodes."""
    each = 5 if wanted.is_coloured else 3  # arrays of a view
    encoded, *views = fn.external_source(
        source=source, num_outputs=1 + wanted.views * each, batch=True, no_copy=True
    )
    images = [
        _view(wanted, decoder, encoded, *views[first : first + each])
        for first in range(0, len(views), each)
    ]
    return images[0] if wanted.views == 1 else fn.stack(*images)


def _view(
    wanted: ReadConfig,
    decoder: dict[str, Any],
    encoded: Any,
    anchor: Any,
    shape: Any,
    mirrored: Any,
    *colours: Any,
) -> Any:
    """Defines how one view of the images is made."""
    crop = {"axes": [0, 1], "normalized_anchor": False, "normalized_shape": False}
    if wanted.constants.padding is None:
        pixels = fn.decoders.image_slice(
            encoded, anchor, shape, output_type=types.RGB, **crop, **decoder
        )
    else:
        pixels = fn.decoders.image(encoded, output_type=types.RGB, **decoder)
        pixels = fn.slice(
            pixels, anchor, shape, out_of_bounds_policy="pad", fill_values=[0], **crop
        )
    pixels = fn.resize(
        pixels,
        resize_x=wanted.image_size,
        resize_y=wanted.image_size,
        interp_type=types.INTERP_LINEAR,
        antialias=wanted.antialias,
        # Colours are computed from what the resize has not rounded.
        dtype=types.FLOAT if wanted.is_coloured else types.UINT8,
    )
    if wanted.is_coloured:
        of_pixel, of_mean = colours
        mean = fn.reductions.mean(pixels, axes=[0, 1], keep_dims=True)
        pixels = fn.coord_transform(pixels, M=of_pixel) + fn.coord_transform(mean, MT=of_mean)
        pixels = math.clamp(pixels, 0.0, 255.0)
    normalise = wanted.dtype != "uint8"
    return fn.crop_mirror_normalize(
        pixels,
        mirror=mirrored,
        mean=list(wanted.constants.mean) if normalise else [0.0] * 3,
        std=list(wanted.constants.std) if normalise else [1.0] * 3,
        dtype=_DTYPES[wanted.dtype],
        output_layout=wanted.layout[1:],
    )


def to_tensorflow(tensor: Any) -> Any:
    """Returns DALI's tensor as TensorFlow's, without a copy where DLPack allows."""
    import tensorflow as tf

    return tf.experimental.dlpack.from_dlpack(tensor.__dlpack__())


def to_numpy(tensor: Any) -> Any:
    """Returns a copy of DALI's tensor in this machine's memory."""
    return np.array(tensor.as_cpu())
