"""Imports of libraries that would obey files of the current folder, which may be anybody's.

- matplotlib reads `./matplotlibrc` before all its other settings. Before its version 3.11, such a
  file could run code.
- TensorFlow, in a process that was started by `python -m NAME`, loads whatever fits
  `./NAME/tensorflow/core/kernels/libtfkernel*.so`.
- XLA looks for CUDA's compilers in `./cuda_sdk_lib` first.

The first two look just once. So they are imported, and made to look, while the root of the file
system is the current folder. No other library that we import looks there: `strace` of all verbs.
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

# Where CUDA lies, if not in NVIDIA's own package.
_CUDA = "/usr/local/cuda"
_CUDA_PACKAGE = "nvidia.cuda_nvcc"
_XLA_FLAG = "--xla_gpu_cuda_data_dir"
# The least level of messages that TensorFlow prints; see `connect` of the trainer.
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_FILTER = str(Path(__file__).with_name("without_chatter.py"))


def guard() -> None:
    """Lets this process import these libraries so that they see nothing of the current folder."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds these libraries where they lie, with another loader."""

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
    """Runs a library's module, and lets it look for its files, elsewhere."""

    def exec_module(self, module: ModuleType) -> None:
        talks = module.__name__ == "tensorflow"
        silence = _without_chatter() if talks else contextlib.nullcontext()
        with _elsewhere(), _uncollected(), silence:
            super().exec_module(module)
            _LIBRARIES[module.__name__]()


@contextlib.contextmanager
def _elsewhere() -> Iterator[None]:
    """Makes the root of the file system the current folder meanwhile."""
    # The folder is kept by its descriptor: it may have another name later, or none.
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir("/")
        yield
    finally:
        os.fchdir(here)
        os.close(here)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Pauses garbage collection, which finds nothing in an import and is a quarter of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Filters meanwhile what libraries write to standard error, also before they know a level."""
    if os.environ.get(_LOG_LEVEL, "2") < "2":  # somebody wants to see it
        yield
        return
    sys.stderr.flush()
    own = os.dup(2)
    # In a session of its own: Ctrl-C is for this process, which then closes its input.
    words = [sys.executable, "-I", "-S", _FILTER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as program:
        assert program.stdin is not None
        try:
            os.dup2(program.stdin.fileno(), 2)
            yield
        finally:
            os.dup2(own, 2)
            os.close(own)
            # It ends when nothing can write to it any more.


def _load_kernels() -> None:
    """Makes TensorFlow look for kernels now, which takes no GPU, and tells XLA where CUDA is."""
    os.environ["XLA_FLAGS"] = xla_flags(os.environ.get("XLA_FLAGS", ""))
    kernels = importlib.import_module("tensorflow.python.framework.kernels")
    kernels.get_registered_kernels_for_op("NoOp")


def xla_flags(given: str) -> str:
    """Returns flags of XLA that name the folder of CUDA, as the user has named it or as it is."""
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
