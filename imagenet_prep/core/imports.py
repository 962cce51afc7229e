"""Loads Python and C libraries safely, and finds missing ones without importing them.

`guard` makes sure that imported libraries do not read untrusted files from the current folder:

- matplotlib reads `./matplotlibrc` before all other settings. Before version 3.11, such a file
  could run code.
- TensorFlow, in a process started by `python -m NAME`, loads every file that matches
  `./NAME/tensorflow/core/kernels/libtfkernel*.so`.
- XLA searches `./cuda_sdk_lib` for CUDA's compilers first.

matplotlib and TensorFlow search for these files only once. So they are imported, and made to
search, while the current folder is /. `strace` of all verbs found no other library that reads files
from the current folder.

`load` loads a C library. Python threads continue while a function of the library runs.

`is_there` finds a module without importing it, and `lacking` lists the missing requirements of a
run.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

from imagenet_prep.core.errors import UsageError, install_line

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


class NotCompiledError(UsageError):
    """A C library is missing, too old, or cannot be loaded on this machine."""


@functools.cache
def load(path: Path, **functions: tuple[Any, ...]) -> ctypes.CDLL:
    """Loads a C library; `functions` has the result type and argument types of each function."""
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, *arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    # An older library lacks functions.
    except (OSError, AttributeError) as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise NotCompiledError(
            f"{path} cannot be loaded: {reason}. It is compiled when imagenet-prep is installed. "
            "Install a C compiler, or `pip install ziglang`, and then reinstall imagenet-prep."
        ) from error
    return library


def find(path: Path, **functions: tuple[Any, ...]) -> ctypes.CDLL | None:
    """Returns a library as `load` does, or None if it cannot be loaded."""
    try:
        return load(path, **functions)
    except NotCompiledError:
        return None


class Framework(NamedTuple):
    """A training framework."""

    title: str  # name in messages
    module: str  # its Python module; `horovod` has a module with the same name
    packages: tuple[str, ...]  # the first installed package is used
    extra: str  # extra of imagenet-prep that installs it; "" if there is none

    @property
    def remedy(self) -> str:
        """The instruction for installing the framework."""
        return install_line(self.extra) if self.extra else "create its environment (docs/mxnet.md)"


FRAMEWORKS = {
    "tensorflow": Framework("TensorFlow", "tensorflow", ("tensorflow-cpu", "tensorflow"), "tf"),
    "pytorch": Framework("PyTorch", "torch", ("torch",), "torch"),
    "mxnet": Framework("MXNet", "mxnet", ("mxnet",), ""),
}
HOROVOD = "horovod"


def version(*packages: str) -> str | None:
    """Returns name and version of the first installed package, e.g. "torch 2.15.0", or None."""
    from importlib import metadata  # a slow import that few verbs need

    for package in packages:
        try:
            return f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue
    return None


def is_there(module: str) -> bool:
    """Returns whether a module can be found; only its parent packages are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False  # The parent package is missing.


def require_modules(extra: str, user: str, *modules: str) -> None:
    """Raises UsageError if a module that `user` needs is missing; `extra` installs it."""
    missing = [module for module in modules if not is_there(module)]
    if missing:
        raise UsageError(
            f"{user} needs {', '.join(missing)} (not installed). Run: {install_line(extra)}"
        )


def lacking(needs: Sequence[str]) -> list[str]:
    """Returns a message for each missing requirement of a run.

    `needs` has the training framework first, then `HOROVOD` and reading backends if needed.
    """
    problems = []
    for need in dict.fromkeys("tensorflow" if need == "tfdata" else need for need in needs):
        if need in FRAMEWORKS and not is_there(FRAMEWORKS[need].module):
            hint = ""
            if need == needs[0] and is_there("torch"):
                hint = ", or add --framework pytorch"
            problems.append(
                f"{FRAMEWORKS[need].title} is not installed: {FRAMEWORKS[need].remedy}{hint}"
            )
        elif need == "dali" and not is_there("nvidia.dali"):
            problems.append(
                f"DALI is not installed: {install_line('dali')}, or "
                "'imagenet-prep[dali-cuda13]' for CUDA 13"
            )
        elif need == HOROVOD:
            problem = problem_of_horovod(needs[0])
            if problem is not None:
                problems.append(f"{problem[1]}: run `{horovod_remedy(needs[0])}`")
    return problems


def problem_of_horovod(framework: str) -> tuple[Literal["missing", "wrong"], str] | None:
    """Returns "missing" or "wrong", and a message; None if Horovod works with the framework."""
    from importlib import metadata

    try:
        horovod = metadata.distribution("horovod")
        text = horovod.read_text("../horovod/metadata.json") or "{}"
        built = str(dict(json.loads(text)).get(framework, "")).partition("+")[0]
    except metadata.PackageNotFoundError:
        return "missing", "Horovod is not installed"
    except (TypeError, ValueError):
        return "missing", "Horovod is damaged: its metadata.json cannot be read"
    title, _, packages, _ = FRAMEWORKS[framework]
    if not built:
        return "missing", f"Horovod is not built for {title}"
    here = (version(*packages) or "").rpartition(" ")[2].partition("+")[0]
    if here and built != here:
        return "wrong", f"Horovod is built for {title} {built}, but {here} is installed"
    return None


def on_cpu_only(framework: str) -> str | None:
    """Returns the package and version of a framework that cannot use GPUs; None if it can."""
    found = version(*FRAMEWORKS[framework].packages)
    if found is not None and (found.endswith("+cpu") or found.startswith("tensorflow-cpu")):
        return found
    return None


def gpus_of(framework: str) -> int:
    """Returns the number of GPUs that a framework may use in this process."""
    return 0 if on_cpu_only(framework) else gpus()


def sums_on_cpu() -> bool:
    """Returns whether the installed Horovod is our build without NCCL."""
    found = version(HOROVOD) or ""
    return "+patch" in found and not found.endswith(".nccl")


def horovod_remedy(framework: str) -> str:
    """Returns the command that builds Horovod for a framework."""
    return f"imagenet-prep install-horovod --framework {framework}"


def gpus() -> int:
    """Returns the number of GPUs that this process may use; 0 if NVIDIA's driver is missing."""
    count = ctypes.c_int(0)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    return 0 if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) else count.value
