"""The square crop of image generators, read from shards: ours, Pillow's, and a bilinear crop.

python -m benchmarks.square
"""

from __future__ import annotations

import argparse
import operator
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import measure
from imagenet_prep.core.world import World
from imagenet_prep.read import Reader, make_dataset

BATCH = 64
SHORT_SIDE = 480
OURS = "ours"
PILLOW = "Pillow instead"
BILINEAR = "bilinear crop (resnet)"


def run(scratch: Path, images: int, side: int, rounds: int) -> dict[str, list[float]]:
    """Returns the images that are read, decoded and cropped per CPU second, by row and round."""
    source = measure.corpus(scratch, images, (500, 375))
    out = scratch / f"square-{images}"
    flags = ("--allow-subset", "--short-side", SHORT_SIDE)
    if not (out / "dataset.json").is_file():
        measure.run(measure.prepare_argv(source, out, *flags), sample=False)
    rows = {OURS: {"recipe": "adm"}, PILLOW: {"recipe": "adm"}, BILINEAR: {"antialias": True}}
    readers = {name: _opened(out, side, **how) for name, how in rows.items()}
    # The path of a machine without a compiler.
    readers[PILLOW]._backend._has_planes = False  # type: ignore[attr-defined]
    for reader in readers.values():
        next(iter(reader))
    epochs = {name: _epoch(reader) for name, reader in readers.items()}
    return measure.interleave(
        epochs, rounds, lambda name, rate: measure.say(f"{name}: {rate:,.0f}")
    )


def _opened(root: Path, side: int, **how: Any) -> Reader:
    return make_dataset(
        root,
        "train",
        BATCH,
        side,
        training=False,
        world=World(),
        backend="native",
        dtype="uint8",
        **how,
    )


def _epoch(reader: Reader) -> Callable[[], float]:
    def epoch() -> float:
        reader.restore(reader.state() | {"examples_read": 0})
        start = time.process_time()
        seen = 0
        for batch in reader:
            seen += int(batch["mask"].sum())
        return seen / (time.process_time() - start)

    return epoch


def render(rates: dict[str, list[float]]) -> str:
    """Returns a table: medians, and ratios within a round."""
    return measure.rate_table(rates, "speed, Pillow = 1", operator.truediv, PILLOW)


def main() -> None:
    """Runs it from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.square", description=__doc__)
    parser.add_argument("--images", type=int, default=1_500)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, default=measure.SCRATCH)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rates = run(args.scratch, args.images, args.side, args.rounds)
    title = f"square: {args.images:,} images, short side {SHORT_SIDE}, {args.side} px, uint8"
    measure.finish(title, render(rates), rates, args.json)


if __name__ == "__main__":
    main()
