"""harness.c, compiled and run: what tests of planes.c need without Python in between."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import PIL

from tests.codec import corpus

HARNESS = Path(__file__).with_name("harness.c")
GCC = ("cc",)
SANITIZED = ("cc", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def zig(target: str) -> tuple[str, ...]:
    """Returns the command of zig's C compiler."""
    return (sys.executable, "-m", "ziglang", "cc", "-target", target)


def missing(compiler: Sequence[str]) -> str | None:
    """Returns what a test of a compiler is skipped for."""
    if "ziglang" in compiler:
        return None if find_spec("ziglang") else "ziglang is not installed"
    return None if shutil.which(compiler[0]) else f"no {compiler[0]} here"


def build(folder: Path, compiler: Sequence[str], *flags: str) -> Path:
    """Compiles the harness into a folder."""
    program = folder / "harness"
    flags = ("-std=gnu11", "-O2", "-Wall", "-Wextra", *flags, "-o", str(program), str(HARNESS))
    done = subprocess.run([*compiler, *flags, "-ldl"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def run(*command: object) -> str:
    """Runs it and returns what it prints; AssertionError with what it says if it fails."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, (done.returncode, done.stderr[-5000:])
    return done.stdout.strip()


def libjpeg() -> Path:
    """Returns the libjpeg of Pillow's wheel."""
    (found,) = (Path(PIL.__file__).parents[1] / "pillow.libs").glob("libjpeg-*.so.62*")
    return found


def write_corpus(path: Path) -> Path:
    """Writes the files of `corpus` that are not large, as the harness reads them."""
    files = [data for data in corpus.files().values() if len(data) < 100_000]
    parts = [struct.pack("<I", len(data)) + data for data in files]
    path.write_bytes(struct.pack("<I", len(files)) + b"".join(parts))
    return path
