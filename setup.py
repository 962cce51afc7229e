"""Compiles the C libraries of codec/, matching/, read/ and shards/ during the installation.

The libraries do not use Python's C API, so they need neither Python's headers nor libjpeg's.
Without a compiler, the package is installed without the libraries: the default codec then reports
an error, and readers and writers of shards are slower.

This file is also the build backend (see pyproject.toml). It extends the backend of setuptools: if
this machine has no C compiler, pip downloads ziglang (100 MB) from PyPI.
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
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError

# No flags for a specific processor: the code selects its instructions at run time.
FLAGS = ("-std=gnu11", "-O2", "-g0", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
# A fused multiply-add rounds once instead of twice, so results would depend on the processor.
FLAGS += ("-ffp-contract=off",)
# Zig's default adds checks that trap. glibc 2.17 is the oldest version that manylinux_2_17 allows.
ZIG_FLAGS = ("-fno-sanitize=undefined", "-s")
ZIG_LIBC = "linux-gnu.2.17"

build_wheel = build_meta.build_wheel
build_sdist = build_meta.build_sdist
build_editable = build_meta.build_editable
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Returns the packages that pip installs before it builds a wheel."""
    required = build_meta.get_requires_for_build_wheel(config_settings)
    return required if system_compiler() else [*required, "ziglang"]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """Returns the packages that pip installs before it builds an editable wheel."""
    required = build_meta.get_requires_for_build_editable(config_settings)
    return required if system_compiler() else [*required, "ziglang"]


def system_compiler() -> list[str]:
    """Returns the command of this machine's C compiler, or [] if there is none."""
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    return [name for name in ("cc", "gcc", "clang") if shutil.which(name)][:1]


def zig_compiler(machine: str = os.uname().machine) -> list[str]:
    """Returns the command of ziglang's C compiler, or [] if ziglang is not installed."""
    if find_spec("ziglang") is None:
        return []
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-{ZIG_LIBC}", *ZIG_FLAGS]


class BuildLibraries(build_ext):
    """Compiles with this machine's compiler or, if that fails, with ziglang."""

    def get_ext_filename(self, fullname: str) -> str:
        """Returns the path of the library, without the suffix for a version of Python."""
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Compiles an extension; setuptools reports errors of optional extensions as warnings."""
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        failures = []
        for compiler in filter(None, (system_compiler(), zig_compiler())):
            command = [*compiler, *FLAGS, *ext.sources, "-o", str(library)]
            made = subprocess.run(command, check=False, capture_output=True, text=True)
            if made.returncode == 0:
                return
            failures.append(f"{shlex.join(command)}\n{made.stderr}")
        raise CompileError("\n".join(failures) or "no C compiler found, and no ziglang from PyPI")


class LibraryWheel(bdist_wheel):
    """A wheel for one platform and every Python 3, since the libraries do not use Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Returns the tags in the file name of the wheel: Python, ABI and platform."""
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
    "imagenet_prep.shards._digests",
    [f"imagenet_prep/shards/{name}.c" for name in ("digests", "tables")],
    optional=True,
)
MATCHING = Extension(
    "imagenet_prep.matching._matching",
    ["imagenet_prep/matching/matching.c"],
    depends=["imagenet_prep/codec/simd.h"],
    optional=True,
)


class PackageWithCommit(build_py):
    """Copies the modules, and adds the commit of the clone for `core.version`."""

    def run(self) -> None:
        """Writes COMMIT unless this is not a clone; an sdist contains the file already."""
        super().run()
        if not self.editable_mode:
            write_commit(Path(self.build_lib))


class SourceWithCommit(sdist):
    """An sdist with the commit of the clone."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Writes COMMIT next to the copied modules."""
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))


def write_commit(root: Path) -> None:
    """Writes imagenet_prep/COMMIT below `root` if this is a git clone."""
    here = Path(__file__).parent
    if not (here / ".git").exists():
        return
    asked = ["git", "-C", str(here), "rev-parse", "HEAD"]
    made = subprocess.run(asked, check=False, capture_output=True, text=True)
    if made.returncode == 0:
        (root / "imagenet_prep" / "COMMIT").write_text(made.stdout)


COMMANDS = {
    "bdist_wheel": LibraryWheel,
    "build_ext": BuildLibraries,
    "build_py": PackageWithCommit,
    "sdist": SourceWithCommit,
}

if __name__ == "__main__":
    setup(ext_modules=[PLANES, GATHER, DIGESTS, MATCHING], cmdclass=COMMANDS)
