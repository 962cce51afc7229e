"""`train --framework pytorch` with PyTorch itself: one rank, two, and TensorFlow's losses."""

from __future__ import annotations

import csv
import json
import math
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.trainer import checkpoint
from imagenet_prep.trainer.interface import ExportedNetwork
from tests.frameworks.programs import LOGITS, ended, launched
from tests.kit import command
from tests.kit.command import PATIENCE_S, PROGRAM, REPOSITORY
from tests.kit.dataset import split_records
from tests.kit.machine import lines_of
from tests.kit.messages import says
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

LONG = pytest.mark.long
PROGRAMS = Path(__file__).parent
EXAMPLES = REPOSITORY / "examples"
LAST = 33
# Two ranks with a thread for each core would block each other.
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
def runs(pytorch: Path, shades: Path, shared_cache: Path) -> Path:
    """The run `whole` of one process, and its exported network."""

    def make(folder: Path) -> None:
        export = str(folder / "exported.safetensors")
        run(pytorch, *words(shades, folder / "whole", export=export))

    return made_once(shared_cache / "pytorch-runs", make)


def test_the_example_names_its_launchers_and_its_end(
    pytorch: Path, shades: Path, tmp_path: Path
) -> None:
    script = str(EXAMPLES / "with_pytorch.py")
    words = ("--data-dir", shades, "--epochs", "1", "--out", tmp_path / "model.pt")
    with command.started(*words, python=pytorch, program=(script,)) as running:
        alone = running.finish()
    assert (alone.code, alone.out) == (1, "")
    assert alone.err.startswith("Start this script with torchrun --nproc-per-node 1, or ")
    program = ("-m", "torch.distributed.run", "--nproc-per-node", "1", script)
    for epochs in (1, 0):
        with command.started(*words, python=pytorch, env=ONE, program=program) as running:
            finished = running.finish(PATIENCE_S)
        assert finished.code == 0, finished
        assert len([line for line in finished.out.splitlines() if line.startswith("{")]) == epochs
    assert finished.out.startswith(f"{tmp_path / 'model.pt'} is finished (epochs: 1). ")


# Type, steps, and three words per network; see agree.py. Large networks have fewer steps.
SHALLOW = """float32 10
    tiny sgd 0.05  tiny adam 0.003  tiny rmsprop 0.001  tiny lars 2  tiny larc 0.5
"""
DEEP = (
    "float32 10  cifar adam 0.001  mnist adam 0.001",
    *(
        f"float64 10 {model} sgd 0.0005"
        for model in ("resnet18", "resnet34", "resnet50", "resnet50-v1")
    ),
    *(f"float64 4 {model} sgd 0.0005" for model in ("resnet101", "resnet152")),
)


def test_untrained_networks_are_those_of_the_papers(pytorch: Path) -> None:
    """Their shapes are torchvision's; each residual block starts as its shortcut."""
    names = ("resnet18", "resnet50", "resnet50-v1", "tiny", "cifar", "mnist")
    found = json.loads(ended(pytorch, PROGRAMS / "networks.py", *names, **ONE))

    for name in names[:3]:
        network = found[name]
        assert network["ours"] == network["theirs"], name
        last = "bn2" if name == "resnet18" else "bn3"
        assert network["zero"] == [key for key in network["zero"] if key.endswith(last)]
        assert len(network["zero"]) == sum((2, 2, 2, 2) if name == "resnet18" else (3, 4, 6, 3))
        assert np.allclose(network["spreads"], 1, atol=0.05)
    for name in ("resnet18", "resnet50", "tiny"):
        weights = sum(math.prod(shape) for shape in found[name]["ours"].values())
        assert ExportedNetwork(name, 10, 32).num_weights == weights
    assert [found[name]["dropouts"] for name in names[3:]] == [[], [0.2, 0.3, 0.4, 0.5], [0.5]]
    for name in names:
        assert 0.008 < found[name]["dense"] < 0.012
        assert found[name]["outputs"] == [2, 10]


def test_each_rank_has_its_own_dropout_masks(pytorch: Path) -> None:
    said = ended(pytorch, PROGRAMS / "dropouts.py", "0:5", "1:5", "1:5", "0:6", **ONE)

    losses = json.loads(said)
    assert losses[1] == losses[2]
    assert len(set(losses)) == 3


def test_all_ranks_get_equal_results(pytorch: Path) -> None:
    replaced = [[[1.5, 8]], 1.5, [[0], [7]], 0]
    rows_of_ranks = [[rank, 10 * rank] for rank in range(4)]
    expected = [[4, 6, 20], True, 8, replaced, rows_of_ranks, {"rank": 0}]
    assert json.loads(ended(pytorch, PROGRAMS / "rank_sums.py", **ONE)) == [expected] * 4


