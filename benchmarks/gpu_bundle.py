"""Packs what `make gpu` lacks on a machine with one GPU and PyTorch but without a network.

python -m benchmarks.gpu_bundle build/gpu-bundle --python 3.12 --capability 90

The folder gets site.txz (kept if it exists), compiled.tar, which is the C of this checkout, and
run.sh. Copy it to the same checkout on that machine, and run: bash build/gpu-bundle/run.sh. Needs
pip with its index, and `strip` of binutils; takes 5 minutes.
"""

from __future__ import annotations

import argparse
import itertools
import lzma
import mmap
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import measure

# DALI for CUDA 13 and its imports, and the requirements of our reader that PyTorch lacks.
PACKAGES = ["nvidia-dali-cuda130==2.4.*", "nvidia-nvimgcodec-cu13==0.9.*", "nvidia-nvjpeg==13.*"]
PACKAGES += ["optree", "astunparse", "gast", "crc32c"]
_GLIBC = ("_2_28", "_2_27", "_2_17", "2014", "1")
# Headers, tools, and extensions that decode no JPEG.
_NEEDLESS = (
    "dali/include",
    "nvimgcodec/include",
    "nvimgcodec/tools",
    "nvimgcodec/nvimgcodec_impl*",
    *(f"nvimgcodec/extensions/lib{name}*" for name in ("[!jn]", "nv[!j]", "nvjpeg2k")),
)
# The largest. Others must not be stripped, because auditwheel moved their headers.
_STRIPPED = (
    "dali/libdali_[ok]*.so",
    "dali/libdali.so",
    "dali/.libs/libgoogle_cloud_cpp_[sc]*-*",
    *(f"dali/.libs/lib{name}-*" for name in ("cvcuda", "s2n", "aws-cpp-sdk-core")),
)
_FATBIN = 0xBA55ED50
_PTX = 1
_RUN = """\
#!/bin/bash
# Unpacks what this machine lacks and runs the GPU check; its flags are those of benchmarks.gpu.
set -euo pipefail
site=$(mktemp -d)
python3 - "$(dirname "$0")" "$site" <<'PYTHON'
import sys, tarfile
tarfile.open(f"{sys.argv[1]}/site.txz").extractall(sys.argv[2], filter="tar")
tarfile.open(f"{sys.argv[1]}/compiled.tar").extractall(".", filter="tar")
PYTHON
PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" exec python3 -m benchmarks.gpu "$@"
"""


def download(folder: Path, python: str, packages: Sequence[str]) -> None:
    """Unpacks the wheels of packages for a different Python on x86-64."""
    wheels = folder.with_name("wheels")
    which = ["--no-deps", "--only-binary=:all:", "--implementation=cp", "--python-version", python]
    which += [f"--platform=manylinux{libc}_x86_64" for libc in _GLIBC]
    command = [sys.executable, "-m", "pip", "download", "-q", *which, "-d", str(wheels), *packages]
    subprocess.run(command, check=True)
    for wheel in wheels.glob("*.whl"):
        shutil.unpack_archive(wheel, folder, "zip")


def trim(folder: Path, python: str, capability: int) -> None:
    """Removes files for other versions of Python, for other GPUs, or only for building."""
    nvidia = folder / "nvidia"
    for path in itertools.chain.from_iterable(map(nvidia.glob, _NEEDLESS)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in folder.rglob("*.cpython-*.so"):
        if f".cpython-{python.replace('.', '')}-" not in path.name:
            path.unlink()
    for path in nvidia.glob("dali/**/lib*.so*"):
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as library:
            for first, length in list(foreign_code(library, capability)):
                library[first : first + length] = bytes(length)
    stripped = itertools.chain.from_iterable(map(nvidia.glob, _STRIPPED))
    subprocess.run(["strip", "--strip-unneeded", *map(str, stripped)], check=True)


def foreign_code(library: mmap.mmap | bytes, capability: int) -> Iterator[tuple[int, int]]:
    """Yields offset and length of machine code for other compute capabilities than this one.

    A section of fat binaries contains containers with one entry for each kind of GPU. The driver
    chooses by the headers of entries, which stay, and never reads the code of the others.
    """
    for name, first, size in _sections(library):
        if b"fatbin" not in name:
            continue
        place = first
        end = first + size
        while place < end - 16:
            magic, _, header, length = struct.unpack_from("<IHHQ", library, place)
            if magic != _FATBIN:
                place += 8
                continue
            entry = place + header
            place = place + header + length
            while entry < place:
                kind, header, length, target = struct.unpack_from("<H2xIQ12xI", library, entry)
                # Relocatable code was linked into the other sections.
                if name == b"__nv_relfatbin" or kind == _PTX or target != capability:
                    yield entry + header, length
                entry += header + length


def _sections(library: mmap.mmap | bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yields name, offset and size of the sections of a 64-bit ELF file."""
    table, width, count, names = struct.unpack_from("<Q10xHHH", library, 0x28)
    found = [struct.unpack_from("<IIQQQQ", library, table + i * width) for i in range(count)]
    for name, _, _, _, offset, size in found:
        begin = found[names][4] + name
        yield library[begin : library.find(b"\0", begin)], offset, size


def pack(folder: Path, archive: Path) -> None:
    """Writes a folder as a tar, compressed by xz."""
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 6}]
    partial = archive.with_suffix(".partial")
    with lzma.open(partial, "wb", filters=filters) as file, tarfile.open(None, "w", file) as tar:
        tar.add(folder, ".")
    partial.replace(archive)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default="3.12", help="the version of the other machine's")
    parser.add_argument("--capability", type=int, default=90, help="of its GPU: 80, 90, 100")
    parser.add_argument("--packages", nargs="+", default=PACKAGES)
    parser.add_argument("--most-mb", type=float, default=56.0)
    settings = parser.parse_args(argv)
    settings.out.mkdir(parents=True, exist_ok=True)
    archive = settings.out / "site.txz"
    if not archive.exists():
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "site"
            download(folder, settings.python, settings.packages)
            trim(folder, settings.python, settings.capability)
            pack(folder, archive)
    with tarfile.open(settings.out / "compiled.tar", "w") as tar:
        for path in (measure.ROOT / "imagenet_prep").rglob("*.so"):
            tar.add(path, path.relative_to(measure.ROOT))
    (settings.out / "run.sh").write_text(_RUN)
    megabytes = archive.stat().st_size / 1e6
    if megabytes > settings.most_mb:
        raise SystemExit(f"site.txz has {megabytes:.1f} MB, more than {settings.most_mb:g} MB")
    print(f"{settings.out}: {megabytes:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
