"""The program of a cage: decodes images for its parent process, and has no other rights.

It reads requests from standard input, and writes messages to standard output; see cage.py.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import select
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from imagenet_prep.codec import cage, decoding, likeness, opening, planes, transform
from imagenet_prep.codec.policy import Policy
from imagenet_prep.core import confinement, limits
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import formats
from imagenet_prep.dataset.member import PreparedImage

# A result of a function: JSON values, and bytes.
_Result = tuple[Any, bytes | memoryview]


def _transform(data: bytes, policy: Mapping[str, Any]) -> _Result:
    return _prepared(transform.transform(data, Policy(**policy)), data)


def _keep(data: bytes) -> _Result:
    return _prepared(transform.keep(data), data)


def _prepared(made: PreparedImage, data: bytes) -> _Result:
    """Returns a stored image; its bytes only if they differ from those that the parent has."""
    return made[1:], b"" if made.encoded is data else made.encoded


def _header(data: bytes) -> _Result:
    return opening.header(data), b""


def _require_openable(data: bytes) -> _Result:
    opening.require_openable(data)
    return True, b""


def _prove_stored(data: bytes, **arguments: Any) -> _Result:
    return transform.prove_stored(data, **arguments), b""


def _means(data: bytes) -> _Result:
    return True, likeness.means(data).tobytes()


def _pixels(data: bytes, **arguments: Any) -> _Result:
    pixels = np.ascontiguousarray(decoding.pixels(data, **arguments))
    return pixels.shape[:2], pixels.data.cast("B")


def _window(data: bytes, **arguments: Any) -> _Result:
    pixels = decoding.window(data, **arguments)
    return pixels is not None, b"" if pixels is None else pixels.data.cast("B")


def _size(data: bytes) -> _Result:
    return decoding.size(data), b""


def _digest(data: bytes) -> _Result:
    return decoding.digest(data)


FUNCTIONS: dict[str, Callable[..., _Result]] = {
    "transform": _transform,
    "keep": _keep,
    "header": _header,
    "require_openable": _require_openable,
    "prove_stored": _prove_stored,
    "means": _means,
    "pixels": _pixels,
    "window": _window,
    "size": _size,
    "digest": _digest,
}


def main() -> None:
    """Serves the parent process until it closes standard input."""
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    cage.enter()
    # Pillow warns about unusual metadata and palettes; only the pixels matter.
    warnings.simplefilter("ignore")
    _load_decoders()
    limits.among_children(lambda: _ask_for_turn(requests, answers))
    used_bytes = _used_bytes()
    missing = confinement.confine()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    cage.write(answers, [cage.READY, [used_bytes, missing]])
    while True:
        try:
            (function, arguments), data = cage.read(requests)
        except EOFError:
            os._exit(0)
        kind, values, result = _answer(function, data, arguments)
        cage.write(answers, [kind, values], result)


def _end_with_parent() -> None:
    """Ends this process, also while it decodes, as soon as its parent has closed the pipe."""
    pipe = select.poll()
    pipe.register(0, 0)  # POLLHUP needs no registration
    pipe.poll()
    os._exit(0)


def _used_bytes() -> int:
    """Returns the size of this process's address space."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _load_decoders() -> None:
    """Imports all decoders, and makes each decode a picture, since the cage cannot open files."""
    planes.is_available()
    if formats.is_readable(formats.HEIC):
        opening.allow_heic()
    picture = Image.new("RGB", (16, 16), "red")
    for name in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "AVIF"):
        buffer = io.BytesIO()
        with contextlib.suppress(KeyError, OSError):  # this Pillow lacks the format
            picture.save(buffer, name)
        with contextlib.suppress(Exception), Image.open(io.BytesIO(buffer.getvalue())) as image:
            opening.rgb(image).resize((8, 8), Image.Resampling.BICUBIC)


def _answer(function: str, data: bytes, arguments: Mapping[str, Any]) -> tuple[str, Any, Any]:
    try:
        values, result = FUNCTIONS[function](data, **arguments)
        return cage.RESULT, values, result
    except BadImageError as error:
        return cage.BAD, [error.reason, error.detail], b""
    except MemoryError:
        pass  # until this block ends, the traceback keeps the memory of the image
    except Exception as error:  # noqa: BLE001 - no image may end a run
        return cage.FAILED, f"{type(error).__name__}: {error}"[:1000], b""
    opening.release()
    return cage.NO_MEMORY, None, b""


def _ask_for_turn(requests: BinaryIO, answers: BinaryIO) -> None:
    cage.write(answers, [cage.TURN, None])
    cage.read(requests)


if __name__ == "__main__":
    main()