def test_ranks_restarted_by_torchrun_wait_again(pytorch: Path) -> None:
    connected, problem = json.loads(ended(pytorch, PROGRAMS / "restarted.py", **ONE))
    assert connected == 2
    assert says("no-within-s", "rank 1", 1).search(problem)


@pytest.mark.parametrize(
    "words",
    [SHALLOW, *(pytest.param(words, marks=LONG) for words in DEEP)],
    ids=lambda words: words.split()[2],
)
def test_the_first_losses_equal_tensorflows(pytorch: Path, words: str) -> None:
    said = ended(pytorch, PROGRAMS / "agree.py", *words.split(), **ONE)
    found = [json.loads(line) for line in said.splitlines() if line.startswith("[")]
    _, steps, *cases = words.split()
    assert len(found) == len(cases) / 3
    for model, optimizer, both in found:
        one, other = np.array(both)
        assert one.shape == (int(steps), 2)
        assert np.ptp(one[:, 0]) > 0.01
        np.testing.assert_allclose(other, one, rtol=1e-3, err_msg=f"{model} {optimizer}")


def test_the_loss_scale_does_not_change_the_steps(
    pytorch: Path, shades: Path, tmp_path: Path
) -> None:
    losses = []
    for scale in (1.0, 1024.0):
        folder = tmp_path / str(scale)
        more = {"precision": "float16", "loss_scale": scale, "num_epochs": 0.5}
        run(pytorch, *words(shades, folder, **more))
        losses.append([row["loss"] for row in rows(folder, "train")])

    assert losses[0]
    np.testing.assert_allclose(*losses, rtol=0.02)


def test_a_run_learns_and_counts_every_example_once(runs: Path) -> None:
    check_learned(runs / "whole")


@pytest.mark.long
@pytest.mark.parametrize("number", [2, 3, 4], ids=["alone", "launch", "torchrun"])
def test_documented_commands_learn_and_count_every_example_once(
    pytorch: Path, shades: Path, tmp_path: Path, number: int
) -> None:
    """Two ranks instead of eight. The first line of docs/train.md installs PyTorch."""
    line = lines_of("$ train.md: With PyTorch")[number - 1].replace("/data/imagenet-480", "DATA")
    program, *argv = line.replace("8", "2").split()
    small = settings(shades, batch_size=8 if number == 2 else 4, log_dir=str(tmp_path / "run"))
    del small["data_dir"]
    argv = [*(str(shades) if word == "DATA" else word for word in argv), *arguments(small)]
    if program == "torchrun":
        how = ("-m", "torch.distributed.run")
        with command.started(*argv, python=pytorch, env=ONE, program=how) as running:
            finished = running.finish(PATIENCE_S)
        assert finished.code == 0, finished
    else:
        run(pytorch, *argv)
    check_learned(tmp_path / "run")


def check_learned(log_dir: Path) -> None:
    (evaluation,) = rows(log_dir, "evaluation")
    assert evaluation["examples"] == NUM_VALIDATION
    assert evaluation["top1"] > 0.9
    (start,) = rows(log_dir, "start")
    assert start["versions"].keys() == {"Python", "PyTorch"}
    assert list((log_dir / "tensorboard").glob("events.*"))


@pytest.mark.parametrize("asked", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=LONG)])
def test_an_ended_run_resumes_with_the_same_bits(
    pytorch: Path, runs: Path, shades: Path, tmp_path: Path, asked: signal.Signals
) -> None:
    log_dir = tmp_path / "run"
    argv = words(shades, tmp_path / "run")
    for _ in range(5):
        with command.started(*argv, python=pytorch, env=ONE, program=PROGRAM) as running:
            command.wait_until(
                lambda r=running: r.ended or len(rows_so_far(log_dir)) > 12,
                "steps after a checkpoint",
            )
            running.send(asked)
            finished = running.finish(PATIENCE_S)
        if finished.code:
            break
        shutil.rmtree(log_dir)  # the run ended before the signal
    assert finished.code == (4 if asked == signal.SIGTERM else -signal.SIGKILL), finished
    run(pytorch, *argv)

    assert_same_bits(arrays_of(runs / "whole"), arrays_of(log_dir))
    assert rows(log_dir, "start")[1]["resumed_at"] >= 10


def rows_so_far(log_dir: Path) -> list[str]:
    file = log_dir / "train.jsonl"
    return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def python_for_comm(request: pytest.FixtureRequest, comm: str) -> Path:
    """The interpreter of an environment that has this communication."""
    if comm == "ddp":
        return request.getfixturevalue("pytorch")
    python: Path = request.getfixturevalue("python")
    launched(python, 2)  # It skips the test where there is no Horovod.
    return python


