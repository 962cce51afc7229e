"""The log of a run: lines after a crash, groups of TensorBoard, and speeds without pauses."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.dataset.record_files import read_records
from imagenet_prep.trainer import log
from imagenet_prep.trainer.evaluation import Score
from imagenet_prep.trainer.log import LOG, Timer, TrainingLog

ROW = {"epoch": 0.5, "images_per_s": 9.0, "loss": 2.5, "total_loss": 3.5, "learning_rate": 0.1}
SCORE = Score(examples=8, top1=0.25, top5=0.75, loss=1.5)


def begun(folder: Path) -> TrainingLog:
    written = TrainingLog(folder, folder / "scalars", speaks=True)
    written.start({"framework": "numpy"})
    return written


def kinds(folder: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in (folder / LOG).read_text().splitlines()]


def evaluate(written: TrainingLog, step: int, split: str) -> None:
    written.evaluation(step, 2.5, split, SCORE, 0.0, num_classes=10)


def tags(folder: Path) -> list[str]:
    """Returns step, name and value of each scalar of the newest file, as "7 train/loss 2.5"."""
    found = []
    newest = max((folder / "scalars").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    with newest.open("rb") as stream:
        _, *events = (bytes(each.payload) for each in read_records(stream, newest.name))
    for event in events:
        step = event[10]
        assert (event[9], step < 128) == (0x10, True)
        for group in ("train", "evaluation", "holdout", "test"):
            for name in ("epoch", "loss", "top1", "top5"):
                tag = f"{group}/{name}".encode()
                place = event.find(bytes([len(tag)]) + tag)
                if place >= 0:
                    start = event.index(b"\x2a\x04", place) + 2
                    (value,) = struct.unpack_from("<f", event, start)
                    found.append(f"{step} {group}/{name} {value:g}")
    return found


@pytest.mark.parametrize("before", ["", '{"kind": "start"}\n', '{"kind": "sta', "{}\n{}\n{"])
def test_resumed_logs_begin_a_new_line(tmp_path: Path, before: str) -> None:
    """A loss of power may have cut the last line."""
    (tmp_path / LOG).write_text(before)
    written = begun(tmp_path)
    written.train(0, ROW)
    written.close()

    old, (start, row) = before.splitlines(), (tmp_path / LOG).read_text().splitlines()[-2:]
    assert (tmp_path / LOG).read_text() == "\n".join([*old, start, row, ""])
    assert [json.loads(line)["kind"] for line in (start, row)] == ["start", "train"]


def test_splits_have_their_own_groups(tmp_path: Path) -> None:
    written = begun(tmp_path)
    written.train(3, ROW)
    for step, split in ((5, "validation"), (6, "holdout"), (7, "test")):
        evaluate(written, step, split)
    written.close()

    groups = ((5, "evaluation"), (6, "holdout"), (7, "test"))
    values = {"epoch": 2.5, "loss": 1.5, "top1": 0.25, "top5": 0.75}
    scores = [f"{s} {g}/{name} {value:g}" for s, g in groups for name, value in values.items()]
    assert tags(tmp_path) == ["3 train/epoch 0.5", "3 train/loss 2.5", *scores]


def test_tables_have_a_header_after_each_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = begun(tmp_path)
    for step in range(2):
        written.train(step, ROW)
    evaluate(written, 2, "validation")
    written.train(3, ROW | {"accuracy": 0.5})
    written.close()

    said = capsys.readouterr().out.splitlines()
    headers = [number for number, line in enumerate(said) if line.split()[0] in ("Step", "step")]
    assert headers == [0, 3, 5]
    assert [line.endswith("Acc") for line in said] == [False] * 5 + [True, False]


def test_lines_have_no_infinite_numbers(tmp_path: Path) -> None:
    written = begun(tmp_path)
    written.train(0, ROW | {"loss": math.nan, "total_loss": math.inf})
    written.finished(-math.inf)
    written.close()

    _, row, last = (json.loads(line) for line in (tmp_path / LOG).read_text().splitlines())
    assert (row["loss"], row["total_loss"], row["epoch"]) == (None, None, 0.5)
    assert last["seconds"] is None


def test_other_ranks_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = TrainingLog(tmp_path / "run", tmp_path / "scalars", speaks=False)
    written.start({})
    written.train(0, ROW)
    evaluate(written, 1, "validation")
    written.saved(1, {})
    written.finished(1.0)
    written.close()

    assert [*tmp_path.iterdir()] == []
    assert capsys.readouterr().out == ""


def test_cleared_logs_keep_other_files(tmp_path: Path) -> None:
    begun(tmp_path).close()
    for path in (tmp_path / "notes.txt", tmp_path / "scalars" / "notes.txt"):
        path.touch()
    TrainingLog(tmp_path, tmp_path / "scalars", speaks=True).clear()
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]

    assert sorted(map(str, files)) == ["notes.txt", "scalars/notes.txt"]
    TrainingLog(tmp_path / "absent", tmp_path / "absent", speaks=True).clear()


def test_starts_and_checkpoints_survive_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    safe: list[list[str]] = []
    monkeypatch.setattr(log.os, "fsync", lambda _: safe.append(kinds(tmp_path)))
    written = begun(tmp_path)
    written.train(0, ROW)
    written.saved(1, {"epoch": 0})
    written.finished(1.0)
    written.close()

    assert safe == [["start"], ["start", "train", "saved"]]


def test_speeds_exclude_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    timed: Any = log.time
    monkeypatch.setattr(timed, "perf_counter", lambda: now)
    timer = Timer()
    rates = []
    for paused in (0, 30, 0):
        for _ in range(4):
            wait(0.5)
            timer.count += 1
            with timer.pause():
                wait(paused)
        rates.append(timer.rate())
    assert rates == [2, 2, 2]
    assert timer.count == 0
