"""Under each launcher itself, all ranks read each image once, or the reader refuses to start.

tests/read/test_launchers.py is the short version, with the variables of these and of other
launchers.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.programs import ended, torchrun
from tests.kit import command
from tests.kit.command import PATIENCE_S, REPOSITORY
from tests.kit.messages import says
from tests.kit.ports import free_ports
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION, colours
from tests.kit.training import shades

__all__ = ["colours", "shades"]

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "counted.py"
PAGE = REPOSITORY / "docs/lightning.md"
RANKS = 2
BATCH = 3
STEP = RANKS * BATCH
# Both MPIs require this.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MPI = {
    "Open MPI": ("mpi", ("mpirun", "--oversubscribe"), "OMPI_COMM_WORLD_RANK"),
    "MPICH": ("mpich", ("mpiexec",), "PMI_RANK"),
}


def mpiexec(name: str) -> tuple[str, ...]:
    """Returns the start of a command that MPI runs on two ranks."""
    folder, (program, *words), _ = MPI[name]
    found = Path(sys.prefix) / folder / "bin" / program
    if not found.exists():
        pytest.skip(f"{name} is not installed; make test-long does it in .venv/{folder}")
    return (str(found), *words, "-n", str(RANKS))


def free_port() -> str:
    (port,) = free_ports(1)
    return str(port)


def run(words: tuple[str, ...], **env: str) -> subprocess.CompletedProcess[str]:
    program = [str(word) for word in words]
    return subprocess.run(
        program,
        cwd=tempfile.gettempdir(),
        env=command.environment() | AS_ROOT | env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def check(out: Path) -> None:
    """Asserts that all ranks together have read the expected images."""
    files = sorted(out.glob("*.json"))
    ranks = [json.loads(file.read_text()) for file in files]
    assert len(ranks) == RANKS
    trained = ranks[0]["train"] + ranks[1]["train"]
    evaluated = ranks[0]["validation"] + ranks[1]["validation"]
    assert len(trained) == len(set(trained)) == NUM_TRAIN // STEP * STEP
    assert sorted(evaluated) == list(range(NUM_VALIDATION))


@pytest.mark.parametrize("how", ["reader", "loader", "prepared-reader"])
def test_below_torchrun(python: Path, colours: Path, tmp_path: Path, how: str) -> None:
    ended(python, *torchrun(RANKS), PROGRAM, how, colours, tmp_path, "RANK")

    check(tmp_path)


@pytest.mark.parametrize("how", ["reader", "loader"])
@pytest.mark.parametrize("name", MPI)
def test_below_mpi(python: Path, colours: Path, tmp_path: Path, name: str, how: str) -> None:
    program = (python, "-W", "ignore", PROGRAM, how, colours, tmp_path, MPI[name][2])
    done = run((*mpiexec(name), *program))

    assert done.returncode == 0, done
    check(tmp_path)


@pytest.mark.parametrize("name", MPI)
def test_below_torchrun_below_mpi(python: Path, colours: Path, tmp_path: Path, name: str) -> None:
    """One mpiexec starts one torchrun, as on each host."""
    one = (*mpiexec(name)[:-1], "1")
    program = (PROGRAM, "reader", colours, tmp_path, "RANK")
    done = run((*one, python, "-W", "ignore", *torchrun(RANKS), *program))

    assert done.returncode == 0, done
    check(tmp_path)


def test_processes_of_multiprocessing(python: Path, colours: Path, tmp_path: Path) -> None:
    ended(python, PROGRAM, "spawn", colours, tmp_path, free_port())

    check(tmp_path)


@pytest.mark.parametrize(
    "more", [(), ("unsplit",)], ids=["default", "use_distributed_sampler=False"]
)
@pytest.mark.parametrize("how", ["lightning-reader", "lightning-loader"])
@pytest.mark.parametrize("start", ["itself", "torchrun"])
def test_lightning(
    python: Path, colours: Path, tmp_path: Path, start: str, how: str, more: tuple[str, ...]
) -> None:
    words = torchrun(RANKS) if start == "torchrun" else ()
    ended(python, *words, PROGRAM, how, colours, tmp_path, "ddp", *more)

    check(tmp_path)


@pytest.mark.parametrize("how", ["lightning-reader", "lightning-loader"])
@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork"])
def test_lightning_with_spawned_or_forked_processes(
    python: Path, colours: Path, tmp_path: Path, strategy: str, how: str
) -> None:
    ended(python, PROGRAM, how, colours, tmp_path, strategy)

    check(tmp_path)


@pytest.mark.parametrize("strategy", ["ddp", "ddp_fork"])
def test_readers_made_before_lightnings_ranks_are_refused(
    python: Path, colours: Path, tmp_path: Path, strategy: str
) -> None:
    done = run((python, PROGRAM, "lightning-early", colours, tmp_path, strategy))

    assert done.returncode
    assert "UsageError: this " in done.stderr
    assert "train_dataloader" in done.stderr or says("correct-unset-variables-pass-world").search(
        done.stderr
    )
    assert not list(tmp_path.glob("*.json"))


def test_accelerate_does_not_split_a_loader(python: Path, colours: Path, tmp_path: Path) -> None:
    words = (
        python,
        "-W",
        "ignore",
        *torchrun(RANKS),
        PROGRAM,
        "prepared-loader",
        colours,
        tmp_path,
    )
    done = run(words)

    assert done.returncode
    assert "TypeError: 'NoneType' object is not iterable" in done.stderr
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize("name", ["torchrun", *MPI])
def test_train(python: Path, shades: Path, tmp_path: Path, name: str) -> None:
    log = tmp_path / "run"
    words = ("-m", "imagenet_prep", "train", "--framework", "pytorch", "--data-dir", shades)
    words += ("--log-dir", log, "--model", "tiny", "--image-size", "32", "--batch-size", "4")
    words += ("--backend", "native", "--num-epochs", "1", "--display-every", "1")
    start = (python, *torchrun(RANKS)) if name == "torchrun" else (*mpiexec(name), python)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    done = run((*start, *words), **({} if name == "torchrun" else place))

    assert done.returncode == 0, done
    rows = [json.loads(line) for line in (log / "train.jsonl").read_text().splitlines()]
    starts = [row for row in rows if row["kind"] == "start"]
    assert [(row["ranks"], row["launcher"]) for row in starts] == [(RANKS, name)]
    checked = command.run("show", log, "--check")
    assert checked.code == 0, checked


def waiting_rank(shades: Path, log: Path, rank: int, size: int, port: str) -> dict[str, Any]:
    """Returns the command that starts one rank of several."""
    words = ("-m", "imagenet_prep", "train", "--framework", "pytorch", "--data-dir", shades)
    words += ("--log-dir", log, "--model", "tiny", "--image-size", "32", "--batch-size", "4")
    words += ("--backend", "native", "--num-epochs", "1")
    env = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    return {"program": tuple(map(str, words)), "env": env | {"MASTER_PORT": port}}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_waiting_ranks_name_missing_ones_and_obey_signals(
    python: Path, shades: Path, tmp_path: Path, number: signal.Signals, rank: int
) -> None:
    port = free_port()
    missing = "ranks 1, 2" if rank == 0 else "rank 0"
    said = f"waiting for {missing} of 3 at 127.0.0.1:{port}\n"
    log = tmp_path / "said"
    how = waiting_rank(shades, tmp_path / "run", rank, 3, port)
    with log.open("wb") as file, command.started(**how, python=python, stderr=file.fileno()) as one:
        command.wait_until(lambda: said in log.read_text() or one.ended, "it says so")
        one.send(number)
        assert one.finish().code == 130

    assert says("interrupted-finished-work-kept-run").search(log.read_text())


def test_a_late_rank_is_waited_for(python: Path, shades: Path, tmp_path: Path) -> None:
    port = free_port()
    run_dir = tmp_path / "run"
    log = tmp_path / "said"
    first, second = (waiting_rank(shades, run_dir, rank, 2, port) for rank in range(2))
    with (
        log.open("wb") as file,
        command.started(**first, python=python, stderr=file.fileno()) as one,
    ):
        command.wait_until(lambda: "waiting" in log.read_text() or one.ended, "it waits")
        with command.started(**second, python=python) as other:
            assert other.finish().code == 0
        assert one.finish().code == 0

    assert says("waiting", "rank 1", "2", "127.0.0.1", port).search(log.read_text())


# Prints which images the steps of the page's programs receive. Each image has a different class.
SAYS = """
import json
def says(split, batch):
    print(json.dumps([split, batch["class_index"][batch["mask"]].tolist()]), flush=True)
    return batch
