"""From TFRecord shards to smaller ones: the floor, our resize, and the AWS tutorial's loop.

python -m benchmarks.resize
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import measure

QUALITY = 85
NUM_SHARDS = 16
WORKERS = 2
_FLOOR_ARRAYS = 64

FLOOR = "floor"
OURS = "ours, 2 threads"
OURS_1 = "ours, 1 worker"
TUTORIAL = "tutorial's loop"
TUTORIAL_2 = "tutorial's loop, 2 at once"


@dataclass
class Result:
    """One row of one round.

    Attributes:
      images: written.
      clock_s: by the program's own clock, without imports.
      wall_s: the complete process.
      cpu_s: of all processes.
      pss_mb: peak.
      bytes_out: written, without work files; 0 for the floor.
    """

    images: int
    clock_s: float
    wall_s: float
    cpu_s: float
    pss_mb: float
    bytes_out: int


class Bench:
    """The rows over one dataset of shards."""

    def __init__(self, source: Path, scratch: Path, short_side: int) -> None:
        self.source = source
        self.scratch = scratch
        self.short_side = short_side

    def rows(self) -> dict[str, Callable[[], Result]]:
        """Returns the measured rows by name."""
        return {
            FLOOR: partial(self._job, "floor", WORKERS),
            OURS: partial(self._ours, WORKERS),
            OURS_1: partial(self._ours, 1),
            TUTORIAL: partial(self._job, "tutorial", 1),
            TUTORIAL_2: partial(self._job, "tutorial", WORKERS),
        }

    def _ours(self, workers: int) -> Result:
        out = self._empty()
        flags = ["-r", self.short_side, "-Q", QUALITY, "--workers", workers, "--json"]
        argv = [sys.executable, "-m", "imagenet_prep.resize", "-i", self.source, "-o", out]
        run = measure.run([*argv, "--worker-kind", "threads", *map(str, flags)])
        summary = json.loads(run.stdout)
        return self._result(run, summary["written_examples"], summary["seconds"])

    def _job(self, tool: str, workers: int) -> Result:
        out = self._empty()
        out.mkdir()
        job = [tool, self.source, out, self.short_side, workers]
        python = [sys.executable, "-m", "benchmarks.resize", "--job"]
        run = measure.run([*python, json.dumps(list(map(str, job)))])
        images, seconds = json.loads(run.stdout.splitlines()[-1])
        return self._result(run, images, seconds)

    def _empty(self) -> Path:
        """Returns a new folder path, with the input in the page cache and no unwritten bytes."""
        out = self.scratch / "out"
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        for path in _shards(self.source):
            path.read_bytes()
        return out

    def _result(self, run: measure.Run, images: int, clock_s: float) -> Result:
        shards = (self.scratch / "out").glob("train-*")
        return Result(
            images=images,
            clock_s=clock_s,
            wall_s=run.wall_s,
            cpu_s=run.cpu_s,
            pss_mb=run.peak().pss_mb,
            bytes_out=sum(path.stat().st_size for path in shards),
        )


def corpus(scratch: Path, images: int, size: tuple[int, int]) -> Path:
    """Returns a dataset of shards with the original images, made on the first call."""
    final = scratch / f"shards-{images}-{size[0]}x{size[1]}"
    if not final.is_dir():
        archives = measure.corpus(scratch, images, size)
        partial_ = final.with_suffix(".partial")
        flags = ["--keep-original", "--train-shards", str(NUM_SHARDS), "--allow-subset"]
        measure.run(measure.prepare_argv(archives, partial_, *flags))
        partial_.rename(final)
    return final


def render(results: dict[str, list[Result]]) -> str:
    """Returns the table: speed, and its ratio to the floor and to the tutorial's loop."""
    rows = []
    for name, rounds in results.items():
        rows.append(
            (
                name,
                f"{measure.median([r.images / r.clock_s for r in rounds]):,.0f}",
                _ratio(rounds, results.get(FLOOR)),
                _ratio(rounds, results.get(TUTORIAL)),
                f"{measure.median([r.images / r.wall_s for r in rounds]):,.0f}",
                f"{measure.median([r.cpu_s / r.images * 1000 for r in rounds]):.2f}",
                f"{max(r.pss_mb for r in rounds):,.0f}",
                f"{rounds[-1].bytes_out / 1e6:,.0f}",
            )
        )
    header = (
        "",
        "images/s",
        "of floor",
        "of tutorial",
        "whole process",
        "CPU ms/image",
        "PSS MB",
        "MB out",
    )
    return measure.table(header, rows)


def _ratio(rounds: Sequence[Result], others: Sequence[Result] | None) -> str:
    if not others:
        return "-"
    pairs = zip(rounds, others, strict=True)
    return f"{measure.median([o.clock_s / r.clock_s for r, o in pairs]):.2f}"


# The rest runs in separate processes.