# A gradient in float16 has 11 bits.
@pytest.mark.parametrize(
    ("halved", "rtol", "atol"),
    [(False, 1e-4, 1e-5), pytest.param(True, 1e-2, 1e-3, marks=LONG)],
)
@pytest.mark.parametrize("comm", ["ddp", pytest.param("horovod", marks=LONG)])
def test_two_ranks_end_with_weights_of_one_process(
    python_for_comm: Path,
    shades: Path,
    tmp_path: Path,
    comm: str,
    halved: bool,
    rtol: float,
    atol: float,
) -> None:
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        more = {"comm": comm, "fp16_compression": halved}
        given = json.dumps(settings(shades, batch_size=8 // ranks, **more))
        script = ("--", "python", PROGRAMS / "pytorch_rank.py", folder, given)
        run(python_for_comm, "launch", "-np", str(ranks), *script)
    one, *both = (
        dict(np.load(tmp_path / name))
        for name in ("1/weights-0.npz", "2/weights-0.npz", "2/weights-1.npz")
    )
    assert_same_bits(*both)
    # Each rank starts with different weights, see pytorch_rank.py, so this needs the broadcast.
    for name, values in one.items():
        np.testing.assert_allclose(both[0][name], values, rtol=rtol, atol=atol)
    scores = [json.loads((tmp_path / "2" / f"score-{rank}.json").read_text()) for rank in (0, 1)]
    assert scores[0] == scores[1]


@pytest.mark.long
@pytest.mark.parametrize("comm", ["ddp", "horovod"])
def test_a_killed_rank_ends_both_and_one_resumes(
    python_for_comm: Path, shades: Path, tmp_path: Path, comm: str
) -> None:
    log_dir = tmp_path / "run"
    two = words(shades, log_dir, batch_size=4, num_epochs=40.0, comm=comm)
    launch = ("launch", "-np", "2", "--", *two)
    with command.started(*launch, python=python_for_comm, env=ONE, program=PROGRAM) as running:
        command.wait_until(lambda: running.ended or list(log_dir.glob("*.npz")), "a checkpoint")
        victims = [pid for pid in running.workers() if of_rank(pid, 1)]
        running.send(signal.SIGKILL, victims)
        finished = running.finish(PATIENCE_S)
        assert running.workers() == []
    assert finished.code == 128 + signal.SIGKILL, finished
    assert says("ended-signal", "rank 1", "9").search(finished.err)
    assert says("another-rank-died-stalled-see").search(finished.err)
    there = checkpoint.steps(log_dir)[-1]
    run(python_for_comm, *words(shades, log_dir, num_epochs=40.0))
    assert [row["resumed_at"] for row in rows(log_dir, "start")] == [0, there]


def of_rank(pid: int, rank: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"imagenet_prep" in words and f"RANK={rank}".encode() in environment


def test_exported_weights_load_in_torchvision(pytorch: Path, runs: Path, tmp_path: Path) -> None:
    """The class of examples/tiny.py loads them and reproduces the evaluation of the run."""
    np.save(tmp_path / "images.npy", np.zeros((1, 3, 16, 16), np.float32))
    out = tmp_path / "tiny.safetensors"
    made = command.run("export", runs / "whole", "--format", "torch", "--out", out)
    assert made.code == 0, made
    assert "tiny for 4 classes" in made.out
    script = LOGITS.replace("Tiny(10, 64)", "Tiny(4, 16)")
    # Not from the folder itself: torchvision would import an example of the same name as a package.
    shutil.copy(command.REPOSITORY / "examples" / "tiny.py", tmp_path)
    files = (out, runs / "exported.safetensors")
    program = ("-c", script, "tiny", *files, tmp_path / "images.npy")
    said = ended(pytorch, *program, PYTHONPATH=str(tmp_path)).splitlines()
    assert said[0] == said[1]
    assert np.isfinite(json.loads(said[0])).all()


@pytest.mark.long
def test_the_documented_classifier_equals_the_evaluation(
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


@pytest.mark.long
def test_a_compiled_network_in_half_precision_learns(
    pytorch: Path, shades: Path, tmp_path: Path
) -> None:
    compiler = shutil.which("g++") or pytest.skip("torch.compile needs g++ on a CPU")
    assert compiler
    for more in ({"precision": "bfloat16", "jit": True}, {"precision": "float16"}):
        log_dir = tmp_path / more["precision"]
        run(pytorch, *words(shades, log_dir, **more))
        assert rows(log_dir, "evaluation")[0]["top1"] > 0.8
