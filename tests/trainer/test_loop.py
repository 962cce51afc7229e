"""The training loop, which is the same for every framework; test_training has TensorFlow's."""

from __future__ import annotations

import calendar
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError, StoreError, UsageError
from imagenet_prep.read.reader import Reader
from imagenet_prep.trainer import checkpoint, log, loop
from imagenet_prep.trainer.comm import Comm
from imagenet_prep.trainer.evaluation import Score
from imagenet_prep.trainer.saved import Saved
from tests.kit import command
from tests.kit.messages import exactly, says
from tests.kit.numpy_learner import NumpyLearner
from tests.kit.training import (
    NUM_VALIDATION,
    arrays_of,
    assert_same_bits,
    end_at_step,
    rows,
)

Train = Callable[..., Any]


@pytest.fixture
def train(train_by_numpy: Train) -> Train:
    """Uses NumPy as the framework."""
    return train_by_numpy


def test_the_times_of_evaluation_rows_are_utc(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        before = time.time()
        train(tmp_path / "run", num_epochs=0.2)
        after = time.time()
    finally:
        monkeypatch.undo()
        time.tzset()
    (row,) = rows(tmp_path / "run", "evaluation")
    saved = calendar.timegm(time.strptime(row["checkpoint_time_utc"], "%Y-%m-%d %H:%M:%S"))

    assert int(before) <= saved <= after


def test_a_resumed_run_ends_with_the_same_bits(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "whole", num_epochs=3.125, checkpoint_every=10, keep=9)
    assert checkpoint.steps(tmp_path / "whole") == [10, 20, 25]
    # Only the checkpoint of step 10, in the middle of the second epoch, is left.
    (tmp_path / "ended").mkdir()
    shutil.copy(tmp_path / "whole" / checkpoint.name(10), tmp_path / "ended")
    train(tmp_path / "ended", num_epochs=3.125, checkpoint_every=10)

    assert says("resumed-after-step", "10", "checkpoint-00000010.npz").search(
        capsys.readouterr().out
    )
    assert_same_bits(arrays_of(tmp_path / "whole"), arrays_of(tmp_path / "ended"))
    both = [rows(tmp_path / name, "evaluation")[-1]["loss"] for name in ("whole", "ended")]
    assert both[0] == both[1]


def test_show_marks_images_of_discarded_steps(train: Train, shades: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, num_epochs=1.0, checkpoint_every=3, keep=9)  # 8 steps
    for step in (6, 8):
        (run / checkpoint.name(step)).unlink()
    with open(run / log.LOG, "ab") as file:
        file.write(b'{"kind": "saved", "step": 9, "rec')  # the log after a power failure
    train(run, num_epochs=1.0, checkpoint_every=3, keep=9)

    listed = [json.loads(line) for line in _shown(run, "--step", "5").splitlines()]
    assert [(each["run"], each["weights"]) for each in listed] == [
        *[(1, "discarded")] * 8,
        *[(2, "kept")] * 8,
    ]
    keys = [each["key"] for each in listed]
    assert keys[:8] == keys[8:]
    assert len({each["number"] for each in listed}) == 8
    unseen, *uses = map(json.loads, _shown(run, "--key", keys[0]).splitlines())
    assert unseen == {"unseen_until": 3, "checkpoint": checkpoint.name(3)}
    assert [(each["step"], each["weights"]) for each in uses] == [(5, "discarded"), (5, "kept")]
    (run / checkpoint.name(3)).unlink()
    unseen = json.loads(_shown(run, "--key", keys[0]).splitlines()[0])
    assert unseen == {"unseen_until": 3, "checkpoint": None}
    checked = json.loads(_shown(run, "--check"))
    crops = checked.pop("crops")
    assert checked == {"steps": 8, "images": 64, "faults": []}
    assert "area 0.08 to 1" in crops

    # A loop that does not restore the reader starts the epoch again.
    start = json.loads((run / log.LOG).read_bytes().partition(b"\n")[0])
    with open(run / log.LOG, "a") as file:
        for kind, step, read in (("start", 8, 0), ("saved", 10, 16)):
            receipt = start["receipt"] | {"examples_read": read}
            file.write(json.dumps({"kind": kind, "step": step, "receipt": receipt}) + "\n")
    shutil.copytree(shades, tmp_path / "moved")
    found = command.run("show", run, "--check", "--trained-on", tmp_path / "moved")
    assert (found.code, found.out) == (
        1,
        f"steps 8 to 9: epoch 0 used 16 images again\nsteps 10  images 80  crops {crops}\n",
    )


def _shown(run: Path, *flags: str) -> str:
    done = command.run("show", run, *flags, "--json")
    assert (done.code, done.complaints) == (0, "")
    return done.out


def test_show_refuses_flags_without_meaning_for_a_run(
    train: Train, shades: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    held = command.run("show", shades, "--keys", "--splits", "validation").out.splitlines()[0]
    train(run, num_epochs=0.5)
    for flags, reason in (
        (("--step", "4"), says("no-step-last-step-log", run, 4, 3)),
        (("--keys",), says("training-run-expected-step-key", run)),
        (("--key", "nothing"), says("no-image-key-keys-class", ..., "nothing")),
        (
            ("--key", held),
            says("no-step-used-image-run", ..., held, "validation", "train"),
        ),
    ):
        done = command.run("show", run, *flags)
        assert (done.code, done.out) == (2, "")
        assert reason.search(done.complaints)
    assert command.run("show", tmp_path, "--check").code == 2
    noise = {"data_dir": None, "backend": "auto", "synthetic": True}
    train(tmp_path / "noise", **noise, num_batches=2, num_epochs=None)
    done = command.run("show", tmp_path / "noise")
    assert (done.code, len(says("no-line-contains-reader-s").findall(done.complaints))) == (2, 1)

    content = (run / log.LOG).read_text()
    digest = json.loads(content.partition("\n")[0])["receipt"]["dataset"]
    (run / log.LOG).write_text(content.replace(digest, digest[::-1]))
    refused = command.run("show", run, "--check")
    assert says("digest-run-read-dataset-digest").search(refused.complaints)


def test_a_cleared_log_folder_starts_at_step_0(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "run")
    train(tmp_path / "run", clear_log=True, num_epochs=0.125)

    assert checkpoint.steps(tmp_path / "run") == [1]
    assert [row["resumed_at"] for row in rows(tmp_path / "run", "start")] == [0]


def test_evaluation_without_a_checkpoint_is_refused(train: Train, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says("no-checkpoint-evaluate-train-first")):
        train(tmp_path / "run", evaluate=True)


def test_a_run_resumes_before_a_damaged_checkpoint(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(run, checkpoint_every=6)
    whole = arrays_of(run)
    last = run / checkpoint.name(16)
    last.write_bytes(last.read_bytes()[:-300])
    train(run, checkpoint_every=6)
    said = capsys.readouterr()

    assert says("damaged-checkpoint", "checkpoint-00000016.npz").search(said.err)
    assert says("resumed-after-step", "12").search(said.out)
    assert_same_bits(whole, arrays_of(run))


def test_changed_settings_do_not_resume_a_run(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "run")
    for other in ({"num_epochs": 3.0}, {"lr": 0.1}, {"seed": 1}, {"batch_size": 4}):
        with pytest.raises(UsageError, match=r"holds a run with \w+"):
            train(tmp_path / "run", **other)


def test_a_rank_with_a_different_order_is_refused(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_rank_0(_: Comm, value: Any) -> Any:
        (found, place), failure = value
        return (found, {**place, "nodes": 2}), failure

    monkeypatch.setattr(Comm, "broadcast_object", of_rank_0)
    with pytest.raises(UsageError, match=says("state-reader-use-same-dataset", "nodes", "2", "1")):
        train(tmp_path / "run")


def test_a_nonfinite_loss_ends_the_run(train: Train, tmp_path: Path) -> None:
    with pytest.raises(
        ImagenetPrepError, match=says("step-loss", ..., re.compile("nan|inf"), "--lr")
    ):
        train(tmp_path / "run", lr=1e300, warmup_epochs=0.0)

    assert checkpoint.steps(tmp_path / "run") == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_a_signal_saves_a_checkpoint_that_resumes(
    train: Train,
    tmp_path: Path,
    signum: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"num_epochs": 400.0, "display_every": 1, "checkpoint_every": 100_000}
    # The next step tells all ranks, and the step after it is the last. Steps count from 0.
    for asked, saved in ((5, 8), (11, 14)):
        with monkeypatch.context() as patch:
            end_at_step(patch, asked, signum)
            with pytest.raises(IncompleteError, match=says("asked-stop-step-saved-run")):
                train(tmp_path / "run", **settings)
        assert checkpoint.steps(tmp_path / "run")[-1] == saved
    assert says("resumed-after-step", "8").search(capsys.readouterr().out)


def test_a_second_ctrl_c_ends_at_once(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log_step = log.TrainingLog.train

    def log_and_interrupt(self: log.TrainingLog, step: int, *values: float) -> None:
        log_step(self, step, *values)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(log.TrainingLog, "train", log_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", display_every=1)

    assert checkpoint.steps(tmp_path / "run") == []
    assert capfd.readouterr().err.count("Ctrl-C again ends at once") == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_train_accuracy_adds_a_column_to_the_table(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", num_epochs=8.0, train_accuracy=True)
    printed = capsys.readouterr().out.splitlines()

    assert printed[4] == "  Step Epoch Speed   Loss  FinLoss   LR     Acc"
    shares = [row["accuracy"] for row in rows(tmp_path / "run", "train")]
    assert all(0 <= share <= 1 and share * 8 == round(share * 8) for share in shares)
    assert shares[-1] > 0.8 > shares[0]
    assert printed[5].endswith(f" {100 * shares[0]:7.3f}")
    train(tmp_path / "other", num_epochs=0.2)
    assert "accuracy" not in rows(tmp_path / "other", "train")[0]


def test_a_signal_ends_an_evaluation_early(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = NumpyLearner.logits

    def interrupted(self: NumpyLearner, images: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return logits(self, images)

    with monkeypatch.context() as patch:
        patch.setattr(NumpyLearner, "logits", interrupted)
        with pytest.raises(IncompleteError, match=says("asked-stop-step-saved-run", "16", "16")):
            train(tmp_path / "run")
    assert rows(tmp_path / "run", "evaluation") == []
    assert train(tmp_path / "run").examples == NUM_VALIDATION


def test_wrong_settings_are_refused_before_the_framework_starts(
    train: Train, shades: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "run")

    def connect(_: Any) -> Any:
        pytest.fail("the framework was imported")

    monkeypatch.setattr(loop, "connect", connect)
    for settings, said in (
        ({"data_dir": "nowhere"}, says("no-such-folder-2", "nowhere")),
        ({"data_dir": __file__}, says("file-give-folder-dataset", "test_loop.py")),
        ({"data_dir": str(tmp_path)}, exactly("no dataset.json")),
        ({"batch_size": 68}, says("not-enough-one-step-batch")),
        ({"lr": 0.1}, re.compile("run holds a run with .*from scratch with --clear-log")),
        (
            {"log_dir": str(tmp_path / "new"), "evaluate": True},
            says("no-checkpoint-evaluate-train-first", tmp_path / "new"),
        ),
    ):
        with pytest.raises(UsageError, match=said):
            train(**{"log_dir": tmp_path / "run"} | settings)


def test_logs_that_are_links_or_pipes_are_refused(train: Train, tmp_path: Path) -> None:
    mine = tmp_path / "notes.txt"
    mine.write_text("my own\n")
    for kind in ("a link", "a pipe"):
        run = tmp_path / kind
        run.mkdir()
        if kind == "a link":
            (run / "train.jsonl").symlink_to(mine)
        else:
            os.mkfifo(run / "train.jsonl")
        with pytest.raises(StoreError, match=says("file-folder-above-link-wrong", "train.jsonl")):
            train(run, num_epochs=0.2)
    assert mine.read_text() == "my own\n"


def test_a_symlinked_tensorboard_folder_is_refused(train: Train, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    run = tmp_path / "run"
    mine.mkdir()
    run.mkdir()
    (mine / "events.out.tfevents.1.a").touch()
    (run / "tensorboard").symlink_to(mine)
    with pytest.raises(StoreError, match=says("file-folder-above-link-wrong", "tensorboard")):
        train(run, num_epochs=0.2, clear_log=True)
    assert [path.name for path in mine.iterdir()] == ["events.out.tfevents.1.a"]


FACTS: dict[str, Any] = {
    "nothing": {},
    "a list": {"run": [], "reader": {}},
    "no reader": {"run": {"global_batch": 8}},
    "a plateau of words": {"run": {"global_batch": 8}, "reader": {}, "plateau": {"scale": "x"}},
    "an epoch too late": {"run": {"global_batch": 8}, "reader": {"epoch": 10**30}},
    "a batch of nothing": {"run": {"global_batch": 0}, "reader": {}},
}


def test_checkpoints_with_malformed_facts_are_set_aside(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(run, checkpoint_every=6)
    sound = run / checkpoint.name(12)
    last = checkpoint.load(run / checkpoint.name(16))
    for kind, facts in FACTS.items():
        checkpoint.save(run, 16, facts, last.arrays, keep=9)
        train(run, checkpoint_every=6)

        said = capsys.readouterr()
        assert says("damaged-checkpoint", "checkpoint-00000016.npz").search(said.err), kind
        assert says("resumed-after-step", "12", sound.name).search(said.out), kind


def test_the_last_step_is_evaluated_only_once(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "run", num_epochs=2.0, eval_every=1.0)

    assert [row["step"] for row in rows(tmp_path / "run", "evaluation")] == [8, 16]


def test_an_evaluation_has_the_time_of_its_checkpoint(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "run", num_epochs=0.2)
    train(tmp_path / "run", num_epochs=0.2, evaluate=True)

    first, second = rows(tmp_path / "run", "evaluation")
    assert second["checkpoint_time_utc"] == first["checkpoint_time_utc"]


def test_a_split_without_batches_ends_the_run(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reader, "__iter__", lambda _: iter(()))
    with pytest.raises(ImagenetPrepError, match="train"):
        train(tmp_path / "run")


def noted_closes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the list to which the end of a connection or a mirror adds its class."""
    noted: list[str] = []
    for kind in (Comm, Saved):

        def note(self: Any, close: Callable[[Any], Any] = kind.close) -> Any:
            noted.append(type(self).__name__)
            return close(self)

        monkeypatch.setattr(kind, "close", note)
    return noted


def test_stopped_run_ends_mirror_before_rank(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launchers kill all ranks when one exits."""
    noted = noted_closes(monkeypatch)
    end_at_step(monkeypatch, 3)
    with pytest.raises(IncompleteError):
        train(tmp_path / "run", num_epochs=4.0, display_every=1)

    assert noted[:2] == ["Saved", "Comm"]


def test_error_on_the_first_rank_disconnects_all(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise StoreError("no space")

    noted = noted_closes(monkeypatch)
    monkeypatch.setattr(Saved, "save", fail)
    with pytest.raises(StoreError, match="no space"):
        train(tmp_path / "run", num_epochs=0.5)

    assert "Comm" in noted


def test_only_single_rank_ends_at_second_signal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    stop = loop.Stop(alone=False)
    with stop.heard():
        assert not stop.came
        signal.raise_signal(signal.SIGINT)
        assert stop.came
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == ""

    alone = loop.Stop(alone=True)
    with pytest.raises(KeyboardInterrupt), alone.heard():
        signal.raise_signal(signal.SIGTERM)
        assert capfd.readouterr().err == ""  # only Ctrl-C is typed by a person
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_each_signal_before_a_jobs_end_stops_it(number: signal.Signals) -> None:
    stop = loop.Stop(alone=False)
    with stop.heard():
        signal.raise_signal(number)
    assert stop.came


@pytest.mark.parametrize(
    ("split", "classes", "num_classes", "end"),
    [
        ("validation", "", 11, ""),
        ("holdout", "", 1000, "  holdout"),
        ("validation", "2 of 4 classes", 10, ""),
    ],
)
def test_printed_evaluation_has_each_number_in_its_column(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    split: str,
    classes: str,
    num_classes: int,
    end: str,
) -> None:
    written = log.TrainingLog(tmp_path, tmp_path / "scalars", speaks=True)
    written.start({"framework": "mxnet"})
    capsys.readouterr()
    score = Score(examples=8, top1=0.25, top5=0.75, loss=1.5)
    written.evaluation(7, 2.5, split, score, 0.0, classes, num_classes=num_classes)
    written.close()

    header, line = capsys.readouterr().out.splitlines()
    assert header.endswith(classes)
    top5 = "-" if num_classes == 10 else "75.00"
    numbers = ["7", "2.5", "25.000", top5, "1.50", "1970-01-01", "00:00:00"]
    assert line.split() == [*numbers, *end.split()]
    (row,) = rows(tmp_path, "evaluation")
    assert (row["top1"], row["top5"], row["loss"], row["examples"]) == (0.25, 0.75, 1.5, 8)
    assert (row["step"], row["epoch"], row["split"]) == (7, 2.5, split)


@pytest.mark.parametrize("given", [False, True])
def test_flag_of_local_checkpoints_is_ignored_aloud(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: bool
) -> None:
    train(tmp_path / "run", num_epochs=0.125, local_ckpt=given)
    said = says("local_ckpt-ignored-rank-0-saves").search(capsys.readouterr().out)
    assert (said is not None) == given
