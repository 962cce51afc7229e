"""Decodes, crops and resizes with the codec of this package, on the CPU: no framework is needed."""

from __future__ import annotations

import functools
import io
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from imagenet_prep.codec import planes
from imagenet_prep.codec.libraries import UnavailableError
from imagenet_prep.codec.planes import Look, Values
from imagenet_prep.core.errors import UsageError
from imagenet_prep.read.augment import Views
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.dlpack import Bfloat16, Lease, array_over
from imagenet_prep.read.feed import EncodedBatch

if TYPE_CHECKING:
    import numpy.typing as npt

# Steps that are decoded before they are asked for.
_STEPS_AHEAD = 2


class NativeBackend:
    """Turns encoded batches into NumPy arrays.

    Images are decoded by `codec.planes` in threads, crop, resize, mirroring and type in one go.
    What it declines, CMYK for example, and all images where it cannot be loaded, are decoded by
    Pillow: slower, and with less than one grey level of difference on average over an image.
    """

    def __init__(self, wanted: ReadConfig) -> None:
        """Takes what is asked for; antialias and the number of threads are decided."""
        side = wanted.image_size
        self._wanted = wanted
        shape = (3, side, side) if wanted.layout == "NCHW" else (side, side, 3)
        views = () if wanted.views == 1 else (wanted.views,)
        self._shape = (wanted.batch_size, *views, *shape)
        # Memory that batches have had.
        self._free: deque[npt.NDArray[Any]] = deque(maxlen=_STEPS_AHEAD + 2)
        self._values = Values(wanted.dtype, wanted.constants.mean, wanted.constants.std)
        # What is not made in one go is made from bytes.
        self._in_one_go = not wanted.is_coloured and wanted.constants.padding is None
        channels_first = self._in_one_go and wanted.layout == "NCHW"
        values = self._values if self._in_one_go else planes.BYTES
        kernel = planes.LINEAR if wanted.antialias else planes.NEIGHBOURS
        self._look = Look(side, side, values, kernel, channels_first=channels_first)
        self._pool = ThreadPoolExecutor(wanted.num_threads, thread_name_prefix="decode")
        self._left: list[Future[None]] = []
        self._has_planes = True
        try:
            planes.require()
        except UnavailableError as error:
            self._has_planes = False
            _say_once(f"images are decoded by Pillow, which is slower: {error.why}")

    def batches(self, feed: Callable[[], Iterator[EncodedBatch]], steps: int) -> Iterator[Any]:
        """Yields the images of each step.

        Raises:
          UsageError: what `out` gives is no memory for them.
          Exception: of Pillow, for an image that neither decodes.
        """
        # What an epoch that was left still writes must not meet this one's images in `out`.
        wait(self._left)
        ahead: deque[tuple[Any, list[Future[None]]]] = deque()
        encoded = itertools.islice(feed(), steps)
        try:
            while True:
                while len(ahead) <= _STEPS_AHEAD and (batch := next(encoded, None)) is not None:
                    ahead.append(self._begin(batch))
                if not ahead:
                    return
                images, shown = ahead[0]
                for part in shown:
                    part.result()
                ahead.popleft()
                yield images
        finally:
            # This must not wait: the garbage collector may call it.
            self._left = [part for _, shown in ahead for part in shown if not part.cancel()]

    def _begin(self, batch: EncodedBatch) -> tuple[Any, list[Future[None]]]:
        """Lets threads fill the batch's images, each several of them."""
        size = self._wanted.batch_size
        given, images = self._memory()
        of_view = images.reshape(size, self._wanted.views, *self._shape[-3:])
        # Fewer tasks than images, since handing them over takes the interpreter's lock.
        count = min(size, 4 * self._wanted.num_threads)
        parts = [range(first, size, count) for first in range(count)]
        shown = [
            self._pool.submit(self._show, batch, views, of_view[:, view], part)
            for view, views in enumerate(batch.views)
            for part in parts
        ]
        return given, shown

    def _memory(self) -> tuple[Any, npt.NDArray[Any]]:
        """Returns what the batch's images are for the user, and the array to write them into."""
        dtype = self._values.table.dtype
        if self._wanted.out is None:
            array = self._free.pop() if self._free else np.empty(self._shape, dtype)
            leased = np.asarray(Lease(array, self._free))
            return leased, leased
        given = self._wanted.out()
        name = self._wanted.dtype + (" (or uint16)" if dtype == np.uint16 else "")
        expected = (
            f"expected contiguous, aligned {name} {list(self._shape)} in memory of this machine"
        )
        try:
            array = array_over(given)
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise UsageError(f"out() gave what is no memory ({error}): {expected}") from error
        if array.dtype != dtype or array.shape != self._shape or not array.flags.carray:
            found = f"{array.dtype} {list(array.shape)}"
            found += "" if array.flags.carray else ", not contiguous or not aligned"
            raise UsageError(f"out() gave {found}: {expected}")
        return given, array

    def _show(
        self, batch: EncodedBatch, views: Views, images: npt.NDArray[Any], part: range
    ) -> None:
        boxes, mirrored = views.boxes.tolist(), views.mirrored.tolist()
        for i in part:
            if self._in_one_go and self._decode(batch.encoded[i], boxes[i], mirrored[i], images[i]):
                continue
            pixels = self._pixels(batch.encoded[i], boxes[i], mirrored[i])
            colours = None if views.colours is None else views.colours[i]
            self._finish(pixels, colours, images[i])

    def _decode(
        self, data: bytes | memoryview, box: list[int], mirrored: bool, to: npt.NDArray[Any]
    ) -> bool:
        """Lets the codec write a view; returns whether it did."""
        return self._has_planes and self._look.decode(data, box, to, mirrored=mirrored)

    def _pixels(
        self, data: bytes | memoryview, box: list[int], mirrored: bool
    ) -> npt.NDArray[np.uint8]:
        """Returns a view as bytes [side, side, 3]."""
        side = self._wanted.image_size
        pixels = np.empty((side, side, 3), np.uint8)
        inside = self._wanted.constants.padding is None
        if inside and not self._in_one_go and self._decode(data, box, mirrored, pixels):
            return pixels
        crop = _crop(data, box)
        if self._wanted.antialias:
            pixels = np.asarray(crop.resize((side, side), Image.Resampling.BILINEAR))
        else:
            pixels = interpolate(np.asarray(crop), side)
        return pixels[:, ::-1] if mirrored else pixels

    def _finish(
        self,
        pixels: npt.NDArray[np.uint8],
        colours: npt.NDArray[np.float32] | None,
        to: npt.NDArray[Any],
    ) -> None:
        """Writes a view with its colours, in the type and layout that are wanted."""
        if colours is not None:
            flat = pixels.reshape(-1, 3).astype(np.float32)
            shift = colours[:, 3:6] @ flat.mean(axis=0) + colours[:, 6]
            flat = np.clip(flat @ colours[:, :3].T + shift, 0, 255)
            pixels = np.rint(flat).astype(np.uint8).reshape(pixels.shape)
        shown = np.stack([self._values.table[c][pixels[:, :, c]] for c in range(3)])
        to[...] = shown if self._wanted.layout == "NCHW" else shown.transpose(1, 2, 0)


