"""What the loop does with a run, whatever framework trains it; test_training has TensorFlow's."""

from __future__ import annotations

import calendar
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError, StoreError, UsageError
from imagenet_prep.trainer import checkpoint, log, loop
from imagenet_prep.trainer.comm import Comm
from tests.kit import command
from tests.kit.numpy_learner import NumpyLearner
from tests.kit.training import NUM_VALIDATION, arrays_of, assert_same_bits, end_at_step, rows

Train = Callable[..., Any]


@pytest.fixture
def train(train_by_numpy: Train) -> Train:
    """Instead of TensorFlow's."""
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


def test_a_resumed_run_has_the_bits_of_one_that_was_not_ended(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "whole", num_epochs=3.125, checkpoint_every=10, keep=9)
    assert checkpoint.steps(tmp_path / "whole") == [10, 20, 25]
    # Ended after step 10, in the midst of the second epoch: only that checkpoint is there.
    (tmp_path / "ended").mkdir()
    shutil.copy(tmp_path / "whole" / checkpoint.name(10), tmp_path / "ended")
    train(tmp_path / "ended", num_epochs=3.125, checkpoint_every=10)

    assert "resumed after step 10 from checkpoint-00000010.npz" in capsys.readouterr().out
    assert_same_bits(arrays_of(tmp_path / "whole"), arrays_of(tmp_path / "ended"))
    both = [rows(tmp_path / name, "evaluation")[-1]["loss"] for name in ("whole", "ended")]
    assert both[0] == both[1]


