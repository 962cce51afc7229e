"""The speed of `export` for folders and TFDS's files, compared with a plain copy of equal bytes.

python -m benchmarks.export

In turns on the same disk: two processes copy the shards, two write one file per image with the
images' sizes, and `export` runs with two workers. All end when the bytes are on the disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import measure
from tests.kit.tfrecords import plain

_SPLIT = "train"
_WORKERS = 2


def write_images(root: Path, images: int, num_bytes: int) -> None:
    """Writes folders of JPEGs of one size, most of which is noise in comments."""
    noise = os.urandom(num_bytes + images)
    for number in range(images):
        wnid = f"n{number % 100:08d}"
        data = plain(number % 200)
        room = max(0, num_bytes - len(data))
        at = number
        comments = b""
        while room > 4:
            size = min(room - 4, 65_533)
            comments += b"\xff\xfe" + (size + 2).to_bytes(2, "big") + noise[at : at + size]
            room = room - size - 4
            at = at + size
        path = root / _SPLIT / wnid / f"{wnid}_{number}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[:2] + comments + data[2:])


def _copy(files: Sequence[Path], out: Path) -> None:
    for path in files:
        shutil.copyfile(path, out / path.name)


def _scatter(files: Sequence[Path], out: Path, size: int) -> None:
    """Writes a file for each `size` bytes of some files."""
    for path in files:
        with path.open("rb") as file:
            number = 0
            while data := file.read(size):
                place = out / f"n{number % 100:08d}"
                place.mkdir(exist_ok=True)
                (place / f"{path.name}_{number}.JPEG").write_bytes(data)
                number += 1


def _in_two(work: Callable[..., None], files: Sequence[Path], *more: object) -> None:
    parts = [(files[at::_WORKERS], *more) for at in range(_WORKERS)]
    measure.side_by_side(work.__name__, work, parts)


def _timed(out: Path, work: Callable[[], object]) -> float:
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    out.mkdir()
    start = time.perf_counter()
    work()
    os.sync()
    seconds = time.perf_counter() - start
    shutil.rmtree(out)
    return seconds


def run(images: int, num_bytes: int, rounds: int, at: Path) -> dict[str, list[float]]:
    """Returns the seconds of each kind, one number per round."""
    write_images(at / "source", images, num_bytes)
    program = [sys.executable, "-m", "imagenet_prep"]
    dataset = at / "set"
    out = at / "out"
    prepare = ["prepare", "--source", str(at / "source"), "--out", str(dataset), "--splits", _SPLIT]
    prepare += ["--keep-original", "--allow-subset", "--train-shards", str(max(4, images // 500))]
    subprocess.run(
        [*program, *prepare, "--check", "header", "--json"], check=True, stdout=subprocess.DEVNULL
    )
    shards = sorted(dataset.glob(f"{_SPLIT}-*"))

    def export(to: str) -> Callable[[], object]:
        words = ["export", str(dataset), "--to", to, "--out", str(out / "in"), "--json"]
        words += ["--workers", str(_WORKERS)]
        return lambda: subprocess.run([*program, *words], check=True, stdout=subprocess.DEVNULL)

    kinds: dict[str, Callable[[], object]] = {
        "copy": lambda: _in_two(_copy, shards, out),
        "tfds": export("tfds"),
        "files": lambda: _in_two(_scatter, shards, out, num_bytes),
        "folder": export("folder"),
        "webdataset": export("webdataset"),
        "parquet": export("parquet"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, work in kinds.items():
            seconds[name].append(_timed(out, work))
    return seconds


def render(seconds: dict[str, list[float]], images: int, num_bytes: int) -> str:
    """Returns a table: medians, and the speed relative to the compared row."""
    rows = []
    for name, times in seconds.items():
        beside = seconds["files" if name in ("files", "folder") else "copy"]
        share = statistics.median(o / t for o, t in zip(beside, times, strict=True))
        median = statistics.median(times)
        rows.append(
            (
                name,
                f"{median:.2f}",
                f"{images * num_bytes / median / 1e6:,.0f}",
                f"{images / median:,.0f}",
                f"{share:.2f}",
            )
        )
    return measure.table(
        ("", "seconds", "MB/s", "images/s", "of a copy, or of as many files"), rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export", description=__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=110_000, help="of an image")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=measure.SCRATCH, help="on the disk to measure")
    flags = parser.parse_args()
    flags.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=flags.dir) as at:
        seconds = run(flags.images, flags.bytes, flags.rounds, Path(at))
    print(render(seconds, flags.images, flags.bytes))


if __name__ == "__main__":
    main()
