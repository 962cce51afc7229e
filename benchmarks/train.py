"""Steps of the trainer: without input, with real input, and on two ranks.

python -m benchmarks.train                          # tiny, on the CPU
python -m benchmarks.train --model resnet50 --batch-size 16 --image-size 128 --steps 20

Rows alternate within each round; figures are medians of the rounds. One and two ranks have one core
per rank, so a second rank only adds communication.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import measure
from imagenet_prep import bench_train

SYNTHETIC = "1 rank, noise"
REAL = "1 rank, real input"
ONE_CORE = "1 rank on 1 core, noise"
TWO_RANKS = "2 ranks, 1 core per rank, noise"
_IMAGENET = 1_281_167


def dataset(folder: Path, images: int) -> Path:
    """Returns a prepared miniature, made on the first call."""
    final = folder / f"train-set-{images}"
    if not (final / "dataset.json").is_file():
        corpus = measure.corpus(folder, images, (500, 375))
        command = [
            "prepare",
            "--source",
            str(corpus),
            "--out",
            str(final),
            "--splits",
            "train",
            "--short-side",
            "256",
            "--train-shards",
            "8",
            "--allow-subset",
        ]
        subprocess.run([sys.executable, "-m", "imagenet_prep", *command], check=True)
    return final


def speed(settings: argparse.Namespace, row: str, data: Path | None) -> float:
    """Returns images per second of one run after its warm-up."""
    ranks = 2 if row == TWO_RANKS else 1
    batch = ranks * settings.batch_size
    images = _IMAGENET
    if data is not None:
        images = json.loads((data / "dataset.json").read_text())["splits"]["train"]["examples"]
    with tempfile.TemporaryDirectory() as log_dir:
        command = [
            "train",
            "--model",
            settings.model,
            "--image-size",
            str(settings.image_size),
            "--batch-size",
            str(settings.batch_size),
            "--log-dir",
            log_dir,
            "--num-epochs",
            repr((settings.steps + 0.5) * batch / images),
            "--display-every",
            str(max(1, settings.steps // 8)),
            "--lr",
            "0.001",
            *(["--synthetic"] if data is None else ["--data-dir", str(data), "--no-evaluation"]),
        ]
        if ranks > 1:
            command = ["launch", "-np", "2", "--", *command]
        cores = sorted(os.sched_getaffinity(0))[: 1 if row == ONE_CORE else 2]
        done = subprocess.run(
            [sys.executable, "-m", "imagenet_prep", *command],
            check=False,
            capture_output=True,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        if done.returncode:
            raise RuntimeError(f"{row}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        lines = (Path(log_dir) / "train.jsonl").read_text().splitlines()
        return bench_train.settled(json.loads(line) for line in lines)


def shares(speeds: dict[str, float]) -> dict[str, float]:
    """Returns the shares of a step that are spent waiting for input, and for the other rank."""
    found = {"input": max(0.0, 1 - speeds[REAL] / speeds[SYNTHETIC])}
    if TWO_RANKS in speeds:
        found["communication"] = max(0.0, 1 - speeds[TWO_RANKS] / (2 * speeds[ONE_CORE]))
    return found


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="tiny", choices=("tiny", "resnet50"))
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one-rank", action="store_true", help="leave out what needs Horovod")
    parser.add_argument("--scratch", type=Path, default=measure.SCRATCH)
    settings = parser.parse_args(argv)
    data = dataset(settings.scratch, settings.images)
    names = [SYNTHETIC, REAL] + ([] if settings.one_rank else [ONE_CORE, TWO_RANKS])
    rounds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(settings.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rounds[name].append(speed(settings, name, data if name == REAL else None))
    speeds = {name: statistics.median(values) for name, values in rounds.items()}
    print(
        json.dumps(
            {
                "model": settings.model,
                "batch_size": settings.batch_size,
                "image_size": settings.image_size,
                "images_per_s": speeds,
                "rounds": rounds,
                "shares": shares(speeds),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
