"""Chooses the framework that decodes, and converts its batches for the user."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset.manifest import Split
from imagenet_prep.read.augment import RECIPES
from imagenet_prep.read.config import Decoding, ReadConfig
from imagenet_prep.read.feed import EncodedBatch

Convert = Callable[[Any], Any]


class Decoder(Protocol):
    """Decodes, crops, resizes."""

    def batches(self, feed: Callable[[], Iterator[EncodedBatch]], steps: int) -> Iterator[Any]:
        """Yields the images of each step."""


class Undecoded:
    """Decodes nothing: for batches without images."""

    def batches(self, feed: Callable[[], Iterator[EncodedBatch]], steps: int) -> Iterator[None]:
        """Yields nothing of each step."""
        for _ in itertools.islice(feed(), steps):
            yield None


def open_decoder(
    config: ReadConfig, world: World, split: Split
) -> tuple[Decoder, Convert, Convert]:
    """Returns the decoder that was asked for, and what turns arrays into the framework's.

    The first of the two is for the decoder's images, the second for NumPy's arrays.

    Args:
      config: the request, its backend that of `choose_backend`.
      world: this rank among those of its host.
      split: for the largest sides of its images.

    Raises:
      UsageError: it is not installed, or cannot do what was asked for.
    """
    cores = len(os.sched_getaffinity(0))
    wanted = Decoding(
        batch_size=config.batch_size,
        image_size=config.image_size,
        recipe=RECIPES[config.recipe],
        colour=config.is_coloured,
        dtype=config.dtype,
        layout=config.layout,
        antialias=not config.is_training if config.antialias is None else config.antialias,
        num_threads=config.num_threads or max(1, cores // world.local_size),
        views=config.views,
    )
    if config.out and config.backend != "native":
        raise UsageError(f"out= needs backend='native', but the backend is {config.backend!r}")
    if config.out and "images" not in config.fields:
        raise UsageError("out= gives memory for images, which fields= leaves out")
    from imagenet_prep.read import native

    framework = config.framework or ("numpy" if config.backend == "native" else "tensorflow")
    wrap = native.CONVERTERS[framework]
    if "images" not in config.fields:
        return Undecoded(), wrap, wrap
    if config.backend == "tfdata":
        return *_tfdata(config, wanted), wrap
    if config.backend == "native":
        return *_native(config, wanted), wrap
    return *_dali(config, wanted, world, (split.max_height, split.max_width)), wrap


def choose_backend(config: ReadConfig) -> str:
    """Returns "tfdata", "dali" or "native".

    Raises:
      UsageError: the backend that was asked for is not installed.
    """
    installed = {
        "tfdata": importlib.util.find_spec("tensorflow") is not None,
        "dali": importlib.util.find_spec("nvidia") is not None
        and importlib.util.find_spec("nvidia.dali") is not None,
        "native": True,
    }
    backend = config.backend
    if backend == "auto":
        order = ("dali",) if config.device == "gpu" else ("tfdata", "dali", "native")
        backend = next((name for name in order if installed[name]), order[0])
    if not installed[backend]:
        extra = {"tfdata": "tf", "dali": "dali"}[backend]
        raise UsageError(
            f"backend {backend!r} is not installed: pip install 'imagenet-prep[{extra}]'"
        )
    return backend


def _tfdata(config: ReadConfig, wanted: Decoding) -> tuple[Decoder, Convert]:
    if config.dtype == "float16" or config.device == "gpu" or config.framework == "dlpack":
        raise UsageError("backend='tfdata' has no float16, no device='gpu' and no dlpack")
    from imagenet_prep.read.tfdata import TfDataBackend

    numpy = config.framework == "numpy"
    return TfDataBackend(wanted), (lambda tensor: tensor.numpy()) if numpy else _unchanged


def _native(config: ReadConfig, wanted: Decoding) -> tuple[Decoder, Convert]:
    if config.device == "gpu":
        raise UsageError("backend='native' decodes on the CPU: device='gpu' needs backend='dali'")
    from imagenet_prep.read import native

    if config.out and config.framework:
        raise UsageError("out= decides what batches hold: leave framework= away")
    # What the user has given comes back as it is.
    convert = _unchanged if config.out else native.CONVERTERS[config.framework or "numpy"]
    return native.NativeBackend(wanted, config.out), convert


def _dali(
    config: ReadConfig, wanted: Decoding, world: World, largest: tuple[int, int]
) -> tuple[Decoder, Convert]:
    if config.dtype == "bfloat16":
        raise UsageError("backend='dali' has no bfloat16: choose float16 or float32")
    from imagenet_prep.read.dali import DaliBackend, to_numpy, to_tensorflow

    device_id = world.local_rank if config.device == "gpu" else None
    converters = {"dlpack": _unchanged, "numpy": to_numpy, "tensorflow": to_tensorflow}
    decoder = DaliBackend(wanted, device_id, largest)
    return decoder, converters[config.framework or "tensorflow"]


def _unchanged(tensor: Any) -> Any:
    return tensor