@functools.cache
def _say_once(text: str) -> None:
    logging.getLogger(__name__).warning(text)


def _crop(data: bytes | memoryview, box: list[int]) -> Image.Image:
    """Returns a part of a JPEG in RGB; what lies outside of the picture is black."""
    top, left, height, width = box
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        return image.convert("RGB").crop((left, top, left + width, top + height))


def interpolate(pixels: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """Returns [side, side, 3]: between neighbours of [height, width, 3], at centres of pixels."""
    for axis in (0, 1):
        length = pixels.shape[axis]
        at = np.clip((np.arange(side) + 0.5) * length / side - 0.5, 0, length - 1)
        low = np.floor(at).astype(np.intp)
        shape = (-1, 1, 1) if axis == 0 else (1, -1, 1)
        share = (at - low).astype(np.float32).reshape(shape)
        first, second = (
            np.take(pixels, index, axis).astype(np.float32)
            for index in (low, np.minimum(low + 1, length - 1))
        )
        pixels = np.rint(first + (second - first) * share).astype(np.uint8)
    return pixels


def _to_numpy(array: npt.NDArray[Any]) -> Any:
    if array.dtype != np.uint16:
        return array
    try:
        import ml_dtypes
    except ImportError as error:
        raise UsageError(
            "NumPy has no bfloat16: pip install ml-dtypes, or choose framework='dlpack' or another "
            "dtype"
        ) from error
    return array.view(ml_dtypes.bfloat16)


def _to_dlpack(array: npt.NDArray[Any]) -> Any:
    return Bfloat16(array) if array.dtype == np.uint16 else array


def _to_tensorflow(array: npt.NDArray[Any]) -> Any:
    try:
        from imagenet_prep.read.tfdata import from_numpy
    except ImportError as error:
        raise UsageError(
            "framework='tensorflow' needs TensorFlow: pip install 'imagenet-prep[tf]', or choose "
            "framework='numpy'"
        ) from error
    return from_numpy(array)


CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "numpy": _to_numpy,
    "dlpack": _to_dlpack,
    "tensorflow": _to_tensorflow,
}
