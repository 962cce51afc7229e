"""Python interface of planes.c, which resizes a JPEG to a JPEG without converting it to RGB.

decoder.c decodes most files. libjpeg decodes rare JPEG types, and damaged files, since it can name
the damage. Both decoders compute the same samples. With AVX2, encoder.c replaces libjpeg's encoder,
and writes the same bytes. For the codec `portable`, libjpeg decodes to RGB and encodes RGB. Calls
release the GIL.

The libraries are loaded for the first image: see `load`, which takes libjpeg-turbo from Pillow's
wheel.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import hashlib
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imagenet_prep.codec import cage
from imagenet_prep.core import imports
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset.jpeg import MAX_PIXELS

if TYPE_CHECKING:
    import numpy.typing as npt


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
    "jpeg_write_scanlines",
    "jpeg_write_raw_data",
    "jpeg_finish_compress",
)
_LIBRARY = Path(__file__).with_name("_planes.so")
# Pillow's wheels with an older libjpeg-turbo have a different file name for it.
_LEAST_VERSION = (3, 0)


class CodecUnavailableError(UsageError):
    """This machine cannot run the codecs; `why` has the cause and the fix."""

    def __init__(self, why: str) -> None:
        super().__init__(f"images cannot be converted or checked: {why}")
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
INSTRUCTION_SETS = ("no vector code", "SSE2", "AVX2", "NEON", "AVX-512")
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
        None,
        _POINTER,
        _POINTER,
        ctypes.c_int64,
        _PIXELS,
        ctypes.POINTER(PixelOutput),
    ),
    "planes_prove": (_NUMBER, *_IMAGE),
    "planes_header": (_NUMBER, *_IMAGE, _POINTER),
    "planes_pixels": (_NUMBER, *_IMAGE, *[_NUMBER] * 4, _POINTER),
    "planes_encode": (_NUMBER, _POINTER, _POINTER, *[_NUMBER] * 5),
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
    """Loads both libraries; raises CodecUnavailableError if one is missing or lacks a function."""
    try:
        kernel = imports.load(_LIBRARY, **_KERNEL)
    except imports.NotCompiledError as error:
        raise CodecUnavailableError(str(error)) from error
    libjpeg = _load_libjpeg()
    try:
        pointers = [ctypes.cast(getattr(libjpeg, name), ctypes.c_void_p) for name in _FUNCTIONS]
    except AttributeError as error:
        raise CodecUnavailableError(f"Pillow's libjpeg-turbo lacks a function ({error})") from error
    functions = (ctypes.c_void_p * len(pointers))(*(pointer.value for pointer in pointers))
    return Libraries(kernel, libjpeg, functions)


def _load_libjpeg() -> ctypes.CDLL:
    advice = "`pip install --force-reinstall --only-binary :all: pillow` installs it"
    found = find_spec("PIL")
    folder = Path(found.origin).parents[1] / "pillow.libs" if found and found.origin else Path()
    paths = sorted(folder.glob("libjpeg-*.so.62*"))
    if not paths:
        raise CodecUnavailableError(
            f"{folder} has no libjpeg-*.so.62* from Pillow's wheel: {advice}"
        )
    from PIL import features

    version = features.version_feature("libjpeg_turbo") or "0"
    if tuple(map(int, version.split(".")[:2])) < _LEAST_VERSION:
        raise CodecUnavailableError(
            f"{paths[0]} is libjpeg-turbo {version}, expected 3.0 or newer: {advice}"
        )
    try:
        return ctypes.CDLL(str(paths[0]))
    except OSError as error:
        raise CodecUnavailableError(f"{paths[0]} cannot be loaded ({error}): {advice}") from error


# Vector instruction sets, with their numbers in simd.h.
SIMD = {"best": -1, "plain": 0, "sse2": 1, "avx2": 2, "neon": 3, "avx512": 4}
# If this environment variable is "libjpeg", decoder.c and encoder.c are not used (for tests and
# benchmarks).
JPEG_VARIABLE = "IMAGENET_PREP_JPEG"
# Resize filters, numbered as in filters.h: bicubic, which `shrink` uses; linear with antialiasing;
# linear between two neighbours, which is faster but aliases; the square crop of a complete image
# that generative models use, with Pillow's filters (square.h); and Pillow's bicubic filter.
BICUBIC = 0
LINEAR = 1
NEIGHBOURS = 2
SQUARE = 3
KEYS = 4
MOST_SQUARE = 8192
_DONE = 0
_NO_MEMORY = 2
_NOT_OURS = 3
# Which decoders a workspace may use, numbered as in planes.c.
LIBJPEG = "libjpeg"
OWN = "own"
ONLY_OWN = "only own"
_JPEG = {LIBJPEG: 0, OWN: 1, ONLY_OWN: 2}
# The colour spaces of libjpeg.h; their index is the number there, less one.
COLORSPACES = ("Gray", "RGB", "YCbCr", "CMYK", "YCCK")
# Pixels per chroma sample: across, and down.
SAMPLINGS = {"444": (1, 1), "422": (2, 1), "420": (2, 2), "440": (1, 2), "411": (4, 1)}
# Pixel types; the index is `item` in pixels.h.
_ITEMS = ("uint8", "float32", "float16", "bfloat16")
# The structure `job` in planes.c.
_JOB = np.dtype(
    [
        *((name, np.uintp) for name in ("data", "size", "to")),
        ("window", np.int32, 4),
        *((name, np.int32) for name in ("height", "width", "kernel", "mirrored")),
        ("status", np.int32),
    ],
    align=True,
)
# A 4:2:2 JPEG of 21 x 17 pixels. _PROOF is the sha256 of the file that the codec `planes-1` makes
# from it with 16 x 13 pixels.
_PROBE = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQ"
    "c1tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/2wBDARweHigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSk"
    "pKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKT/wAARCAARABUDASEAAhEBAxEB/8QAFwABAQEBAAAAAAAAAAAAAAAA"
    "BAACBf/EABoQAAMBAAMAAAAAAAAAAAAAAAACAwERITH/xAAZAQACAwEAAAAAAAAAAAAAAAAABQIDBAH/xAAbEQAC"
    "AwEBAQAAAAAAAAAAAAAAAQIDERMSMf/aAAwDAQACEQMRAD8A4M0EzmRzQnAQsuiOcjK4hpIMlMtqWjWyAjFxc40i"
    "Ur64Py0zLzYCQ2QUDC02nhC9fChn/9k="
)
_PROOF = "7347788251d477da09e462fa0e49acac8c10ebb762529485a2f97c93dab97558"


@functools.lru_cache(maxsize=1)
def require() -> Libraries:
    """Loads the libraries, and encodes a test image to check that they produce the right bytes."""
    libraries = load()
    for jpeg in ("libjpeg", "own"):
        _prove(libraries, jpeg)
    return libraries


def proves(data: bytes) -> bool:
    """Returns True if decoder.c verifies that a JPEG is undamaged, in a third of libjpeg's time.

    False means unknown: the file may be damaged, or decoder.c does not support it or is not
    available.
    """
    return is_available() and workspace().prove(data)


def kernel() -> ctypes.CDLL:
    """Returns the library that is compiled from planes.c and the other C files of this package."""
    return require().kernel


@functools.cache
def best(simd: str) -> int:
    """Returns the number of a SIMD key; "best" selects this processor's best instruction set."""
    return int(kernel().planes_best()) if simd == "best" else SIMD[simd]


