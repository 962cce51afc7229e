"""Imports libraries so that they do not read untrusted files from the current folder.

- matplotlib reads `./matplotlibrc` before all other settings. Before version 3.11, such a file
  could run code.
- TensorFlow, in a process started by `python -m NAME`, loads every file that matches
  `./NAME/tensorflow/core/kernels/libtfkernel*.so`.
- XLA searches `./cuda_sdk_lib` for CUDA's compilers first.

matplotlib and TensorFlow search for these files only once. So they are imported, and made to
search, while the current folder is /. `strace` of all verbs found no other library that reads
files from the current folder.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

# The location of CUDA if NVIDIA's Python package is not installed.
_CUDA = "/usr/local/cuda"
_CUDA_PACKAGE = "nvidia.cuda_nvcc"
_XLA_FLAG = "--xla_gpu_cuda_data_dir"
# This variable has the minimum level of the messages that TensorFlow prints.
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_FILTER = str(Path(__file__).with_name("without_chatter.py"))


def guard() -> None:
    """Makes later imports of matplotlib and TensorFlow ignore the current folder."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds matplotlib and TensorFlow as usual, but loads them with `_Loader`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _LIBRARIES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Imports a library and makes it search for its files while the current folder is /."""

    def exec_module(self, module: ModuleType) -> None:
        talks = module.__name__ == "tensorflow"
        silence = _without_chatter() if talks else contextlib.nullcontext()
        with _elsewhere(), _uncollected(), silence:
            super().exec_module(module)
            _LIBRARIES[module.__name__]()


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """Changes the current folder to / inside the block."""
    # Keep a descriptor, because the folder may be renamed or removed meanwhile.
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir("/")
        yield
    finally:
        os.fchdir(here)
        os.close(here)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Pauses garbage collection, which takes a quarter of an import's time and frees nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Filters the messages that libraries print on stderr, even before their log level is set."""
    if os.environ.get(_LOG_LEVEL, "2") < "2":  # the user wants these messages
        yield
        return
    sys.stderr.flush()
    own = os.dup(2)
    # The filter runs in a separate session, so that Ctrl-C only reaches this process.
    words = [sys.executable, "-I", "-S", _FILTER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as program:
        assert program.stdin is not None
        try:
            os.dup2(program.stdin.fileno(), 2)
            yield
        finally:
            os.dup2(own, 2)
            os.close(own)
            # The filter ends when no process has its input open any more.


def _load_kernels() -> None:
    """Sets the path of CUDA for XLA, and makes TensorFlow search for its kernels now."""
    os.environ["XLA_FLAGS"] = xla_flags(os.environ.get("XLA_FLAGS", ""))
    kernels = importlib.import_module("tensorflow.python.framework.kernels")
    kernels.get_registered_kernels_for_op("NoOp")


def xla_flags(given: str) -> str:
    """Returns XLA flags; adds the CUDA folder of this machine if they do not name a folder."""
    return given if _XLA_FLAG in given else f"{given} {_XLA_FLAG}={_cuda()}".lstrip()


def _cuda() -> str:
    with contextlib.suppress(ModuleNotFoundError):
        found = importlib.util.find_spec(_CUDA_PACKAGE)
        if found is not None and found.submodule_search_locations:
            return next(iter(found.submodule_search_locations))
    return _CUDA


_LIBRARIES: dict[str, Callable[[], None]] = {
    "matplotlib": lambda: None,
    "tensorflow": _load_kernels,
}
