"""Chooses a reader's decoding backend; has the backend that needs no framework.

`open_backend` opens the configured backend. `refuse_contradictions` rejects settings that the
backend does not support.

`NativeBackend` decodes, crops and resizes images on the CPU with this package's codec, without a
framework. `CONVERTERS` converts its NumPy arrays to arrays of the framework of a reader.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from PIL import Image

from imagenet_prep.codec import decoding, planes
from imagenet_prep.codec.planes import CodecUnavailableError, Look, Values
from imagenet_prep.core.errors import UsageError, install_line
from imagenet_prep.core.imports import gpus, gpus_of, lacking
from imagenet_prep.dataset import jpeg
from imagenet_prep.dataset.manifest import Split
from imagenet_prep.read import batch
from imagenet_prep.read.augment import Views
from imagenet_prep.read.batch import Bfloat16, array_over, leased
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import EncodedBatch

if TYPE_CHECKING:
    import numpy.typing as npt


# Recipes with `square` require these settings.
_SQUARE = {
    "backend": "native",
    "device": "cpu",
    "dtype": "uint8",
    "views": 1,
    "colour": False,
    "antialias": None,
}


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


class Backend(Protocol):
    """Decodes, crops and resizes images."""

    def batches(self, encoded: Iterator[EncodedBatch], steps: int) -> Iterator[Any]:
        """Yields `Batch.images` of each step; reads `encoded` several steps ahead."""

    def decode(self, encoded: bytes) -> None:
        """Decodes one image that Pillow can decode; raises the decoder's own error if it fails."""


class Undecoded:
    """The backend for batches without the field "images"."""

    def batches(self, encoded: Iterator[EncodedBatch], steps: int) -> Iterator[None]:
        """Yields None for each step."""
        for _ in itertools.islice(encoded, steps):
            yield None

    def decode(self, encoded: bytes) -> None:
        """Does nothing, so that every image is accepted."""


def open_backend(config: ReadConfig, split: Split) -> Backend:
    """Opens the configured backend; importing TensorFlow or DALI for it takes seconds."""
    if "images" not in config.fields:
        return Undecoded()
    if config.backend == "native":
        return NativeBackend(config)
    if config.backend == "tfdata":
        from imagenet_prep.read.tfdata import TfDataBackend

        return TfDataBackend(config)
    from imagenet_prep.read.dali import DaliBackend

    return DaliBackend(config, (split.max_height, split.max_width))


def choose_backend(config: ReadConfig) -> batch.Backend:
    """Returns "tfdata", "dali" or "native"; raises UsageError if its package is not installed."""
    name = config.backend
    uses_gpu = config.device == "gpu" and "images" in config.fields
    if name == "auto":
        # The choice must not depend on the installed packages, since pixels differ by backend.
        name = "dali" if uses_gpu and not config.constants.square else "native"
    if uses_gpu and name == "dali":
        _check_gpu(config.rank.local_rank)
    missing = lacking([name])
    if missing:
        raise UsageError(f"backend {name!r}: {missing[0]}")
    return name


def choose_device(device: str, backend: str, framework: str, local_rank: int) -> batch.Device:
    """Returns the device that decodes images for a training framework.

    "auto" selects the GPU if the framework can use the rank's GPU, and DALI is installed.
    """
    if device != "auto":
        return "gpu" if device == "gpu" else "cpu"
    has_gpu = local_rank < gpus_of(framework)
    may = backend in ("auto", "dali") and has_gpu and not lacking(["dali"])
    return "gpu" if may else "cpu"


def _check_gpu(local_rank: int) -> None:
    count = gpus()
    if local_rank >= count:
        raise UsageError(
            f"device 'gpu': local rank {local_rank} needs its own GPU, but CUDA lists {count} on "
            f"{os.uname().nodename}. Start fewer ranks per host or choose device 'cpu'."
        )


def refuse_contradictions(config: ReadConfig) -> None:
    """Raises UsageError if `config.backend` (not "auto" here) does not support a setting."""
    backend = config.backend
    if config.array_framework == "tensorflow" and lacking(["tensorflow"]):
        raise UsageError(
            f"framework='tensorflow' needs TensorFlow: {install_line('tf')}, or choose "
            "framework='numpy'"
        )
    if config.constants.square and "images" in config.fields:
        for name, needed in _SQUARE.items():
            actual = getattr(config, name)
            if actual not in (needed, None):
                raise UsageError(
                    f"recipe={config.recipe!r} produces the same bytes as Pillow only "
                    f"with {name}={needed!r}; got {actual!r}"
                )
        if config.image_size > planes.MOST_SQUARE:
            raise UsageError(
                f"recipe={config.recipe!r}: image_size={config.image_size}: expected at most "
                f"{planes.MOST_SQUARE}"
            )
    if config.out and backend != "native":
        raise UsageError(f"out= needs backend='native', but the backend is {backend!r}")
    if "images" not in config.fields:
        if config.out:
            raise UsageError("out= provides memory for images, but fields= has no 'images'")
    elif backend == "tfdata":
        if config.dtype == "float16" or config.device == "gpu" or config.framework == "dlpack":
            raise UsageError(
                "backend='tfdata' does not support dtype='float16', device='gpu' or "
                "framework='dlpack'"
            )
    elif backend == "dali":
        if config.dtype == "bfloat16":
            raise UsageError(
                "backend='dali' does not support dtype='bfloat16': choose 'float16' or 'float32'"
            )
    elif config.device == "gpu":
        raise UsageError("backend='native' decodes on the CPU: device='gpu' needs backend='dali'")
    elif config.out and config.framework:
        raise UsageError("out= determines the type of the arrays in batches: remove framework=")


