"""Runs damaged JPEGs of every frame type through all decoders, under sanitizers.

python -m tests.kit.codec.fuzz_opening --files 300_000 --seed 1 --log build/fuzz-opening.log

Our C is compiled with ASAN and UBSAN; their allocator also serves Python and all other libraries.
These are not instrumented, so libjpeg decodes into memory of the harness, which notices each byte
that is written behind it. Each line of the log is a batch: its seed, the number of files, and
how often each call accepted one. A report ends the run with an error; the file is then stored as
crash.jpg.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_prep.codec import decoding, likeness, planes, transform
from imagenet_prep.codec.policy import PORTABLE, Policy
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.read import decoder
from imagenet_prep.reporting import sample
from tests.kit.codec import frames, mutations
from tests.kit.codec.native import SANITIZED, link
from tests.kit.command import REPOSITORY

MODULE = "tests.kit.codec.fuzz_opening"
BATCH = 5_000
SIZE = (52, 36)  # small files have the same structures and decode fast
MAX_PIXELS = 200_000
_CODEC = REPOSITORY / "imagenet_prep" / "codec"
_SOURCES = ("planes.c", "decoder.c", "encoder.c", "likeness.c")
_CANARY = 0xA5
_CANARY_BYTES = 4096


def _policy(**settings: Any) -> Callable[[bytes], object]:
    policy = Policy(**{"max_pixels": MAX_PIXELS, **settings})
    return lambda data: transform.transform(data, policy)


CALLS: dict[str, Callable[[bytes], object]] = {
    "keep": _policy(short_side=None),
    "shrink": _policy(short_side=3),
    "portable": _policy(short_side=3, codec=PORTABLE),
    "header": _policy(short_side=None, check="header"),
    "border": _policy(short_side=8, border=2),
    "apply": _policy(short_side=20, orientation="apply"),
    "adopt": transform.keep,
    "verify": lambda data: transform.prove_stored(data, 1, 1, any_size=True, any_colorspace=True),
    "means": likeness.means,
    "digest": decoding.digest,
    "reader": lambda data: decoder.cropped(data, [3, 3, 30, 30]),
    "report": lambda data: sample.decode(data, 5),
}


def damaged(seed: int, count: int) -> Iterator[bytes]:
    """Yields damaged files of every frame type; the same files for the same arguments."""
    rng = random.Random(seed)
    sound = [*frames.files(SIZE).values()]
    # The frame headers of most others are refused.
    decoded = sound[: frames.NUM_SOUND]
    for _ in range(count):
        data = bytearray(rng.choice(decoded if rng.random() < 0.7 else sound))
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            if not data:
                break  # the first change has removed everything
            rng.choice((*mutations.WAYS, other_frame, other_size))(
                data, rng, bytearray(rng.choice(sound))
            )
        yield bytes(data)


def _header(data: bytearray) -> int:
    """Returns the offset of a possible frame header; -1 if there is none."""
    found = [at for at in map(data.find, (b"\xff%c" % m for m in range(0xC0, 0xD0))) if at > 0]
    return min(found, default=-1)


def other_frame(data: bytearray, rng: random.Random, _: bytearray) -> None:
    """Changes the type of the frame."""
    if (at := _header(data)) > 0:
        data[at + 1] = rng.choice((*range(0xC0, 0xD0), 0xDE, 0xDF))


def other_size(data: bytearray, rng: random.Random, _: bytearray) -> None:
    """Changes the claimed size or sampling of the frame."""
    at = _header(data)
    if 0 < at < len(data) - 20:
        place = at + rng.choice((4, 5, 6, 7, 8, 9, 11, 14, 17))
        data[place] = rng.choice((0, 1, 2, 3, 7, 8, 9, 16, 0x11, 0x12, 0x21, 0x22, 0x41, 255))


def guarded(
    space: planes.Workspace, data: bytes, height: int, width: int, eighths: int, *, strict: bool
) -> np.ndarray:
    """Decodes like Workspace.pixels, into memory that ends with guard bytes."""
    size = height * width * 3
    room = np.full(size + _CANARY_BYTES, _CANARY, np.uint8)
    try:
        space._read(data, eighths, height, width, not strict, room.ctypes.data)
    finally:
        if (room[size:] != _CANARY).any():
            sys.exit(f"libjpeg wrote behind {height} x {width} pixels")
    return room[:size].reshape(height, width, 3)


def run(library: Path, seed: int, count: int, place: Path) -> Counter[str]:
    """Runs a batch in this process; the number of the current file is at `place`."""
    planes._LIBRARY = library
    planes.Workspace.pixels = guarded
    taken: Counter[str] = Counter()
    with place.open("r+b", buffering=0) as note:
        for number, data in enumerate(damaged(seed, count)):
            os.pwrite(note.fileno(), number.to_bytes(8, "little"), 0)
            for name, call in CALLS.items():
                try:
                    taken[name] += call(data) is not None
                except BadImageError:
                    continue
    return taken


def build(folder: Path) -> Path:
    """Compiles our C with sanitizers, as a library."""
    sources = [_CODEC / name for name in _SOURCES]
    return link(folder / "_planes.so", SANITIZED, sources=sources)


def watched(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs this module, or Python with other arguments, with the sanitizer's allocator."""
    asan = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True)
    options = "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=2048"
    env = {
        **os.environ,
        "LD_PRELOAD": asan.stdout.strip(),
        "ASAN_OPTIONS": options,
        "PYTHONMALLOC": "malloc",
    }
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, cwd=REPOSITORY)


def batch(library: Path, seed: int, count: int) -> dict[str, int]:
    """Runs a batch in a separate process; SystemExit if it dies."""
    with tempfile.NamedTemporaryFile() as place:
        place.truncate(8)
        done = watched(
            "-m",
            MODULE,
            "--child",
            library,
            place.name,
            "--seed",
            seed,
            "--files",
            count,
        )
        if done.returncode:
            number = int.from_bytes(place.read(8), "little")
            *_, data = damaged(seed, number + 1)
            Path("crash.jpg").write_bytes(data)
            sys.exit(f"seed {seed}, file {number}: {done.returncode}\n{done.stderr[-8000:]}")
    taken: dict[str, int] = json.loads(done.stdout)
    return taken


def main(argv: Sequence[str] | None = None) -> None:
    """Runs batches until the time is over or the files are made."""
    parser = argparse.ArgumentParser(description=__doc__, prog=f"python -m {MODULE}")
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--files", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first batch")
    parser.add_argument("--log", type=Path, default=Path("fuzz-opening.log"))
    parser.add_argument("--child", type=Path, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps(run(args.child[0], args.seed, args.files, args.child[1])))
        return
    stop = time.monotonic() + 3600 * args.hours
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        seed, left = args.seed, args.files
        while left > 0 and time.monotonic() < stop:
            count = min(BATCH, left)
            began = time.monotonic()
            taken = batch(library, seed, count)
            seconds = time.monotonic() - began
            with args.log.open("a") as log:
                log.write(f"seed {seed}: {count} files, {seconds:.0f} s, {taken}\n")
            seed = seed + 1
            left = left - count


if __name__ == "__main__":
    main()
