"""Compiles and runs harness.c, for tests of planes.c without Python in between."""

from __future__ import annotations

import functools
import hashlib
import itertools
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import PIL

from imagenet_prep.codec import planes
from imagenet_prep.codec.policy import Policy
from imagenet_prep.core.errors import UsageError
from tests.kit.codec import corpus, jpegs
from tests.kit.command import PATIENCE_S, REPOSITORY
from tests.kit.shared import made_once

# Sources that are compiled together; all harnesses except the last include planes.c.
_CODEC = REPOSITORY / "imagenet_prep" / "codec"
_LIKENESS = _CODEC / "likeness.c"
_OTHERS = (_CODEC / "decoder.c", _CODEC / "encoder.c", _LIKENESS)
HARNESS = (Path(__file__).with_name("harness.c"), *_OTHERS)
DECODER_HARNESS = (Path(__file__).with_name("decoder_harness.c"), *_OTHERS)
ENCODER_HARNESS = (Path(__file__).with_name("encoder_harness.c"), *_OTHERS)
# The sources of the duplicate search.
LIKENESS_HARNESS = (
    Path(__file__).with_name("likeness_harness.c"),
    _LIKENESS,
    REPOSITORY / "imagenet_prep" / "matching" / "matching.c",
)
GCC = ("cc",)
# -O2 takes twice as long to compile and finds no more; -g1 has the lines for reports.
SANITIZED = (
    "cc",
    "-g1",
    "-O1",
    "-fPIC",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)
_KINDS = ("-std=gnu11", "-ffp-contract=off", "-Wall", "-Wextra")


def zig(target: str) -> tuple[str, ...]:
    """Returns the command of zig's C compiler."""
    return (sys.executable, "-m", "ziglang", "cc", "-target", target)


def missing(compiler: Sequence[str]) -> str | None:
    """Returns the reason to skip a test of a compiler."""
    if "ziglang" in compiler:
        return None if find_spec("ziglang") else "ziglang is not installed"
    return None if shutil.which(compiler[0]) else f"no {compiler[0]} here"


def build(
    folder: Path, compiler: Sequence[str], *flags: str, sources: Sequence[Path] = HARNESS
) -> Path:
    """Compiles a harness into a folder."""
    return link(folder / "harness", compiler, *flags, sources=sources)


def link(out: Path, compiler: Sequence[str], *flags: str, sources: Sequence[Path]) -> Path:
    """Links the compiled sources to a program, or to a library if `out` ends with .so."""
    objects = [_compiled(tuple(compiler), flags, source) for source in sources]
    kind = ["-shared"] if out.suffix == ".so" else []
    _call(*compiler, *flags, *kind, "-o", out, *objects, "-ldl", "-lm")
    return out


def _compiled(compiler: tuple[str, ...], flags: Sequence[str], source: Path) -> Path:
    """Compiles a source for all tests and runs, again only if some C or the compiler changed."""
    level = () if compiler == SANITIZED else ("-O2",)
    command = (*compiler, *_KINDS, *level, *flags, "-c", str(source))
    key = hashlib.sha256(repr((command, _state_of(compiler))).encode()).hexdigest()[:32]

    def compile_to(folder: Path) -> None:
        _call(*command, "-o", folder / "object.o")

    return made_once(REPOSITORY / "build" / "native" / key, compile_to) / "object.o"


@functools.cache
def _state_of(compiler: tuple[str, ...]) -> str:
    """Returns a digest of the compiler's version and of all sources and headers."""
    state = hashlib.sha256(_call(*compiler, "--version").encode())
    for folder in ("imagenet_prep", "tests"):
        for path in sorted((REPOSITORY / folder).rglob("*.[ch]")):
            state.update(f"{path} ".encode() + path.read_bytes())
    return state.hexdigest()


def _call(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(*command: object, patience_s: float | None = PATIENCE_S) -> bytes:
    """Runs a program and returns its output; AssertionError with its messages if it fails."""
    done = subprocess.run([*map(str, command)], capture_output=True, timeout=patience_s)
    assert done.returncode == 0, (done.returncode, done.stderr[-5000:].decode())
    return done.stdout


def libjpeg() -> Path:
    """Returns the libjpeg of Pillow's wheel."""
    return _libjpeg(Path(PIL.__file__).parents[1])


def arm_libjpeg() -> Path | None:
    """Returns the libjpeg of Pillow's wheel for ARM, which `make test-long` downloads."""
    folder = REPOSITORY / "build" / "aarch64"
    return _libjpeg(folder) if folder.is_dir() else None


def _libjpeg(packages: Path) -> Path:
    (found,) = (packages / "pillow.libs").glob("libjpeg-*.so.62*")
    return found


class Job(NamedTuple):
    """A file, and the [height, width] of its result."""

    data: bytes
    height: int
    width: int


def jobs(num_photographs: int) -> list[Job]:
    """Returns the files of `corpus` that are not large, at several sizes, and photographs."""
    small = [data for data in corpus.files().values() if len(data) < 100_000]
    sizes = range(1, 90, 22)
    found = [Job(data, side, side + 9) for data, side in itertools.product(small, sizes)]
    for data in corpus.photographs(num_photographs):
        height, width = jpegs.size(data)
        found.append(Job(data, *Policy(corpus.PHOTOGRAPH_SIDE).resized(height, width)))
    return found


def expected(jobs: Sequence[Job]) -> bytes:
    """Returns the expected output of `harness shrink`: the bytes that this process makes."""
    return b"".join(planes.workspace().shrink(*job, 90, 1 << 24) or b"-" for job in jobs)


def write(path: Path, jobs: Sequence[Job]) -> Path:
    """Writes files in the format of the harness."""
    with path.open("wb") as stream:
        stream.write(struct.pack("<I", len(jobs)))
        for job in jobs:
            stream.write(struct.pack("<3I", job.height, job.width, len(job.data)) + job.data)
    return path


def workspaces() -> list[planes.Workspace]:
    """Returns one for each kind of vector code of this processor and each decoder."""
    found = []
    for simd in planes.SIMD.keys() - {"best"}:
        for jpeg in ("own", "libjpeg"):
            try:
                found.append(planes.Workspace(planes.require(), simd, jpeg))
            except UsageError:
                continue  # this processor lacks it
    return found
