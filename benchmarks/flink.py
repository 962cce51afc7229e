"""The same images prepared by workers of this machine, and by two TaskManagers of Flink on it.

python -m benchmarks.flink
python -m benchmarks.flink --s3
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import measure, write
from imagenet_prep.storage import remote_path
from imagenet_prep.storage.store import Store, open_store
from tests.kit.flink import Flink

HERE = "this machine, 2 threads"
CLUSTER = "Flink, 2 TaskManagers"
# The required share of the local engine's rate, and of the rate with local archives.
BAR = 0.8
# Between two TaskManagers, all into a bucket; the archives are local, or in the bucket too.
TO_S3 = "local archives, into S3"
S3 = "archives in S3, into S3"
S3_AGAIN = "archives in S3, into S3, second dataset"


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
        """Images per second while shards are written."""
        return self.images / self.shards_s


def measure_one(source: Path, out: Path, shards: int, short_side: int, *more: str) -> Result:
    """Prepares once and removes the result."""
    flags: list[str | int] = ["--short-side", short_side, "--train-shards", shards]
    # The archive's md5 is one long task, which would hide how shards are distributed.
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
    cluster: Flink, out: Path, source: Path, shards: int, short_side: int, rounds: int
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


@dataclass
class ByS3:
    """One run of a cluster into a bucket.

    Attributes:
      images: written.
      clock_s: of the complete run, by its own clock.
      cpu_s: of the workers, which read, decode and write; not of Flink, the server or the relay.
    """

    images: int
    clock_s: float
    cpu_s: float


def measure_s3(
    cluster: Flink, s3: write.OnS3, source: Path | str, shards: int, short_side: int
) -> ByS3:
    """Prepares once into the bucket and removes the result; lists of archives stay."""
    sets = _sets(s3)
    flags: list[str | int] = ["--short-side", short_side, "--train-shards", shards]
    flags += ["--allow-subset", "--", *cluster.options()]
    before = _of_workers(cluster)
    run = measure.run(measure.prepare_argv(source, sets.where("out"), *flags), sample=False)
    cpu_s = sum(now - before.get(pid, 0.0) for pid, now in _of_workers(cluster).items())
    summary = json.loads(run.stdout)
    sets.remove_tree("out")
    return ByS3(summary["written_examples"], summary["seconds"], cpu_s)


def _sets(s3: write.OnS3) -> Store:
    """Returns the locations of the datasets, next to the archives."""
    return open_store(s3.address.rpartition("/")[0] + "/sets")


def _of_workers(cluster: Flink) -> dict[int, float]:
    """Returns the CPU seconds of each worker. They stay for ten seconds after their job."""
    return {pid: _cpu_seconds(pid) for pid in cluster.workers()}


def _cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process; 0 if it has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0.0
    # Fields 14 and 15 of proc(5); the first word after the name is field 3.
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def compare_s3(
    cluster: Flink, s3: write.OnS3, source: Path, shards: int, short_side: int, rounds: int
) -> dict[str, list[ByS3]]:
    """Returns the runs with local archives and with archives in the bucket, in turns."""

    def first() -> ByS3:
        _sets(s3).remove_tree(remote_path.LISTS_FOLDER)
        return again()

    def watch(name: str, run: ByS3) -> None:
        each = 1000 * run.cpu_s / run.images
        measure.say(f"{name}: {run.images / run.clock_s:,.0f} images/s, {each:.2f} ms of CPU each")

    again = partial(measure_s3, cluster, s3, s3.address, shards, short_side)
    here = partial(measure_s3, cluster, s3, source, shards, short_side)
    # Every round starts with an existing dataset and its lists.
    return measure.interleave({TO_S3: here, S3: first, S3_AGAIN: again}, rounds, watch)


def render_s3(results: dict[str, list[ByS3]]) -> str:
    """Returns the table, and the verdict."""
    rows = []
    of_here = {}
    for name, runs in results.items():
        pairs = [*zip(results[TO_S3], runs, strict=True)]
        of_here[name] = measure.median([here.clock_s / run.clock_s for here, run in pairs])
        by_cpu = measure.median([here.cpu_s / run.cpu_s for here, run in pairs])
        rate = measure.median([run.images / run.clock_s for run in runs])
        each = measure.median([1000 * run.cpu_s / run.images for run in runs])
        rows.append((name, f"{rate:,.0f}", f"{of_here[name]:.2f}", f"{each:.2f}", f"{by_cpu:.2f}"))
    header = (
        "",
        "images/s",
        "relative to local archives",
        "workers' CPU ms/image",
        "relative, by CPU",
    )
    verdict = "met" if of_here[S3] >= BAR else "MISSED"
    return f"{measure.table(header, rows)}\n\nRatio {of_here[S3]:.2f} >= {BAR}: {verdict}"


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
    parser.add_argument(
        "--s3", action="store_true", help="compare archives in S3 with local archives"
    )
    parser.add_argument("--scratch", type=Path, default=measure.SCRATCH)
    parser.add_argument("--json", type=Path, help="keep raw figures here")
    args = parser.parse_args(argv)
    lack = Flink.lacking()
    if lack:
        parser.error(lack)
    source = measure.corpus(args.scratch, args.images, tuple(args.size))
    fixed = source, args.shards, args.short_side, args.rounds
    results: dict[str, list[Any]]
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if args.s3:
            s3 = stack.enter_context(write.on_s3(source, args.scratch))
            os.environ.update(s3.environment)
            cluster = stack.enter_context(Flink.running(logs, s3.environment))
            results = compare_s3(cluster, s3, *fixed)
            check = ""
            text = render_s3(results)
        else:
            cluster = stack.enter_context(Flink.running(logs))
            results = compare(cluster, args.scratch / "flink-out", *fixed)
            text = render(results)
            check = "--check header, "
    width, height = args.size
    title = (
        f"flink: {args.images:,} images of about {width}x{height} to a shorter side of "
        f"{args.short_side}, {args.shards} shards, {check}median of {args.rounds}"
    )
    raw = {name: [asdict(run) for run in runs] for name, runs in results.items()}
    measure.finish(title, text, raw, args.json)


if __name__ == "__main__":
    main()
