"""Replaces the CUDA libraries that PyTorch loads but does not use on a CPU.

Usage: .ci/without_cuda.py SITE_PACKAGES

PyPI's only PyTorch for Linux on x86-64 is linked to 3 GB of NVIDIA's libraries, and cannot be
imported without them. This program makes one library that has the name of each missing library,
and defines each of their functions that PyTorch refers to. Each of these functions ends the
process, so that no test passes with an invented result.

NVIDIA's small runtime library must be installed: PyTorch calls it at import, and it reports that
there is no GPU.
"""

from __future__ import annotations

import mmap
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Numbers of the ELF specification: System V ABI, chapters 4 and 5; LSB 5, chapter 10.7 (versions).
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = 6
_DYNAMIC_SYMBOLS = 11
_VERSIONS_NEEDED = 0x6FFFFFFE
_VERSIONS = 0x6FFFFFFF
_NEEDED = 1
_FUNCTION = 2
# Loaded by name only to compile kernels for a GPU; needs the library of the GPU's driver.
_UNUSED = "libcaffe2_nvrtc.so"
_STUBS = "libcuda_stubs.so"
_UNVERSIONED = "CUDA_STUBS"


class Section(NamedTuple):
    """A section of a shared library, in the order of its fields in the file."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Symbol(NamedTuple):
    """A symbol that a library refers to; `library` and `version` are empty if it states none."""

    name: str
    is_function: bool
    library: str
    version: str


class Library:
    """The names in a shared library: libraries that it needs, symbols that it has and refers to."""

    def __init__(self, path: Path) -> None:
        # Mapped, because only a few megabytes of a library are names.
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        (start,) = struct.unpack_from("<Q", self._data, 40)
        (count,) = struct.unpack_from("<H", self._data, 60)
        offsets = range(start, start + count * _SECTION.size, _SECTION.size)
        self._sections = [Section(*_SECTION.unpack_from(self._data, at)) for at in offsets]
        self._by_kind = {section.kind: section for section in self._sections}
        symbols = self._by_kind[_DYNAMIC_SYMBOLS]
        self._strings = self._sections[symbols.link].offset
        dynamic = self._by_kind[_DYNAMIC]
        entries = self._data[dynamic.offset : dynamic.offset + dynamic.size]
        tags = struct.iter_unpack("<qQ", entries)
        self.needed = [self._text(value) for tag, value in tags if tag == _NEEDED]
        self.defined: set[str] = set()
        self.undefined: list[Symbol] = []
        versions = {number: (library, version) for number, library, version in self._versions()}
        for index in range(symbols.size // _SYMBOL.size):
            at = symbols.offset + index * _SYMBOL.size
            offset, info, _, section, _, _ = _SYMBOL.unpack_from(self._data, at)
            name = self._text(offset)
            if section:
                self.defined.add(name)
                continue
            library, version = versions.get(self._version_number(index), ("", ""))
            self.undefined.append(Symbol(name, info & 15 == _FUNCTION, library, version))

    def _text(self, offset: int) -> str:
        start = self._strings + offset
        return self._data[start : self._data.find(b"\0", start)].decode()

    def _version_number(self, index: int) -> int:
        section = self._by_kind.get(_VERSIONS)
        if section is None:
            return 0
        at = section.offset + 2 * index
        (number,) = struct.unpack_from("<H", self._data, at)
        return int(number) & 0x7FFF

    def _versions(self) -> Iterator[tuple[int, str, str]]:
        """Yields the number, library and name of each version that symbols refer to."""
        section = self._by_kind.get(_VERSIONS_NEEDED)
        if section is None:
            return
        at = section.offset
        for _ in range(section.info):
            _, count, library, first, following = struct.unpack_from("<HHIII", self._data, at)
            entry = at + first
            for _ in range(count):
                _, _, number, name, step = struct.unpack_from("<IHHII", self._data, entry)
                yield number, self._text(library), self._text(name)
                entry += step
            at += following


def stubs(
    libraries: dict[str, Library], installed: dict[str, Library], missing: set[str]
) -> dict[str, set[str]]:
    """Returns the functions to define, by the name of their version."""
    defined: set[str] = set()
    for library in (*libraries.values(), *installed.values()):
        defined |= library.defined
    found: dict[str, set[str]] = defaultdict(set)
    for library in libraries.values():
        for symbol in library.undefined:
            if symbol.library in missing:
                found[symbol.version].add(symbol.name)
            elif not symbol.library and symbol.is_function and symbol.name not in defined:
                # cuFile, cuSPARSELt and NCCL have no versions.
                found[_UNVERSIONED].add(symbol.name)
    return found


def main(site: Path) -> None:
    """Writes the library next to PyTorch's own libraries, with a link for each missing name."""
    folder = site / "torch" / "lib"
    for link in folder.glob("*.so*"):
        if link.is_symlink():
            link.unlink()
    (folder / _STUBS).unlink(missing_ok=True)
    paths = [path for path in sorted(folder.glob("*.so*")) if path.name != _UNUSED]
    libraries = {path.name: Library(path) for path in paths}
    installed = {path.name: Library(path) for path in site.glob("nvidia/**/*.so*")}
    needed: set[str] = set()
    for library in libraries.values():
        needed.update(library.needed)
    of_nvidia = ("libcu", "libnv", "libnccl")
    missing = {
        name for name in needed - installed.keys() - libraries.keys() if name.startswith(of_nvidia)
    }
    by_version = stubs(libraries, installed, missing)
    names = sorted(set().union(*by_version.values()))
    nodes = [
        f"{version} {{ global: {'; '.join(sorted(functions))}; }};\n"
        for version, functions in by_version.items()
    ]
    functions = [f"void {name}(void) {{ __builtin_trap(); }}\n" for name in names]
    with tempfile.TemporaryDirectory() as scratch:
        code = Path(scratch, "stubs.c")
        code.write_text("".join(functions))
        versions = Path(scratch, "stubs.map")
        versions.write_text("".join(nodes))
        compiler = (sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-nostdlib", "-w")
        linked = (f"-Wl,-soname,{_STUBS}", f"-Wl,--version-script={versions}")
        subprocess.run([*compiler, *linked, "-o", folder / _STUBS, code], check=True)
    for name in sorted(missing):
        (folder / name).symlink_to(_STUBS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
