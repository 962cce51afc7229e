"""`train --framework pytorch`, with PyTorch itself: one rank, two, and TensorFlow's losses."""

from __future__ import annotations

import csv
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.trainer import checkpoint
from tests.frameworks.programs import LOGITS, ended, launched
from tests.kit import command
from tests.kit.command import PATIENCE_S, PROGRAM
from tests.kit.dataset import split_records
from tests.kit.shared import made_once
from tests.kit.tfrecords import wnid
from tests.kit.training import (
    NUM_VALIDATION,
    arguments,
    arrays_of,
    assert_same_bits,
    flags,
    rows,
)

pytestmark = pytest.mark.long

PROGRAMS = Path(__file__).parent
LAST = 33
# Two ranks with a thread for each core take turns at waiting.
ONE = {"OMP_NUM_THREADS": "1"}


def settings(shades: Path, **more: Any) -> dict[str, Any]:
    """Returns the settings of 33 steps of 8 images over all ranks."""
    small = flags(shades, Path("-"), num_epochs=4.125, checkpoint_every=10, display_every=1, keep=9)
    del small["log_dir"]
    return small | {"backend": "native"} | more


def words(shades: Path, log_dir: Path, **more: Any) -> list[str]:
    given = settings(shades, **more) | {"framework": "pytorch", "log_dir": str(log_dir)}
    return ["train", *arguments(given)]


def run(python: Path, *argv: str | Path, code: int = 0) -> command.Finished:
    """Runs a verb in PyTorch's environment."""
    with command.started(*argv, python=python, env=ONE, program=PROGRAM) as running:
        finished = running.finish(PATIENCE_S)
        assert running.workers() == []
    assert finished.code == code, finished
    assert "Warning" not in finished.err
    return finished


@pytest.fixture(scope="session")
def runs(python: Path, shades: Path, shared_cache: Path) -> Path:
    """The run `whole` of one process, and `two` of two ranks of half the batch."""

    def make(folder: Path) -> None:
        export = str(folder / "exported.safetensors")
        run(python, *words(shades, folder / "whole", export=export))
        two = words(shades, folder / "two", batch_size=4)
        made = run(python, "launch", "-np", "2", "--", *two)
        (folder / "out").write_text(made.out)

    return made_once(shared_cache / "pytorch-runs", make)


# Type, steps, and three words for each network; see agree.py. Large networks have fewer steps.
SHALLOW = """float32 10
    tiny sgd 0.05  tiny adam 0.003  tiny rmsprop 0.001  tiny lars 2  tiny larc 0.5
    cifar adam 0.001  mnist adam 0.001
"""
DEEP = (
    *(
        f"float64 10 {model} sgd 0.0005"
        for model in ("resnet18", "resnet34", "resnet50", "resnet50-v1")
    ),
    *(f"float64 4 {model} sgd 0.0005" for model in ("resnet101", "resnet152")),
)


@pytest.mark.parametrize("words", [SHALLOW, *DEEP], ids=lambda words: words.split()[2])
def test_the_losses_of_the_first_steps_are_those_of_tensorflow(python: Path, words: str) -> None:
    said = ended(python, PROGRAMS / "agree.py", *words.split(), **ONE)
    found = [json.loads(line) for line in said.splitlines() if line.startswith("[")]
    _, steps, *cases = words.split()
    assert len(found) == len(cases) / 3
    for model, optimizer, both in found:
        one, other = np.array(both)
        assert one.shape == (int(steps), 2)
        assert np.ptp(one[:, 0]) > 0.01
        np.testing.assert_allclose(other, one, rtol=1e-3, err_msg=f"{model} {optimizer}")


@pytest.mark.parametrize("name", ["whole", "two"])
def test_it_learns_and_every_example_is_counted_once(runs: Path, name: str) -> None:
    (evaluation,) = rows(runs / name, "evaluation")
    assert evaluation["examples"] == NUM_VALIDATION
    assert evaluation["top1"] > 0.9
    (start,) = rows(runs / name, "start")
    assert start["versions"].keys() == {"Python", "PyTorch"}
    assert list((runs / name / "tensorboard").glob("events.*"))


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGKILL])
def test_ended_and_run_again_it_has_the_same_bits(
    python: Path, runs: Path, shades: Path, tmp_path: Path, asked: signal.Signals
) -> None:
    log_dir = tmp_path / "run"
    argv = words(shades, tmp_path / "run")
    with command.started(*argv, python=python, env=ONE, program=PROGRAM) as running:
        command.wait_until(
            lambda: running.ended or len(rows_so_far(log_dir)) > 12, "steps after a checkpoint"
        )
        running.send(asked)
        finished = running.finish(PATIENCE_S)
    assert finished.code == (4 if asked == signal.SIGTERM else -signal.SIGKILL), finished
    run(python, *argv)

    assert_same_bits(arrays_of(runs / "whole"), arrays_of(log_dir))
    assert rows(log_dir, "start")[1]["resumed_at"] >= 10


def rows_so_far(log_dir: Path) -> list[str]:
    file = log_dir / "train.jsonl"
    return file.read_text().splitlines() if file.exists() else []