def work(tool: str, source: Path, out: Path, short_side: int, workers: int) -> tuple[int, float]:
    """Runs a job with forked workers; returns images and seconds without the start."""
    import multiprocessing

    context = multiprocessing.get_context("fork" if tool == "floor" else "spawn")
    shards = _shards(source)
    ready = context.Barrier(workers + 1)
    start = context.Barrier(workers + 1)
    counts = context.SimpleQueue()
    processes = [
        context.Process(
            target=_TOOLS[tool], args=(shards[i::workers], out, short_side, ready, start, counts)
        )
        for i in range(workers)
    ]
    for process in processes:
        process.start()
    ready.wait()
    begun = time.perf_counter()
    start.wait()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"{tool}: a worker ended with {process.exitcode}")
    return sum(counts.get() for _ in processes), time.perf_counter() - begun


def _floor(shards, _out, short_side, ready, start, counts) -> None:
    """Decodes and encodes without writing; encodes images that were resized beforehand."""
    import cv2
    import numpy as np

    from tests.kit.codec import jpegs

    arrays = []
    for data in _images(shards[0]):
        pixels = jpegs.decode_strictly(data)
        factor = min(1.0, short_side / min(pixels.shape[:2]))
        height, width = (max(1, round(side * factor)) for side in pixels.shape[:2])
        shrunk = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
        arrays.append(np.ascontiguousarray(shrunk))
        if len(arrays) == _FLOOR_ARRAYS:
            break
    ready.wait()
    start.wait()
    count = 0
    for shard in shards:
        for data in _images(shard):
            jpegs.decode_strictly(data)
            jpegs.encode(arrays[count % len(arrays)], QUALITY, "420")
            count += 1
    counts.put(count)


def _tutorial(shards, out, short_side, ready, start, counts) -> None:
    """The tutorial's resizer in today's TensorFlow: decode, bilinear, encode, image by image."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    keys = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/filename": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        "image/class/synset": tf.io.FixedLenFeature([], tf.string),
    }

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def step(payload):
        row = tf.io.parse_single_example(payload, keys)
        pixels = tf.io.decode_jpeg(row["image/encoded"], channels=3)
        sides = tf.cast(tf.shape(pixels)[:2], tf.float32)
        scale = tf.minimum(short_side / tf.reduce_min(sides), 1.0)
        small = tf.image.resize(pixels, tf.cast(sides * scale, tf.int32), "bilinear")
        encoded = tf.io.encode_jpeg(
            tf.cast(small, tf.uint8), quality=QUALITY, optimize_size=True, chroma_downsampling=True
        )
        return encoded, row["image/filename"], row["image/class/label"], row["image/class/synset"]

    warm = next(iter(tf.data.TFRecordDataset(str(shards[0]))))
    step(warm)
    ready.wait()
    start.wait()
    count = 0
    for shard in shards:
        with tf.io.TFRecordWriter(str(out / shard.name)) as writer:
            for payload in tf.data.TFRecordDataset(str(shard)):
                encoded, filename, label, synset = (value.numpy() for value in step(payload))
                example = tf.train.Example()
                feature = example.features.feature
                feature["image/encoded"].bytes_list.value.append(encoded)
                feature["image/filename"].bytes_list.value.append(filename)
                feature["image/class/label"].int64_list.value.append(label)
                feature["image/class/synset"].bytes_list.value.append(synset)
                writer.write(example.SerializeToString())
                count += 1
    counts.put(count)


_TOOLS = {"floor": _floor, "tutorial": _tutorial}


def _images(shard: Path) -> Iterator[bytes]:
    from imagenet_prep.dataset import example, record_files

    with shard.open("rb") as stream:
        for record in record_files.read_records(stream, shard.name):
            yield example.decode(record.payload).encoded


def _shards(source: Path) -> list[Path]:
    return sorted(source.glob("train-*"))


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints, or runs one job for a measuring run."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.resize")
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--size", type=int, nargs=2, default=(500, 375), metavar=("W", "H"))
    parser.add_argument("--short-side", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=measure.SCRATCH)
    parser.add_argument("--json", type=Path, help="keep raw figures here")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.job:
        tool, source, out, short_side, workers = json.loads(args.job)
        print(json.dumps(work(tool, Path(source), Path(out), int(short_side), int(workers))))
        return
    source = corpus(args.scratch, args.images, (args.size[0], args.size[1]))
    bench = Bench(source, args.scratch, args.short_side)

    def watch(name: str, result: Result) -> None:
        measure.say(f"{name}: {result.images / result.clock_s:,.0f} images/s")

    results = measure.interleave(bench.rows(), args.rounds, watch)
    title = (
        f"resize: {args.images:,} images in {NUM_SHARDS} shards to {args.short_side} px and "
        f"q{QUALITY}, {args.rounds} rounds"
    )
    raw = {name: [dataclasses.asdict(r) for r in rounds] for name, rounds in results.items()}
    measure.finish(title, render(results), raw, args.json)


if __name__ == "__main__":
    main()
