"""Runs the fuzzer of decoder.c under sanitizers for a given time or number of files.

python -m tests.kit.codec.fuzz --hours 1 --files 10_000_000 --seed 1 --log build/fuzz.log

A core makes, decodes and compares about 1,800 files per second, so 10 million take 90 minutes.

Each line of the log is one batch: its seed, and the numbers of files, of accepted files, of sound
files that were declined, and of planes equal to libjpeg's. A report of a sanitizer, or a difference
from libjpeg, ends the run with an error; the file is then stored as differs.jpg.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.kit.codec import mutations, native, variety

BATCH = 50_000
_LARGEST = 12_000  # bytes: small files have the same structures and decode fast


def sources(seed: int) -> list[native.Job]:
    """Returns small files of every kind to damage."""
    found = [*mutations.sources().values(), *variety.files(200, seed)]
    return [native.Job(data, 1, 1) for data in found if len(data) <= _LARGEST]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs batches until the time is over or the files are made."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.kit.codec.fuzz")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--files", type=int, default=sys.maxsize)
    parser.add_argument("--seed", type=int, default=1, help="of the first batch")
    parser.add_argument("--log", type=Path, default=Path("fuzz.log"))
    args = parser.parse_args(argv)
    stop = time.monotonic() + 3600 * args.hours
    with tempfile.TemporaryDirectory() as folder:
        program = native.build(Path(folder), native.SANITIZED, sources=native.DECODER_HARNESS)
        seed, left = args.seed, args.files
        while left > 0 and time.monotonic() < stop:
            count = min(BATCH, left)
            files = native.write(Path(folder) / "corpus", sources(seed))
            found = native.run(
                program, "fuzz", native.libjpeg(), files, count, seed, patience_s=None
            )
            with args.log.open("a") as log:
                log.write(f"seed {seed}: {found.decode().strip()}\n")
            seed = seed + 1
            left = left - count


if __name__ == "__main__":
    main()
