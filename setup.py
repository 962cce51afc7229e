"""Compiles the C of codec/, read/ and shards/ when the package is installed; see pyproject.toml.

The libraries are plain ones, which know nothing of Python: neither Python's headers nor libjpeg's
are needed. Without a compiler the package is installed without them; the codec says so when it is
used, and readers and writers of shards take longer.

This file is also the build backend: setuptools' own, which asks for the compiler that PyPI has,
ziglang (100 MB), only where this machine has none.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import Extension, build_meta, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

# Nothing of the processor that compiles: the code asks at run time.
FLAGS = ("-std=gnu11", "-O2", "-g0", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
# A product and a sum that one instruction rounds once are other numbers than on other processors.
FLAGS += ("-ffp-contract=off",)
# zig's own default is this processor, and checks that trap. The libc is that of manylinux 2_17.
ZIG_FLAGS = ("-fno-sanitize=undefined", "-s")
ZIG_LIBC = "linux-gnu.2.17"

build_wheel = build_meta.build_wheel
build_sdist = build_meta.build_sdist
build_editable = build_meta.build_editable
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Returns what pip installs before it builds."""
    required = build_meta.get_requires_for_build_wheel(config_settings)
    return required if system_compiler() else [*required, "ziglang"]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """Returns what pip installs before it builds in place."""
    required = build_meta.get_requires_for_build_editable(config_settings)
    return required if system_compiler() else [*required, "ziglang"]


def system_compiler() -> list[str]:
    """Returns the command of this machine's C compiler, nothing where it has none."""
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    return [name for name in ("cc", "gcc", "clang") if shutil.which(name)][:1]


def zig_compiler(machine: str = os.uname().machine) -> list[str]:
    """Returns the command of ziglang's C compiler for a kind of machine, nothing without it."""
    if find_spec("ziglang") is None:
        return []
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-{ZIG_LIBC}", *ZIG_FLAGS]


class BuildLibraries(build_ext):
    """Compiles with the first compiler that can: this machine's, or ziglang."""

    def get_ext_filename(self, fullname: str) -> str:
        """Returns the library's path; it fits every version of Python."""
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Compiles; setuptools makes a warning of the error, since the extension is optional."""
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        failures = []
        for compiler in filter(None, (system_compiler(), zig_compiler())):
            command = [*compiler, *FLAGS, *ext.sources, "-o", str(library)]
            made = subprocess.run(command, check=False, capture_output=True, text=True)
            if made.returncode == 0:
                return
            failures.append(f"{shlex.join(command)}\n{made.stderr}")
        raise CompileError("\n".join(failures) or "no C compiler here, nor ziglang from PyPI")


class LibraryWheel(bdist_wheel):
    """A wheel for one kind of machine and every Python 3, since its libraries know no Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Returns the tags of its name."""
        return "py3", "none", super().get_tag()[2]


CODEC = Path(__file__).parent / "imagenet_prep" / "codec"
PLANES = Extension(
    "imagenet_prep.codec._planes",
    [f"imagenet_prep/codec/{name}.c" for name in ("planes", "decoder", "encoder", "likeness")],
    depends=[f"imagenet_prep/codec/{header.name}" for header in sorted(CODEC.glob("*.h"))],
    optional=True,
)
GATHER = Extension("imagenet_prep.read._gather", ["imagenet_prep/read/gather.c"], optional=True)
DIGESTS = Extension(
    "imagenet_prep.shards._digests", ["imagenet_prep/shards/digests.c"], optional=True
)
MATCHING = Extension(
    "imagenet_prep.matching._matching",
    ["imagenet_prep/matching/matching.c"],
    depends=["imagenet_prep/codec/simd.h"],
    optional=True,
)

COMMANDS = {"bdist_wheel": LibraryWheel, "build_ext": BuildLibraries}

if __name__ == "__main__":
    setup(ext_modules=[PLANES, GATHER, DIGESTS, MATCHING], cmdclass=COMMANDS)
