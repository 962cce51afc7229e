"""Python interface of planes.c: downscales a JPEG to a JPEG without converting to RGB.

Our decoder.c decodes most files. libjpeg decodes the rest (damaged files, for which it has error
messages, and rare types), to the same planes. With AVX2, our encoder.c encodes, to the same bytes
as libjpeg. The libraries are loaded for the first image. ctypes releases the GIL during each call.
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
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.codec.libraries import Libraries, PixelOutput, UnavailableError, load
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset.jpeg import MAX_PIXELS

if TYPE_CHECKING:
    import numpy.typing as npt

# Vector instruction sets, numbered as in planes.c.
SIMD = {"best": -1, "plain": 0, "sse2": 1, "avx2": 2, "neon": 3, "avx512": 4}
# "libjpeg" in this variable disables our decoder and encoder, for tests and benchmarks.
JPEG_VARIABLE = "IMAGENET_PREP_JPEG"
# Resize filters, numbered as in planes.c: bicubic, as in `shrink`; linear with antialiasing; linear
# between neighbours, which is faster but aliases; and the square crop of a complete image, as
# Pillow makes it for generative models (square.h).
BICUBIC, LINEAR, NEIGHBOURS, SQUARE = 0, 1, 2, 3
MOST_SQUARE = 8192
_DONE, _NO_MEMORY = 0, 2
# Pixel types, numbered as `item` in pixels.h.
_ITEMS = ("uint8", "float32", "float16", "bfloat16")
# `job` in planes.c.
_JOB = np.dtype(
    [
        *((name, np.uintp) for name in ("data", "size", "to")),
        ("window", np.int32, 4),
        ("mirrored", np.int32),
        ("status", np.int32),
    ]
)
# A JPEG of 21 x 17 pixels, 4:2:2; _PROOF is the sha256 of `planes-1`'s output for it at 16 x 13.
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
    """Loads the libraries and returns them after checking their output."""
    libraries = load()
    for jpeg in ("libjpeg", "own"):
        _prove(libraries, jpeg)
    return libraries


def proves(data: bytes) -> bool:
    """Returns True if a complete JPEG is verified as sound.

    Takes a third of libjpeg's time, since no pixels are computed. False means unknown: the file may
    be damaged, our decoder may not support it, or the decoder is not available here.
    """
    return is_available() and workspace().prove(data)


def kernel() -> ctypes.CDLL:
    """Returns the library compiled from planes.c and the other C files of this package."""
    return require().kernel


@functools.cache
def best(simd: str) -> int:
    """Returns the number of a key of SIMD; "best" is this processor's best."""
    return int(kernel().planes_best()) if simd == "best" else SIMD[simd]


class Values:
    """The conversion of R, G and B: to bytes, or to floats (value - mean) / std.

    `table` is [3, 256] and has all values; bfloat16, which NumPy lacks, is stored as uint16.
    """

    def __init__(self, dtype: str, mean: Sequence[float], std: Sequence[float]) -> None:
        """Computes the table for "uint8" (unchanged), "float32", "float16" or "bfloat16"."""
        self.item = _ITEMS.index(dtype)
        means = np.array(mean, np.float32)
        factors = (1 / np.array(std)).astype(np.float32)
        self.mean, self.factor = tuple(means.tolist()), tuple(factors.tolist())
        values = np.tile(np.arange(256, dtype=np.uint8), (3, 1))
        # The same operations in the same order as in pixels.h: results must be bit-identical.
        shown = (values.astype(np.float32) - means[:, None]) * factors[:, None]
        self.table: npt.NDArray[Any]
        if dtype == "uint8":
            self.table = values
        elif dtype == "bfloat16":
            bits = shown.view(np.uint32)
            # Round to nearest, ties to even.
            self.table = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        else:
            self.table = shown.astype(dtype)


BYTES = Values("uint8", (0, 0, 0), (1, 1, 1))


