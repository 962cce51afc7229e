"""Kills ranks that write a column, at random moments, until the column is complete.

    python -m tests.kit.column_kills DATASET RANKS KILLS SEED KIND

KIND is "numbers" or "texts".
The dataset has no column before, and none after. The program prints the number of kills.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from imagenet_prep.core.world import World
from imagenet_prep.dataset import column
from tests.kit import columns, text_columns

# By kind, the name of the column and the function that writes it.
_KINDS = {
    "numbers": (columns.NAME, columns.write),
    "texts": (text_columns.CAPTIONS, text_columns.write),
}
# Most kills come before this share of an undisturbed run has passed.
_LATE = 0.9


def start(root: Path, rank: int, ranks: int, kind: str) -> int:
    """Starts a rank in a separate process; returns its number."""
    if child := os.fork():
        return child
    code = 1
    try:
        _KINDS[kind][1](root, world=World(rank, ranks))
        code = 0
    finally:
        os._exit(code)


def contents(root: Path, kind: str) -> dict[str, bytes]:
    """Returns the files of the column."""
    folder = root / column.folder_name(_KINDS[kind][0])
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def demand(fulfilled: bool, said: str) -> None:
    """Ends the program with a message if a condition does not hold."""
    if not fulfilled:
        sys.exit(said)


def run(root: Path, ranks: int, kills: int, seed: int, kind: str) -> int:
    """Writes columns, each with several kills, up to the given kills; returns their number."""
    drawn = random.Random(seed)
    killed = 0
    began = time.monotonic()
    for child in [start(root, rank, ranks, kind) for rank in range(ranks)]:
        demand(os.waitpid(child, 0)[1] == 0, "an undisturbed rank failed")
    span = time.monotonic() - began
    expected = contents(root, kind)
    demand("column.json" in expected, "the undisturbed column is not complete")
    while killed < kills:
        shutil.rmtree(root / column.folder_name(_KINDS[kind][0]))
        for _ in range(drawn.randrange(1, 6)):
            # After a loss, there may be fewer ranks.
            of_round = drawn.randrange(1, ranks + 1)
            left = [start(root, rank, of_round, kind) for rank in range(of_round)]
            victims = [child for child in left if drawn.random() < 0.8]
            drawn.shuffle(victims)
            for victim in victims:
                time.sleep(drawn.random() * span * _LATE / len(victims))
                os.kill(victim, signal.SIGKILL)
            for child in left:
                status = os.waitpid(child, 0)[1]
                was_killed = os.WIFSIGNALED(status)
                killed += was_killed
                demand(was_killed or status == 0, f"a rank failed with {status}")
            there = contents(root, kind)
            demand("column.json" not in there or there.items() >= expected.items(), "it differs")
        for child in [start(root, rank, ranks, kind) for rank in range(ranks)]:
            demand(os.waitpid(child, 0)[1] == 0, "a rank that finishes failed")
        demand(contents(root, kind) == expected, "the finished column differs, or has other files")
    shutil.rmtree(root / "columns")
    return killed


if __name__ == "__main__":
    # A killed process loses nothing that it has written, so syncing only takes time here.
    os.fsync = lambda _: None  # type: ignore[assignment]
    print(run(Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5]))
