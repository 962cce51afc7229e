"""Decodes, crops and resizes with NVIDIA DALI, on the CPU or on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types

from imagenet_prep.read.augment import Recipe
from imagenet_prep.read.feed import EncodedBatch

_DTYPES = {"uint8": types.UINT8, "float32": types.FLOAT, "float16": types.FLOAT16}


class DaliBackend:
    """Turns encoded batches into DLPack tensors.

    Our order is fed to DALI (`external_source`) instead of asking `readers.tfrecord` for
    its own: that shuffles in a small buffer only, deals shards out by itself, and could
    neither be resumed by another number of ranks nor agree with the other backend.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        image_size: int,
        recipe: Recipe,
        dtype: str,
        layout: str,
        antialias: bool,
        num_threads: int,
        device_id: int | None,
        largest: tuple[int, int],
    ) -> None:
        """Builds the pipeline.

        Args:
          batch_size: examples a step.
          image_size: height and width of the output in pixels.
          recipe: for mean and deviation.
          dtype: "uint8", or "float32" or "float16" of normalised values.
          layout: "NHWC" or "NCHW".
          antialias: filter before shrinking, as Pillow does.
          num_threads: images decoded at once.
          device_id: of the GPU; None decodes on the CPU.
          largest: height and width of the data set's largest image, for nvJPEG's buffers.
        """
        self._feed: Iterator[EncodedBatch] = iter(())
        normalise = dtype != "uint8"
        decoder: dict[str, Any] = {"device": "cpu"}
        if device_id is not None:
            height, width = largest
            decoder = {
                "device": "mixed",
                "preallocate_height_hint": height,
                "preallocate_width_hint": width,
            }

        @pipeline_def(  # type: ignore[untyped-decorator]
            batch_size=batch_size,
            num_threads=num_threads,
            device_id=device_id,
            exec_dynamic=True,
            prefetch_queue_depth=2,
        )
        def show() -> Any:
            encoded, anchor, shape, mirrored, class_index, mask = fn.external_source(
                source=self._next, num_outputs=6, batch=True
            )
            pixels = fn.decoders.image_slice(
                encoded,
                anchor,
                shape,
                axes=[0, 1],
                normalized_anchor=False,
                normalized_shape=False,
                output_type=types.RGB,
                **decoder,
            )
            pixels = fn.resize(
                pixels,
                resize_x=image_size,
                resize_y=image_size,
                interp_type=types.INTERP_LINEAR,
                antialias=antialias,
            )
            images = fn.crop_mirror_normalize(
                pixels,
                mirror=mirrored,
                mean=list(recipe.mean) if normalise else [0.0] * 3,
                std=list(recipe.std) if normalise else [1.0] * 3,
                dtype=_DTYPES[dtype],
                output_layout=layout[1:],
            )
            return images, class_index, mask

        self._new_pipeline = show
        self._pipeline = show()
        self._pipeline.build()
        self._idle = True

    def batches(
        self, feed: Callable[[], Iterator[EncodedBatch]], steps: int
    ) -> Iterator[dict[str, Any]]:
        """Yields `images`, `class_index` and `mask` of each step."""
        if self._idle:
            self._pipeline.reset()
        else:
            # Left in the middle of an epoch, or broken: it still holds batches of that order.
            self._pipeline = self._new_pipeline()
        self._feed = feed()
        self._idle = False
        for step in range(steps):
            images, class_index, mask = self._pipeline.run()
            self._idle = step == steps - 1
            yield {
                "images": images.as_tensor(),
                "class_index": class_index.as_tensor(),
                "mask": mask.as_tensor(),
            }

    def _next(self) -> tuple[Any, ...]:
        batch = next(self._feed)
        boxes = batch.views.boxes
        return (
            [np.frombuffer(encoded, np.uint8) for encoded in batch.encoded],
            np.ascontiguousarray(boxes[:, :2]),
            np.ascontiguousarray(boxes[:, 2:]),
            batch.views.mirrored.astype(np.int32),
            batch.class_index,
            batch.mask,
        )


def to_tensorflow(tensor: Any) -> Any:
    """Returns DALI's tensor as TensorFlow's, without a copy where DLPack allows."""
    import tensorflow as tf

    return tf.experimental.dlpack.from_dlpack(tensor.__dlpack__())


def to_numpy(tensor: Any) -> Any:
    """Returns a copy of DALI's tensor in this machine's memory."""
    return np.array(tensor.as_cpu())