@dataclass(frozen=True)
class Look:
    """Decodes windows of images to one size and type, with one filter. Thread-safe.

    Attributes:
      height, width: pixels of the result, 1 ... 65500.
    """

    height: int
    width: int
    values: Values
    kernel: int  # BICUBIC, LINEAR, NEIGHBOURS or SQUARE; SQUARE needs the complete image as window
    channels_first: bool = False  # [3, height, width] instead of [height, width, 3]

    def decode(
        self,
        data: bytes | memoryview,
        window: Sequence[int] | None,
        pixels: npt.NDArray[Any],
        *,
        mirrored: bool = False,
        within: Workspace | None = None,
    ) -> bool:
        """Writes a window of a grey or YCbCr JPEG into an array.

        This is faster than decoding the complete image and cropping: pixels outside the window are
        not computed, and colours are converted at the size of the result.

        Args:
          data: a JPEG that is known to be sound, since the part below the window is not checked.
            A memoryview must be writable, or ctypes refuses it.
          window: top, left, height and width in pixels; None for the complete image.
          pixels: contiguous result array with this size and type.
          within: workspace to use; by default this thread's.

        Returns:
          False if libjpeg reports a problem, the format is unsupported, or the window exceeds the
          image; `pixels` may have changed.
        """
        assert pixels.flags.c_contiguous
        assert pixels.size == 3 * self.height * self.width
        assert pixels.itemsize == self.values.table.itemsize
        output = self._output(pixels.ctypes.data, mirrored=mirrored)
        part = None if window is None else (ctypes.c_int * 4)(*window)
        arguments = (part, self.height, self.width, self.kernel, MAX_PIXELS, output)
        return (within or workspace()).decode(_address(data), len(data), *arguments)

    def jobs(
        self,
        encoded: Sequence[bytes | memoryview],
        windows: npt.NDArray[np.int32],
        mirrored: npt.NDArray[np.bool_],
        pixels: npt.NDArray[Any],
    ) -> npt.NDArray[np.void]:
        """Returns [n] jobs for `decode_many`; the arguments must outlive them.

        Each argument has n values for `decode`: `windows` is [n, 4], `pixels` is [n, ...].
        """
        assert pixels[0].flags.c_contiguous
        assert pixels[0].size == 3 * self.height * self.width
        assert pixels.itemsize == self.values.table.itemsize
        jobs = np.empty(len(encoded), _JOB)
        jobs["data"] = [_address(data) for data in encoded]
        jobs["size"] = [len(data) for data in encoded]
        jobs["to"] = pixels.ctypes.data + np.arange(len(encoded)) * pixels.strides[0]
        jobs["window"], jobs["mirrored"] = windows, mirrored
        return jobs

    def decode_many(self, jobs: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Runs contiguous `jobs` without the GIL; returns the result of `decode` for each."""
        output = self._output(0, mirrored=False)
        arguments = (self.height, self.width, self.kernel, MAX_PIXELS, output)
        return workspace().decode_many(jobs, *arguments)

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
    """A thread's memory in planes.c; freed with the thread.

    `simd` is a key of SIMD (all produce the same bytes). If `jpeg` is "libjpeg", our decoder and
    encoder are not used.
    """

    def __init__(self, libraries: Libraries, simd: str, jpeg: str = "own") -> None:
        self.kernel = libraries.kernel
        own = jpeg != "libjpeg"
        self.pointer = self.kernel.planes_new(libraries.functions, SIMD[simd], own)
        if not self.pointer:
            raise UsageError(f"no memory, or this processor has no {simd}")
        weakref.finalize(self, self.kernel.planes_free, self.pointer)

    def shrink(
        self, data: bytes, height: int, width: int, quality: int, max_pixels: int
    ) -> bytes | None:
        """Returns a grey or YCbCr JPEG resized to height x width pixels (1 ... 65500), as 4:2:0.

        Returns None if libjpeg reports a problem or the format is unsupported. `max_pixels` is the
        limit for the size in the header.
        """
        code = self.kernel.planes_shrink(
            self.pointer, data, len(data), height, width, quality, max_pixels
        )
        if not self._is_done(code):
            return None
        size = self.kernel.planes_result_bytes(self.pointer)
        return ctypes.string_at(self.kernel.planes_result(self.pointer), size)

    def decode(self, *arguments: Any) -> bool:
        """Calls planes_decode for a `Look`."""
        return self._is_done(self.kernel.planes_decode(self.pointer, *arguments))

    def decode_many(self, jobs: npt.NDArray[np.void], *arguments: Any) -> npt.NDArray[np.bool_]:
        """Calls planes_decode_many for a `Look`."""
        assert jobs.flags.c_contiguous
        self.kernel.planes_decode_many(self.pointer, jobs.ctypes.data, len(jobs), *arguments)
        if (jobs["status"] == _NO_MEMORY).any():
            raise MemoryError("no memory to decode an image")
        done: npt.NDArray[np.bool_] = jobs["status"] == _DONE
        return done

    def means(self, data: bytes, max_pixels: int) -> npt.NDArray[np.uint16] | None:
        """Returns the mean luma of cells as defined in likeness.h; None as for `shrink`."""
        found = np.empty((64, 64), np.uint16)
        code = self.kernel.planes_means(
            self.pointer, data, len(data), max_pixels, found.ctypes.data
        )
        return found if self._is_done(code) else None

    def prove(self, data: bytes) -> bool:
        """Returns whether our decoder verifies a JPEG as sound; see `proves`."""
        return self._is_done(self.kernel.planes_prove(self.pointer, data, len(data)))

    def warnings(self, data: bytes) -> tuple[list[tuple[bool, int, str]], str]:
        """Returns libjpeg's warnings about a JPEG, and the error that ended decoding, or "".

        A warning is (whether it was in a scan, its code in jerror.h, its text).
        """
        done = self._is_done(self.kernel.planes_warnings(self.pointer, data, len(data), MAX_PIXELS))
        size = self.kernel.planes_result_bytes(self.pointer)
        lines = ctypes.string_at(self.kernel.planes_result(self.pointer), size).decode("latin-1")
        notes = (line.split(" ", 2) for line in lines.splitlines())
        found = [(scan == "1", int(code), said) for scan, code, said in notes]
        return found, "" if done else self.message

    def _is_done(self, code: int) -> bool:
        if code == _NO_MEMORY:
            raise MemoryError(self.message)
        return code == _DONE

    @property
    def message(self) -> str:
        """The error message for the last image."""
        text: bytes = self.kernel.planes_message(self.pointer)
        return text.decode(errors="replace")


_threads = threading.local()


def workspace(simd: str = "best") -> Workspace:
    """Returns this thread's workspace for a key of SIMD."""
    workspaces: dict[str, Workspace] = _threads.__dict__.setdefault("workspaces", {})
    if simd not in workspaces:
        jpeg = os.environ.get(JPEG_VARIABLE, "own")
        workspaces[simd] = Workspace(require(), simd, jpeg)
    return workspaces[simd]


def forget() -> None:
    """Frees this thread's workspaces: hundreds of megabytes after a huge image."""
    _threads.__dict__.pop("workspaces", None)


@functools.lru_cache(maxsize=1)
def is_available() -> bool:
    """Returns whether planes.c and Pillow's libjpeg are installed and work."""
    try:
        require()
    except UnavailableError:
        return False
    return True


def _prove(libraries: Libraries, jpeg: str) -> None:
    """Raises UnavailableError unless a test image becomes the exact bytes of `planes-1`.

    All versions of libjpeg-turbo 3 do so; this detects a library that does not.
    """
    own = Workspace(libraries, "best", jpeg)
    # libjpeg encodes the first image, and our encoder learns its tables for the second.
    made = {own.shrink(_PROBE, 13, 16, 90, MAX_PIXELS) or b"" for _ in range(2)}
    if {hashlib.sha256(each).hexdigest() for each in made} != {_PROOF}:
        raise UnavailableError(
            f"{libraries.libjpeg._name} encodes different bytes than expected"
            f" ({own.message or 'wrong sha256'})"
        )
    wide = own.shrink(_PROBE, 16, 80, 90, MAX_PIXELS) or b""
    whole, part = (np.zeros((16, width, 3), np.uint8) for width in (80, 32))
    for pixels, left in ((whole, 0), (part, 48)):
        height, width, _ = pixels.shape
        look = Look(height, width, BYTES, NEIGHBOURS)
        look.decode(wide, (0, left, height, width), pixels, within=own)
    # Columns at the window's edge differ, since chroma is upsampled from fewer samples there.
    if not np.array_equal(whole[:, 56:], part[:, 8:]):
        raise UnavailableError(f"{libraries.libjpeg._name} skips the wrong columns of an image")
