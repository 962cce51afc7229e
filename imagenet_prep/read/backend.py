"""Chooses a reader's decoding backend, and rejects settings that the backend does not support."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any, Protocol

from imagenet_prep.codec import planes
from imagenet_prep.core.errors import UsageError, install_line
from imagenet_prep.core.installed import gpus, gpus_of, lacking
from imagenet_prep.dataset.manifest import Split
from imagenet_prep.read import batch, native
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import EncodedBatch

# Recipes with `square` require these settings.
_SQUARE = {
    "backend": "native",
    "device": "cpu",
    "dtype": "uint8",
    "views": 1,
    "colour": False,
    "antialias": None,
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
        return native.NativeBackend(config)
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
