"""The libraries that stand for CUDA in the environment of PyTorch's tests."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.command import PATIENCE_S, REPOSITORY

PROGRAM = REPOSITORY / ".ci" / "without_cuda.py"
# A library such as PyTorch's: it needs one library of CUDA with versions and one without, and the
# runtime library, which stays.
USER = """\
int cublas_call(void), nccl_call(void), runtime_call(void);
int value(void) { return runtime_call(); }
int computed(void) { return cublas_call() + nccl_call(); }
"""
LOADS = """\
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW)
print(library.value(), flush=True)
library.computed()
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The folder of packages, with a library that needs others, two of which are not there."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("the C compiler of PyPI is not installed")
    libraries = tmp_path / "torch" / "lib"
    runtime = tmp_path / "nvidia" / "cu13" / "lib"
    for folder in (libraries, runtime):
        folder.mkdir(parents=True)

    def compiled(path: Path, code: str, *flags: str) -> Path:
        source = tmp_path / "code.c"
        source.write_text(code)
        compiler = (sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-nostdlib", "-O1")
        named = f"-Wl,-soname,{path.name}"
        argv = [*compiler, "-fno-sanitize=undefined", named, "-o", str(path), str(source), *flags]
        subprocess.run(argv, check=True, timeout=PATIENCE_S)
        return path

    versions = tmp_path / "versions"
    versions.write_text("CUBLAS_13 { global: cublas_call; };\n")
    cublas = compiled(
        libraries / "libcublas.so.13",
        "int cublas_call(void) { return 1; }",
        f"-Wl,--version-script={versions}",
    )
    nccl = compiled(libraries / "libnccl.so.2", "int nccl_call(void) { return 1; }")
    cudart = compiled(runtime / "libcudart.so.13", "int runtime_call(void) { return 7; }")
    search = "-Wl,-rpath,$ORIGIN:$ORIGIN/../../nvidia/cu13/lib"
    needed = map(str, (cublas, nccl, cudart))
    compiled(libraries / "libtorch_cuda.so", USER, *needed, search)
    cublas.unlink()
    nccl.unlink()
    return tmp_path


def load(site: Path) -> subprocess.CompletedProcess[str]:
    library = site / "torch" / "lib" / "libtorch_cuda.so"
    argv = [sys.executable, "-c", LOADS, str(library)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)


def test_library_loads_without_cuda_until_it_is_called(site: Path) -> None:
    assert "libcublas.so.13" in load(site).stderr
    for _ in range(2):  # also over its own results
        subprocess.run([sys.executable, PROGRAM, site], check=True, timeout=PATIENCE_S)
        done = load(site)
        assert (done.stdout, done.stderr) == ("7\n", "")
        assert done.returncode in (-signal.SIGILL, -signal.SIGTRAP)

    links = {path.name for path in (site / "torch" / "lib").iterdir() if path.is_symlink()}
    assert links == {"libcublas.so.13", "libnccl.so.2"}
