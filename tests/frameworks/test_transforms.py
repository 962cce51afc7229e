"""Published training transforms on the stored images: exact epochs over ranks and kills."""

from __future__ import annotations

import contextlib
import itertools
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.read.order import Order
from tests.frameworks.programs import ended
from tests.kit import command
from tests.kit.dataset import split_records
from tests.kit.reading import TRAIN, scenes

__all__ = ["scenes"]

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "transforms.py"
BATCH = 2
SEED = 6
# Ranks, and the steps after which all of them are killed. The second kill is in epoch 0 or 1.
IN_FIRST = ((1, 7), (3, 4))
IN_SECOND = ((1, 9), (3, 8))
LAST_RANKS = 2
EPOCHS = 2


def rows_of(log: Path) -> list[dict[str, Any]]:
    """Returns the complete lines of a log, whose process may have been killed."""
    if not log.exists():
        return []
    lines = log.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


class Run:
    """Stages of one run: each continues from the state after the last counted step."""

    def __init__(self, python: Path, folder: Path, recipe: str, root: Path, workers: int) -> None:
        self.python = python
        self.folder = folder
        self.recipe = recipe
        self.root = root
        self.workers = workers
        self.state: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []  # in the order of steps, then of ranks

    def program(self, rank: int, size: int, epochs: int, log: Path) -> list[str]:
        settings = (rank, size, self.workers, json.dumps(self.state), epochs, log)
        return [str(word) for word in (PROGRAM, self.recipe, self.root, *settings)]

    def log(self, rank: int, size: int) -> Path:
        return self.folder / f"{rank} of {size}.jsonl"

    def count(self, logs: list[Path], steps: int) -> None:
        """Counts the first steps of all ranks, which agree about the state after each."""
        by_rank = [rows_of(log)[:steps] for log in logs]
        for step in zip(*by_rank, strict=True):
            assert all(row["state"] == step[0]["state"] for row in step)
            self.rows += step
        self.state = self.rows[-1]["state"]

    def killed(self, size: int, steps: int) -> None:
        """Runs ranks without end, and kills each of them after its line of the last step."""
        logs = [self.log(rank, size) for rank in range(size)]
        with contextlib.ExitStack() as stack:
            ranks = [
                stack.enter_context(
                    command.started(program=self.program(rank, size, 0, log), python=self.python)
                )
                for rank, log in enumerate(logs)
            ]
            command.wait_until(
                lambda: (
                    all(len(rows_of(log)) >= steps for log in logs)
                    or any(rank.ended for rank in ranks)
                ),
                f"{steps} steps of {size} ranks",
            )
            for rank in ranks:
                assert not rank.ended, rank.finish()
                assert rank.kill() < 0
        self.count(logs, steps)

    def finish(self, size: int) -> None:
        """Runs ranks one after the other to the end of the last epoch."""
        logs = [self.log(rank, size) for rank in range(size)]
        for rank, log in enumerate(logs):
            ended(self.python, *self.program(rank, size, EPOCHS, log))
        self.count(logs, len(rows_of(logs[0])))


@pytest.mark.parametrize(
    ("recipe", "workers", "stages"),
    [
        ("timm", 1, IN_SECOND),
        ("mae", 0, IN_SECOND),
        ("dinov3", 0, IN_FIRST),
        ("siglip", 2, IN_FIRST),
    ],
    ids=["timm", "mae", "dinov3", "siglip"],
)
def test_killed_ranks_transform_each_image_once(
    python: Path, scenes: Path, tmp_path: Path, recipe: str, workers: int, stages: Any
) -> None:
    run = Run(python, tmp_path, recipe, scenes, workers)
    for size, steps in stages:
        run.killed(size, steps)
    run.finish(LAST_RANKS)

    records = split_records(scenes, "train")
    sums = {f"{each.wnid}/{each.filename}": zlib.crc32(each.encoded) for each in records}
    keys = [*sums]
    for row in run.rows:
        assert row["sums"] == [sums[key] for key in row["keys"]]
    for epoch in range(EPOCHS):
        read = [row["keys"] for row in run.rows if row["epoch"] == epoch]
        found = [*itertools.chain.from_iterable(read)]
        order = [keys[number] for number in Order(TRAIN, SEED).epoch(epoch).tolist()]
        # Less than a step of the last ranks is dropped.
        assert len(order) - len(found) < BATCH * 3
        assert found == order[: len(found)]
        assert len(set(found)) == len(found)
