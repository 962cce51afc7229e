"""docs/pytorch.md with PyTorch, torchdata, JAX and Keras themselves, in their own environment.

tests/read/test_sampler.py is the short version, with a double of the DataLoader.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.read.order import Order
from tests.frameworks.programs import LOGITS, ended, launched, torchrun
from tests.kit import command
from tests.kit.command import REPOSITORY
from tests.kit.photographs import shown, stored
from tests.kit.ports import free_ports
from tests.kit.reading import TRAIN, colours, scenes
from tests.kit.tfrecords import wnid
from tests.kit.training import NUM_TRAIN, NUM_VALIDATION

__all__ = ["colours", "scenes"]

pytestmark = pytest.mark.long

EXAMPLES = REPOSITORY / "examples"
PROGRAMS = Path(__file__).parent
PAGE = REPOSITORY / "docs/pytorch.md"
# The user's model, which the page does not define.
NETWORK = "torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4)"
# Prints the greatest difference between the weights of two checkpoints.
WEIGHTS_APART = """\
import sys, torch
one, other = (torch.load(name)["model"] for name in sys.argv[1:])
print(max(float((one[name] - other[name]).abs().max()) for name in one))
"""


def test_exported_weights_have_torchvisions_logits(python: Path, tf: Any, tmp_path: Path) -> None:
    from imagenet_prep.trainer import checkpoint, tensorflow_learner

    rng = np.random.default_rng(5)
    images = rng.normal(size=(3, 64, 64, 3)).astype(np.float32)
    np.save(tmp_path / "images.npy", images.transpose(0, 3, 1, 2))
    for name in ("resnet18", "resnet50", "tiny"):
        network = tensorflow_learner.build(name, 64, 10)
        variables = [*network.trainable_variables, *network.non_trainable_weights]
        for each in variables:
            # As after training: no batch norm has its initial values, and no variance is negative.
            around = 1.0 if each.path.endswith(("gamma", "variance")) else 0.0
            if len(each.shape) == 1:
                each.assign(around + rng.uniform(-0.3, 0.3, each.shape))
        arrays = {each.path: each.numpy() for each in variables}
        facts = {"run": {"model": name, "num_classes": 10, "image_size": 64}, "reader": {}}
        checkpoint.save(tmp_path / name, 1, facts, arrays, keep=1)
        file = tmp_path / f"{name}.pt"
        exported = command.run("export", tmp_path / name, "--format", "torch", "--out", file)
        assert exported.code == 0, exported
        said = np.array(
            json.loads(
                ended(
                    python,
                    "-c",
                    LOGITS,
                    name,
                    file,
                    tmp_path / "images.npy",
                    PYTHONPATH=str(EXAMPLES),
                )
            )
        )
        ours = network(images, training=False).numpy()
        assert np.abs(ours).max() > 0.1
        np.testing.assert_allclose(said, ours, atol=1e-4, rtol=1e-4)


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_dataloaders_resume_with_any_number_of_workers(python: Path, scenes: Path) -> None:
    looked = json.loads(ended(python, PROGRAMS / "loaders.py", scenes))

    assert ["StatefulDataLoader", 3, "fork", True] in looked
    assert ["DataLoader", 2, "spawn", True] in looked
    assert ["resumed", 2, 2] in looked
    assert ["tensors", 2] in looked
    assert ["source", 2] in looked
    assert len(looked) == 9 + 12 + 2 + 4


@pytest.mark.parametrize(
    ("ranks", "loader", "workers"),
    [(1, "plain", 2), (1, "stateful", 2), (2, "reader", 0), (2, "plain", 2), (2, "horovod", 0)],
)
def test_killed_ranks_resume_without_repeating_or_losing_images(
    python: Path, colours: Path, tmp_path: Path, ranks: int, loader: str, workers: int
) -> None:
    checkpoint = tmp_path / "checkpoint.pt"
    start = launched(python, ranks) if loader == "horovod" else torchrun(ranks)
    program = (*start, PROGRAMS / "train.py", colours, checkpoint, loader, workers)
    words = ("-W", "ignore", *map(str, program))
    with command.started("8", program=words, python=python) as running:
        command.wait_until(
            lambda: running.ended or len(list(tmp_path.glob("*.waits*"))) == ranks, "eight steps"
        )
        assert not running.ended, running.finish()
        running.send(signal.SIGKILL, running.workers())
        assert running.kill() != 0
    (told,) = rows(ended(python, *words, "0"))

    # The steps after the checkpoint were trained, and lost with the process.
    assert told["resumed_after"] == 6
    step = 2 * ranks
    for epoch, seen in enumerate(told["seen"]):
        order = Order(TRAIN, 4).epoch(epoch).tolist()
        assert seen == order[: len(order) // step * step]


def test_the_pytorch_example_resumes(python: Path, shades: Path, tmp_path: Path) -> None:
    program = (
        *torchrun(2),
        EXAMPLES / "with_pytorch.py",
        "--data-dir",
        shades,
        "--image-size",
        "32",
    )
    program += ("--batch-size", "4", "--out", tmp_path / "model.pt", "--epochs")

    assert [row["epoch"] for row in rows(ended(python, *program, "1"))] == [0]
    own = tmp_path / "own.csv"
    own.write_text(f"key,class\n{wnid(3)}/{wnid(3)}_67.JPEG,0 1 2 3\n")
    lines, table = re.split("(?m)^(?=set )", ended(python, *program, "3", "--labels", own))
    more = rows(lines)
    # Of both ranks together, as in the count of the last epoch.
    shares = [line.split()[1:3] + line.split()[-2:] for line in table.splitlines()[1:3]]
    top1 = f"{more[-1]['top1']:.2%}"
    assert shares == [["dataset", "22", top1, "-"], ["own.csv", "1", "100.00%", "-"]]
    assert [row["epoch"] for row in more] == [1, 2]
    assert [row["images"] for row in more] == [NUM_VALIDATION] * 2
    assert more[-1]["top1"] > 0.8
    # If a run has already ended, it says so, and prints the same table without rows.
    said, *rest = ended(python, *program, "3", "--labels", own).splitlines(keepends=True)
    assert said.startswith(f"{tmp_path / 'model.pt'} is finished (epochs: 3). ")
    assert "".join(rest) == table


@pytest.mark.parametrize("name", ["with_pytorch.py", "with_jax.py"])
def test_a_kill_does_not_lose_an_epochs_row(
    python: Path, shades: Path, tmp_path: Path, name: str
) -> None:
    """The checkpoint after the last step of the epoch would belong to the next epoch."""
    killed = (EXAMPLES / name).read_text("utf-8").replace("json.dumps(row", "os._exit(9) or (row")
    (tmp_path / name).write_text(f"import os\n{killed}")
    launch = torchrun(1) if name == "with_pytorch.py" else ()
    words = ("--data-dir", shades, "--image-size", "32", "--batch-size", "8", "--epochs", "1")
    words += ("--save-every", str(NUM_TRAIN // 8), "--out", tmp_path / "model.npz")
    program = ("-W", "ignore", *map(str, (*launch, tmp_path / name, *words)))
    with command.started(program=program, python=python) as running:
        assert running.finish().code

    assert [row["epoch"] for row in rows(ended(python, *launch, EXAMPLES / name, *words))] == [0]


def test_a_killed_horovod_example_ends_with_equal_weights(
    python: Path, shades: Path, tmp_path: Path
) -> None:
    program = (*launched(python, 2), EXAMPLES / "pytorch_horovod.py", "--data-dir", shades)
    program += ("--image-size", "32", "--batch-size", "4", "--save-every", "3", "--out")
    both = [tmp_path / "whole.pt", tmp_path / "killed.pt"]
    # Like torchrun: two ranks with a thread for each core would block each other.
    one = {"OMP_NUM_THREADS": "1"}
    whole = rows(ended(python, *program, both[0], **one))
    words = ("-W", "ignore", *map(str, program))
    with command.started(both[1], program=words, python=python, env=one) as running:
        command.wait_until(lambda: running.ended or both[1].exists(), "a checkpoint")
        running.send(signal.SIGKILL, running.workers())
        running.kill()
    ended(python, *program, both[1], **one)
    told = json.loads(ended(python, "-c", WEIGHTS_APART, *both))

    assert [row["epoch"] for row in whole] == [0, 1, 2]
    assert [row["images"] for row in whole] == [NUM_VALIDATION] * 3
    assert whole[-1]["top1"] > 0.8
    assert told == pytest.approx(0, abs=1e-4)


def test_the_jax_example_resumes_in_mid_epoch(python: Path, shades: Path, tmp_path: Path) -> None:
    """On four devices, which JAX makes of one processor."""
    program = (EXAMPLES / "with_jax.py", "--data-dir", shades, "--image-size", "32")
    program += ("--batch-size", "8", "--save-every", "5", "--epochs", "3", "--out")
    four = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    whole = rows(ended(python, *program, tmp_path / "whole.npz", **four))
    with command.started(
        *map(str, (*program[1:], tmp_path / "killed.npz")),
        program=("-W", "ignore", str(program[0])),
        python=python,
        env=four,
    ) as running:
        command.wait_until((tmp_path / "killed.npz").exists, "a checkpoint")
        running.kill()
    rest = rows(ended(python, *program, tmp_path / "killed.npz", **four))

    assert [row["epoch"] for row in whole] == [0, 1, 2]
    assert whole[-1]["top1"] > 0.8
    assert [row["images"] for row in whole] == [NUM_VALIDATION] * 3
    assert rest[-1]["epoch"] == 2
    assert rest[-1]["loss"] == pytest.approx(whole[-1]["loss"], rel=1e-3)


def test_jax_processes_resume_where_the_first_was(
    python: Path, shades: Path, tmp_path: Path
) -> None:
    """Only the first process has a checkpoint, as on hosts that share no folder."""
    code = (EXAMPLES / "with_jax.py").read_text("utf-8")
    connect = "import sys\njax.distributed.initialize(sys.argv.pop(1), 2, int(sys.argv.pop(1)))\n"
    code = code.replace("parser = ", f"{connect}parser = ", 1)
    code = code.replace(
        "        # After the last", "        print(number)\n        # After the last"
    )
    (tmp_path / "two.py").write_text(code, "utf-8")
    words = ("--data-dir", shades, "--image-size", "32", "--batch-size", "4", "--save-every", "2")
    words += ("--epochs", "2", "--out", "model.npz")

    @contextlib.contextmanager
    def both() -> Iterator[list[command.Running]]:
        (port,) = free_ports(1)
        with contextlib.ExitStack() as stack:
            running = []
            for rank in ("0", "1"):
                (tmp_path / rank).mkdir(exist_ok=True)
                given = (f"127.0.0.1:{port}", rank, *words)
                how: dict[str, Any] = {"cwd": tmp_path / rank, "python": python}
                program = ("-W", "ignore", str(tmp_path / "two.py"))
                running.append(stack.enter_context(command.started(*given, program=program, **how)))
            yield running

    with both() as running:
        command.wait_until((tmp_path / "0/model.npz").exists, "a checkpoint")
        for process in running:
            process.kill()
    with both() as running:
        first, second = (process.finish() for process in running)

    assert first.code == second.code == 0, (first, second)
    assert not (tmp_path / "1/model.npz").exists()
    steps = [line for line in first.out.splitlines() if line.isdecimal()]
    assert [line for line in second.out.splitlines() if line.isdecimal()] == steps
    assert NUM_TRAIN // 8 < len(steps) < 2 * (NUM_TRAIN // 8)
    rows = [json.loads(line) for line in first.out.splitlines() if line.startswith("{")]
    assert [row["epoch"] for row in rows][-1] == 1
    assert {row["images"] for row in rows} == {NUM_VALIDATION}


@pytest.mark.parametrize("below", ["jax", "tensorflow", "torch"])
def test_the_keras_example_validates_each_image_once(
    python: Path, shades: Path, tmp_path: Path, below: str
) -> None:
    """TensorFlow is in our environment, and not in the frameworks'."""
    interpreter = Path(sys.executable) if below == "tensorflow" else python
    program = (EXAMPLES / "with_keras.py", "--data-dir", shades, "--image-size", "32")
    program += ("--batch-size", "4", "--out", tmp_path / "model.keras")
    counting = (PROGRAMS / "keras_weights.py", *program)
    *found, sums = rows(ended(interpreter, *counting, KERAS_BACKEND=below))

    assert sums["images"] == [sums["once"][0]] * 3 == [NUM_VALIDATION] * 3
    assert sums["labels"] == [sums["once"][1]] * 3
    assert np.isfinite(sums["losses"]).all()
    assert [row["epoch"] for row in found] == [0, 1, 2]
    assert found[-1]["top1"] > 0.8
    # A fraction of the images, without the padding.
    assert all((row["top1"] * NUM_VALIDATION) % 1 == pytest.approx(0, abs=1e-4) for row in found)
    with command.started(
        *map(str, program[1:]),
        program=("-W", "ignore", str(program[0])),
        python=interpreter,
        env={"RANK": "0", "WORLD_SIZE": "2", "KERAS_BACKEND": below},
    ) as running:
        refused = running.finish()
    assert refused.code == 1
    assert "needs one process" in refused.err


