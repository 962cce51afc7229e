"""Decodes the steps of an epoch, and finds the images that a backend cannot decode.

`decoded_steps` yields the steps, and `as_batch` makes a batch of a step.

`Diagnosis` finds undecodable images, since the errors of frameworks do not name them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.read.backend import CONVERTERS, Backend
from imagenet_prep.read.batch import Batch
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import EncodedBatch
from imagenet_prep.read.order import DrawnSteps, Steps

if TYPE_CHECKING:
    import numpy.typing as npt

_IGNORED = -100  # PyTorch's cross_entropy ignores this label by default


def require_last_loop(last: object, loop: object) -> None:
    """Raises UsageError if a newer loop has started, or a different position was set."""
    if last is not loop:
        raise UsageError(
            "a newer loop over this reader has started, or a different position was set with "
            "restore or set_epoch. Use one loop at a time, or a second reader."
        )


def require_same_process(process: int) -> None:
    """Raises UsageError if a loop that began in `process` goes on in a fork of it."""
    if os.getpid() != process:
        raise UsageError(
            "this loop was started in a different process, whose threads decode its batches. Start "
            "a new loop in each process."
        )


class Diagnosis:
    """Remembers the batches that a backend is decoding; rereads their images if decoding fails."""

    def __init__(
        self, batches: Iterator[EncodedBatch], mask_undecodable: Callable[[EncodedBatch], bool]
    ) -> None:
        """`mask_undecodable` is that of `Feed`."""
        self._batches = batches
        self._mask_undecodable = mask_undecodable
        self._fed: deque[EncodedBatch] = deque()
        self._error: ImagenetPrepError | None = None

    def batches(self) -> Iterator[EncodedBatch]:
        """Yields the batches, and remembers them without their images, to save memory."""
        try:
            for batch in self._batches:
                self._fed.append(batch._replace(encoded=[]))
                yield batch
        except ImagenetPrepError as error:
            # A framework raises its own error if a Python callback fails, so keep this one.
            self._error = error
            raise

    def decoded(self) -> EncodedBatch:
        """Returns the oldest remembered batch, which the backend has now decoded."""
        return self._fed.popleft()

    def explain(self, error: Exception) -> None:
        """Masks the images that cannot be decoded; raises `error` if all can be decoded."""
        if self._error is not None:
            raise self._error from None
        found = [self._mask_undecodable(batch) for batch in tuple(self._fed)]
        if not any(found):
            raise error


def decoded_steps(
    backend: Backend,
    batches: Callable[[int, int], Iterator[EncodedBatch]],
    mask_undecodable: Callable[[EncodedBatch, Callable[[bytes], None]], bool],
    steps: Callable[[int], Steps | DrawnSteps],
    start: int,
    count: int,
) -> Iterator[tuple[int, Any, EncodedBatch]]:
    """Yields `count` steps: the number of examples read so far, the images, and the other fields.

    Args:
      backend: decodes the images.
      batches: returns the batches after a number of examples, at most a number of them.
      mask_undecodable: that of `Feed`.
      steps: returns the steps after a number of examples.
      start: the number of examples before the first step.
      count: the number of steps.
    """
    while count:
        following = steps(start)
        diagnosis = Diagnosis(
            batches(start, count), lambda batch: mask_undecodable(batch, backend.decode)
        )
        images_of_steps = backend.batches(diagnosis.batches(), count)
        for step in range(1, count + 1):
            try:
                images = next(images_of_steps)
            except Exception as error:  # noqa: BLE001 - `explain` may raise it again
                diagnosis.explain(error)
                break  # the images that cannot be decoded are now masked: repeat the step
            encoded = diagnosis.decoded()
            count -= 1
            start = following.after(step)
            yield start, images, encoded


def as_batch(
    images: Any, encoded: EncodedBatch, config: ReadConfig, bfloat16: set[str]
) -> Batch[Any]:
    """Returns a decoded batch with the configured fields, as arrays of the framework.

    `bfloat16` has the fields of columns that store bfloat16 as uint16.
    """
    framework = config.array_framework
    convert = CONVERTERS[framework]
    classes: npt.NDArray[Any] = encoded.class_index
    if framework == "torch":
        classes = classes.astype(np.int64)  # the type of labels for PyTorch's losses
    if config.as_tuple:
        return cast("Batch[Any]", _as_tuple(images, classes, encoded.mask, framework))
    arrays: dict[str, Any] = {"class_index": classes, "mask": encoded.mask, **encoded.details}
    fields: dict[str, Any] = {}
    for name in config.fields:
        if name == "images":
            fields[name] = images
        elif isinstance(arrays[name], list) and framework != "tensorflow":
            fields[name] = arrays[name]
        else:
            fields[name] = convert(arrays[name], name in bfloat16)
    return cast("Batch[Any]", fields)


def _as_tuple(
    images: Any, classes: npt.NDArray[Any], mask: npt.NDArray[np.bool_], framework: str
) -> tuple[Any, ...]:
    """Returns a batch in the form that training loops of a framework take."""
    convert = CONVERTERS[framework]
    if framework == "torch":
        return images, convert(np.where(mask, classes, _IGNORED), False)
    labels = convert(np.where(mask, classes, np.int32(0)), False)
    return images, labels, convert(mask.astype(np.float32), False)
