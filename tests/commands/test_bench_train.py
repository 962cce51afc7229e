"""`bench-train`: its figures, its runs, and one sweep over real ranks."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import bench_train, report, train
from imagenet_prep.bench_train import BenchTrainConfig, RankRuns, TimedRun
from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.hosts.commands import Ending
from imagenet_prep.reporting import plots, scaling
from tests.kit import command
from tests.kit.installed import Installed
from tests.kit.machine import lines_of
from tests.kit.messages import says
from tests.kit.training import horovod, shades
from tests.kit.unplotted import unplotted

__all__ = ["horovod", "shades", "unplotted"]

MEASURED = [
    RankRuns(1, TimedRun(110.0, 20.0), TimedRun(100.0, 20.0)),
    RankRuns(2, TimedRun(200.0, 20.0), TimedRun(180.0, 20.0)),
    RankRuns(16, TimedRun(880.0, 30.0), TimedRun(800.0, 36.0)),
]


def test_figures_give_efficiency_shares_hours_and_cost() -> None:
    first, second, last = bench_train.figures(MEASURED, [8, 8, 8], 24.5)

    assert (first.efficiency, first.communication_share) == (1, 0)
    assert first.input_share == pytest.approx(1 / 11)
    assert second.efficiency == pytest.approx(0.9)
    assert second.communication_share == pytest.approx(1 - 100 / 110)
    assert [row.hosts for row in (first, second, last)] == [1, 1, 2]
    assert last.start_up_s == 36
    assert last.hours == pytest.approx((90 * 1_281_167 / 800 + 36) / 3600)
    assert last.dollars == pytest.approx(2 * 24.5 * last.hours)


def test_figures_without_data_or_price_have_gaps() -> None:
    (row,) = bench_train.figures([RankRuns(4, TimedRun(10.0, 1.0), None)], [4], None)

    assert row.images_per_s == row.images_per_s_without_input == 10
    assert (row.input_share, row.dollars) == (None, None)
    assert scaling.cells([row])[0][5] == scaling.cells([row])[0][9] == "-"


def test_each_cell_shows_its_own_figure() -> None:
    row = scaling.RankFigures(
        ranks=1024,
        hosts=128,
        images_per_s=1234.56,
        images_per_s_without_input=2345.67,
        efficiency=0.91,
        input_share=0.32,
        communication_share=0.13,
        start_up_s=54.32,
        hours=6.54,
        dollars=7654.3,
    )

    assert dict(zip(scaling.HEADER, *scaling.cells([row]), strict=True)) == {
        "ranks": "1,024",
        "hosts": "128",
        "images/s": "1,234.6",
        "without input": "2,345.7",
        "efficiency": "91%",
        "input": "32%",
        "communication": "13%",
        "start-up": "54.3 s",
        "90 epochs": "6.5 h",
        "dollars": "7,654",
    }


def test_first_rows_of_a_run_are_ignored() -> None:
    speeds = (1.0, 2.0, 3.0, 10.0, 12.0, 11.0)
    rows = [{"kind": "start"}, *({"kind": "train", "images_per_s": speed} for speed in speeds)]

    assert bench_train.settled(rows) == 11
    assert bench_train.settled(rows[:3]) == 1.5


def test_both_runs_have_requested_steps_and_settings() -> None:
    chosen = ["--data-dir", "/data", "--fraction", "0.1", "--keys", "some", "--device", "gpu"]
    asked = train.parse([*chosen, "--batch-size", "64", "--jit", "--eval-every", "1"])
    for examples in (1000, None):
        words = bench_train.short_run(asked, 30, examples, "/runs/1")
        told = train.parse(words[1:])

        assert words[0] == "train"
        assert (told.data_dir, told.synthetic) == (("/data", False) if examples else (None, True))
        assert (told.num_epochs, told.num_batches) == (None, 30)
        assert (told.batch_size, told.jit, told.log_dir) == (64, True, "/runs/1")
        assert told.device == ("gpu" if examples else "auto")
        assert (told.eval_every, told.no_evaluation) == (0, examples is not None)
        # All examples are counted, so a fraction must not apply.
        assert (told.fraction, told.keys) == (1.0, None)


def test_unmeasured_flags_are_off() -> None:
    """A new flag of train is in the short runs only if bench-train names it."""
    asked = train.parse(["--data-dir", "/data"])
    for field in dataclasses.fields(asked):
        if field.name not in (*bench_train._MEASURED, *bench_train._MEASURED_WITH_DATA):
            object.__setattr__(asked, field.name, 7)

    words = bench_train.short_run(asked, 30, 1000, "/runs/1")
    # The learning rate and its schedule are also measured.
    assert words == [
        "train",
        "--data-dir=/data",
        "--num-batches=30",
        "--log-dir=/runs/1",
        "--lr=7",
        "--schedule=7",
        "--display-every=3",
        "--eval-every=0.0",
        "--no-evaluation",
    ]


@pytest.mark.parametrize(
    "given",
    [
        "--schedule plateau --eval-every 1",
        "--recipe cifar10 --image-size 32",
        "--labels real.json --labels more.csv",
        "--also v2,r",
        "--classes 1,2 --remap",
        "--evaluate --predictions said.csv",
        "--schedule steps --lr-decay-steps 1,2 --lr-decay-lrs 3,2,1",
        "--device gpu",
        "--no-evaluation",
        "--clear-log",
        "--mirror s3://b/run --export model",
    ],
)
def test_short_runs_drop_flags_of_complete_runs(given: str) -> None:
    asked = train.parse(["--data-dir", "/data", *given.split()])
    for examples in (1000, None):
        told = train.parse(bench_train.short_run(asked, 30, examples, "/runs/1")[1:])
        assert told.synthetic == (examples is None)


MEASURED_FLAGS = [
    "--framework pytorch --comm horovod --fp16-compression --jit --precision bfloat16",
    "--model resnet18 --batch-size 64 --image-size 64 --train-accuracy --increased-aug",
    "--recipe tutorial --optimizer larc --trust-coefficient 0.02 --momentum 0.8 --nesterov",
    "--weight-decay 0.1 --label-smoothing 0.2 --precision float16 --loss-scale 64",
    "--schedule steps --lr-decay-steps 1,2 --lr-decay-lrs 3,2,1 --warmup-lr 0.2",
    "--checkpoint-every 7 --keep 2 --seed 5 --clear-log --local-ckpt",
    "--backend dali --device gpu",
]


@pytest.mark.parametrize("given", MEASURED_FLAGS)
def test_short_runs_keep_flags_that_affect_speed(given: str) -> None:
    asked = train.parse(["--data-dir", "/data", *given.split()])
    for examples in (1000, None):
        told = train.parse(bench_train.short_run(asked, 30, examples, "/runs/1")[1:])
        kept = asked.changed()
        for name in bench_train._MEASURED_WITH_DATA if examples is None else ():
            kept.pop(name, None)
        assert told.changed().items() >= kept.items()


def test_each_measured_flag_is_tried_above() -> None:
    tried: set[str] = set()
    for given in MEASURED_FLAGS:
        tried |= train.parse(["--data-dir", "/data", *given.split()]).changed().keys()

    assert tried >= {*bench_train._MEASURED, *bench_train._MEASURED_WITH_DATA}


@pytest.mark.parametrize("ranks", ["", "0,1", "2,1", "1,1", "1,x", "-1"])
def test_numbers_of_ranks_must_increase(ranks: str) -> None:
    with pytest.raises(ValueError, match=r"-np .*: expected"):
        BenchTrainConfig(tuple(ranks.split(",")))


def test_parameter_servers_are_passed_to_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[str] = []

    def run(argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        launched.extend(argv)
        return subprocess.CompletedProcess(argv, 2)

    monkeypatch.setattr(subprocess, "run", run)
    words = ["-np", "2", "--servers", "3", "--out", str(tmp_path), "--", "train", "--synthetic"]
    with pytest.raises(UsageError, match=says("run-failed-exit-code-see", ..., 2)):
        bench_train.run([*words, "--framework", "mxnet", "--comm", "dist_sync"])

    launch = launched[launched.index("launch") : launched.index("train")]
    assert launch == ["launch", "-np", "2", "--servers", "3", "--"]
    assert "--comm=dist_sync" in launched


@pytest.mark.parametrize(
    "ending",
    [Ending(None, "it did not answer within 60 s", seconds=60.0), Ending(1, "No such file")],
    ids=["too late", "missing"],
)
def test_log_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: Ending
) -> None:
    """The log is on the host of rank 0; the folder of the run is removed there nevertheless."""
    asked: list[str] = []

    def run(argv: Sequence[str], **_: Any) -> Ending:
        asked.append(argv[0])
        return ending

    done = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr("imagenet_prep.hosts.commands.run", run)
    words = ["-np", "1", "--out", str(tmp_path), "--", "train", "--synthetic"]
    with pytest.raises(ImagenetPrepError, match=says("cannot-read", ..., ..., ending.said)):
        bench_train.run(words)

    assert asked == ["cat", "rm"]


def test_command_other_than_train_is_refused() -> None:
    with pytest.raises(UsageError, match=says("expected-train-command-after-train")):
        bench_train.run(["-np", "1", "--", "verify", "/data"])


def test_sweep_stores_and_prints_its_figures(
    shades: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("leader slots=2\nmember slots=2\n")
    asked = []

    def run(
        _config: Any, _asked: Any, ranks: int, examples: int | None, leader: str, _: Path
    ) -> TimedRun:
        asked.append((ranks, examples is None, leader))
        return TimedRun(100.0 * ranks / (1 if examples is None else 2), 5.0)

    monkeypatch.setattr(bench_train, "_run", run)
    out = tmp_path / "bench"
    mine = tmp_path / "mine"
    mine.write_text("my own")
    out.mkdir()
    flags = ["-np", "1,4", "--hosts", str(hosts), "--price", "3", "--out", str(out)]
    for name in (bench_train.PICTURE, bench_train.FIGURES):
        (out / name).symlink_to(mine)
        with pytest.raises(UsageError, match=says("not-not-replaced-choose-different", name, "a ")):
            bench_train.run([*flags, "--", "train", "--data-dir", str(shades)])
        (out / name).unlink()
    mine.write_bytes(b"\x89PNG of another run")
    (out / bench_train.PICTURE).symlink_to(mine)
    assert bench_train.run([*flags, "--", "train", "--data-dir", str(shades)]) == 0

    assert asked == [*itertools.product((1, 4), (True, False), ("leader",))]
    rows = scaling.load(out / bench_train.FIGURES)
    assert [row.hosts for row in rows] == [1, 2]
    assert [row.input_share for row in rows] == [0.5, 0.5]
    assert (out / bench_train.PICTURE).read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert printed[0].split()[:2] == ["ranks", "hosts"]

    assert bench_train.run([*flags, "--", "train", "--data-dir", str(shades)]) == 0
    assert len(scaling.load(out / bench_train.FIGURES)) == 2
    assert mine.read_bytes() == b"\x89PNG of another run"


def test_scaling_page_measures_and_reports(
    shades: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unplotted: None
) -> None:
    """Without the runs of the sweep, which take hours, and without plots."""
    monkeypatch.setattr(bench_train, "_run", lambda *asked: TimedRun(100.0 * asked[2], 5.0))
    monkeypatch.setattr(plots, "save_training", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("".join(f"node-{number} slots=8\n" for number in range(4)))
    here, on_hosts, show = lines_of("$ scaling.md: Measured")
    for line, ranks in ((here, [1, 2, 4, 8]), (on_hosts, [8, 16, 32])):
        words = line.replace("/data/imagenet-480", str(shades)).replace("DOLLARS", "3").split()
        assert bench_train.run(words[2:]) == 0
        rows = scaling.load(Path("bench-train") / bench_train.FIGURES)
        assert [row.ranks for row in rows] == ranks
    assert [row.hosts for row in rows] == [1, 2, 4]
    copy = shutil.copytree(shades, tmp_path / "set")
    assert report.run(show.replace("/data/imagenet-480", str(copy)).split()[2:]) == 0
    assert "32 ranks: 3,200.0 images/s" in (copy / "report.html").read_text("utf-8")


def test_measurement_needs_no_matplotlib(
    tmp_path: Path, installed: Installed, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """An older picture would show different figures, so it is removed."""
    installed.lacks("matplotlib", "imagenet_prep.reporting.plots")
    monkeypatch.setattr(bench_train, "_run", lambda *asked: TimedRun(100.0 * asked[2], 5.0))
    out = tmp_path / "bench"
    out.mkdir()
    (out / bench_train.PICTURE).write_bytes(b"\x89PNG of another run")
    assert bench_train.run(["-np", "1,2", "--out", str(out), "--", "train", "--synthetic"]) == 0

    assert [row.ranks for row in scaling.load(out / bench_train.FIGURES)] == [1, 2]
    assert [path.name for path in out.iterdir()] == [bench_train.FIGURES]
    printed, said = capsys.readouterr()
    assert len(printed.splitlines()) == 3
    assert says("no-matplotlib-not-installed-run", bench_train.PICTURE).search(said)


@pytest.mark.parametrize(
    "content", ["", "{}", '{"rows": []}', '{"rows": [{"ranks": 1}]}', "[1e999]"]
)
def test_invalid_figures_file_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "figures.json"
    path.write_text(content)

    with pytest.raises(
        UsageError,
        match=says("not-bench-train.json-written-imagenet-prep-bench-train", "figures.json"),
    ):
        scaling.load(path)


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("field", ["ranks", "images_per_s", "images_per_s_without_input"])
def test_row_without_ranks_or_speed_is_refused(tmp_path: Path, field: str, number: int) -> None:
    rows = bench_train.figures(MEASURED, [16], None)
    rows[-1] = dataclasses.replace(rows[-1], **{field: number})
    path = tmp_path / "figures.json"
    path.write_bytes(strict_json.dumps({"rows": rows}))

    with pytest.raises(UsageError, match=says("number-ranks-speed-0-negative")):
        scaling.load(path)


def test_infinite_speed_is_refused(tmp_path: Path) -> None:
    rows = bench_train.figures(MEASURED, [16], None)
    path = tmp_path / "figures.json"
    path.write_text(strict_json.dumps({"rows": rows}).decode().replace("800.0", "1e999"))

    with pytest.raises(UsageError, match=says("number-not-fit-64-bits")):
        scaling.load(path)


@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.long
@pytest.mark.usefixtures("horovod")
def test_one_and_two_ranks_are_measured(shades: Path, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    flags = ("-np", "1,2", "--steps", "10", "--out", out, "--json")
    result = command.run(
        *("bench-train", *flags, "--", "train", "--data-dir", shades),
        "--model",
        "tiny",
        "--image-size",
        "16",
        "--batch-size",
        "2",
    )

    assert result.code == 0, result
    assert [row["ranks"] for row in result.json] == [1, 2]
    assert [vars(row) for row in scaling.load(out / bench_train.FIGURES)] == result.json
    assert sorted(path.name for path in out.iterdir()) == ["bench-train.json", "bench-train.png"]
