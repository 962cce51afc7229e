"""What the options of a reader cost: filters, several views, and views of several sizes.

python -m benchmarks.views
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import measure
from imagenet_prep.core.world import World
from imagenet_prep.read import Reader, View, make_dataset

BATCH = 64
ONE = "one crop, bilinear"
MULTI = [
    View(count=2, image_size=224, area=(0.32, 1.0)),
    View(count=8, image_size=96, area=(0.05, 0.32)),
]
ROWS: dict[str, dict[str, Any]] = {
    ONE: {},
    "one crop, bilinear, antialiased": {"antialias": True},
    "one crop, bicubic": {"filter": "bicubic"},
    "two crops": {"views": 2},
    "two of 224 and eight of 96 px": {"views": MULTI},
    "two of 224 and eight of 96 px, bicubic": {"views": MULTI, "filter": "bicubic"},
    "stored bytes, not decoded": {"fields": ("encoded", "class_index", "mask")},
}


def run(scratch: Path, images: int, rounds: int) -> dict[str, list[float]]:
    """Returns the images that are read per CPU second, by row and round."""
    source = measure.corpus(scratch, images, (500, 375))
    out = scratch / f"views-{images}"
    if not (out / "dataset.json").is_file():
        argv = measure.prepare_argv(source, out, "--allow-subset", "--keep-original")
        measure.run(argv, sample=False)
    epochs = {name: _epoch(_opened(out, **how)) for name, how in ROWS.items()}
    for epoch in epochs.values():
        epoch()
    return measure.interleave(
        epochs, rounds, lambda name, rate: measure.say(f"{name}: {rate:,.0f}")
    )


def _opened(root: Path, **how: Any) -> Reader:
    usual = {"training": True, "world": World(), "backend": "native", "dtype": "uint8"}
    return make_dataset(root, "train", BATCH, 224, **usual | {"num_threads": 1} | how)


def _epoch(reader: Reader) -> Callable[[], float]:
    def epoch() -> float:
        start = time.process_time()
        seen = 0
        for batch in reader:
            seen += len(batch["class_index"])
        return seen / (time.process_time() - start)

    return epoch


def render(rates: dict[str, list[float]]) -> str:
    """Returns a table: medians, and ratios within a round."""
    return measure.rate_table(rates, "cost, one crop = 1", lambda rate, one: one / rate, ONE)


def main() -> None:
    """Runs it from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.views", description=__doc__)
    parser.add_argument("--images", type=int, default=1_500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, default=measure.SCRATCH)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rates = run(args.scratch, args.images, args.rounds)
    title = f"views: {args.images:,} images of about 500x375, 224 px, uint8, one thread"
    measure.finish(title, render(rates), rates, args.json)


if __name__ == "__main__":
    main()
