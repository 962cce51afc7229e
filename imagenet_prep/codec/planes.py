"""JPEG to smaller JPEG without RGB in between: what planes.c does, called from Python.

Most files are decoded by our own decoder.c. libjpeg decodes what that declines: damaged files,
since libjpeg has words for the damage, and rare kinds. Both make the same planes. Where there is
AVX2, our own encoder.c encodes, to the bytes that libjpeg makes. Both libraries are loaded when the
first image comes. ctypes releases the GIL for as long as an image takes.
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

# Vector code that can be asked for, as planes.c numbers it.
SIMD = {"best": -1, "plain": 0, "sse2": 1, "avx2": 2, "neon": 3}
# Set to "libjpeg", it turns our own decoder and encoder off. It exists for tests and benchmarks,
# which compare them.
JPEG_VARIABLE = "IMAGENET_PREP_JPEG"
# Ways to weigh pixels, as planes.c numbers them: bicubic as `shrink`; linear, stretched so that
# nothing aliases; linear between neighbours, which is quicker and aliases; and as Pillow makes the
# square crop of a complete image for generators (square.h).
BICUBIC, LINEAR, NEIGHBOURS, SQUARE = 0, 1, 2, 3
# Sides of a SQUARE are at most this.
MOST_SQUARE = 8192
_DONE, _NO_MEMORY = 0, 2
# Types of pixels, in the order of `item` in pixels.h.
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
# A JPEG of 21 x 17 pixels, 4:2:2, and what it becomes at 16 x 13: the bytes that `planes-1` names.
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
    """Returns the loaded libraries, once they are known to make the right bytes here."""
    libraries = load()
    for jpeg in ("libjpeg", "own"):
        _prove(libraries, jpeg)
    return libraries


def proves(data: bytes) -> bool:
    """Returns True for a JPEG that is known to be sound from its first byte to its last.

    No pixels are made, which takes a third of libjpeg's time. False says nothing: the file may be
    damaged, or of a kind that our decoder declines, or the decoder does not work here.
    """
    return is_available() and workspace().prove(data)


def kernel() -> ctypes.CDLL:
    """Returns the library that planes.c and the other C of this room are compiled to."""
    return require().kernel


@functools.cache
def best(simd: str) -> int:
    """Returns the number of a key of SIMD; of "best" that of the best that this processor has."""
    return int(kernel().planes_best()) if simd == "best" else SIMD[simd]


class Values:
    """The conversion of R, G and B: to bytes, or to floats (value - mean) / std.

    Attributes:
      table: [3, 256] of all of them; bfloat16, which NumPy does not know, is uint16 here.
    """

    def __init__(self, dtype: str, mean: Sequence[float], std: Sequence[float]) -> None:
        """Takes "uint8", which stays as it is, "float32", "float16" or "bfloat16"."""
        self.item = _ITEMS.index(dtype)
        means = np.array(mean, np.float32)
        factors = (1 / np.array(std)).astype(np.float32)
        self.mean, self.factor = tuple(means.tolist()), tuple(factors.tolist())
        values = np.tile(np.arange(256, dtype=np.uint8), (3, 1))
        # pixels.h does the same operations in the same order: both must make the same bits.
        shown = (values.astype(np.float32) - means[:, None]) * factors[:, None]
        self.table: npt.NDArray[Any]
        if dtype == "uint8":
            self.table = values
        elif dtype == "bfloat16":
            bits = shown.view(np.uint32)
            # This rounds to the nearest number, and to the even one where two are as near.
            self.table = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        else:
            self.table = shown.astype(dtype)


BYTES = Values("uint8", (0, 0, 0), (1, 1, 1))


@dataclass(frozen=True)
class Look:
    """The conversion of windows of images: to one size and type, by one filter. Safe for threads.

    Attributes:
      height, width: pixels of the result, 1 ... 65500.
      values: what those of R, G and B become.
      kernel: BICUBIC, LINEAR, NEIGHBOURS or SQUARE, whose window is the complete image.
      channels_first: [3, height, width] instead of [height, width, 3].
    """

    height: int
    width: int
    values: Values
    kernel: int
    channels_first: bool = False

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

        Pixels around the window are not made, and colours are converted at the size of the
        result. So this costs less than to decode all and to crop and resize then.

        Args:
          data: a JPEG, which is known to be sound: what lies below the window is not looked at.
            A memoryview must be of memory that may be written, or ctypes refuses it.
          window: top, left, height and width of the part, in pixels; None for the whole.
          pixels: contiguous, of the size and type that this look has.
          mirrored: left becomes right.
          within: the memory to use; by default this thread's.

        Returns:
          False if libjpeg complains about the data, the format is a different one, or the window
          leaves the image; `pixels` may have changed then.
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

        Args:
          encoded: n JPEGs, as for `decode`.
          windows: [n, 4], as for `decode`.
          mirrored: [n].
          pixels: [n, ...], of which each element is as for `decode`.
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
        """Decodes a contiguous part of `jobs` without the interpreter's lock in between.

        Returns:
          [n], what `decode` returns for each.
        """
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
    """Returns where a buffer begins in memory."""
    if isinstance(data, bytes):
        return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


class Workspace:
    """A thread's memory in planes.c; freed with the thread.

    Args:
      simd: vector code to use, a key of SIMD; all of them make the same bytes.
      jpeg: "libjpeg" to do without our own decoder and encoder.
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
        """Returns the 4:2:0 JPEG of [height, width] that is made from a grey or YCbCr JPEG.

        Args:
          data: a JPEG; None is returned if libjpeg complains about it, or for other formats.
          height, width: pixels of the result, 1 ... 65500.
          quality: 1 ... 100.
          max_pixels: that the header may claim.
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
        """Returns the means of luma that likeness.h defines; None as for `shrink`."""
        found = np.empty((64, 64), np.uint16)
        code = self.kernel.planes_means(
            self.pointer, data, len(data), max_pixels, found.ctypes.data
        )
        return found if self._is_done(code) else None

    def prove(self, data: bytes) -> bool:
        """Returns what the function `proves` returns."""
        return self._is_done(self.kernel.planes_prove(self.pointer, data, len(data)))

    def warnings(self, data: bytes) -> tuple[list[tuple[bool, int, str]], str]:
        """Returns libjpeg's warnings about a JPEG, and why it gave up decoding it, or "".

        Each is whether it is of the scans or of the header, its code in jerror.h, and its words.
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
        """Why the last image was not made."""
        text: bytes = self.kernel.planes_message(self.pointer)
        return text.decode(errors="replace")


