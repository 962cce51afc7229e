"""Horovod's data uses the requested interface; the published version does not."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep import install_horovod
from imagenet_prep.core.errors import ImagenetPrepError, UsageError, install_line
from imagenet_prep.core.world import World
from imagenet_prep.install_horovod import InstallHorovodConfig
from imagenet_prep.launching import horovod_source
from tests.kit import layouts
from tests.kit.batches import digests
from tests.kit.cluster import cluster
from tests.kit.command import PATIENCE_S, run, started
from tests.kit.messages import says
from tests.kit.system import System
from tests.kit.training import horovod, shades

__all__ = ["horovod", "shades"]

TF, GPU = (re.escape(install_line(extra)) for extra in ("tf", "gpu"))
RANK_OF_MXNET = Path(__file__).with_name("mxnet_rank.py")

# Prints the remote addresses of this process while all ranks hold their connections.
RANK = """\
import json, os, socket
import horovod.tensorflow as hvd
import tensorflow as tf
hvd.init()
total = float(hvd.allreduce(tf.constant(float(hvd.rank() + 1)), op=hvd.Sum))
mine = set()
for name in os.listdir("/proc/self/fd"):
    try:
        mine.add(os.readlink(f"/proc/self/fd/{name}"))
    except OSError:
        pass
