"""Loads this package's compiled C library, and the libjpeg-turbo from Pillow's wheel."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core import compiled
from imagenet_prep.core.errors import UsageError

# libjpeg's functions, in the order of the structure `libjpeg` in libjpeg.h.
_FUNCTIONS = (
    "jpeg_std_error",
    "jpeg_CreateDecompress",
    "jpeg_CreateCompress",
    "jpeg_destroy",
    "jpeg_mem_src",
    "jpeg_read_header",
    "jpeg_start_decompress",
    "jpeg_crop_scanline",
    "jpeg_read_scanlines",
    "jpeg_read_raw_data",
    "jpeg_finish_decompress",
    "jpeg_set_defaults",
    "jpeg_set_quality",
    "jpeg_start_compress",
    "jpeg_write_raw_data",
    "jpeg_finish_compress",
)
_LIBRARY = Path(__file__).with_name("_planes.so")
# Pillow's wheels with an older libjpeg-turbo have a different file name for it.
_LEAST_VERSION = (3, 0)


class UnavailableError(UsageError):
    """This machine cannot run the codec `planes`; `why` has the cause and the fix."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"--codec planes: {why}. Or use --codec portable, which is slower and produces "
            "different bytes."
        )
        self.why = why


class PixelOutput(ctypes.Structure):
    """The structure `output` in pixels.h."""

    _fields_ = (
        ("to", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("mean", ctypes.c_float * 3),
        ("factor", ctypes.c_float * 3),
        ("item", ctypes.c_int),
        ("planar", ctypes.c_int),
        ("mirrored", ctypes.c_int),
    )


# The names of `enum simd` in simd.h.
SIMD = ("no vector code", "SSE2", "AVX2", "NEON", "AVX-512")
_POINTER, _BYTES, _NUMBER = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_IMAGE = (_POINTER, _POINTER, _BYTES)
_PIXELS = ctypes.c_int64
_KERNEL = {
    "planes_best": (_NUMBER,),
    "planes_new": (_POINTER, _POINTER, _NUMBER, _NUMBER),
    "planes_free": (None, _POINTER),
    "planes_shrink": (_NUMBER, *_IMAGE, *[_NUMBER] * 3, _PIXELS),
    "planes_decode": (
        *(_NUMBER, *_IMAGE, _POINTER, *[_NUMBER] * 3, _PIXELS),
        ctypes.POINTER(PixelOutput),
    ),
    "planes_decode_many": (
        *(None, _POINTER, _POINTER, ctypes.c_int64, *[_NUMBER] * 3, _PIXELS),
        ctypes.POINTER(PixelOutput),
    ),
    "planes_prove": (_NUMBER, *_IMAGE),
    "planes_open": (_NUMBER, *_IMAGE, _POINTER),
    "planes_warnings": (_NUMBER, *_IMAGE, _PIXELS),
    "planes_means": (_NUMBER, *_IMAGE, _PIXELS, _POINTER),
    "planes_result": (_POINTER, _POINTER),
    "planes_result_bytes": (_BYTES, _POINTER),
    "planes_message": (ctypes.c_char_p, _POINTER),
}


class Libraries(NamedTuple):
    """The loaded libraries; `functions` has the addresses of libjpeg's functions for planes_new."""

    kernel: ctypes.CDLL
    libjpeg: ctypes.CDLL
    functions: ctypes.Array[ctypes.c_void_p]


def load() -> Libraries:
    """Loads both libraries; raises UnavailableError if one is missing or lacks a function."""
    try:
        kernel = compiled.load(_LIBRARY, **_KERNEL)
    except compiled.NotCompiledError as error:
        raise UnavailableError(str(error).removesuffix(".")) from error
    libjpeg = _load_libjpeg()
    try:
        pointers = [ctypes.cast(getattr(libjpeg, name), ctypes.c_void_p) for name in _FUNCTIONS]
    except AttributeError as error:
        raise UnavailableError(f"Pillow's libjpeg-turbo lacks a function ({error})") from error
    functions = (ctypes.c_void_p * len(pointers))(*(pointer.value for pointer in pointers))
    return Libraries(kernel, libjpeg, functions)


def _load_libjpeg() -> ctypes.CDLL:
    advice = "`pip install --force-reinstall --only-binary :all: pillow` installs it"
    found = find_spec("PIL")
    folder = Path(found.origin).parents[1] / "pillow.libs" if found and found.origin else Path()
    paths = sorted(folder.glob("libjpeg-*.so.62*"))
    if not paths:
        raise UnavailableError(f"{folder} has no libjpeg-*.so.62* from Pillow's wheel: {advice}")
    from PIL import features

    version = features.version_feature("libjpeg_turbo") or "0"
    if tuple(map(int, version.split(".")[:2])) < _LEAST_VERSION:
        raise UnavailableError(
            f"{paths[0]} is libjpeg-turbo {version}, expected 3.0 or newer: {advice}"
        )
    try:
        return ctypes.CDLL(str(paths[0]))
    except OSError as error:
        raise UnavailableError(f"{paths[0]} cannot be loaded ({error}): {advice}") from error
