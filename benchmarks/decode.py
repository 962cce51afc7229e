"""Decodes complete JPEGs to RGB pixels in one thread: ours, compared with other libraries.

python -m benchmarks.decode --peers-venv /tmp/peers-venv

The libraries take turns in one process. Without --peers-venv, only those of our environment are
compared. The kind of table is that of arXiv 2605.08731.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import measure

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUALITIES = (75, 90, 95)
SAMPLINGS = ("420", "444")
# Images of each longer side, and how often a round decodes each.
NUM_IMAGES = {256: 24, 500: 24, 1500: 6}
LOOPS = {256: 6, 500: 3, 1500: 2}
OURS = "ours"
# Other libraries are compared with this one.
REFERENCE = "Pillow"

# Returns the RGB pixels of a JPEG.
Decode = Callable[[bytes], Any]


class Decoder(NamedTuple):
    """How a library decodes; `start` imports it, and `package` is its distribution."""

    start: Callable[[], Decode]
    package: str | None = None


class Cell(NamedTuple):
    """The images of one size, quality and sampling."""

    side: int
    quality: int
    sampling: str

    @property
    def name(self) -> str:
        """The name of their folder."""
        return f"{self.side}-q{self.quality}-{self.sampling}"


def cells(sides: Sequence[int]) -> Iterator[Cell]:
    """Yields all cells in the order of the table."""
    for side in sides:
        for quality in QUALITIES:
            for sampling in SAMPLINGS:
                yield Cell(side, quality, sampling)


def write_images(folder: Path, sides: Sequence[int]) -> None:
    """Writes the JPEGs of all cells: crops of photographs, encoded by libjpeg-turbo."""
    import numpy as np
    from PIL import Image

    from imagenet_prep.testing.photographs import FAMILIES, Camera
    from tests.kit.codec import jpegs

    for side in sides:
        camera = Camera((side, side * 3 // 4), seed=0)
        rng = np.random.default_rng(side)
        for number in range(NUM_IMAGES[side]):
            png = camera.shoot(FAMILIES[number % len(FAMILIES)], "png", rng)[-1]
            with Image.open(io.BytesIO(png)) as image:
                pixels = np.asarray(image)
            for cell in cells([side]):
                path = folder / cell.name / f"{number:02d}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(jpegs.encode(pixels, cell.quality, cell.sampling))


def render(raw: Mapping[str, Any]) -> str:
    """Returns the table of benchmarks/README.md, and the differences of the pixels."""
    decoders = list(raw["largest difference"])
    others = [name for name in decoders if name != OURS]
    header = ["side, quality", "kB", *decoders, "ours / best other", "the same for 4:4:4"]
    rows = []
    for cell in cells(raw["sides"]):
        found = raw["cells"][cell.name]
        rates = {name: 1 / measure.median(found["cpu_s"][name]) for name in decoders}
        ratio = f"{rates[OURS] / max(rates[name] for name in others):.2f}"
        if cell.sampling == SAMPLINGS[0]:
            figures = [f"{rates[name]:,.0f}" for name in decoders]
            size = f"{found['bytes'] / 1000:.0f}"
            rows.append([f"{cell.side}, {cell.quality}", size, *figures, ratio])
        else:
            rows[-1].append(ratio)
    differences = ", ".join(f"{name} {most}" for name, most in raw["largest difference"].items())
    return (
        f"{measure.table(header, rows)}\n\nLargest difference of a value from {REFERENCE}'s: "
        f"{differences}"
    )


# The rest runs in the peers' environment.


def _ours() -> Decode:
    from imagenet_prep.read import decode

    return decode


def _simplejpeg() -> Decode:
    import simplejpeg

    return lambda data: simplejpeg.decode_jpeg(data, "RGB")


def _opencv() -> Decode:
    import cv2
    import numpy as np

    cv2.setNumThreads(1)
    return lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


def _pillow() -> Decode:
    import numpy as np
    from PIL import Image

    def decode(data: bytes) -> NDArray[np.uint8]:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))

    return decode


def _torchvision() -> Decode:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    torch.set_num_threads(1)

    def decode(data: bytes) -> Any:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        # A view: torch's images are [3, height, width].
        return decode_jpeg(encoded, ImageReadMode.RGB).permute(1, 2, 0).numpy()

    return decode


def _torchcodec() -> Decode:
    from torchcodec.decoders import decode_jpeg

    return lambda data: decode_jpeg(data).permute(1, 2, 0).numpy()


def _imagecodecs() -> Decode:
    import imagecodecs

    return lambda data: imagecodecs.jpeg8_decode(data, outcolorspace="RGB")


DECODERS = {
    OURS: Decoder(_ours),
    "simplejpeg": Decoder(_simplejpeg, "simplejpeg"),
    "TorchCodec": Decoder(_torchcodec, "torchcodec"),
    "torchvision": Decoder(_torchvision, "torchvision"),
    "OpenCV": Decoder(_opencv, "opencv-python-headless"),
    "imagecodecs": Decoder(_imagecodecs, "imagecodecs"),
    REFERENCE: Decoder(_pillow, "pillow"),
}


def work(folder: Path, sides: Sequence[int], names: Sequence[str], rounds: int) -> dict[str, Any]:
    """Returns the CPU seconds per image, by cell, decoder and round; and differences of pixels."""
    decoders = {name: DECODERS[name].start() for name in names}
    largest = dict.fromkeys(names, 0)
    found = {}
    for cell in cells(sides):
        files = [path.read_bytes() for path in sorted((folder / cell.name).iterdir())]
        for name in names:
            largest[name] = max(largest[name], _difference(decoders, name, files))
        times: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds):
            turn = number % len(names)
            for name in [*names[turn:], *names[:turn]]:
                times[name].append(_time(decoders[name], files, LOOPS[cell.side]))
        found[cell.name] = {"bytes": sum(map(len, files)) / len(files), "cpu_s": times}
    return {"sides": list(sides), "cells": found, "largest difference": largest}


def _difference(decoders: Mapping[str, Decode], name: str, files: Sequence[bytes]) -> int:
    import numpy as np

    most = 0
    for data in files:
        expected = np.asarray(decoders[REFERENCE](data), np.int16)
        most = max(most, int(np.abs(decoders[name](data) - expected).max()))
    return most


def _time(decode: Decode, files: Sequence[bytes], loops: int) -> float:
    start = time.process_time()
    for _ in range(loops):
        for data in files:
            decode(data)
    return (time.process_time() - start) / loops / len(files)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints, or decodes in the process of a measuring run."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.decode")
    parser.add_argument("--sides", type=int, nargs="+", choices=NUM_IMAGES, default=[*NUM_IMAGES])
    parser.add_argument("--rounds", type=int, default=7)
    measure.add_peer_flags(parser, only="decoders besides ours")
    args = parser.parse_args(argv)
    if args.job:
        print(json.dumps(work(**json.loads(args.job.read_text()) | {"folder": args.job.parent})))
        return
    folder = args.scratch / "-".join(["decode", *map(str, args.sides)])
    if not folder.is_dir():
        partial = folder.with_suffix(".partial")
        write_images(partial, args.sides)
        partial.rename(folder)
    python = args.peers_venv / "bin" / "python" if args.peers_venv else sys.executable
    packages = [decoder.package for decoder in DECODERS.values() if decoder.package]
    installed = measure.versions(python, packages)
    names = [
        name
        for name, decoder in DECODERS.items()
        if decoder.package is None or decoder.package in installed
        if name in (OURS, REFERENCE) or re.search(args.only, name)
    ]
    job = folder / "job.json"
    job.write_text(json.dumps({"sides": args.sides, "names": names, "rounds": args.rounds}))
    run = measure.run([python, "-m", "benchmarks.decode", "--job", job], sample=False)
    raw = json.loads(run.stdout)
    text = f"{render(raw)}\n\n{measure.versions_line(installed)}"
    title = f"decode: complete JPEGs, images per CPU second of one thread, {args.rounds} rounds"
    measure.finish(title, text, raw, args.json)


if __name__ == "__main__":
    main()
