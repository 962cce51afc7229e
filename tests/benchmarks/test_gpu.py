"""`make gpu` on a machine without a GPU: its steps and their needs, the page, and the bundle."""

from __future__ import annotations

import json
import struct
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_bundle, gpu_checks, gpu_steps, measure
from imagenet_prep.bench_train import RankRuns, TimedRun, figures
from imagenet_prep.core import strict_json
from imagenet_prep.testing.miniature import make_miniature


@pytest.fixture(autouse=True)
def module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoes the change of `gpu.main`, which is for the processes of its steps."""
    monkeypatch.setenv("PYTHONPATH", "")


def all_steps(num_gpus: int, size: gpu_steps.Size = gpu_steps.FULL) -> list[gpu_steps.Step]:
    return gpu_steps.steps(Path("source"), Path("set"), num_gpus, size, Path("out"))


def step_of(*command: str, needs: tuple[str, ...] = (), limit_s: float = 60) -> gpu_steps.Step:
    return gpu_steps.Step("x", command, needs, lambda out: out.strip(), limit_s)


def python(code: str, **more: float) -> gpu_steps.Step:
    return step_of(sys.executable, "-c", code, **more)


def write_log(folder: Path, speeds: list[float]) -> None:
    folder.mkdir()
    rows = [{"kind": "train", "images_per_s": speed, "loss": 1.5} for speed in speeds]
    text = "".join(json.dumps(row) + "\n" for row in [{"kind": "start"}, *rows])
    (folder / "train.jsonl").write_text(text, "utf-8")


def test_figures_are_parsed_from_the_commands_output() -> None:
    measured = [
        RankRuns(ranks, TimedRun(1000.0 * ranks, 9.0), TimedRun(900.0 * ranks, 9.0))
        for ranks in (1, 2)
    ]
    one, both = (
        json.dumps(figures(runs, [len(runs)], None), default=strict_json.fields)
        for runs in (measured[:1], measured)
    )
    read = json.dumps({"images_per_s": 1234.5, "images_per_cpu_s": 600.2})
    printed = {
        "GPU, memory, driver": "NVIDIA H100, 81559 MiB, 595.91\nNVIDIA H100, 81559 MiB, 595.91\n",
        "Reading, DALI on the CPU": read,
        "Equal labels; pixels of the GPU and the CPU": "plain 0.10 / 0.20\n",
        "JAX, examples/with_jax.py": "NVIDIA H100\n{}\n",
        "ResNet-50 by TensorFlow, float16": one,
        "ResNet-50 by TensorFlow, more GPUs": both,
        "ResNet-50 by PyTorch, more GPUs": both,
        "NCCL's sum over all GPUs": "[1,0]<stdout>:2 ranks: right\n",
    }
    found = {step.name: step for step in all_steps(2)}
    cells = {name: found[name].figure(text) for name, text in printed.items()}

    assert not any("|" in cell for cell in cells.values())
    assert cells["Reading, DALI on the CPU"] == "1,234 images/s, 600 a CPU second"
    assert "10% for input" in cells["ResNet-50 by TensorFlow, float16"]
    assert cells["JAX, examples/with_jax.py"] == "NVIDIA H100; {}"
    assert cells["NCCL's sum over all GPUs"] == "2 ranks: right"
    for name in ("ResNet-50 by TensorFlow, more GPUs", "ResNet-50 by PyTorch, more GPUs"):
        assert "2 GPUs: 1,800 images/s" in cells[name]
        assert found[name].command[found[name].command.index("-np") + 1] == "1,2"


def test_pytorchs_speed_is_compared_with_noise(tmp_path: Path) -> None:
    steps = gpu_steps.pytorch(Path("set"), 1, gpu_steps.FULL, tmp_path)
    write_log(tmp_path / "native", [1.0, 2.0, 3.0, 90.0, 95.0, 99.0])

    assert steps["native"].figure("") == "95 images/s; loss 1.500"
    write_log(tmp_path / "noise", [1.0, 2.0, 3.0, 100.0, 100.0])
    assert steps["noise"].figure("") == "100 images/s; loss 1.500"
    assert steps["native"].figure("") == "95 images/s, 95.0% of the speed on noise; loss 1.500"


def test_steps_are_skipped_if_a_requirement_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = all_steps(0)
    assert set().union(*(step.needs for step in steps)) == set(gpu_steps.THERE)
    for name in gpu_steps.THERE:
        monkeypatch.setitem(gpu_steps.THERE, name, lambda: False)
    found = [gpu.attempt(step, tmp_path / "log") for step in steps if step.needs]

    assert all(not failed and figure.startswith("not run: no ") for failed, figure in found)


def test_steps_without_a_gpu_use_small_networks() -> None:
    full = {step.name: step for step in all_steps(1)}
    small = {step.name: step for step in all_steps(0, gpu_steps.SMALL)}
    rehearsed = {name for name, step in small.items() if _is_for_cpu(step)}

    assert full.keys() == small.keys()
    assert {name for name in rehearsed if "PyTorch" in name} == {
        "ResNet-50 by PyTorch, bfloat16, noise",
        "ResNet-50 by PyTorch, bfloat16, native",
        "ResNet-50 by PyTorch, bfloat16, DALI on the CPU",
        "train by PyTorch, killed and resumed",
    }
    for name in rehearsed:
        assert "resnet50" not in small[name].command
        assert ("--model" in small[name].command) == ("resnet50" in full[name].command)
    assert not any(_is_for_cpu(step) for step in full.values() if "resnet50" in step.command)


def test_a_failed_step_reports_the_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    failing = python("print('before'); raise SystemExit('a | b')")
    # A shell prints at once; on a busy machine, Python may take longer than the limit to start.
    hangs = step_of("sh", "-c", "echo begun; exec sleep 600", limit_s=1.0)
    odd = step_of(sys.executable, "-c", "print('no figure')")._replace(figure=json.loads)

    assert gpu.attempt(failing, log) == (True, "failed with exit code 1: a b")
    assert gpu.attempt(hangs, log) == (True, "failed: killed after 1 s: begun")
    failed, figure = gpu.attempt(odd, log)
    assert failed
    assert figure.startswith("failed: the output is not as expected: ")
    assert figure.endswith(": no figure")
    assert gpu.attempt(python("print(7)"), log) == (False, "7")
    assert gpu.attempt(python("print(7)"), log, 1.0) == (False, "not run: no time left")
    assert log.read_text("utf-8").count("\n## x: ") == 4
    assert gpu.page([("x", "failed")]).endswith("| x | failed |\n")


def test_the_page_has_a_row_for_each_step() -> None:
    written = gpu.PAGE.read_text("utf-8")

    assert written == gpu.page([]) or all(f"\n| {step.name} | " in written for step in all_steps(1))


def test_a_dry_run_does_not_write_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gpu_steps.THERE, "gpu", lambda: False)
    monkeypatch.setattr(gpu_checks, "dataset", lambda *_: (tmp_path, tmp_path))
    monkeypatch.setattr(
        gpu, "attempt", lambda step, *_: ("verify" in step.name, f"ran {step.name}")
    )
    before = gpu.PAGE.read_bytes()
    assert gpu.main(["--dry-run", "--scratch", str(tmp_path)]) == 1

    said = capsys.readouterr()
    ran = [line for line in said.out.splitlines() if line.startswith("ran ")]
    assert len(ran) == len([step for step in all_steps(0, gpu_steps.SMALL) if _is_for_cpu(step)])
    assert "missing: gpu" in said.out
    assert "FAILED: verify --level decode. All output: " in said.err
    assert gpu.PAGE.read_bytes() == before


def _is_for_cpu(step: gpu_steps.Step) -> bool:
    return not {"gpu", "second gpu"} & set(step.needs)


def test_the_page_is_written_after_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = []
    page = tmp_path / "page.md"
    steps = [step_of("true")._replace(name=name) for name in ("a", "b")]

    def attempt(step: gpu_steps.Step, *_: object) -> tuple[bool, str]:
        pages.append(page.read_text("utf-8") if page.exists() else "")
        return False, "done"

    monkeypatch.setattr(gpu_checks, "dataset", lambda *_: (tmp_path, tmp_path))
    monkeypatch.setattr(gpu, "steps", lambda *_: steps)
    monkeypatch.setattr(gpu, "attempt", attempt)
    assert gpu.main(["--scratch", str(tmp_path), "--page", str(page)]) == 0

    assert pages == ["", gpu.page([("a", "done")])]
    assert page.read_text("utf-8") == gpu.page([("a", "done"), ("b", "done")])


def test_the_checks_dataset_repeats_photographs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def corpus(folder: Path, images: int, _: tuple[int, int]) -> Path:
        final = folder / "corpus"
        sizes = {"num_train": images, "num_validation": 1, "num_classes": 2}
        make_miniature(final, **sizes, odd_files=False, size=(60, 40))
        return final

    monkeypatch.setattr(measure, "corpus", corpus)
    source, data = gpu_checks.dataset(tmp_path, 6, 3)
    members = measure.members(source / measure.TRAIN_ARCHIVE)
    splits = json.loads((data / "dataset.json").read_text())["splits"]

    assert len({member.name for member in members}) == len(members) == 18
    with tarfile.open(tmp_path / "corpus" / measure.TRAIN_ARCHIVE) as before:
        names = before.getnames()
    assert sorted({f"{member.wnid}.tar" for member in members}) == sorted(names)
    assert {name: split["examples"] for name, split in splits.items()} == {
        "train": 18,
        "validation": 1,
    }


def test_a_bundle_has_code_for_one_gpu_architecture() -> None:
    def entry(kind: int, target: int, code: bytes) -> bytes:
        return struct.pack("<HHIQIIHHI", kind, 0, 32, len(code), 0, 0, 0, 0, target) + code

    code = {80: b"A" * 24, 90: b"B" * 16, 100: b"C" * 8}
    entries = b"".join(entry(2, target, each) for target, each in code.items())
    entries += entry(1, 90, b"P" * 8)
    fatbin = bytes(16) + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries + bytes(24)
    names = b"\0.nv_fatbin\0.text\0.shstrtab\0"
    places = {".nv_fatbin": (64, fatbin), ".text": (64 + len(fatbin), fatbin)}
    places[".shstrtab"] = (64 + 2 * len(fatbin), names)
    content = b"".join(each for _, each in places.values())
    head = b"\x7fELF".ljust(0x28, b"\0") + struct.pack("<Q", 64 + len(content))
    head = head.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, len(places), 2)
    table = b"".join(
        struct.pack("<IIQQQQ", names.find(name.encode()), 0, 0, 0, offset, len(each)).ljust(
            64, b"\0"
        )
        for name, (offset, each) in places.items()
    )
    library = head + content + table
    foreign = gpu_bundle.foreign_code(library, 90)

    assert [library[first : first + size] for first, size in foreign] == [
        code[80],
        code[100],
        b"P" * 8,
    ]


@pytest.mark.long
@pytest.mark.dali
def test_a_dry_run_passes_without_a_gpu(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nvidia.dali", reason="DALI is absent")
    monkeypatch.setitem(gpu_steps.THERE, "gpu", lambda: False)
    assert gpu.main(["--dry-run", "--scratch", str(tmp_path)]) == 0

    said = capfd.readouterr().out
    assert "images/s" in said
    assert "cpu / native: plain 0.00 / " in said
    assert "sound: 257 examples" in said