# A gradient in float16 has 11 bits.
@pytest.mark.parametrize(("halved", "rtol", "atol"), [(False, 1e-4, 1e-5), (True, 1e-2, 1e-3)])
@pytest.mark.parametrize("comm", ["ddp", "horovod"])
def test_two_ranks_end_with_the_weights_of_one_process(
    python: Path, shades: Path, tmp_path: Path, comm: str, halved: bool, rtol: float, atol: float
) -> None:
    if comm == "horovod":
        launched(python, 2)  # It skips the test where there is no Horovod.
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        more = {"comm": comm, "fp16_compression": halved}
        given = json.dumps(settings(shades, batch_size=8 // ranks, **more))
        script = ("--", "python", PROGRAMS / "pytorch_rank.py", folder, given)
        run(python, "launch", "-np", str(ranks), *script)
    one, *both = (
        dict(np.load(tmp_path / name))
        for name in ("1/weights-0.npz", "2/weights-0.npz", "2/weights-1.npz")
    )
    assert_same_bits(*both)
    # Each rank began with others, see pytorch_rank.py: without the broadcast they would differ.
    for name, values in one.items():
        np.testing.assert_allclose(both[0][name], values, rtol=rtol, atol=atol)
    scores = [json.loads((tmp_path / "2" / f"score-{rank}.json").read_text()) for rank in (0, 1)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("comm", ["ddp", "horovod"])
def test_a_killed_rank_ends_both_and_one_process_goes_on(
    python: Path, shades: Path, tmp_path: Path, comm: str
) -> None:
    if comm == "horovod":
        launched(python, 2)  # It skips the test where there is no Horovod.
    log_dir = tmp_path / "run"
    two = words(shades, log_dir, batch_size=4, num_epochs=40.0, comm=comm)
    launch = ("launch", "-np", "2", "--", *two)
    with command.started(*launch, python=python, env=ONE, program=PROGRAM) as running:
        command.wait_until(lambda: running.ended or list(log_dir.glob("*.npz")), "a checkpoint")
        victims = [pid for pid in running.workers() if of_rank(pid, 1)]
        running.send(signal.SIGKILL, victims)
        finished = running.finish(PATIENCE_S)
        assert running.workers() == []
    assert finished.code == 128 + signal.SIGKILL, finished
    assert "rank 1: ended by signal 9" in finished.err
    assert "another rank died or stalled" in finished.err
    there = checkpoint.steps(log_dir)[-1]
    run(python, *words(shades, log_dir, num_epochs=40.0))
    assert [row["resumed_at"] for row in rows(log_dir, "start")] == [0, there]


def of_rank(pid: int, rank: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"imagenet_prep" in words and f"RANK={rank}".encode() in environment


def test_the_weights_are_torchvisions(python: Path, runs: Path, tmp_path: Path) -> None:
    """The class of examples/tiny.py takes them, and says what the run's own evaluation says."""
    np.save(tmp_path / "images.npy", np.zeros((1, 3, 16, 16), np.float32))
    out = tmp_path / "tiny.safetensors"
    made = command.run("export", runs / "whole", "--format", "torch", "--out", out)
    assert made.code == 0, made
    assert "tiny for 4 classes" in made.out
    script = LOGITS.replace("Tiny(10, 64)", "Tiny(4, 16)")
    # Not the folder itself: torchvision looks for a module that is called like another example.
    shutil.copy(command.REPOSITORY / "examples" / "tiny.py", tmp_path)
    for file in (out, runs / "exported.safetensors"):
        program = ("-c", script, "tiny", file, tmp_path / "images.npy")
        said = ended(python, *program, PYTHONPATH=str(tmp_path))
        assert np.isfinite(json.loads(said)).all()


def test_the_page_classifies_a_photograph_as_the_evaluation_does(
    python: Path, shades: Path, runs: Path, tmp_path: Path
) -> None:
    said = tmp_path / "said.csv"
    run_dir = tmp_path / "run"
    shutil.copytree(runs / "whole", run_dir)
    evaluating = ("--log-dir", run_dir, "--data-dir", shades, "--backend", "native")
    run(python, "train", *evaluating, "--evaluate", "--predictions", said)
    (run_dir / "tiny.safetensors").write_bytes((runs / "exported.safetensors").read_bytes())
    shutil.copy(command.REPOSITORY / "examples" / "tiny.py", tmp_path)
    page = (command.REPOSITORY / "docs/photographs.md").read_text("utf-8")
    _, _, snippet = page.split("```python\n")
    program = snippet.partition("```")[0].replace('"photo', f'"{tmp_path}/photo')
    program = program.replace('"run/', f'"{run_dir}/')
    (tmp_path / "classify.py").write_text(program)
    records = {record.filename: record for record in split_records(shades, "validation")}
    with open(said, encoding="utf-8", newline="") as file:
        for row in list(csv.DictReader(file))[:4]:
            record = records[row["key"].rpartition("/")[2]]
            (tmp_path / "photo.jpg").write_bytes(record.encoded)
            name, share = ended(python, tmp_path / "classify.py", **ONE).split()
            assert name == wnid(int(row["top1"]))
            assert abs(float(share.rstrip("%")) / 100 - float(row["p1"])) < 0.02


def test_a_compiled_network_in_half_precision_learns(
    python: Path, shades: Path, tmp_path: Path
) -> None:
    compiler = shutil.which("g++") or pytest.skip("torch.compile needs g++ on a CPU")
    assert compiler
    for more in ({"precision": "bfloat16", "jit": True}, {"precision": "float16"}):
        log_dir = tmp_path / more["precision"]
        run(python, *words(shades, log_dir, **more))
        assert rows(log_dir, "evaluation")[0]["top1"] > 0.8
