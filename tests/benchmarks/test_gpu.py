"""`make gpu` where there is no GPU: its steps, what they need, and the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpu, train
from imagenet_prep.bench_train import Measured, Run, figures
from imagenet_prep.core import canonical

SMALL = ("--images", "130", "--seconds", "0.2")


def test_a_figure_is_read_from_what_the_commands_print(tmp_path: Path) -> None:
    measured = [
        Measured(ranks, Run(1000.0 * ranks, 9.0), Run(900.0 * ranks, 9.0)) for ranks in (1, 2)
    ]
    printed = {
        "GPU, memory, driver": "NVIDIA H100, 81559 MiB, 595.91\nNVIDIA H100, 81559 MiB, 595.91\n",
        "DALI on the CPU": json.dumps({"images_per_s": 1234.5}),
        "nvJPEG against the CPU": "at most 0.10 grey levels\n",
        "ResNet-50, float16": json.dumps(
            figures(measured[:1], [1], None), default=canonical.fields
        ),
        "ResNet-50, float16, more GPUs": json.dumps(
            figures(measured, [2], None), default=canonical.fields
        ),
        "NCCL's sum over all GPUs": "[1,0]<stdout>:2 ranks: right\n",
    }
    found = {step.name: step for step in gpu.steps(tmp_path, 2, "1", tmp_path)}

    assert found["DALI on the CPU"].figure(printed["DALI on the CPU"]) == "1,234 images/s"
    assert "10% for input" in found["ResNet-50, float16"].figure(printed["ResNet-50, float16"])
    for name, text in printed.items():
        assert "|" not in found[name].figure(text), name
    summed = found["NCCL's sum over all GPUs"]
    assert summed.figure(printed[summed.name]) == "2 ranks: right"
    more = found["ResNet-50, float16, more GPUs"]
    assert "2 GPUs: 1,800 images/s" in more.figure(printed[more.name])
    assert more.command[more.command.index("-np") + 1] == "1,2"


def test_steps_know_what_they_need_and_a_step_without_it_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = gpu.steps(tmp_path, 0, "1", tmp_path)
    assert {need for step in steps for need in step.needs} == set(gpu.THERE)
    for name in gpu.THERE:
        monkeypatch.setitem(gpu.THERE, name, lambda: False)
    found = [gpu.attempt(step) for step in steps]

    assert all(not failed and figure.startswith("not run: no ") for failed, figure in found)


def test_a_step_that_fails_is_a_row_that_says_so(tmp_path: Path) -> None:
    failing = gpu.Step("x", ("false",), (), str)

    assert gpu.attempt(failing) == (True, "failed with exit code 1")
    assert gpu.page([("x", "failed")]).endswith("| x | failed |\n")


def test_the_page_is_what_the_program_writes() -> None:
    written = gpu.PAGE.read_text("utf-8")

    assert written == gpu.page([]) or all(
        f"\n| {step.name} | " in written for step in gpu.steps(Path(), 1, "1", Path())
    )


def test_a_dry_run_says_what_is_missing_runs_the_rest_and_leaves_the_page_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gpu.THERE, "gpu", lambda: False)
    monkeypatch.setattr(train, "dataset", lambda *_: tmp_path)
    monkeypatch.setattr(gpu, "attempt", lambda step: (False, f"ran {step.name}"))
    before = gpu.PAGE.read_bytes()
    assert gpu.main(["--dry-run", "--scratch", str(tmp_path)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("missing: gpu")]) == 9
    assert [line for line in lines if line.startswith("ran ")] == ["ran DALI on the CPU"]
    assert gpu.PAGE.read_bytes() == before


@pytest.mark.long
@pytest.mark.dali
def test_a_dry_run_reads_with_dali_on_the_cpu(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    monkeypatch.setitem(gpu.THERE, "gpu", lambda: False)
    assert gpu.main([*SMALL, "--dry-run", "--scratch", str(tmp_path)]) == 0

    assert "images/s\n" in capfd.readouterr().out
    equal = gpu.compare(train.dataset(tmp_path, 130), "cpu")
    assert equal == "at most 0.00 grey levels a picture on average, 0 in one value"
