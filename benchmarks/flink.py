"""The same images prepared by this machine's workers, and by two TaskManagers of Flink on it.

python -m benchmarks.flink
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import measure
from tests.kit import flink

HERE, CLUSTER = "this machine, 2 threads", "Flink, 2 TaskManagers"
# At least so much of the local engine's rate.
BAR = 0.8


@dataclass
class Result:
    """One run.

    Attributes:
      images: written.
      start_s: from the plan to the first shard's begin: job server, submission, worker processes.
      shards_s: from there to the end of the last shard.
      wall_s: all.
    """

    images: int
    start_s: float
    shards_s: float
    wall_s: float

    @property
    def rate(self) -> float:
        """Images a second while shards are written."""
        return self.images / self.shards_s


def measure_one(source: Path, out: Path, shards: int, short_side: int, *more: str) -> Result:
    """Prepares once and removes the result."""
    flags: list[str | int] = ["--short-side", short_side, "--train-shards", shards]
    # The archive's md5 is one long task, which would hide how shards are dealt out.
    flags += ["--allow-subset", "--check", "header", "--workers", 2, "--worker-kind", "threads"]
    try:
        run = measure.run(measure.prepare_argv(source, out, *flags, *more), sample=False)
        spans = measure.phases(out, run.start_s, run.wall_s)
        images = json.loads(run.stdout)["written_examples"]
        return Result(
            images=images,
            start_s=spans["launch"][1] - spans["launch"][0],
            shards_s=spans["shards"][1] - spans["shards"][0],
            wall_s=run.wall_s,
        )
    finally:
        shutil.rmtree(out, ignore_errors=True)


def compare(
    cluster: flink.Cluster, source: Path, out: Path, shards: int, short_side: int, rounds: int
) -> dict[str, list[Result]]:
    """Returns the runs of both, in turn."""
    fixed = source, out, shards, short_side
    rows = {
        HERE: lambda: measure_one(*fixed),
        CLUSTER: lambda: measure_one(*fixed, "--", *cluster.options()),
    }
    return measure.interleave(
        rows, rounds, lambda name, r: measure.say(f"{name}: {r.rate:,.0f} images/s")
    )


def render(results: dict[str, list[Result]]) -> str:
    """Returns the table, and the verdict."""
    rows = []
    for name, runs in results.items():
        rate, start, wall = (
            measure.median(values)
            for values in (
                [run.rate for run in runs],
                [run.start_s for run in runs],
                [run.wall_s for run in runs],
            )
        )
        rows.append((name, f"{rate:,.0f}", f"{start:,.1f}", f"{wall:,.1f}"))
    here, there = (measure.median([run.rate for run in results[name]]) for name in (HERE, CLUSTER))
    verdict = "met" if there / here >= BAR else "MISSED"
    header = ("", "images/s while writing", "s until the first shard", "s in all")
    return f"{measure.table(header, rows)}\n\nRatio {there / here:.2f} >= {BAR}: {verdict}"


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.flink")
    parser.add_argument("--images", type=int, default=24_000)
    parser.add_argument("--size", type=int, nargs=2, default=(500, 375))
    parser.add_argument("--short-side", type=int, default=256)
    parser.add_argument("--shards", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--scratch", type=Path, default=measure.SCRATCH)
    parser.add_argument("--json", type=Path, help="keep raw figures here")
    args = parser.parse_args(argv)
    if lack := flink.lacking():
        parser.error(lack)
    source = measure.corpus(args.scratch, args.images, tuple(args.size))
    out = args.scratch / "flink-out"
    with tempfile.TemporaryDirectory() as logs, flink.cluster(Path(logs)) as cluster:
        results = compare(cluster, source, out, args.shards, args.short_side, args.rounds)
    width, height = args.size
    title = (
        f"flink: {args.images:,} images of about {width}x{height} to a shorter side of "
        f"{args.short_side}, {args.shards} shards, --check header, median of {args.rounds}"
    )
    raw = {name: [asdict(run) for run in runs] for name, runs in results.items()}
    measure.finish(title, render(results), raw, args.json)


if __name__ == "__main__":
    main()
