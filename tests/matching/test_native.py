"""The C code of likeness and matching: under sanitizers, by different compilers, on ARM."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit.codec import native
from tests.kit.lengths import long_except


def built(folder: Path, compiler: Sequence[str], *flags: str) -> Path:
    if reason := native.missing(compiler):
        pytest.skip(reason)
    folder.mkdir()
    return native.build(folder, compiler, *flags, sources=native.LIKENESS_HARNESS)


@pytest.mark.slow
@pytest.mark.parametrize("count", long_except([300], [300, 100_000]))
def test_sanitizers_find_no_fault_for_random_images(tmp_path: Path, count: int) -> None:
    """No fault and no leak, and all vector code equals the plain code."""
    try:
        program = built(tmp_path / "sanitized", native.SANITIZED)
    except AssertionError as error:
        pytest.skip(f"no sanitizers here: {error}")

    assert len(native.run(program, count, count).strip()) == 16


@pytest.mark.slow
@pytest.mark.parametrize("compiler", long_except(["gcc -O0"], ["gcc -O0", "zig"]))
def test_all_compilers_make_the_same_results(tmp_path: Path, compiler: str) -> None:
    name, *flags = compiler.split()
    zig = native.zig(f"{platform.machine()}-linux-gnu.2.17")
    program = built(tmp_path / "other", zig if name == "zig" else native.GCC, *flags)

    expected = native.run(built(tmp_path / "gcc", native.GCC), 200, 1)

    assert native.run(program, 200, 1) == expected


@pytest.mark.long
def test_arm_makes_the_same_results(tmp_path: Path) -> None:
    if not shutil.which("qemu-aarch64-static"):
        pytest.skip("no qemu-aarch64-static here")
    expected = native.run(built(tmp_path / "gcc", native.GCC), 200, 1)

    program = built(tmp_path / "arm", native.zig("aarch64-linux-musl"), "-static")

    assert native.run("qemu-aarch64-static", program, 200, 1) == expected
