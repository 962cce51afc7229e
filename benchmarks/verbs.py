"""The CPU time of verbs by images, megabytes and shards, from which docs/sizing.md predicts it.

python -m benchmarks.verbs

Four small datasets give the four numbers of each verb: they are the solution of a system of four
equations. The large dataset shows whether they predict its CPU time.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import capacity, measure, scale
from imagenet_prep.dataset import samples

_SPLIT = "train"


class Size(NamedTuple):
    """A dataset: its images, shards, and the bytes of its shards (0 before it is prepared)."""

    images: int
    shards: int
    tiny: bool
    num_bytes: int = 0

    @property
    def name(self) -> str:
        """The dataset in words."""
        kind = "300 bytes" if self.tiny else "500x375 pixels"
        return f"{self.images:,} of {kind}, {self.shards:,} shards"


def sizes(images: int) -> list[Size]:
    """Returns four small datasets, from which the four numbers can be computed, and the large one.

    Each has an image of each of the 1,000 classes.
    """
    return [
        Size(max(1_000, images // 100), 64, tiny=True),
        Size(images // 4, 64, tiny=True),
        Size(images // 4, 1_024, tiny=True),
        Size(max(1_000, images // 50), 64, tiny=False),
        Size(images, 1_024, tiny=True),
    ]


def source_of(size: Size, scratch: Path) -> Path:
    """Returns the archives of a dataset of 1,000 classes, made on the first call."""
    source = scratch / f"verbs-{'tiny' if size.tiny else 'photographs'}-{size.images}"
    if not source.exists():
        partial = source.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        pictures = () if size.tiny else photographs(scratch)
        scale.make_source(partial, scale.Row(size.name, size.images, 0, size.shards), pictures)
        partial.rename(source)
    return source


def photographs(scratch: Path) -> list[bytes]:
    """Returns JPEGs of 500x375 pixels."""
    archive = measure.corpus(scratch, 64, (500, 375)) / measure.TRAIN_ARCHIVE
    return [*map(measure.member_reader(archive), measure.members(archive))]


def commands(size: Size, scratch: Path) -> Iterator[tuple[str, list[str | Path]]]:
    """Yields the verbs in the order in which they run, each with its command line."""
    out = scratch / "verbs-out"
    program = [sys.executable, "-m", "imagenet_prep"]
    fixed = ("--keep-original", "--allow-subset", "--train-shards", size.shards)
    source = source_of(size, scratch)
    header = measure.prepare_argv(source, scratch / "verbs-header", "--check", "header", *fixed)
    yield capacity.PREPARE_HEADER.name, [*header]
    yield capacity.PREPARE_DECODED.name, [*measure.prepare_argv(source, out, *fixed)]
    for cost, level in (
        (capacity.VERIFY_MANIFEST, "manifest"),
        (capacity.VERIFY_CRC, "crc"),
        (capacity.VERIFY_DECODE, "decode"),
    ):
        yield cost.name, [*program, "verify", out, "--level", level]
    table = next((out / "samples").glob(f"{_SPLIT}-*"))
    with open(table, "rb") as file:
        first = next(samples.parse(samples.read_lines(file), table.name))
    excluded = scratch / "verbs-excluded"
    excluded.write_text(f"{first.key}\n")
    amended = scratch / "verbs-amended"
    yield capacity.AMEND.name, [*program, "amend", out, "--out", amended, "--exclude", excluded]
    yield capacity.REPLICATE.name, [*program, "replicate", out, "--to", scratch / "verbs-copy"]


def measured(size: Size, scratch: Path) -> tuple[Size, dict[str, float]]:
    """Runs all verbs on a dataset; returns its size with its bytes, and CPU seconds by verb."""
    places = [scratch / f"verbs-{name}" for name in ("header", "out", "amended", "copy")]
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    try:
        seconds = {}
        for name, argv in commands(size, scratch):
            seconds[name] = measure.run(argv, sample=False).cpu_s
        shards = (scratch / "verbs-out").glob(f"{_SPLIT}-*")
        return size._replace(num_bytes=sum(path.stat().st_size for path in shards)), seconds
    finally:
        for place in places:
            shutil.rmtree(place, ignore_errors=True)


def fitted(found: Sequence[tuple[Size, dict[str, float]]]) -> list[capacity.Cost]:
    """Returns the costs of the verbs that explain the CPU seconds of as many datasets."""
    equations = [(1, size.images, size.num_bytes, size.shards) for size, _ in found]
    costs = []
    for name in found[0][1]:
        seconds = [by_verb[name] for _, by_verb in found]
        solution = np.linalg.solve(equations, seconds)
        # Noise makes a cost of about 0 negative.
        start_s, image_s, byte_s, shard_s = np.maximum(solution, 0).tolist()
        costs.append(capacity.Cost(name, start_s, image_s * 1e6, byte_s * 1e9, shard_s * 1e3))
    return costs


def median_of(
    rounds: Sequence[tuple[Size, dict[str, float]]],
) -> tuple[Size, dict[str, float]]:
    """Returns the size of a dataset, and the median CPU seconds by verb."""
    size, first = rounds[0]
    return size, {verb: measure.median([seconds[verb] for _, seconds in rounds]) for verb in first}


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.verbs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=200_000, help="of the large dataset")
    parser.add_argument("--scratch", type=Path, default=measure.SCRATCH)
    parser.add_argument("--json", type=Path, help="keep raw figures here")
    args = parser.parse_args(argv)
    args.scratch.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Callable[[], tuple[Size, dict[str, float]]]] = {
        size.name: functools.partial(measured, size, args.scratch) for size in sizes(args.images)
    }
    results = measure.interleave(rows, args.rounds, lambda name, _: measure.say(name))
    *small, (size, seconds) = [median_of(rounds) for rounds in results.values()]
    costs = fitted(small)
    comparison = []
    for cost in costs:
        predicted = capacity.cpu_s(cost, size.images, size.num_bytes, size.shards)
        found = seconds[cost.name]
        ratio = predicted / found
        comparison.append((cost.name, f"{found:.2f}", f"{predicted:.2f}", f"{ratio:.2f}"))
    header = ("CPU s", "measured", "predicted", "ratio")
    text = f"{capacity.costs_table(costs)}\n\n{size.name}:\n\n{measure.table(header, comparison)}"
    measure.finish("verbs by images, bytes and shards", text, results, args.json)


if __name__ == "__main__":
    main()