"""


@pytest.mark.parametrize("number", [0, 1], ids=["Lightning", "Accelerate"])
def test_documented_programs_read_each_image_once(
    python: Path, colours: Path, tmp_path: Path, number: int
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    code = blocks[number]
    small = {"/data/imagenet-480": str(colours), "256": "3", "1000": "100"}
    tensors = ("self.tensors", "tensors")[number]
    for split, names in (("train", "images, labels, _"), ("validation", "images, labels, mask")):
        small[f"{names} = {tensors}(batch)"] = f"{names} = {tensors}(says({split!r}, batch))"
    if number == 0:
        small["devices=2"] = (
            "devices=2, accelerator='cpu', logger=False, enable_checkpointing=False"
        )
    else:
        small["Accelerator()"] = "Accelerator(cpu=True)"
    for old, new in small.items():
        assert old in code
        code = code.replace(old, new)
    program = tmp_path / "page.py"
    program.write_text(SAYS + code)
    words = () if number == 0 else torchrun(RANKS)
    done = run((python, "-W", "ignore", *words, program))
    assert done.returncode == 0, done
    seen: dict[str, list[int]] = {"train": [], "validation": []}
    for split, classes in map(json.loads, re.findall(r'\["\w+", \[[^]]*\]\]', done.stdout)):
        seen[split] += classes

    assert done.stdout.count(f" of {NUM_VALIDATION} images") == 2
    assert sorted(seen["validation"]) == sorted([*range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION)] * 2)
    assert len(seen["train"]) == 2 * (NUM_TRAIN // STEP * STEP)
    assert max(map(seen["train"].count, seen["train"])) <= 2