_threads = threading.local()


def workspace(simd: str = "best") -> Workspace:
    """Returns this thread's memory for a kind of vector code."""
    workspaces: dict[str, Workspace] = _threads.__dict__.setdefault("workspaces", {})
    if simd not in workspaces:
        jpeg = os.environ.get(JPEG_VARIABLE, "own")
        workspaces[simd] = Workspace(require(), simd, jpeg)
    return workspaces[simd]


def forget() -> None:
    """Frees what this thread keeps for its next image: after a huge one, hundreds of megabytes."""
    _threads.__dict__.pop("workspaces", None)


@functools.lru_cache(maxsize=1)
def is_available() -> bool:
    """Returns whether planes.c and Pillow's libjpeg are here, and work."""
    try:
        require()
    except UnavailableError:
        return False
    return True


def _prove(libraries: Libraries, jpeg: str) -> None:
    """Makes sure that an image becomes the bytes that the codec's name stands for.

    All versions of libjpeg-turbo 3 make the same bytes. One that does not is seen here, whatever
    it calls itself.
    """
    own = Workspace(libraries, "best", jpeg)
    # libjpeg encodes the first, from which our encoder learns to encode the second.
    made = {own.shrink(_PROBE, 13, 16, 90, MAX_PIXELS) or b"" for _ in range(2)}
    if {hashlib.sha256(each).hexdigest() for each in made} != {_PROOF}:
        raise UnavailableError(
            f"{libraries.libjpeg._name} makes other bytes than it should"
            f" ({own.message or 'wrong sha256'})"
        )
    wide = own.shrink(_PROBE, 16, 80, 90, MAX_PIXELS) or b""
    whole, part = (np.zeros((16, width, 3), np.uint8) for width in (80, 32))
    for pixels, left in ((whole, 0), (part, 48)):
        height, width, _ = pixels.shape
        look = Look(height, width, BYTES, NEIGHBOURS)
        look.decode(wide, (0, left, height, width), pixels, within=own)
    # The columns at the edge differ: there chroma is enlarged from fewer samples.
    if not np.array_equal(whole[:, 56:], part[:, 8:]):
        raise UnavailableError(
            f"{libraries.libjpeg._name} leaves out other columns of an image than it should"
        )