class Values:
    """Converts R, G and B in [0, 255] to floats (value - mean) / std, or keeps bytes for "uint8".

    `table` is [3, 256], the result for each channel and value; bfloat16 is stored as uint16.
    """

    def __init__(self, dtype: str, mean: Sequence[float], std: Sequence[float]) -> None:
        self.item = _ITEMS.index(dtype)
        means = np.array(mean, np.float32)
        factors = (1 / np.array(std)).astype(np.float32)
        self.mean = tuple(means.tolist())
        self.factor = tuple(factors.tolist())
        values = np.tile(np.arange(256, dtype=np.uint8), (3, 1))
        # pixels.h must get bit-identical results, so it has the same operations in this order.
        shown = (values.astype(np.float32) - means[:, None]) * factors[:, None]
        self.table: npt.NDArray[Any]
        if dtype == "uint8":
            self.table = values
        elif dtype == "bfloat16":
            bits = shown.view(np.uint32)
            # Round to nearest even.
            self.table = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        else:
            self.table = shown.astype(dtype)


BYTES = Values("uint8", (0, 0, 0), (1, 1, 1))


@dataclass(frozen=True)
class Look:
    """Decodes windows of images to one size and type, with one filter. Thread-safe."""

    height: int  # of the result in pixels, 1 ... 65500
    width: int
    values: Values
    # BICUBIC, LINEAR, NEIGHBOURS, KEYS or SQUARE, which needs the complete image as window.
    kernel: int
    channels_first: bool = False  # the result is [3, height, width], not [height, width, 3]

    def decode(
        self,
        data: bytes | memoryview,
        window: Sequence[int] | None,
        pixels: npt.NDArray[Any],
        *,
        mirrored: bool = False,
        within: Workspace | None = None,
    ) -> bool:
        """Resizes a window of a grey or YCbCr JPEG, and writes it into an array.

        Args:
          data: a JPEG. Damage below the window is not detected. A memoryview must be writable, or
            ctypes refuses it.
          window: top, left, height and width in pixels; None for the complete image.
          pixels: contiguous array for the result, with its size and type.
          within: workspace to use; by default this thread's, see `allowed_here`.

        Returns:
          False if libjpeg reports a problem, the format is unsupported, or the window exceeds the
          image. `pixels` then has undefined values.
        """
        self._check(pixels)
        output = self._output(pixels.ctypes.data, mirrored=mirrored)
        part = None if window is None else (ctypes.c_int * 4)(*window)
        arguments = (part, self.height, self.width, self.kernel, MAX_PIXELS, output)
        return (within or allowed_here()).decode(_address(data), len(data), *arguments)

    def jobs(
        self,
        encoded: Sequence[bytes | memoryview],
        windows: npt.NDArray[np.int32],
        mirrored: npt.NDArray[np.bool_],
        pixels: npt.NDArray[Any],
    ) -> npt.NDArray[np.void]:
        """Returns n jobs for `decode_many`; all arguments must stay alive as long as the jobs.

        Each argument holds n values of an argument of `decode`, so `windows` is [n, 4]. Each field
        of the jobs may be changed. Neighbours with the same `data` are decoded together.
        """
        self._check(pixels[0])
        jobs = np.empty(len(encoded), _JOB)
        jobs["data"] = [_address(data) for data in encoded]
        jobs["size"] = [len(data) for data in encoded]
        jobs["to"] = pixels.ctypes.data + np.arange(len(encoded)) * pixels.strides[0]
        jobs["window"] = windows
        jobs["mirrored"] = mirrored
        jobs["height"] = self.height
        jobs["width"] = self.width
        jobs["kernel"] = self.kernel
        return jobs

    def decode_many(self, jobs: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Runs `jobs`, which must be contiguous; returns the result of `decode` for each job.

        The jobs may be of several looks with the same type and layout of values.
        Outside the cage, the result is also False for images that decoder.c does not accept.
        """
        output = self._output(0, mirrored=False)
        return allowed_here().decode_many(jobs, MAX_PIXELS, output)

    def _check(self, pixels: npt.NDArray[Any]) -> None:
        assert pixels.flags.c_contiguous
        assert pixels.size == 3 * self.height * self.width
        assert pixels.itemsize == self.values.table.itemsize

    def _output(self, address: int, *, mirrored: bool) -> PixelOutput:
        values = self.values
        return PixelOutput(
            address,
            values.table.ctypes.data,
            values.mean,
            values.factor,
            values.item,
            self.channels_first,
            mirrored,
        )


def _address(data: bytes | memoryview) -> int:
    if isinstance(data, bytes):
        return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


class Workspace:
    """The memory that planes.c uses in one thread.

    `simd` is a key of SIMD; all keys give the same results. `jpeg` is LIBJPEG (decoder.c and
    encoder.c are not used), OWN (both), or ONLY_OWN (OutsideError for a file that decoder.c does
    not accept).
    """

    def __init__(self, libraries: Libraries, simd: str, jpeg: str = "own") -> None:
        self.kernel = libraries.kernel
        self.pointer = self.kernel.planes_new(libraries.functions, SIMD[simd], _JPEG[jpeg])
        if not self.pointer:
            raise UsageError(f"not enough memory, or this processor does not support {simd}")
        weakref.finalize(self, self.kernel.planes_free, self.pointer)

    def shrink(
        self, data: bytes, height: int, width: int, quality: int, max_pixels: int
    ) -> bytes | None:
        """Resizes a grey or YCbCr JPEG to height x width pixels (1 ... 65500); returns it as 4:2:0.

        Returns None if libjpeg reports a problem, the format is unsupported, or the header claims
        more than `max_pixels`.
        """
        code = self.kernel.planes_shrink(
            self.pointer, data, len(data), height, width, quality, max_pixels
        )
        return self._result() if self._is_done(code) else None

    def decode(self, *arguments: Any) -> bool:
        """Calls planes_decode with the arguments from `Look.decode`."""
        return self._is_done(self.kernel.planes_decode(self.pointer, *arguments))

    def decode_many(self, jobs: npt.NDArray[np.void], *arguments: Any) -> npt.NDArray[np.bool_]:
        """Calls planes_decode_many with the arguments from `Look.decode_many`."""
        assert jobs.flags.c_contiguous
        self.kernel.planes_decode_many(self.pointer, jobs.ctypes.data, len(jobs), *arguments)
        if (jobs["status"] == _NO_MEMORY).any():
            raise MemoryError("not enough memory to decode an image")
        done: npt.NDArray[np.bool_] = jobs["status"] == _DONE
        return done

    def means(self, data: bytes, max_pixels: int) -> npt.NDArray[np.uint16] | None:
        """Returns [64, 64] as `likeness.means` does; None if the JPEG cannot be decoded here."""
        found = np.empty((64, 64), np.uint16)
        code = self.kernel.planes_means(
            self.pointer, data, len(data), max_pixels, found.ctypes.data
        )
        return found if self._is_done(code) else None

    def prove(self, data: bytes) -> bool:
        """Returns True if decoder.c verifies that a JPEG is undamaged; see `proves`."""
        return self._is_done(self.kernel.planes_prove(self.pointer, data, len(data)))

    def header(self, data: bytes) -> tuple[int, int, str] | None:
        """Returns height, width and colour space of a JPEG.

        Returns None if the headers are damaged, or their colours or sampling factors have no name.
        """
        found = (ctypes.c_int * 3)()
        code = self.kernel.planes_header(self.pointer, data, len(data), found)
        if not self._is_done(code):
            return None
        height, width, colors = found
        return height, width, COLORSPACES[colors - 1]

    def pixels(
        self, data: bytes, height: int, width: int, eighths: int, *, strict: bool
    ) -> npt.NDArray[np.uint8]:
        """Decodes a JPEG of any kind to RGB pixels [height, width, 3]; ValueError if it is damaged.

        `height` and `width` must be `eighths` / 8 of the size in its header, rounded up. Without
        `strict`, only errors and warnings about headers are treated as damage.
        """
        found = np.empty((height, width, 3), np.uint8)
        self._read(data, eighths, height, width, not strict, found.ctypes.data)
        return found

    def read_through(self, data: bytes, height: int, width: int, eighths: int) -> None:
        """Reads a JPEG to its end; ValueError if it is damaged. See `pixels`."""
        self._read(data, eighths, height, width, False, None)

    def _read(self, data: bytes, *arguments: Any) -> None:
        if not self._is_done(self.kernel.planes_pixels(self.pointer, data, len(data), *arguments)):
            raise ValueError(self.message)

    def encode(self, pixels: npt.NDArray[np.uint8], quality: int, sampling: str) -> bytes:
        """Returns RGB pixels [height, width, 3] as a JPEG; `sampling` is a key of SAMPLINGS."""
        pixels = np.ascontiguousarray(pixels)
        height, width, _ = pixels.shape
        code = self.kernel.planes_encode(
            self.pointer, pixels.ctypes.data, height, width, quality, *SAMPLINGS[sampling]
        )
        if not self._is_done(code):
            raise ValueError(self.message)
        return self._result()

    def _result(self) -> bytes:
        size = self.kernel.planes_result_bytes(self.pointer)
        return ctypes.string_at(self.kernel.planes_result(self.pointer), size)

    def warnings(self, data: bytes) -> tuple[dict[int, str], str]:
        """Returns libjpeg's warnings about a JPEG, and the error that ended decoding, or "".

        The keys are the codes in jerror.h, or our own in planes.c.
        """
        done = self._is_done(self.kernel.planes_warnings(self.pointer, data, len(data), MAX_PIXELS))
        lines = self._result().decode("latin-1")
        notes = (line.partition(" ") for line in lines.splitlines())
        found = {int(code): said for code, _, said in notes}
        return found, "" if done else self.message

    def _is_done(self, code: int) -> bool:
        if code == _NO_MEMORY:
            raise MemoryError(self.message)
        if code == _NOT_OURS:
            raise cage.OutsideError
        return code == _DONE

    @property
    def message(self) -> str:
        """The error message for the last image."""
        text: bytes = self.kernel.planes_message(self.pointer)
        return text.decode(errors="replace")


_threads = threading.local()


def workspace(simd: str = "best", jpeg: str = OWN) -> Workspace:
    """Returns this thread's workspace for a key of SIMD and the decoders that it may use."""
    workspaces: dict[tuple[str, str], Workspace] = _threads.__dict__.setdefault("workspaces", {})
    jpeg = os.environ.get(JPEG_VARIABLE, jpeg)
    if (simd, jpeg) not in workspaces:
        workspaces[simd, jpeg] = Workspace(require(), simd, jpeg)
    return workspaces[simd, jpeg]


def allowed_here(simd: str = "best") -> Workspace:
    """Returns the workspace for images from strangers: libjpeg only reads them in the cage."""
    return workspace(simd, OWN if cage.is_inside() else ONLY_OWN)


def forget() -> None:
    """Frees this thread's workspaces, which hold hundreds of megabytes after a huge image."""
    _threads.__dict__.pop("workspaces", None)


@functools.lru_cache(maxsize=1)
def is_available() -> bool:
    """Returns True if planes.c and Pillow's libjpeg can be loaded and produce the right bytes."""
    try:
        require()
    except CodecUnavailableError:
        return False
    return True


def _prove(libraries: Libraries, jpeg: str) -> None:
    """Raises CodecUnavailableError if the libraries do not produce the bytes of `planes-1`."""
    own = Workspace(libraries, "best", jpeg)
    # libjpeg encodes the first image. encoder.c takes its tables, and encodes the second.
    made = {own.shrink(_PROBE, 13, 16, 90, MAX_PIXELS) or b"" for _ in range(2)}
    if {hashlib.sha256(each).hexdigest() for each in made} != {_PROOF}:
        raise CodecUnavailableError(
            f"{libraries.libjpeg._name} does not produce the expected bytes"
            f" ({own.message or 'wrong sha256'})"
        )
    wide = own.shrink(_PROBE, 16, 80, 90, MAX_PIXELS) or b""
    whole, part = (np.zeros((16, width, 3), np.uint8) for width in (80, 32))
    for pixels, left in ((whole, 0), (part, 48)):
        height, width, _ = pixels.shape
        look = Look(height, width, BYTES, NEIGHBOURS)
        look.decode(wide, (0, left, height, width), pixels, within=own)
    # The columns at the window's edge may differ, because their chroma is interpolated.
    if not np.array_equal(whole[:, 56:], part[:, 8:]):
        raise CodecUnavailableError(
            f"{libraries.libjpeg._name} skips the wrong columns of an image"
        )
