"""The seven decoders that docs/data-format.md names: bytes of a JPEG → pixels [height, width, 3].

The three backends decode with the settings of their readers. `python decoders.py` is the process of
TorchCodec, whose environment does not have this package.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Decode = Callable[[bytes], Any]


def native(data: bytes) -> Any:
    """Returns the pixels of the native backend, or Pillow's if the codec declines the file."""
    from PIL import Image

    from imagenet_prep.codec import planes
    from imagenet_prep.read.decoder import cropped

    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
    pixels = np.empty((height, width, 3), np.uint8)
    if planes.Look(height, width, planes.BYTES, planes.LINEAR).decode(data, None, pixels):
        return pixels
    return np.asarray(cropped(data, [0, 0, height, width]))


def tfdata(data: bytes) -> Any:
    """Returns the pixels of TensorFlow, with the settings of our backend."""
    import tensorflow as tf

    from imagenet_prep.read.tfdata import _EXACT

    return tf.io.decode_jpeg(data, **_EXACT).numpy()


def dali() -> Decode:
    """Returns the decoder of our DALI backend, which makes a new pipeline after an error."""
    from imagenet_prep.read.dali import _DECODED, _decode_one

    given = b""
    pipeline = None

    def decode(data: bytes) -> Any:
        nonlocal given, pipeline
        given = data
        current = pipeline or new()
        pipeline = None
        (images,) = current.run()
        pipeline = current
        return np.array(images.at(0))

    def new() -> Any:
        settings = {"batch_size": 1, "num_threads": 1, "device_id": None}
        return _decode_one(
            lambda: np.frombuffer(given, np.uint8), _DECODED | {"device": "cpu"}, **settings
        )

    return decode


def pillow(data: bytes) -> Any:
    """Returns the pixels of Pillow."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data), formats=["JPEG"]).convert("RGB"))


def opencv(data: bytes) -> Any:
    """Returns the pixels of OpenCV, in the order of the others."""
    import cv2

    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise ValueError("no picture")
    return pixels[:, :, ::-1]


def libjpeg(root: Path) -> Decode:
    """Returns the decoder of libjpeg-turbo's djpeg in that folder; a warning is an error."""
    from PIL import Image

    libraries = ":".join(map(str, (root / "lib").glob("*-linux-gnu")))

    def decode(data: bytes) -> Any:
        run = subprocess.run(
            [root / "bin" / "djpeg", "-rgb", "-pnm"],
            input=data,
            capture_output=True,
            env={"LD_LIBRARY_PATH": libraries},
        )
        if run.returncode or run.stderr:
            raise ValueError(run.stderr.decode())
        return np.asarray(Image.open(io.BytesIO(run.stdout), formats=["PPM"]))

    return decode


@contextlib.contextmanager
def torchcodec(python: Path) -> Iterator[Decode]:
    """Yields the decoder of TorchCodec in a process of that interpreter."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([python, "-P", __file__], **pipes) as process:

        def decode(data: bytes) -> Any:
            process.stdin.write(len(data).to_bytes(8) + data)
            process.stdin.flush()
            height, width = (int.from_bytes(process.stdout.read(8)) for _ in range(2))
            if not height:
                raise ValueError("TorchCodec refuses it")
            pixels = process.stdout.read(height * width * 3)
            return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)

        yield decode
        process.stdin.close()


def serve() -> None:
    """Decodes JPEGs from the standard input; height and width of 0 are an error."""
    from torchcodec.decoders import decode_jpeg

    # Prints of libraries must not mix with the pixels.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while size := sys.stdin.buffer.read(8):
        try:
            data = sys.stdin.buffer.read(int.from_bytes(size))
            pixels = decode_jpeg(data).permute(1, 2, 0).numpy()
        except Exception:
            pixels = np.empty((0, 0, 3), np.uint8)
        out.write(b"".join(side.to_bytes(8) for side in pixels.shape[:2]) + pixels.tobytes())
        out.flush()


if __name__ == "__main__":
    serve()
