"""Chooses the framework that decodes, and converts its batches for the user."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset.manifest import Split
from imagenet_prep.read import native
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import EncodedBatch

Convert = Callable[[Any], Any]
# Decodes, crops, resizes: the batches and how many -> the images of each.
Decode = Callable[[Callable[[], Iterator[EncodedBatch]], int], Iterator[Any]]


def open_decoder(config: ReadConfig, world: World, split: Split) -> tuple[Decode, Convert, Convert]:
    """Returns what decodes as was asked for, and what turns arrays into the framework's.

    The first of the two is for the decoded images, the second for NumPy's arrays.

    Args:
      config: the request, its backend that of `choose_backend`.
      world: this rank among those of its host.
      split: for the largest sides of its images.

    Raises:
      UsageError: it is not installed, or cannot do what was asked for.
    """
    framework = config.framework or ("numpy" if config.backend == "native" else "tensorflow")
    wrap = native.CONVERTERS[framework]
    _refuse_contradictions(config)
    if "images" not in config.fields:
        return _undecoded, wrap, wrap
    cores = len(os.sched_getaffinity(0))
    config = replace(
        config,
        antialias=not config.is_training if config.antialias is None else config.antialias,
        num_threads=config.num_threads or max(1, cores // world.local_size),
    )
    if config.backend == "native":
        # What the user has given comes back as it is.
        return native.NativeBackend(config).batches, _unchanged if config.out else wrap, wrap
    if config.backend == "tfdata":
        from imagenet_prep.read.tfdata import TfDataBackend

        numpy = framework == "numpy"
        convert: Convert = (lambda tensor: tensor.numpy()) if numpy else _unchanged
        return TfDataBackend(config).batches, convert, wrap
    from imagenet_prep.read.dali import DaliBackend, to_numpy, to_tensorflow

    device_id = world.local_rank if config.device == "gpu" else None
    decoder = DaliBackend(config, device_id, (split.max_height, split.max_width))
    convert = {"dlpack": _unchanged, "numpy": to_numpy, "tensorflow": to_tensorflow}[framework]
    return decoder.batches, convert, wrap


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


def _refuse_contradictions(config: ReadConfig) -> None:
    """Raises UsageError where the backend cannot do what was asked for."""
    backend = config.backend
    if config.out and backend != "native":
        raise UsageError(f"out= needs backend='native', but the backend is {backend!r}")
    if "images" not in config.fields:
        if config.out:
            raise UsageError("out= gives memory for images, which fields= leaves out")
    elif backend == "tfdata":
        if config.dtype == "float16" or config.device == "gpu" or config.framework == "dlpack":
            raise UsageError("backend='tfdata' has no float16, no device='gpu' and no dlpack")
    elif backend == "dali":
        if config.dtype == "bfloat16":
            raise UsageError("backend='dali' has no bfloat16: choose float16 or float32")
    elif config.device == "gpu":
        raise UsageError("backend='native' decodes on the CPU: device='gpu' needs backend='dali'")
    elif config.out and config.framework:
        raise UsageError("out= decides what batches hold: leave framework= away")


def _undecoded(feed: Callable[[], Iterator[EncodedBatch]], steps: int) -> Iterator[None]:
    for _ in itertools.islice(feed(), steps):
        yield None


def _unchanged(tensor: Any) -> Any:
    return tensor