rows = [line.split() for line in open("/proc/self/net/tcp").readlines()[1:]]
peers = {
    socket.inet_ntoa(bytes.fromhex(row[2][:8])[::-1])
    for row in rows
    if row[3] == "01" and f"socket:[{row[9]}]" in mine
}
hvd.allreduce(tf.constant(0.0), name="held until all have looked")
print(json.dumps([hvd.rank(), total, sorted(peers)]), flush=True)
"""


# The text in each of Horovod's Python files that a patch replaces or extends.
PYTHON = {
    "_keras/__init__.py": "    class _DistributedOptimizer(*optimizer.__class__.__bases__):\n",
    "_keras/callbacks.py": "import tensorflow as tf\n",
    "keras/__init__.py": "    return _impl.load_model(keras)\n",
    "keras/callbacks.py": "    def __init__(self, initial_lr, warmup_epochs=5,\n",
    "tensorflow/keras/__init__.py": "    return _impl.load_model(keras)\n",
    "tensorflow/keras/callbacks.py": "    def __init__(self, initial_lr, warmup_epochs=5,\n",
    "tensorflow/__init__.py": (
        "    _SessionRunHook = tf.train.SessionRunHook\n"
        "            gradients = super(self.__class__, self).gradient(target, sources, more)\n"
    ),
    "tensorflow/functions.py": (
        "    if inplace:\n        vars_by_device = {}\n        for var in variables:\n"
    ),
    "mxnet/__init__.py": (
        "    def __getattr__(self, item):\n        return getattr(self._optimizer, item)\n"
        "            optimizer = optimizer._optimizer\n"
    ),
}
SHUTDOWN = '    def shutdown(self):\n        """A function that shuts Horovod down."""\n'
BUILD = """\
string(REPLACE "-O2" "-O3" CMAKE_C_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")
string(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")
    add_subdirectory(third_party/gloo)
        add_subdirectory(third_party/compatible_gloo)
"""


def source(folder: Path, text: str) -> Path:
    """Writes the files that `mend` changes; returns the file with this text."""
    for name in ("tensorflow/xla_mpi_ops.cc", "tensorflow/mpi_ops.cc"):
        layouts.write(folder / "horovod" / name, b"of %s\n" % Path(name).name.encode())
    for name in ("common/basics.py", "mxnet/mpi_ops.py"):
        loads = f"of {Path(name).name}\nctypes.CDLL(path, ctypes.RTLD_GLOBAL)\n"
        layouts.write(folder / "horovod" / name, loads.encode())
    with open(folder / "horovod" / "common" / "basics.py", "a") as basics:
        basics.write(SHUTDOWN)
    for name, code in PYTHON.items():
        layouts.write(folder / "horovod" / name, code.encode())
    for build in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
        layouts.write(folder / build, b"if()\nset(CMAKE_CXX_STANDARD 14)\n")
    with open(folder / "CMakeLists.txt", "a") as build_file:
        build_file.write(BUILD)
    path = folder / "horovod" / "common" / "gloo" / "gloo_context.cc"
    layouts.write(path, text.encode())
    return path


def test_added_line_copies_the_network_interface(tmp_path: Path) -> None:
    path = source(tmp_path, "{\n  assert(global_context.IsEnabled());\n\n  device_attr")
    horovod_source.mend(tmp_path, "tensorflow")

    assert path.read_text() == (
        "{\n  assert(global_context.IsEnabled());\n"
        "  gloo_iface_ = global_context.gloo_iface_;\n\n  device_attr"
    )


@pytest.mark.parametrize(
    ("framework", "mode"), [("tensorflow", "RTLD_GLOBAL"), ("mxnet", "RTLD_LOCAL")]
)
def test_mxnet_loads_its_libjpeg_locally(tmp_path: Path, framework: str, mode: str) -> None:
    source(tmp_path, "  assert(global_context.IsEnabled());\n")
    horovod_source.mend(tmp_path, framework)

    for name in ("common/basics.py", "mxnet/mpi_ops.py"):
        loads = f"ctypes.CDLL(path, ctypes.{mode})"
        text = (tmp_path / "horovod" / name).read_text()
        assert text.startswith(f"of {Path(name).name}\n{loads}\n")


def test_code_that_tensorflow_removed_is_replaced(tmp_path: Path) -> None:
    source(tmp_path, "  assert(global_context.IsEnabled());\n")
    horovod_source.mend(tmp_path, "tensorflow")

    folder = tmp_path / "horovod" / "tensorflow"
    assert (folder / "xla_mpi_ops.cc").read_text() == ""
    operations = (folder / "mpi_ops.cc").read_text()
    assert operations.startswith("of mpi_ops.cc\n\n#if HAVE_GPU\n")
    assert says("have_gpu-namespace-stream_executor-namespace-gpu").search(operations)


@pytest.mark.parametrize(("framework", "standard"), [("tensorflow", 14), ("pytorch", 20)])
def test_pytorch_headers_are_compiled_by_their_standard(
    tmp_path: Path, framework: str, standard: int
) -> None:
    source(tmp_path, "  assert(global_context.IsEnabled());\n")
    horovod_source.mend(tmp_path, framework)

    for build in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
        expected = f"if()\nset(CMAKE_CXX_STANDARD {standard})\n"
        assert (tmp_path / build).read_text().startswith(expected)


def test_debug_symbols_and_second_gloo_are_not_built(tmp_path: Path) -> None:
    source(tmp_path, "  assert(global_context.IsEnabled());\n")
    horovod_source.mend(tmp_path, "tensorflow")

    lines = (tmp_path / "CMakeLists.txt").read_text().splitlines()
    before = BUILD.splitlines()
    assert lines[2:] == [
        before[0],
        before[1].replace('"-O2"', '"-O2 -g"'),
        "    add_subdirectory(third_party/gloo EXCLUDE_FROM_ALL)",
        before[3],
    ]


@pytest.mark.parametrize("times", [0, 2])
def test_unknown_horovod_source_is_refused(tmp_path: Path, times: int) -> None:
    source(tmp_path, "  assert(global_context.IsEnabled());\n" * times)

    with pytest.raises(
        ImagenetPrepError, match=says("expected-once-found-times-not", ..., ..., times)
    ):
        horovod_source.mend(tmp_path, "tensorflow")


class Installed(NamedTuple):
    """The result of an installation without pip: the wheel's bytes and the output."""

    wheel: bytes
    out: str
    err: str


@pytest.fixture
def installed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    system: System,
) -> Callable[[Path], Installed]:
    """Installs from a cache; a build gives a wheel of the bytes "built"; nothing is verified."""
    monkeypatch.setattr(install_horovod, "wheel_key", lambda _: "key")
    monkeypatch.setattr(install_horovod, "missing", lambda _: "")
    monkeypatch.setattr(install_horovod, "prove", lambda *_: None)
    system.keeps_temporary_files(tmp_path / "scratch")
    (tmp_path / "scratch").mkdir()

    def build(_config: InstallHorovodConfig, scratch: Path, _log: Path) -> Path:
        wheel = scratch / "horovod-1.whl"
        wheel.write_bytes(b"built")
        return wheel

    wheels: list[bytes] = []
    monkeypatch.setattr(install_horovod, "_build", build)
    monkeypatch.setattr(
        install_horovod, "_pip", lambda words, *_: wheels.append(Path(words[-1]).read_bytes())
    )

    def install(cache: Path) -> Installed:
        install_horovod.install(InstallHorovodConfig(cache=str(cache)))
        assert list((tmp_path / "scratch").iterdir()) == []
        return Installed(wheels[-1], *capsys.readouterr())

    return install


def test_built_wheel_is_cached_and_installed_again(
    tmp_path: Path, installed: Callable[[Path], Installed]
) -> None:
    before = os.umask(0o002)
    try:
        first = installed(tmp_path / "wheels")
        again = installed(tmp_path / "wheels")
    finally:
        os.umask(before)

    assert (first.wheel, first.out, first.err) == (b"built", "", "")
    kept = tmp_path / "wheels" / "key" / "horovod-1.whl"
    assert (again.wheel, again.out) == (b"built", f"already built: {kept}\n")
    assert kept.stat().st_mode & 0o777 == 0o644


def test_wheels_that_fail_are_never_kept(
    tmp_path: Path, installed: Callable[[Path], Installed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a cached wheel nor a new one; the logs stay for the user."""
    cache = tmp_path / "wheels"
    installed(cache)
    assert len(list((cache / "key").iterdir())) == 1

    def fail(*_: object) -> None:
        raise ImagenetPrepError("the sum of the ranks is wrong")

    with monkeypatch.context() as failing:
        failing.setattr(install_horovod, "prove", fail)
        for _ in ("cached", "new"):
            with pytest.raises(ImagenetPrepError, match="the sum of the ranks is wrong"):
                install_horovod.install(InstallHorovodConfig(cache=str(cache)))
            assert list((cache / "key").iterdir()) == []
    assert len(list((tmp_path / "scratch").iterdir())) == 2


def test_wheel_is_ignored_if_others_can_write_it(
    tmp_path: Path, installed: Callable[[Path], Installed]
) -> None:
    folder = tmp_path / "wheels" / "key"
    folder.mkdir(parents=True)
    mine = tmp_path / "mine"
    mine.write_bytes(b"evil")
    wheel = folder / "horovod-0-py3-none-any.whl"
    for kind in ("writable by others", "writable by the group", "a link", "a pipe", "a folder"):
        if kind == "a link":
            wheel.symlink_to(mine)
        elif kind == "a pipe":
            os.mkfifo(wheel)
        elif kind == "a folder":
            wheel.mkdir()
        else:
            wheel.write_bytes(b"evil")
            wheel.chmod(0o666 if kind == "writable by others" else 0o664)
        found = installed(tmp_path / "wheels")

        assert found.wheel == b"built", kind
        assert says("not-used-horovod-built-host", wheel).search(found.err), kind
        (folder / "horovod-1.whl").unlink()
        wheel.rmdir() if kind == "a folder" else wheel.unlink()


@pytest.mark.root
def test_only_own_and_root_wheels_are_installed(
    tmp_path: Path, installed: Callable[[Path], Installed], system: System
) -> None:
    """Root's wheel is like an administrator's, in a folder that this user cannot change."""
    folder = tmp_path / "wheels" / "key"
    folder.mkdir(parents=True)
    wheel = folder / "horovod-0-py3-none-any.whl"
    wheel.write_bytes(b"evil")
    os.chown(wheel, 1001, 1001)
    found = installed(tmp_path / "wheels")
    assert found.wheel == b"built"
    assert says("different-user-owns-others-write").search(found.err)

    (folder / "horovod-1.whl").unlink()
    os.chown(wheel, 0, 0)
    system.instead("geteuid", lambda _: 1001)
    assert installed(tmp_path / "wheels").wheel == b"evil"


def test_wheel_is_installed_if_cache_is_unwritable(
    installed: Callable[[Path], Installed],
) -> None:
    found = installed(Path("/proc/wheels"))

    assert found.wheel == b"built"
    assert says("wheel-installed-cannot-stored-cache").search(found.err)


def test_only_missing_packages_are_installed_with_hashes(packages: dict[str, str]) -> None:
    packages |= {"packaging": "1", "pyyaml": "1"}
    lock = install_horovod.NEEDS_LOCK.read_text("utf-8")
    found = install_horovod.missing(lock)

    names = re.findall(r"^(\w+)==", found, re.MULTILINE)
    assert names == ["cloudpickle", "psutil"]
    assert found.count("==") == 2
    assert found.count("--hash=sha256:") < lock.count("--hash=sha256:")
    packages |= dict.fromkeys(names, "1")
    assert install_horovod.missing(lock) == ""


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The versions of the packages that seem to be installed; filled by the tests."""
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    return versions


def test_cache_key_has_all_dependencies_of_the_code(packages: dict[str, str]) -> None:
    packages |= {"tensorflow": "2.21.0", "mxnet": "1.9.1", "torch": "2.15.0"}
    packages |= {"nvidia-nccl-cu12": "2.25.1"}
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    machine = os.uname().machine
    head, head_of_nccl = (
        f"horovod-0.28.1+{horovod_source.local_version(nccl=nccl)}-python{version}-"
        for nccl in (False, True)
    )

    found = {
        framework + more: install_horovod.wheel_key(
            InstallHorovodConfig(framework=framework, **({more: True} if more else {}))
        )
        for framework, more in (
            ("tensorflow", ""),
            ("tensorflow", "nccl"),
            ("mxnet", "mpi"),
            ("pytorch", ""),
            ("pytorch", "nccl"),
        )
    }

    nccl = "nvidia-nccl-cu12-2.25.1"
    assert found == {
        "tensorflow": f"{head}tensorflow-2.21.0-gloo-{machine}",
        "tensorflownccl": f"{head_of_nccl}tensorflow-2.21.0-{nccl}-gloo-{machine}",
        "mxnetmpi": f"{head}mxnet-1.9.1-openmpi-4.1.8-{machine}",
        "pytorch": f"{head}torch-2.15.0-gloo-{machine}",
        "pytorchnccl": f"{head_of_nccl}torch-2.15.0-{nccl}-gloo-{machine}",
    }


def test_version_identifies_patches_and_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, with_nccl = (horovod_source.local_version(nccl=nccl) for nccl in (False, True))
    assert re.fullmatch(r"patch[0-9a-f]{8}", plain)
    assert with_nccl == f"{plain}.nccl"

    changed = tmp_path / "keras.py"
    changed.write_text("changed")
    monkeypatch.setattr(horovod_source, "_KERAS", changed)
    assert horovod_source.local_version(nccl=False) != plain


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs in this host."""
    monkeypatch.setattr(install_horovod, "gpus", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
def test_host_with_gpus_gets_nccl_or_a_message(
    packages: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages |= {"tensorflow": "2.21.0", "torch": "2.15.0", "mxnet": "1.9.1"}
    asked = {
        framework: InstallHorovodConfig(framework=framework).sums_on_gpus
        for framework in ("tensorflow", "pytorch", "mxnet")
    }
    assert asked == {"tensorflow": True, "pytorch": True, "mxnet": False}
    assert not InstallHorovodConfig(no_nccl=True).sums_on_gpus

    remedy = re.compile(f"nvidia-nccl-cu13 or .*{GPU}")
    with pytest.raises(
        UsageError, match=says("horovod-nccl-cannot-built-add", "which has 2 GPUs", remedy)
    ):
        install_horovod.wheel_key(InstallHorovodConfig())
    packages["nvidia-nccl-cu13"] = "2.30.7"
    assert "-nvidia-nccl-cu13-2.30.7-" in install_horovod.wheel_key(InstallHorovodConfig())
    assert "nccl" not in install_horovod.wheel_key(InstallHorovodConfig(no_nccl=True))

    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(
        UsageError,
        match=says("horovod-nccl-cannot-built-add", ..., f"{tmp_path}/bin/nvcc is missing"),
    ):
        install_horovod.nccl_variables("pytorch", tmp_path)


def test_missing_framework_or_nccl_is_named(packages: dict[str, str]) -> None:
    with pytest.raises(
        UsageError, match=says("horovod-needs-not-installed", "TensorFlow", ..., re.compile(TF))
    ):
        install_horovod.wheel_key(InstallHorovodConfig())
    with pytest.raises(UsageError, match=r"needs MXNet, .* \(docs/mxnet\.md\)"):
        install_horovod.wheel_key(InstallHorovodConfig(framework="mxnet"))
    with pytest.raises(UsageError, match=r"needs PyTorch, .* pip install 'imagenet-prep\[torch\]'"):
        install_horovod.wheel_key(InstallHorovodConfig(framework="pytorch"))
    packages["tensorflow"] = "2.21.0"
    with pytest.raises(
        UsageError, match=says("not-installed-2", "nvidia-nccl-cu12", re.compile(GPU))
    ):
        install_horovod.wheel_key(InstallHorovodConfig(nccl=True))
    with pytest.raises(
        ValueError, match=says("only-used", ..., "--nccl", "--framework tensorflow or pytorch")
    ):
        InstallHorovodConfig(framework="mxnet", nccl=True)
    with pytest.raises(ValueError, match=says("cannot-combined", "--no-nccl", "--nccl")):
        InstallHorovodConfig(nccl=True, no_nccl=True)


def test_build_has_one_framework_and_nccl_needs_nvcc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = install_horovod.build_variables(InstallHorovodConfig(framework="mxnet"), tmp_path)
    assert {name for name in asked if name.startswith("HOROVOD_")} == {
        "HOROVOD_WITH_MXNET",
        "HOROVOD_WITHOUT_TENSORFLOW",
        "HOROVOD_WITHOUT_PYTORCH",
        "HOROVOD_WITH_GLOO",
        "HOROVOD_WITHOUT_MPI",
    }
    # Images set this variable, but Horovod's setup.py imports from its own folder.
    assert asked["PYTHONSAFEPATH"] == ""

    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=says("bin-nvcc-missing-install-cuda", tmp_path)):
        install_horovod.nccl_variables("tensorflow", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    for framework in ("tensorflow", "pytorch"):
        scratch = tmp_path / framework
        scratch.mkdir()
        asked = install_horovod.nccl_variables(framework, scratch)
        assert asked["HOROVOD_GPU_OPERATIONS"] == "NCCL"
        # The linker finds it by this name.
        assert (Path(asked["HOROVOD_NCCL_LIB"]) / "libnccl.so").readlink().name == "libnccl.so.2"
        assert ("highwayhash" in asked["CXXFLAGS"]) == (framework == "tensorflow")


@pytest.mark.parametrize("framework", install_horovod.FRAMEWORKS)
def test_verification_is_a_valid_program(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(install_horovod, "_run", lambda argv, *_: asked.append(argv))

    install_horovod.prove(InstallHorovodConfig(framework=framework), tmp_path / "log")

    ((*_, program),) = asked
    compile(program, "proof", "exec")
    module = {"pytorch": "torch"}.get(framework, framework)
    assert f"import horovod.{module} as hvd\n" in program
    assert "(2, 3.0, False)" in program


SHOWS = "import sys; print(*sys.argv[2:], sep='\\n'); sys.exit(int(sys.argv[1]))"


@pytest.mark.parametrize(
    ("code", "lines", "shown"),
    [
        (0, ["error: a"], None),
        (3, ["a", "b"], ["a", "b"]),
        (1, [*"abcdefg"], [*"cdefg"]),
        (1, ["a", "fatal ERROR: b", "c"], ["fatal ERROR: b"]),
        (1, [f"error {number}" for number in range(7)], [f"error {n}" for n in range(2, 7)]),
    ],
    ids=str,
)
def test_failed_step_shows_its_last_reasons(
    tmp_path: Path, code: int, lines: list[str], shown: list[str] | None
) -> None:
    log = tmp_path / "log"
    log.write_text("error of an earlier step\n")
    argv = [sys.executable, "-c", SHOWS, str(code), *lines]
    if shown is None:
        install_horovod._run(argv, log, "the step", os.environ, PATIENCE_S)
    else:
        with pytest.raises(ImagenetPrepError) as raised:
            install_horovod._run(argv, log, "the step", os.environ, PATIENCE_S)
        first, *told = str(raised.value).split("\n  ")
        assert says("failed", "the step", f"exit code {code}", log).search(first)
        assert told == shown
    assert log.read_text().splitlines() == ["error of an earlier step", *lines]


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([sys.executable, "-c", "import time; time.sleep(600)"], "not finished after 0.2 s"),
        (["/nowhere/pip"], "/nowhere/pip: No such file or directory"),
    ],
    ids=["slow", "missing"],
)
def test_step_that_hangs_or_is_missing_fails(tmp_path: Path, argv: list[str], reason: str) -> None:
    log = tmp_path / "log"
    with pytest.raises(ImagenetPrepError, match=says("failed", "the step", reason, log)):
        install_horovod._run(argv, log, "the step", os.environ, 0.2)


@pytest.mark.mxnet
def test_old_numpy_reads_the_same_bytes(mxnet_python: Path, shades: Path) -> None:
    finished = run(shades, "alone", program=(str(RANK_OF_MXNET),), python=mxnet_python)

    assert finished.code == 0, finished.err
    (told,) = re.findall(r"TOLD (.*)", finished.out)
    assert json.loads(told) == [1, "1.23.5", None, digests(str(shades), World(1, 2))]


# Faster tests of the same: the ranks of MXNet in trainer/test_mxnet, and the NumPy above.
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.mxnet
def test_two_mxnet_ranks_sum_and_read_same_bytes(mxnet_python: Path, shades: Path) -> None:
    folder = mxnet_python.parent
    program = (
        str(folder / "horovodrun"),
        "-np",
        "2",
        "--gloo",
        str(mxnet_python),
        str(RANK_OF_MXNET),
    )
    env = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    with started(shades, program=program, python=mxnet_python, env=env) as running:
        finished = running.finish(PATIENCE_S)

    assert finished.code == 0, finished.err
    told = re.findall(r"TOLD (.*)", finished.out)
    assert sorted(map(json.loads, told)) == [
        [rank, "1.23.5", [3.0, 30.0], digests(str(shades), World(rank, 2))] for rank in (0, 1)
    ]


# Faster tests of the same: the lines that are added to Horovod's source, above. Horovod is only
# built again if the lock or recipe changes.
@pytest.mark.long
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.usefixtures("horovod")
def test_ranks_send_by_the_requested_interface(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as net:
        first, second = net.nodes
        link = ["ip", "-n", first.name, "link", "add", "eth1", "type", "veth"]
        subprocess.run([*link, "peer", "name", "eth1", "netns", second.name], check=True)
        for number, node in enumerate(net.nodes, start=1):
            where = ["ip", "-n", node.name]
            address = [*where, "address", "add", f"10.78.0.{number}/24", "dev", "eth1"]
            subprocess.run(address, check=True)
            subprocess.run([*where, "link", "set", "eth1", "up"], check=True)
            (node.disk / "rank.py").write_text(RANK)
            # As on many systems, only the host itself resolves its name.
            (node.disk / "names").write_text(f"127.0.0.1 localhost {node.port}\n")
            bind = ["mount", "--bind", net.mount / "names", "/etc/hosts"]
            assert node.popen(bind).wait(PATIENCE_S) == 0
        lines = [f"{node.address} slots=1\n" for node in net.nodes]
        (first.disk / "hosts").write_text("".join(lines))
        argv = [sys.executable, "-P", "-m", "imagenet_prep", "launch", "-np", "2"]
        argv += ["--hosts", str(net.mount / "hosts"), "--network-interface", "eth1"]
        argv += ["--", "python", str(net.mount / "rank.py")]
        with open(tmp_path / "log", "wb") as log:
            code = first.popen(argv, stdout=log, stderr=log).wait(PATIENCE_S)
        said = (tmp_path / "log").read_text()
        pids = itertools.chain.from_iterable(node.pids() for node in net.nodes)
        remaining = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]

    assert code == 0, said
    assert "2 hosts checked, 2 ranks" in said
    assert [words for words in remaining if b"imagenet_prep" in words] == []
    told = [line for line in said.splitlines() if line.startswith(("[0, ", "[1, "))]
    rows = sorted(map(json.loads, told))
    assert rows == [[0, 3.0, ["10.78.0.2"]], [1, 3.0, ["10.78.0.1"]]]