_STEPS_AHEAD = 2
_TASKS_PER_THREAD = 2  # per view; with more than one, threads are rarely idle at a step's end


class NativeBackend:
    """Decodes without a framework to NumPy arrays, and converts them to the reader's framework.

    `codec.planes` decodes, crops, resizes, mirrors and converts in one pass. Pillow decodes images
    that `planes` does not support, such as CMYK, and all images if `planes` cannot be loaded.
    Pillow is slower, and its pixels differ by less than one grey level on average.
    """

    def __init__(self, config: ReadConfig) -> None:
        side = config.image_size
        self._config = config
        shape = (3, side, side) if config.layout == "NCHW" else (side, side, 3)
        views = () if config.views == 1 else (config.views,)
        self._shape = (config.batch_size, *views, *shape)
        self._free: deque[npt.NDArray[Any]] = deque(maxlen=_STEPS_AHEAD + 2)
        self._values = Values(config.array_dtype, config.constants.mean, config.constants.std)
        # For colour changes or padding, images are first decoded to bytes and then converted.
        square = config.constants.square
        self._cropped = square or config.constants.padding is None
        self._in_one_pass = not config.is_coloured and self._cropped
        channels_first = self._in_one_pass and config.layout == "NCHW"
        values = self._values if self._in_one_pass else planes.BYTES
        linear = planes.LINEAR if config.is_antialiased else planes.NEIGHBOURS
        kernel = planes.SQUARE if square else linear
        self._look = Look(side, side, values, kernel, channels_first=channels_first)
        self._num_threads = config.decode_threads
        self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="decode")
        # Running tasks of iterators that were closed early.
        self._unfinished: list[Future[None]] = []
        self._has_planes = True
        try:
            planes.require()
        except CodecUnavailableError as error:
            self._has_planes = False
            say_once(f"images are decoded by Pillow, which is slower: {error.why}")

    def batches(self, encoded: Iterator[EncodedBatch], steps: int) -> Iterator[Any]:
        """Yields the images of each step."""
        # Running tasks of the last epoch must not write into memory that `out` now returns again.
        wait(self._unfinished)
        ahead: deque[tuple[Any, list[Future[None]]]] = deque()
        remaining = itertools.islice(encoded, steps)
        convert = CONVERTERS[self._config.array_framework]
        is_bfloat16 = self._config.array_dtype == "bfloat16"
        try:
            while True:
                for batch in itertools.islice(remaining, _STEPS_AHEAD + 1 - len(ahead)):
                    ahead.append(self._begin(batch))
                if not ahead:
                    return
                images, shown = ahead[0]
                # Wait once for all tasks, because each wait takes the interpreter lock.
                wait(shown)
                for part in shown:
                    part.result()
                ahead.popleft()
                # Memory from `out` is returned unconverted. A conversion may copy, so it must come
                # after the last write.
                yield images if self._config.out else convert(images, is_bfloat16)
        finally:
            # This must not wait, since the garbage collector may call it. Keep the running tasks
            # of all iterators over this reader.
            self._unfinished = [part for part in self._unfinished if not part.done()]
            for _, shown in ahead:
                self._unfinished += [part for part in shown if not part.cancel()]

    def decode(self, encoded: bytes) -> None:
        """Does nothing, because this backend can decode every image that Pillow can decode."""

    def _begin(self, batch: EncodedBatch) -> tuple[Any, list[Future[None]]]:
        """Starts to decode a batch; returns its images and the tasks that decode them."""
        size = self._config.batch_size
        given, images = self._memory()
        of_view = images.reshape(size, self._config.views, *self._shape[-3:])
        # A task decodes several images, because submitting a task takes the interpreter lock.
        length = -(-size // (_TASKS_PER_THREAD * self._num_threads))
        parts = [slice(first, first + length) for first in range(0, size, length)]
        shown = []
        for view, views in enumerate(batch.views):
            out = of_view[:, view]
            shown += [self._pool.submit(self._show, batch, views, out, part) for part in parts]
        return given, shown

    def _memory(self) -> tuple[Any, npt.NDArray[Any]]:
        """Returns memory for the images of a batch, and a NumPy array over this memory."""
        dtype = self._values.table.dtype
        if self._config.out is None:
            memory = leased(dtype.itemsize * math.prod(self._shape), self._free)
            array = memory.view(dtype).reshape(self._shape)
            return array, array
        given = self._config.out()
        name = self._config.array_dtype + (" (or uint16)" if dtype == np.uint16 else "")
        expected = f"expected contiguous, aligned {name} {list(self._shape)} in CPU memory"
        try:
            array = array_over(given)
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise UsageError(f"out() returned no usable memory ({error}): {expected}") from error
        if array.dtype != dtype or array.shape != self._shape or not array.flags.carray:
            actual = f"{array.dtype} {list(array.shape)}"
            actual += "" if array.flags.carray else ", not contiguous or not aligned"
            raise UsageError(f"out() returned {actual}: {expected}")
        return given, array

    def _show(
        self, batch: EncodedBatch, views: Views, images: npt.NDArray[Any], part: slice
    ) -> None:
        encoded, boxes, mirrored = batch.encoded[part], views.boxes[part], views.mirrored[part]
        images, side = images[part], self._config.image_size
        pixels = images if self._in_one_pass else np.empty((len(images), side, side, 3), np.uint8)
        done = np.zeros(len(images), bool)
        if self._has_planes and self._cropped:
            done = self._look.decode_many(self._look.jobs(encoded, boxes, mirrored, pixels))
        for i in np.flatnonzero(~done).tolist():
            shown = self._in_cage(bytes(encoded[i]), boxes[i].tolist(), bool(mirrored[i]))
            if self._in_one_pass:
                self._finish(shown, None, images[i])
            else:
                pixels[i] = shown
        if not self._in_one_pass:
            for i, image in enumerate(images):
                colours = None if views.colours is None else views.colours[part][i]
                self._finish(pixels[i], colours, image)

    def _in_cage(self, data: bytes, box: list[int], mirrored: bool) -> npt.NDArray[np.uint8]:
        """Decodes an image that decoder.c does not accept: with libjpeg, or with Pillow."""
        side = self._config.image_size
        if self._has_planes and self._cropped:
            pixels = decoding.window(data, box, side, self._look.kernel, is_mirrored=mirrored)
            if pixels is not None:
                return pixels
        crop = cropped(data, box)
        if self._config.constants.square:
            pixels = middle_square(crop, side)
        elif self._config.is_antialiased:
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
        """Changes the colours of an image, and writes it in the configured type and layout."""
        if colours is not None:
            flat = pixels.reshape(-1, 3).astype(np.float32)
            shift = colours[:, 3:6] @ flat.mean(axis=0) + colours[:, 6]
            flat = np.clip(flat @ colours[:, :3].T + shift, 0, 255)
            pixels = np.rint(flat).astype(np.uint8).reshape(pixels.shape)
        shown = np.stack([self._values.table[c][pixels[:, :, c]] for c in range(3)])
        to[...] = shown if self._config.layout == "NCHW" else shown.transpose(1, 2, 0)


@functools.cache
def say_once(text: str) -> None:
    """Logs a warning once per process."""
    logging.getLogger(__name__).warning(text)


def cropped(data: bytes, box: list[int]) -> Image.Image:
    """Returns a crop of a JPEG in RGB; pixels outside the image are black."""
    top, left, height, width = box
    image = Image.fromarray(decoding.pixels(data, only_jpeg=True))
    return image.crop((left, top, left + width, top + height))


def middle_square(image: Image.Image, side: int) -> npt.NDArray[np.uint8]:
    """Returns the crop that guided-diffusion's center_crop_arr makes, [side, side, 3]."""
    width, height = image.size
    while min(width, height) >= 2 * side:
        width = width // 2
        height = height // 2
        image = image.resize((width, height), Image.Resampling.BOX)
    # Crop very long images, to limit memory. The result then only approximates center_crop_arr.
    most = max(1, jpeg.MAX_PIXELS // side**2) * min(width, height)
    if most < max(width, height):
        left = max(0, width - most) // 2
        top = max(0, height - most) // 2
        width = min(width, most)
        height = min(height, most)
        image = image.crop((left, top, left + width, top + height))
    scale = side / min(width, height)
    width = round(width * scale)
    height = round(height * scale)
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    top = (height - side) // 2
    left = (width - side) // 2
    return pixels[top : top + side, left : left + side]


def interpolate(pixels: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """Resizes an image [height, width, 3] to [side, side, 3] by linear interpolation."""
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
