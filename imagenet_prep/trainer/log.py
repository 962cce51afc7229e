"""The output of a run: the tutorial's table, its rows as JSON lines, and TensorBoard scalars.

`TrainingLog` prints the table and writes its rows.

`Scalars` writes TensorBoard scalars as tf.summary.scalar does (tensorflow/core/util/event.proto).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.predictions import FEW_CLASSES
from imagenet_prep.dataset.protobuf import varint
from imagenet_prep.dataset.record_files import frame_parts
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.trainer.evaluation import Score

EVENTS = "events.out.tfevents."  # prefix of the file names
_VERSION = b"brain.Event:2"


class Scalars:
    """Writes a new TensorBoard file in a folder, without buffering."""

    def __init__(self, folder: Path) -> None:
        seconds, rest_ns = divmod(time.time_ns(), 10**9)
        name = f"{EVENTS}{seconds}.{socket.gethostname()}.{os.getpid()}.{rest_ns}.v2"
        with storage_errors("write", folder / name):
            folder.mkdir(parents=True, exist_ok=True)
            file = LocalStore(folder).open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._file = open(file, "wb", buffering=0)  # noqa: SIM115 - until `close`
        self._put(_field(3, _VERSION))

    def write(self, step: int, group: str, values: Mapping[str, float]) -> None:
        """Writes each value of a step as GROUP/NAME."""
        summary = b"".join(_value(f"{group}/{name}", value) for name, value in values.items())
        self._put(b"\x10" + varint(step) + _field(5, summary))

    def _put(self, event: bytes) -> None:
        timed = b"\x09" + struct.pack("<d", time.time()) + event
        self._file.write(b"".join(frame_parts((timed, b"", b""))))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _value(tag: str, value: float) -> bytes:
    """Returns a summary value: a float32 scalar that TensorBoard shows in a scalar plot."""
    tensor = b"\x08\x01" + _field(2, b"") + _field(5, bytes(ctypes.c_float(value)))
    plotted = _field(1, _field(1, b"scalars")) + b"\x20\x01"
    return _field(1, _field(1, tag.encode()) + _field(8, tensor) + _field(9, plotted))


def _field(number: int, content: bytes) -> bytes:
    """Returns a protobuf field of bytes."""
    return bytes((number << 3 | 2,)) + varint(len(content)) + content


LOG = schema.TRAINING_LOG
SCALARS = "tensorboard"

_TRAIN_HEADER = "  Step Epoch Speed   Loss  FinLoss   LR"
_EVALUATION_HEADER = "  step  epoch  top1    top5     loss   checkpoint_time(UTC)"


class TrainingLog:
    """Prints rows and writes them to train.jsonl and a TensorBoard file, if `speaks` is True."""

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
        """Opens train.jsonl and a TensorBoard file, and writes the settings of the run."""
        if self._speaks:
            with storage_errors("write", self._folder / LOG):
                self._folder.mkdir(parents=True, exist_ok=True)
                log = LocalStore(self._folder).open(LOG, os.O_RDWR | os.O_APPEND | os.O_CREAT)
                end = os.fstat(log).st_size
                if end and os.pread(log, 1, end - 1) != b"\n":
                    os.write(log, b"\n")  # a power failure cut the last line
            self._file = open(log, "w", encoding="utf-8")  # noqa: SIM115 - until `close`
            self._scalars = Scalars(self._folder_of_scalars)
        self._keep("start", facts)

    def saved(self, step: int, state: Json) -> None:
        """Records that a checkpoint was saved after `step` steps; `state` is the reader's state."""
        self._keep("saved", {"step": step} | ({"receipt": state} if state else {}))

    def train(self, step: int, row: Mapping[str, float]) -> None:
        """Prints and writes a row of the tutorial's table for a step, counted from 0.

        `images_per_s` is the speed of all ranks since the last row; checkpoints and evaluations are
        excluded. `loss` is the mean cross entropy, and `total_loss` adds weight decay. If the row
        has no `accuracy` (top-1), the column is omitted.
        """
        has_accuracy = "accuracy" in row
        if not self._has_header:
            self.say(f"{_TRAIN_HEADER}     Acc" if has_accuracy else _TRAIN_HEADER)
            self._has_header = True
        accuracy = f" {100 * row['accuracy']:7.3f}" if has_accuracy else ""
        self.say(
            f"{step:6d} {row['epoch']:5.1f} {row['images_per_s']:7.1f} {row['loss']:6.3f} "
            f"{row['total_loss']:6.3f} {row['learning_rate']:7.5f}{accuracy}"
        )
        self._keep("train", {"step": step, **row})
        if self._scalars is not None:
            self._scalars.write(step, "train", row)

    def evaluation(
        self,
        step: int,
        epoch: float,
        split: str,
        score: Score,
        saved_at: float,
        classes: str = "",
        *,
        num_classes: int,
    ) -> None:
        """Prints and writes a score; `classes` is, e.g., "2 of 4 classes" if two are missing."""
        top5 = f"{100 * score.top5:6.2f}" if num_classes > FEW_CLASSES else f"{'-':>6}"
        saved = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(saved_at))
        # SageMaker's metric pattern matches the end of the row.
        self.say(f"{_EVALUATION_HEADER}  {classes}" if classes else _EVALUATION_HEADER)
        line = (
            f"{step:6d}  {epoch:5.1f}  {100 * score.top1:5.3f}  {top5}  {score.loss:6.2f}  {saved}"
        )
        if split != schema.VALIDATION:
            line += f"  {split}"
        self.say(line)
        self._has_header = False
        row = {"epoch": epoch, "top1": score.top1, "top5": score.top5, "loss": score.loss}
        facts = {"step": step, "split": split, **row, "examples": score.examples}
        self._keep("evaluation", facts | {"checkpoint_time_utc": saved})
        if self._scalars is not None:
            group = "evaluation" if split == schema.VALIDATION else split
            self._scalars.write(step, group, row)

    def test(self, score: Score, classes: str = "") -> None:
        """Prints and writes the accuracy on images that neither training nor tuning used."""
        images = f"{counted(score.examples, 'image')} of the validation split"
        of_classes = f", {classes}" if classes else ""
        self.say(f"test accuracy {score.top1:.2%}, loss {score.loss:.4f}: {images}{of_classes}")
        self._keep("test", {"accuracy": score.top1, "loss": score.loss, "images": score.examples})

    def table(self, table: Any) -> None:
        """Prints and writes the table of `--labels` and `--also`."""
        self.say(str(table))
        self._keep("table", table.as_json())

    def finished(self, seconds: float) -> None:
        """Prints and writes the training time, in the tutorial's wording."""
        self.say(f"Finished in {seconds:,.1f} s")
        self._keep("finished", {"seconds": seconds})

    def close(self) -> None:
        """Closes train.jsonl and the TensorBoard file."""
        for file in (self._scalars, self._file):
            if file is not None:
                file.close()

    def _keep(self, kind: str, facts: Mapping[str, Any]) -> None:
        if self._file is not None:
            sound = {  # JSON has no NaN
                key: None if isinstance(value, float) and not math.isfinite(value) else value
                for key, value in facts.items()
            }
            line = {"kind": kind, "time": time.time(), **sound}
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
            if kind in ("start", "saved"):  # must survive a crash, like a checkpoint
                os.fsync(self._file.fileno())


class Timer:
    """Measures steps per second."""

    def __init__(self) -> None:
        self.count = 0
        self._since = time.perf_counter()

    def rate(self) -> float:
        """Returns the steps per second since the last call."""
        now = time.perf_counter()
        rate = self.count / max(now - self._since, 1e-9)
        self.count = 0
        self._since = now
        return rate

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Excludes the time of a `with` block from the rate."""
        start = time.perf_counter()
        yield
        self._since += time.perf_counter() - start
