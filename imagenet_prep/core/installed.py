"""Finds missing frameworks and other requirements of a run without importing them."""

from __future__ import annotations

import ctypes
import importlib.util
import json
from collections.abc import Sequence
from typing import Literal, NamedTuple

from imagenet_prep.core.errors import UsageError, install_line


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


def demand(extra: str, user: str, *modules: str) -> None:
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