def test_the_pages_code_runs(python: Path, shades: Path, tmp_path: Path) -> None:
    """The complete code runs in one process, with a small dataset and small numbers."""
    root = shutil.copytree(shades, tmp_path / "set")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    code = "\n".join(blocks)
    small = {
        "/data/imagenet-480": str(root),
        "=256": "=8",
        ", 90)": ", 2)",
        "num_workers=8": "num_workers=2",
    }
    for old, new in small.items():
        assert old in code
        code = code.replace(old, new)
    # Processes that are spawned or forked must not run it again.
    code = f"import torch\nmodel = torch.nn.Sequential({NETWORK})\n{code}"
    body = "\n".join(f"    {line}" for line in code.splitlines())
    program = tmp_path / "page.py"
    program.write_text(
        f"if __name__ == '__main__':\n{body}\n    print(trained, counts[1].item())\n"
    )
    seen, validated = ended(python, program).split()
    steps = NUM_TRAIN // 8

    assert len(blocks) == 5
    assert int(validated) == NUM_VALIDATION
    # Five epochs of complete steps, and one epoch of all examples.
    assert int(seen) == 5 * steps * 8 + NUM_TRAIN


@pytest.mark.long
def test_orientation_tags_do_not_change_decoded_pixels(python: Path, tmp_path: Path) -> None:
    for number, data in enumerate(stored()):
        (tmp_path / f"{number}.jpg").write_bytes(data)
        np.save(tmp_path / f"{number}.npy", shown(data, obeys=False).astype(np.uint8))

    (said,) = rows(ended(python, PROGRAMS / "orientation.py", tmp_path))
    assert {"cv2 1", "torchcodec", "torchvision True", "torchvision False"} < {*said["decoders"]}
