"""What a test must leave as it found it: the state of the process, which all later tests share."""

from __future__ import annotations

import gc
import locale
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Any

# Not SIGALRM, which pytest-timeout sets.
_SIGNALS = (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
# Not RLIMIT_NOFILE, which stores raise.
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE)
# Libraries change others when they are imported.
_VARIABLES = ("HOME", "LANG", "LC_ALL", "PATH", "PYTHONPATH", "TMPDIR", "TZ")


def is_ours(name: str) -> bool:
    """Whether a variable of the environment changes what we do: credentials, proxies, settings."""
    return name.startswith(("AWS_", "IMAGENET_PREP_")) or name.lower().endswith("_proxy")


def state() -> dict[str, Any]:
    """Returns the state by name; that of a library only if it is imported."""
    return dict(_of_python()) | dict(_of_libraries())


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Returns a line for each value that differs. A library may have been imported since."""
    return [
        f"{name}: {before[name]!r} -> {after.get(name)!r}"
        for name in sorted(before)
        if before[name] != after.get(name)
    ]


def _of_python() -> Iterator[tuple[str, Any]]:
    for name in (*_VARIABLES, *filter(is_ours, os.environ)):
        yield f"${name}", os.environ.get(name)
    yield "names of our variables", sorted(filter(is_ours, os.environ))
    yield "working directory", os.getcwd()
    umask = os.umask(0o022)
    os.umask(umask)
    yield "umask", umask
    for number in _SIGNALS:
        yield f"handler of {number.name}", signal.getsignal(number)
    for number in _LIMITS:
        yield f"limit {number}", resource.getrlimit(number)
    yield "locale", locale.setlocale(locale.LC_ALL)
    yield "timeout of sockets", socket.getdefaulttimeout()
    yield "arguments", tuple(sys.argv)
    yield "module path", tuple(sys.path)
    yield "search for garbage", gc.isenabled()
    yield "level of the log", logging.root.level
    yield "disabled levels of the log", logging.root.manager.disable


def _of_libraries() -> Iterator[tuple[str, Any]]:
    if "PIL.ImageFile" in sys.modules:
        from PIL import Image, ImageFile

        yield "Pillow's limit of pixels", Image.MAX_IMAGE_PIXELS
        yield "Pillow's acceptance of truncated images", ImageFile.LOAD_TRUNCATED_IMAGES
    if "numpy" in sys.modules:
        import numpy as np

        yield "NumPy's errors", np.geterr()
    if "keras" in sys.modules:
        import keras

        yield "Keras's precision", keras.config.dtype_policy().name
    if "torch" in sys.modules:
        import torch

        yield "PyTorch's precision", torch.get_default_dtype()
        yield "PyTorch's gradients", torch.is_grad_enabled()