def test_show_lists_the_images_of_a_run_that_went_back_to_an_older_checkpoint(
    train: Train, shades: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(run, num_epochs=1.0, checkpoint_every=3, keep=9)  # 8 steps
    for step in (6, 8):
        (run / checkpoint.name(step)).unlink()
    with open(run / log.LOG, "ab") as file:
        file.write(b'{"kind": "saved", "step": 9, "rec')  # the power failed
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
    assert json.loads(_shown(run, "--check")) == {"steps": 8, "images": 64, "faults": []}

    # A loop that does not restore its reader begins the epoch again.
    start = json.loads((run / log.LOG).read_bytes().partition(b"\n")[0])
    with open(run / log.LOG, "a") as file:
        for kind, step, read in (("start", 8, 0), ("saved", 10, 16)):
            receipt = start["receipt"] | {"examples_read": read}
            file.write(json.dumps({"kind": kind, "step": step, "receipt": receipt}) + "\n")
    shutil.copytree(shades, tmp_path / "moved")
    found = command.run("show", run, "--check", "--trained-on", tmp_path / "moved")
    assert (found.code, found.out) == (
        1,
        "steps 8 to 9: epoch 0 used 16 images again\nsteps 10  images 80\n",
    )


def _shown(run: Path, *flags: str) -> str:
    done = command.run("show", run, *flags, "--json")
    assert (done.code, done.complaints) == (0, "")
    return done.out


def test_show_of_a_run_names_what_it_cannot_do(train: Train, shades: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    held = command.run("show", shades, "--keys", "--splits", "validation").out.splitlines()[0]
    train(run, num_epochs=0.5)
    for flags, reason in (
        (("--step", "4"), "no step 4; the last step in the log is 3"),
        (("--keys",), "is a training run: expected --step, --key or --check"),
        (("--key", "nothing"), "no image has the key nothing"),
        (
            ("--key", held),
            f"no step used {held}: the image is in validation, and the run read train.",
        ),
    ):
        done = command.run("show", run, *flags)
        assert (done.code, done.out) == (2, "")
        assert reason in done.complaints
    assert command.run("show", tmp_path, "--check").code == 2
    noise = {"data_dir": None, "backend": "auto", "synthetic": True}
    train(tmp_path / "noise", **noise, num_batches=2, num_epochs=None)
    done = command.run("show", tmp_path / "noise")
    assert (done.code, done.complaints.count("no line contains the reader's state")) == (2, 1)

    content = (run / log.LOG).read_text()
    digest = json.loads(content.partition("\n")[0])["receipt"]["dataset"]
    (run / log.LOG).write_text(content.replace(digest, digest[::-1]))
    refused = command.run("show", run, "--check")
    assert "Pass that dataset with --trained-on SET" in refused.complaints


def test_a_cleared_log_folder_begins_at_step_0(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "run")
    train(tmp_path / "run", clear_log=True, num_epochs=0.125)

    assert checkpoint.steps(tmp_path / "run") == [1]
    assert [row["resumed_at"] for row in rows(tmp_path / "run", "start")] == [0]


def test_evaluating_what_was_never_trained_is_refused(train: Train, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no checkpoint to evaluate"):
        train(tmp_path / "run", evaluate=True)


def test_a_corrupt_latest_checkpoint_falls_back_to_the_one_before(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(run, checkpoint_every=6)
    whole = arrays_of(run)
    last = run / checkpoint.name(16)
    last.write_bytes(last.read_bytes()[:-300])
    train(run, checkpoint_every=6)
    said = capsys.readouterr()

    assert "checkpoint-00000016.npz: damaged checkpoint" in said.err
    assert "resumed after step 12" in said.out
    assert_same_bits(whole, arrays_of(run))


def test_another_run_does_not_go_on_from_this_ones_checkpoints(
    train: Train, tmp_path: Path
) -> None:
    train(tmp_path / "run")
    for other in ({"num_epochs": 3.0}, {"lr": 0.1}, {"seed": 1}, {"batch_size": 4}):
        with pytest.raises(UsageError, match=r"holds a run with \w+"):
            train(tmp_path / "run", **other)


def test_a_rank_that_would_read_another_order_than_rank_0_is_told(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_rank_0(_: Comm, value: Any) -> Any:
        (found, place), failure = value
        return (found, {**place, "nodes": 2}), failure

    monkeypatch.setattr(Comm, "broadcast_object", of_rank_0)
    with pytest.raises(UsageError, match="the state has nodes 2, but this reader has 1"):
        train(tmp_path / "run")


def test_a_loss_that_is_no_number_ends_the_run(train: Train, tmp_path: Path) -> None:
    with pytest.raises(ImagenetPrepError, match=r"the loss is (nan|inf).*--lr"):
        train(tmp_path / "run", lr=1e300, warmup_epochs=0.0)

    assert checkpoint.steps(tmp_path / "run") == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
def test_a_signal_saves_and_the_same_command_goes_on(
    train: Train,
    tmp_path: Path,
    signum: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"num_epochs": 400.0, "display_every": 1, "checkpoint_every": 100_000}
    # The next step tells all ranks; the one after it is their last. Steps count from 0.
    for asked, saved in ((5, 8), (11, 14)):
        with monkeypatch.context() as patch:
            end_at_step(patch, asked, signum)
            with pytest.raises(IncompleteError, match=r"Run the same command again to resume"):
                train(tmp_path / "run", **settings)
        assert checkpoint.steps(tmp_path / "run")[-1] == saved
    assert "resumed after step 8 from" in capsys.readouterr().out


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


def test_the_accuracy_of_training_is_a_column_where_it_is_wanted(
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


def test_a_wish_to_end_breaks_an_evaluation_off(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = NumpyLearner.logits

    def interrupted(self: NumpyLearner, images: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return logits(self, images)

    with monkeypatch.context() as patch:
        patch.setattr(NumpyLearner, "logits", interrupted)
        with pytest.raises(IncompleteError, match="asked to stop: step 16 of 16 is saved"):
            train(tmp_path / "run")
    assert rows(tmp_path / "run", "evaluation") == []
    assert train(tmp_path / "run").examples == NUM_VALIDATION


def test_what_a_glance_can_refuse_is_refused_before_a_framework_starts(
    train: Train, shades: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "run")

    def connect(_: Any) -> Any:
        pytest.fail("the framework was imported")

    monkeypatch.setattr(loop, "connect", connect)
    for settings, said in (
        ({"data_dir": "nowhere"}, "^nowhere: there is no such folder$"),
        ({"data_dir": str(tmp_path)}, "no dataset.json"),
        ({"batch_size": 68}, "not enough for one step of"),
        ({"lr": 0.1}, "run holds a run with .*from scratch with --clear-log"),
        ({"log_dir": str(tmp_path / "new"), "evaluate": True}, "no checkpoint to evaluate"),
    ):
        with pytest.raises(UsageError, match=said):
            train(**{"log_dir": tmp_path / "run"} | settings)


def test_the_log_is_written_through_no_link_and_into_no_pipe(train: Train, tmp_path: Path) -> None:
    mine = tmp_path / "notes.txt"
    mine.write_text("my own\n")
    for kind in ("a link", "a pipe"):
        run = tmp_path / kind
        run.mkdir()
        if kind == "a link":
            (run / "train.jsonl").symlink_to(mine)
        else:
            os.mkfifo(run / "train.jsonl")
        with pytest.raises(StoreError, match=r"train\.jsonl: the file, .* is a link or of"):
            train(run, num_epochs=0.2)
    assert mine.read_text() == "my own\n"


def test_scalars_that_a_link_leads_elsewhere_are_refused(train: Train, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    run = tmp_path / "run"
    mine.mkdir()
    run.mkdir()
    (mine / "events.out.tfevents.1.a").touch()
    (run / "tensorboard").symlink_to(mine)
    with pytest.raises(StoreError, match="tensorboard: the file, .* is a link"):
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


def test_facts_that_no_run_writes_are_set_aside(
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
        assert "checkpoint-00000016.npz: damaged checkpoint (" in said.err, kind
        assert f"resumed after step 12 from {sound.name}" in said.out, kind
