"""Slurm runs the batch files of docs/slurm.md; this machine is its controller and its node."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.command import PATIENCE_S, REPOSITORY, wait_until
from tests.kit.dataset import SETTINGS, contents, receipts
from tests.kit.messages import says
from tests.kit.miniature import Miniature
from tests.kit.photographs import photograph
from tests.kit.training import NUM_VALIDATION, horovod, rows, shades

__all__ = ["horovod", "shades"]

pytestmark = [pytest.mark.long, pytest.mark.root]

BATCH = REPOSITORY / "examples" / "slurm"
PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
HOST = socket.gethostname().partition(".")[0]
CONFIG = """\
ClusterName=rehearsal
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP
"""
# Prints the number of images that it reads, and its rank by Slurm's variables.
READS = """\
import os, sys
from imagenet_prep.core.world import World
from imagenet_prep.read import make_dataset
reader = make_dataset(sys.argv[1], "train", 4, 32, training=False, backend="native")
world = World.from_environment()
seen = sum(int(batch["mask"].sum()) for batch in reader)
print("reads", world.rank, world.size, world.local_rank, world.local_size, seen)
if "RANK" in os.environ:
    print("meets", os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) > 1023)
"""


class Slurm:
    """A cluster that only has this machine."""

    def __init__(self, folder: Path) -> None:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
        self.folder = folder

    def run(self, *words: object) -> str:
        """Returns the output of a command of Slurm, which must succeed."""
        done = subprocess.run(
            list(map(str, words)),
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, (words, done, self.log())
        return done.stdout

    def log(self) -> str:
        file = self.folder / "said"
        return file.read_text() if file.exists() else ""

    def batch(self, name: str, *words: object, tasks: int = 1, wait: bool = True) -> str:
        """Submits one of the batch files for one node; returns the output of the job."""
        options = ("--nodes=1", f"--ntasks-per-node={tasks}", "--gpus-per-node=0")
        options += ("--cpus-per-task=1", "--output=said", *(["--wait"] if wait else []))
        (self.folder / "said").unlink(missing_ok=True)
        self.run("sbatch", *options, BATCH / f"{name}.sbatch", *words)
        return self.log()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Slurm with its key service munge, as in Debian."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    if missing := [each for each in PROGRAMS if shutil.which(each, path=path) is None]:
        pytest.skip(f"{', '.join(missing)}: not installed. On Debian: slurm-wlm munge")
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as other:
        ports = [each.getsockname()[1] for each in (one, other)]
    text = CONFIG.format(host=HOST, folder=folder, ports=ports)
    (folder / "slurm.conf").write_text(text)
    cluster = Slurm(folder)
    cluster.run("mungekey", "-c", "-k", folder / "key")
    places = [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
    argv = [
        ["munged", "-F", "--force", f"--socket={folder / 'socket'}", *places],
        ["slurmctld", "-D", "-f", folder / "slurm.conf"],
        ["slurmd", "-D", "-f", folder / "slurm.conf"],
    ]
    with contextlib.ExitStack() as running:
        for words in argv:
            log = running.enter_context(open(folder / f"{words[0]}.log", "wb"))
            started = subprocess.Popen(words, env=cluster.environment, stdout=log, stderr=log)
            running.callback(started.wait)
            running.callback(started.terminate)
            if words[0] == "munged":
                wait_until((folder / "socket").exists, "munged listens")

        def is_idle() -> bool:
            asked = ["sinfo", "--noheader", "--format=%T"]
            done = subprocess.run(asked, env=cluster.environment, capture_output=True, text=True)
            return done.stdout.strip() == "idle"

        wait_until(is_idle, "the node is idle")
        yield cluster


def test_srun_tasks_get_ranks_and_share_images(slurm: Slurm, shades: Path, tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text(READS)
    of_srun = slurm.run("srun", "-n", "3", "python", tmp_path / "reads.py", shades)
    of_batch = slurm.batch("pytorch", tmp_path / "reads.py", shades, tasks=2)

    told = sorted(line.split() for line in of_srun.splitlines())
    assert [each[:5] for each in told] == [["reads", str(n), "3", str(n), "3"] for n in range(3)]
    told_of_batch = sorted(line.split() for line in of_batch.splitlines())
    assert told_of_batch[:2] == [["meets", HOST, "True"]] * 2
    assert [each[1:5] for each in told_of_batch[2:]] == [["0", "2", "0", "2"], ["1", "2", "1", "2"]]
    seen = [sum(int(each[5]) for each in ranks) for ranks in (told, told_of_batch[2:])]
    assert seen[0] == seen[1] > 0


def test_batch_files_prepare_and_replicate_to_a_node(slurm: Slurm, tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / "photographs" / ("cats", "dogs")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(photograph(60, 80, number))
    words = (tmp_path / "photographs", tmp_path / "set", "--holdout", "10%")
    made = slurm.batch("prepare", *words, tasks=3)
    assert made.count("manifest: ") == 3
    brought = slurm.batch("replicate", tmp_path / "set", tmp_path / "local" / "set")
    assert "complete: " in brought


def test_job_array_that_loses_a_job_prepares(slurm: Slurm, many: Miniature, tmp_path: Path) -> None:
    alone = command.run("prepare", many.root, tmp_path / "alone", *SETTINGS)
    assert alone.code == 0, alone
    out = tmp_path / "set"
    job = slurm.run(
        "sbatch",
        "--parsable",
        "--array=1-3",
        "--cpus-per-task=1",
        "--output=said-%a",
        BATCH / "prepare.sbatch",
        many.root,
        out,
        *SETTINGS,
    ).strip()
    wait_until(lambda: receipts(out, "index") or (out / "dataset.json").exists(), "a first list")
    slurm.run("scancel", "--signal=KILL", f"{job}_1")
    wait_until(lambda: not slurm.run("squeue", "--noheader").strip(), "the array has ended")

    said = [(slurm.folder / f"said-{number}").read_text() for number in (2, 3)]
    assert all("manifest: " in text for text in said), said
    assert contents(out) == contents(tmp_path / "alone")


@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.usefixtures("horovod")
def test_training_saves_if_slurm_ends_it_and_resumes(
    slurm: Slurm, shades: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    line = ("train", "--data-dir", shades, "--log-dir", run, "--model", "tiny", "--lr", "0.05")
    line += ("--image-size", "32", "--batch-size", "4", "--display-every", "1")
    slurm.batch(*line, "--num-epochs", "4000", tasks=2, wait=False)
    log = run / "train.jsonl"
    wait_until(lambda: log.exists() and '"step": 5,' in log.read_text(), "five steps")
    # Slurm sends this signal two minutes before the end of a job's time.
    slurm.run("scancel", "--signal=TERM", "--batch", "--name=train")
    wait_until(lambda: says("asked-stop-step-saved-run").search(slurm.log()), "it is saved")
    wait_until(lambda: not slurm.run("squeue", "--noheader").strip(), "the job has ended")

    said = slurm.batch(*line, "--num-epochs", "4000", "--evaluate", tasks=2)
    assert rows(run, "evaluation")[-1]["examples"] == NUM_VALIDATION, said
