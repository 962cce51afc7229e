"""Chooses a reader's decoding backend; has the backend that needs no framework.

`open_backend` opens the configured backend. `refuse_contradictions` rejects settings that the
backend does not support.

`NativeBackend` decodes, crops and resizes images on the CPU with this package's codec, without a
framework. `CONVERTERS` converts its NumPy arrays to arrays of the framework of a reader.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from imagenet_prep.codec import planes
from imagenet_prep.codec.planes import CodecUnavailableError, Look, Values
from imagenet_prep.core.errors import UsageError, install_line
from imagenet_prep.core.imports import gpus, gpus_of, is_there, lacking
from imagenet_prep.dataset.manifest import Split
from imagenet_prep.read import batch
from imagenet_prep.read.augment import Views
from imagenet_prep.read.batch import Bfloat16, array_over, leased
from imagenet_prep.read.config import ReadConfig, Shown, each_view
from imagenet_prep.read.decoder import decode_in_cage, kernel_of
from imagenet_prep.read.feed import EncodedBatch
from imagenet_prep.read.recipes import BICUBIC, RANDOM
from imagenet_prep.read.shared_batches import worker_pool

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


def _to_torch(array: npt.NDArray[Any], bits: bool) -> Any:
    import torch

    if array.dtype.kind == "U":
        return array.tolist()
    if bits:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _to_jax(array: npt.NDArray[Any], bits: bool) -> Any:
    jax: Any = importlib.import_module("jax")
    if array.dtype.kind == "U":
        return array.tolist()
    return jax.numpy.asarray(_to_numpy(array, bits))


# A converter's arguments are an array, and whether its uint16 values are the bits of bfloat16.
CONVERTERS: dict[str, Callable[[npt.NDArray[Any], bool], Any]] = {
    "numpy": _to_numpy,
    "dlpack": lambda array, bits: Bfloat16(array) if bits else array,
    "tensorflow": _to_tensorflow,
    "torch": _to_torch,
    "jax": _to_jax,
}


class _Needed(NamedTuple):
    """The package of a framework, and how to install it."""

    package: str
    title: str
    remedy: str


_NEEDS = {
    "tensorflow": _Needed("tensorflow", "TensorFlow", install_line("tf")),
    "torch": _Needed("torch", "PyTorch", "pip install torch"),
    "jax": _Needed("jax", "JAX", "pip install jax"),
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
        name = "dali" if uses_gpu and not config.crops.square else "native"
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


def _refuse_crops(config: ReadConfig) -> None:
    """Raises UsageError if `config.backend` cannot make the crops."""
    if config.crops.square:
        for name, needed in _SQUARE.items():
            actual = getattr(config, name)
            if actual not in (needed, None):
                raise UsageError(
                    f"recipe={config.recipe!r} produces the same bytes as Pillow only "
                    f"with {name}={needed!r}; got {actual!r}"
                )
        height, width = config.size
        if height != width or height > planes.MOST_SQUARE:
            raise UsageError(
                f"recipe={config.recipe!r}: image_size={config.image_size}: expected a side of at "
                f"most {planes.MOST_SQUARE}"
            )
    if config.backend == "native":
        return
    if config.has_view_list or config.sizes:
        raise UsageError(
            f"backend={config.backend!r}: sizes= and a list of views need backend='native'"
        )
    if config.is_training and config.crops.filter == RANDOM:
        raise UsageError(
            f"backend={config.backend!r}: filter='random' needs backend='native'. Choose it, or "
            "filter='bicubic'"
        )


def refuse_contradictions(config: ReadConfig) -> None:
    """Raises UsageError if `config.backend` (not "auto" here) does not support a setting."""
    backend = config.backend
    needed = _NEEDS.get(config.array_framework)
    if needed is not None and not is_there(needed.package):
        raise UsageError(
            f"framework={config.array_framework!r} needs {needed.title}: {needed.remedy}, or "
            "choose framework='numpy'"
        )
    if "images" in config.fields:
        _refuse_crops(config)
    if config.out and (config.has_view_list or config.sizes):
        raise UsageError("out= provides memory of one shape: remove sizes= and the list of views")
    if config.out and backend != "native":
        raise UsageError(f"out= needs backend='native', but the backend is {backend!r}")
    if "images" not in config.fields:
        if config.out:
            raise UsageError("out= provides memory for images, but fields= has no 'images'")
    elif backend == "tfdata":
        foreign = config.framework not in (None, "tensorflow", "numpy")
        if config.dtype == "float16" or config.device == "gpu" or foreign:
            raise UsageError(
                "backend='tfdata' does not support dtype='float16', device='gpu' or a framework "
                "other than 'tensorflow' and 'numpy'"
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
        self._config = config
        self._values = Values(config.array_dtype, config.crops.mean, config.crops.std)
        # For colour changes or padding, images are first decoded to bytes and then converted.
        self._cropped = config.crops.square or config.crops.padding is None
        self._in_one_pass = not config.is_coloured and self._cropped
        self._look = functools.cache(self._new_look)
        self._free: list[deque[npt.NDArray[Any]]] = [
            deque(maxlen=_STEPS_AHEAD + 2) for _ in config.shown[0]
        ]
        # The examples of an `ExampleSource` are collated to a batch in different memory.
        self._shared = worker_pool() if config.batch_size > 1 else None
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

    def _new_look(self, shown: Shown) -> Look:
        channels_first = self._in_one_pass and self._config.layout == "NCHW"
        values = self._values if self._in_one_pass else planes.BYTES
        kernel = _kernel(shown, is_cubic=shown.crops.filter == BICUBIC)
        return Look(shown.height, shown.width, values, kernel, channels_first=channels_first)

    def _shape(self, shown: Shown, size: int) -> tuple[int, ...]:
        """Returns the shape of an array of `size` images."""
        shape: tuple[int, ...] = (shown.height, shown.width, 3)
        if self._config.layout == "NCHW":
            shape = (3, shown.height, shown.width)
        has_axis = self._config.has_view_list or shown.count > 1
        return (size, *((shown.count,) if has_axis else ()), *shape)

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
                if self._config.out:
                    yield images[0]
                    continue
                arrays = [convert(array, is_bfloat16) for array in images]
                yield tuple(arrays) if self._config.has_view_list else arrays[0]
        finally:
            # This must not wait, since the garbage collector may call it. Keep the running tasks
            # of all iterators over this reader.
            self._unfinished = [part for part in self._unfinished if not part.done()]
            for _, shown in ahead:
                self._unfinished += [part for part in shown if not part.cancel()]

    def decode(self, encoded: bytes) -> None:
        """Does nothing, because this backend can decode every image that Pillow can decode."""

    def _begin(self, batch: EncodedBatch) -> tuple[list[Any], list[Future[None]]]:
        """Starts to decode a batch; returns its arrays of images, and the tasks."""
        size = len(batch.mask)
        returned = []
        images: list[npt.NDArray[Any]] = []
        for shown, free in zip(batch.shown, self._free, strict=True):
            shape = self._shape(shown, size)
            given, array = self._memory(shape, free)
            returned.append(given)
            by_view = array.reshape(size, shown.count, *shape[-3:])
            images += [by_view[:, view] for view in range(shown.count)]
        # A task decodes several images, because submitting a task takes the interpreter lock.
        length = -(-size // (_TASKS_PER_THREAD * self._num_threads))
        parts = [slice(first, first + length) for first in range(0, size, length)]
        return returned, [self._pool.submit(self._show, batch, images, part) for part in parts]

    def _memory(
        self, shape: tuple[int, ...], free: deque[npt.NDArray[Any]]
    ) -> tuple[Any, npt.NDArray[Any]]:
        """Returns memory for an array of images of a batch, and a NumPy array over this memory."""
        dtype = self._values.table.dtype
        if self._config.out is None:
            num_bytes = dtype.itemsize * math.prod(shape)
            if self._shared is not None:
                memory = self._shared.lease(num_bytes)
            else:
                memory = leased(num_bytes, free)
            array = memory.view(dtype).reshape(shape)
            return array, array
        given = self._config.out()
        name = self._config.array_dtype + (" (or uint16)" if dtype == np.uint16 else "")
        expected = f"expected contiguous, aligned {name} {list(shape)} in CPU memory"
        try:
            array = array_over(given)
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise UsageError(f"out() returned no usable memory ({error}): {expected}") from error
        if array.dtype != dtype or array.shape != shape or not array.flags.carray:
            actual = f"{array.dtype} {list(array.shape)}"
            actual += "" if array.flags.carray else ", not contiguous or not aligned"
            raise UsageError(f"out() returned {actual}: {expected}")
        return given, array

    def _show(self, batch: EncodedBatch, images: Sequence[npt.NDArray[Any]], part: slice) -> None:
        """Decodes a part of a batch; `images` has an array [batch, height, width, 3] per view."""
        encoded = batch.encoded[part]
        to = [array[part] for array in images]
        pixels = to
        shown = each_view(batch.shown)
        if not self._in_one_pass:
            pixels = [np.empty((len(encoded), *each.size, 3), np.uint8) for each in shown]
        done = self._decode_many(encoded, batch.views, shown, pixels, part)
        for i, view in np.argwhere(~done).tolist():
            data = bytes(encoded[i])
            image = self._in_cage(data, batch.views[view], part.start + i, shown[view])
            if self._in_one_pass:
                self._finish(image, None, to[view][i])
            else:
                pixels[view][i] = image
        if not self._in_one_pass:
            for view, crops in enumerate(batch.views):
                for i, image in enumerate(to[view]):
                    colours = None if crops.colours is None else crops.colours[part][i]
                    self._finish(pixels[view][i], colours, image)

    def _decode_many(
        self,
        encoded: Sequence[bytes | memoryview],
        views: Sequence[Views],
        shown: Sequence[Shown],
        pixels: Sequence[npt.NDArray[Any]],
        part: slice,
    ) -> npt.NDArray[np.bool_]:
        """Decodes all views of images with `planes`; returns [images, views], whether it could."""
        if not self._has_planes or not self._cropped:
            return np.zeros((len(encoded), len(views)), bool)
        by_view = []
        for view, each, array in zip(views, shown, pixels, strict=True):
            look = self._look(each)
            jobs = look.jobs(encoded, view.boxes[part], view.mirrored[part], array)
            if view.cubic is not None:
                jobs["kernel"] = [_kernel(each, is_cubic=c) for c in view.cubic[part].tolist()]
            by_view.append(jobs)
        # The views of an image are next to each other, so that it is decoded only once.
        jobs = np.stack(by_view, axis=1)
        return self._look(shown[0]).decode_many(jobs.reshape(-1)).reshape(jobs.shape)

    def _in_cage(
        self, data: bytes, views: Views, number: int, shown: Shown
    ) -> npt.NDArray[np.uint8]:
        """Decodes an image that decoder.c does not accept: with libjpeg, or with Pillow."""
        box = views.boxes[number].tolist()
        is_mirrored = bool(views.mirrored[number])
        is_cubic = shown.crops.filter == BICUBIC
        if views.cubic is not None:
            is_cubic = bool(views.cubic[number])
        return decode_in_cage(
            data,
            box,
            shown.size,
            _kernel(shown, is_cubic=is_cubic),
            is_mirrored=is_mirrored,
            uses_codec=self._has_planes and self._cropped,
        )

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


def _kernel(shown: Shown, *, is_cubic: bool) -> int:
    """Returns the filter, as `planes.Look` numbers it, of a view whose image may be bicubic."""
    if shown.crops.square:
        return planes.SQUARE
    return kernel_of(is_cubic=is_cubic, antialias=shown.antialias)


@functools.cache
def say_once(text: str) -> None:
    """Logs a warning once per process."""
    logging.getLogger(__name__).warning(text)
