"""planes.c by itself: damaged files under sanitizers, other compilers, other processors."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit.codec import corpus, fuzz, native, variety
from tests.kit.lengths import long_except

X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="of x86-64")
SIMD = {"x86_64": (0, 1, 2, 4), "aarch64": (0, 3)}[platform.machine()]
# The folder of ARM's libc in Debian's libc6-arm64-cross.
ARM_ROOT = "/usr/aarch64-linux-gnu"


def need(compiler: Sequence[str], *programs: str) -> None:
    absent = [f"no {program} here" for program in programs if not shutil.which(program)]
    if reasons := [*filter(None, [native.missing(compiler)]), *absent]:
        pytest.skip(", ".join(reasons))


def emulated_arm(folder: Path, sources: Sequence[Path]) -> tuple[Sequence[str | Path], Path]:
    """Returns the command that runs a harness for ARM, and the libjpeg of Pillow's ARM wheel."""
    compiler = native.zig("aarch64-linux-gnu.2.27")
    need(compiler, "qemu-aarch64-static", f"{ARM_ROOT}/lib/ld-linux-aarch64.so.1")
    libjpeg = native.arm_libjpeg()
    if libjpeg is None:
        pytest.skip("no build/aarch64 with Pillow's libjpeg for ARM: `make test-long` brings it")
    program = native.build(folder, compiler, sources=sources)
    return ("qemu-aarch64-static", "-L", ARM_ROOT, program), libjpeg


def sanitized(folder: Path) -> Path:
    need(native.SANITIZED)
    try:
        return native.build(folder, native.SANITIZED)
    except AssertionError as error:
        pytest.skip(f"no sanitizers here: {error}")


@pytest.mark.slow
@pytest.mark.parametrize("count", long_except([400], [400, 100_000]))
def test_damaged_files_touch_nothing_outside_their_buffers(tmp_path: Path, count: int) -> None:
    """No fault, no leak: each image is made or declined, with every kernel."""
    program = sanitized(tmp_path)
    files = native.write(tmp_path / "corpus", native.jobs(0))

    seen = native.run(program, "fuzz", native.libjpeg(), files, count, count)
    done, declined, no_memory = map(int, seen.split())

    assert done + declined == count
    assert done > count / 10
    assert declined > count / 10
    assert no_memory == 0


@pytest.mark.parametrize("count", long_except([corpus.FEW], [corpus.FEW, corpus.ALL]))
@pytest.mark.parametrize("compiler", long_except(["gcc -O0"], ["gcc", "gcc -O0", "zig"]))
def test_all_compilers_and_kernels_give_the_same_bytes(
    tmp_path: Path, compiler: str, count: int
) -> None:
    name, *flags = compiler.split()
    command = native.GCC if name == "gcc" else native.zig(f"{platform.machine()}-linux-gnu.2.17")
    need(command)
    jobs = native.jobs(count)
    files = native.write(tmp_path / "corpus", jobs)
    expected = native.expected(jobs)
    program = native.build(tmp_path, command, *flags)
    resized = native.run(program, "resize", 0)

    for simd in SIMD:
        try:
            found = native.run(program, "shrink", native.libjpeg(), files, simd)
        except AssertionError as error:
            assert "lacks" in str(error)  # this processor has no AVX2
            continue
        assert found == expected, simd
        assert native.run(program, "resize", simd) == resized, simd


@X86
@pytest.mark.long
@pytest.mark.parametrize("processor", ["qemu64", "Nehalem", "Haswell", "max"])
def test_old_processors_give_the_same_bytes(tmp_path: Path, processor: str) -> None:
    need(native.GCC, "qemu-x86_64-static")
    jobs = native.jobs(corpus.ALL)
    files = native.write(tmp_path / "corpus", jobs)
    program = native.build(tmp_path, native.GCC)
    emulated = ("qemu-x86_64-static", "-cpu", processor, program)

    found = native.run(*emulated, "shrink", native.libjpeg(), files, -1)

    assert found == native.expected(jobs)


@pytest.mark.long
@pytest.mark.parametrize("simd", [0, 3], ids=["plain", "neon"])
def test_arm_resizes_to_the_same_planes(tmp_path: Path, simd: int) -> None:
    """Without libjpeg, so this also works if ARM's library cannot be installed."""
    arm = native.zig("aarch64-linux-musl")
    need(arm, "qemu-aarch64-static", *native.GCC)
    here = native.run(native.build(tmp_path, native.GCC), "resize", 0)

    there = native.build(tmp_path, arm, "-static")

    assert native.run("qemu-aarch64-static", there, "resize", simd) == here


@pytest.mark.long
@pytest.mark.parametrize("simd", [0, 3], ids=["plain", "neon"])
def test_arm_gives_the_same_bytes(tmp_path: Path, simd: int) -> None:
    """Our decoder and encoder for ARM make the same files as those of this machine."""
    emulated, libjpeg = emulated_arm(tmp_path, native.HARNESS)
    jobs = native.jobs(corpus.ALL)
    files = native.write(tmp_path / "corpus", jobs)

    found = native.run(*emulated, "shrink", libjpeg, files, simd)

    assert found == native.expected(jobs)


@pytest.mark.long
def test_arm_decodes_to_the_planes_of_libjpeg(tmp_path: Path) -> None:
    """libjpeg-turbo has its own NEON code. Complete, halved and in windows, by plain C and NEON."""
    emulated, libjpeg = emulated_arm(tmp_path, native.DECODER_HARNESS)
    made = [*corpus.files().values(), *variety.files(500, seed=3)]
    files = native.write(tmp_path / "corpus", [native.Job(data, 1, 1) for data in made])

    found = native.run(*emulated, "equal", libjpeg, files, 3)

    num_files, taken, sound_but_declined, num_planes = map(int, found.split())
    assert num_files == len(made)
    assert taken > 0.9 * num_files  # the others are progressive or CMYK
    assert sound_but_declined < 0.05 * num_files * 2
    assert num_planes > 2 * 5 * taken  # plain C and NEON; complete, halved, windows


@pytest.mark.long
def test_arm_accepts_damaged_files_only_if_sound(tmp_path: Path) -> None:
    emulated, libjpeg = emulated_arm(tmp_path, native.DECODER_HARNESS)
    files = native.write(tmp_path / "corpus", fuzz.sources(3))
    count = 5_000

    found = native.run(*emulated, "fuzz", libjpeg, files, count, 3)

    num_files, taken, _, num_planes = map(int, found.split())
    assert num_files == count
    assert count / 10 < taken < count / 2
    assert num_planes > taken


@pytest.mark.long
def test_arm_encodes_to_the_files_of_libjpeg(tmp_path: Path) -> None:
    """By plain C and NEON, at all qualities."""
    emulated, libjpeg = emulated_arm(tmp_path, native.ENCODER_HARNESS)
    count = 500

    equal = int(native.run(*emulated, libjpeg, count, 3))

    assert equal == 2 * count
