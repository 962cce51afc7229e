"""The output of a run: the tutorial's table, its rows as JSON lines, and TensorBoard scalars."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import naming, schema
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.os_errors import storage_errors
from imagenet_prep.trainer.evaluation import Score
from imagenet_prep.trainer.scalars import EVENTS, Scalars

LOG = naming.TRAINING_LOG
SCALARS = "tensorboard"

_TRAIN_HEADER = "  Step Epoch Speed   Loss  FinLoss   LR"
_EVALUATION_HEADER = "  step  epoch  top1    top5     loss   checkpoint_time(UTC)"


class Log:
    """Prints rows and writes them to `train.jsonl` and TensorBoard files, only if it `speaks`."""

    def __init__(self, folder: Path, scalars: Path, *, speaks: bool) -> None:
        self._folder, self._folder_of_scalars = folder, scalars
        self._speaks = speaks
        self._file: IO[str] | None = None
        self._scalars: Scalars | None = None
        self._has_header = False

    def say(self, text: str) -> None:
        """Prints a line."""
        if self._speaks:
            print(text, flush=True)

    def clear(self) -> None:
        """Removes the files of an earlier run."""
        (self._folder / LOG).unlink(missing_ok=True)
        for path in self._folder_of_scalars.glob(f"{EVENTS}*"):
            path.unlink(missing_ok=True)

    def start(self, facts: Mapping[str, Any]) -> None:
        """Opens both files and writes the settings of the run."""
        if self._speaks:
            with storage_errors("write", self._folder / LOG):
                self._folder.mkdir(parents=True, exist_ok=True)
                log = LocalStore(self._folder).open(LOG, os.O_RDWR | os.O_APPEND | os.O_CREAT)
                end = os.fstat(log).st_size
                if end and os.pread(log, 1, end - 1) != b"\n":
                    os.write(log, b"\n")  # after a power failure
            self._file = open(log, "w", encoding="utf-8")  # noqa: SIM115 - until `close`
            self._scalars = Scalars(self._folder_of_scalars)
        self._keep("start", facts)

    def saved(self, step: int, state: Json) -> None:
        """Writes that a checkpoint was saved after `step` steps, with the reader's state."""
        self._keep("saved", {"step": step} | ({"receipt": state} if state else {}))

    def train(
        self,
        step: int,
        epoch: float,
        speed: float,
        loss: float,
        total: float,
        rate: float,
        accuracy: float | None = None,
    ) -> None:
        """Prints and writes a row of the tutorial's table for a step, counted from 0.

        `epoch` is the number of epochs before the step. `speed` is in images/s over all ranks
        since the last row, excluding checkpoints and evaluations. `loss` is the mean cross entropy,
        and `total` adds weight decay. Without `accuracy` (top-1), its column is omitted.
        """
        if not self._has_header:
            self.say(_TRAIN_HEADER + "     Acc" * (accuracy is not None))
            self._has_header = True
        last = "" if accuracy is None else f" {100 * accuracy:7.3f}"
        self.say(f"{step:6d} {epoch:5.1f} {speed:7.1f} {loss:6.3f} {total:6.3f} {rate:7.5f}{last}")
        row = {"epoch": epoch, "images_per_s": speed, "loss": loss, "total_loss": total}
        row |= {} if accuracy is None else {"accuracy": accuracy}
        self._keep("train", {"step": step, **row, "learning_rate": rate})
        self._scalar(step, "train", {**row, "learning_rate": rate})

    def evaluation(
        self, step: int, epoch: float, split: str, score: Score, saved_at: float, classes: str = ""
    ) -> None:
        """Prints and writes an evaluation; `classes` is "2 of 4 classes" if some are missing."""
        saved = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(saved_at))
        # SageMaker's metric pattern matches the end of the row.
        self.say(_EVALUATION_HEADER + f"  {classes}" * bool(classes))
        self.say(
            f"{step:6d}  {epoch:5.1f}  {100 * score.top1:5.3f}  {100 * score.top5:6.2f}  "
            f"{score.loss:6.2f}  {saved}" + f"  {split}" * (split != schema.VALIDATION)
        )
        self._has_header = False
        row = {"epoch": epoch, "top1": score.top1, "top5": score.top5, "loss": score.loss}
        self._keep(
            "evaluation",
            {"step": step, "split": split, **row}
            | {"examples": score.examples, "checkpoint_time_utc": saved},
        )
        self._scalar(step, "evaluation" if split == schema.VALIDATION else split, row)

    def test(self, score: Score, classes: str = "") -> None:
        """Prints and writes the accuracy on images that neither training nor tuning used."""
        self.say(
            f"test accuracy {score.top1:.2%}, loss {score.loss:.4f}: "
            f"{counted(score.examples, 'image')} of the validation split"
            + f", {classes}"
            * bool(classes)
        )
        self._keep("test", {"accuracy": score.top1, "loss": score.loss, "images": score.examples})

    def table(self, table: Any) -> None:
        """Prints and writes an `evaluation.Table`."""
        self.say(str(table))
        self._keep("table", table.as_json())

    def finished(self, seconds: float) -> None:
        """Prints the training time in the tutorial's format."""
        self.say(f"Finished in {seconds}")
        self._keep("finished", {"seconds": seconds})

    def close(self) -> None:
        """Closes both files."""
        for each in (self._scalars, self._file):
            if each is not None:
                each.close()

    def _keep(self, kind: str, facts: Mapping[str, Any]) -> None:
        if self._file is not None:
            sound = {  # JSON has no NaN
                key: None if isinstance(value, float) and not math.isfinite(value) else value
                for key, value in facts.items()
            }
            line = {"kind": kind, "time": time.time(), **sound}
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
            if kind in ("start", "saved"):  # no checkpoint may survive a crash without it
                os.fsync(self._file.fileno())

    def _scalar(self, step: int, group: str, values: Mapping[str, float]) -> None:
        if self._scalars is not None:
            self._scalars.write(step, group, values)


class Timer:
    """Measures steps per second."""

    def __init__(self) -> None:
        self.count = 0
        self._since = time.perf_counter()

    def rate(self) -> float:
        """Returns the steps per second since the last call."""
        now = time.perf_counter()
        rate = self.count / max(now - self._since, 1e-9)
        self.count, self._since = 0, now
        return rate

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Excludes the time of the block."""
        start = time.perf_counter()
        yield
        self._since += time.perf_counter() - start
