"""The variables that launchers set, for each rank of a run on several hosts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pytest


class Place(NamedTuple):
    """One rank of a run; `hosts` has the number of ranks of each host."""

    rank: int
    hosts: Sequence[int]
    host: int
    local_rank: int

    @property
    def size(self) -> int:
        return sum(self.hosts)

    @property
    def local_size(self) -> int:
        return self.hosts[self.host]


def places(hosts: Sequence[int]) -> list[Place]:
    """Returns the ranks of a run, numbered host by host."""
    found: list[Place] = []
    for host, count in enumerate(hosts):
        for local_rank in range(count):
            found.append(Place(len(found), hosts, host, local_rank))
    return found


@dataclass(frozen=True)
class Launcher:
    """A launcher; `name` is the one in train.jsonl, `source` is the origin of its variables."""

    name: str
    source: str
    variables: Callable[[Place], dict[str, object]]
    # Whether a process learns its number among the processes of its host, and their number.
    knows_host: bool = True
    # Whether each host has one process.
    one_each: bool = False

    def environment(self, place: Place) -> dict[str, str]:
        return {name: str(value) for name, value in self.variables(place).items()}


def family(prefix: str) -> Callable[[Place], dict[str, object]]:
    """Returns the variables of the many launchers with names that differ only in their prefixes."""

    def variables(at: Place) -> dict[str, object]:
        return {
            f"{prefix}RANK": at.rank,
            f"{prefix}SIZE": at.size,
            f"{prefix}LOCAL_RANK": at.local_rank,
            f"{prefix}LOCAL_SIZE": at.local_size,
        }

    return variables


def env(at: Place) -> dict[str, object]:
    return {
        "RANK": at.rank,
        "WORLD_SIZE": at.size,
        "LOCAL_RANK": at.local_rank,
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": 29500,
    }


def torchrun(at: Place) -> dict[str, object]:
    return env(at) | {
        "LOCAL_WORLD_SIZE": at.local_size,
        "GROUP_RANK": at.host,
        "GROUP_WORLD_SIZE": len(at.hosts),
        "ROLE_RANK": at.rank,
        "ROLE_WORLD_SIZE": at.size,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def launch(at: Place) -> dict[str, object]:
    more = {"LOCAL_WORLD_SIZE": at.local_size, "IMAGENET_PREP_LAUNCH": "0123"}
    return env(at) | family("HOROVOD_")(at) | more


def launch_by_mpi(at: Place) -> dict[str, object]:
    shared = {"WORLD_SIZE": at.size, "MASTER_ADDR": "10.0.0.1", "IMAGENET_PREP_LAUNCH": "0123"}
    return shared | open_mpi(at)


def open_mpi(at: Place) -> dict[str, object]:
    return family("OMPI_COMM_WORLD_")(at) | {
        "OMPI_COMM_WORLD_NODE_RANK": at.local_rank,
        "OMPI_UNIVERSE_SIZE": at.size,
        "PMIX_RANK": at.rank,
        "PMIX_NAMESPACE": "1915748353",
    }


def hydra(at: Place) -> dict[str, object]:
    return {
        "PMI_RANK": at.rank,
        "PMI_SIZE": at.size,
        "PMI_FD": 9,
        "MPI_LOCALRANKID": at.local_rank,
        "MPI_LOCALNRANKS": at.local_size,
    }


def pals(at: Place) -> dict[str, object]:
    more = {"PALS_RANKID": at.rank, "PALS_LOCAL_RANKID": at.local_rank, "PALS_NODEID": at.host}
    return family("PMI_")(at) | more


def deepspeed(at: Place) -> dict[str, object]:
    more = {"LOCAL_SIZE": at.local_size, "CROSS_RANK": at.host, "CROSS_SIZE": len(at.hosts)}
    return env(at) | more


def kubeflow(at: Place) -> dict[str, object]:
    return {"RANK": at.rank, "WORLD_SIZE": at.size, "MASTER_ADDR": "job-master-0"}


def azure(at: Place) -> dict[str, object]:
    return env(at) | {"NODE_RANK": at.host}


def composer(at: Place) -> dict[str, object]:
    return env(at) | {"NODE_RANK": at.host, "LOCAL_WORLD_SIZE": at.local_size}


def srun(at: Place) -> dict[str, object]:
    return {
        "SLURM_JOB_ID": 7,
        "SLURM_NTASKS": at.size,
        "SLURM_PROCID": at.rank,
        "SLURM_STEP_NUM_TASKS": at.size,
        "SLURM_LOCALID": at.local_rank,
        "SLURM_NODEID": at.host,
        "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, at.hosts)),
    }


def srun_with_pmix(at: Place) -> dict[str, object]:
    return srun(at) | {"PMIX_RANK": at.rank, "PMIX_NAMESPACE": "slurm.pmix.7.0"}


def mpirun_in_slurm(at: Place) -> dict[str, object]:
    """On the first host, mpirun starts ranks itself; on others by srun, one daemon per host."""
    outer: dict[str, object] = {"SLURM_PROCID": 0, "SLURM_NTASKS": at.size, "SLURM_NODEID": 0}
    if at.host:
        outer = srun(Place(at.host - 1, [1] * (len(at.hosts) - 1), at.host - 1, 0))
    return outer | open_mpi(at)


def flux(at: Place) -> dict[str, object]:
    return {
        "FLUX_TASK_RANK": at.rank,
        "FLUX_JOB_SIZE": at.size,
        "FLUX_TASK_LOCAL_ID": at.local_rank,
        "FLUX_JOB_NNODES": len(at.hosts),
    }


def sagemaker(at: Place) -> dict[str, object]:
    names = [f"algo-{number + 1}" for number in range(at.size)]
    return {"SM_HOSTS": json.dumps(names), "SM_CURRENT_HOST": names[at.rank], "SM_NUM_GPUS": 0}


def sagemaker_mpi(at: Place) -> dict[str, object]:
    host = Place(at.host, [1] * len(at.hosts), at.host, 0)
    return sagemaker(host) | open_mpi(at)


def tf_config(at: Place) -> dict[str, object]:
    chief, *workers = (f"host-{number}:2222" for number in range(at.size))
    task = {"type": "worker", "index": at.rank - 1} if at.rank else {"type": "chief", "index": 0}
    cluster = {"chief": [chief], "worker": workers, "ps": ["host-9:2222"]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def kubeflow_trainer(at: Place) -> dict[str, object]:
    return {"PET_NNODES": at.size, "PET_NPROC_PER_NODE": "auto", "PET_NODE_RANK": at.rank}


def torchrun_below_mpirun(at: Place) -> dict[str, object]:
    """One torchrun per host, which numbers the hosts by arrival: here, from the last."""
    outer = Place(len(at.hosts) - 1 - at.host, [1] * len(at.hosts), at.host, 0)
    return open_mpi(outer) | torchrun(at)


def torchrun_below_srun(at: Place) -> dict[str, object]:
    return srun(Place(at.host, [1] * len(at.hosts), at.host, 0)) | torchrun(at)


LAUNCHERS = {
    "torchrun": Launcher("torchrun", "captured here, PyTorch 2.15", torchrun),
    "launch": Launcher("imagenet-prep launch", "launching/variables.py", launch),
    "launch --mpi": Launcher("Open MPI", "launching/variables.py, of_mpi", launch_by_mpi),
    "horovodrun": Launcher("Horovod", "horovod 0.28.1, runner/gloo_run.py", family("HOROVOD_")),
    "DeepSpeed": Launcher("DeepSpeed", "DeepSpeed, launcher/launch.py at 048b0d5", deepspeed),
    "Kubeflow PyTorchJob": Launcher(
        "RANK and WORLD_SIZE",
        "kubeflow/training-operator, controller.v1/pytorch/envvar.go at 1417bbc",
        kubeflow,
        knows_host=False,
    ),
    "Kubeflow Trainer": Launcher(
        "PET_NNODES",
        "kubeflow/training-operator, controller.v1/pytorch/elastic.go; kubeflow/trainer#1840",
        kubeflow_trainer,
        knows_host=False,
        one_each=True,
    ),
    "Azure ML": Launcher(
        "RANK and WORLD_SIZE", "learn.microsoft.com, Distributed GPU training guide", azure
    ),
    "Composer": Launcher("RANK and WORLD_SIZE", "composer, cli/launcher.py", composer),
    "Open MPI": Launcher("Open MPI", "captured here, 4.1.8; docs.open-mpi.org for 5", open_mpi),
    "MPICH, Intel MPI": Launcher("MPICH", "captured here, MPICH 5.0.2 (Hydra)", hydra),
    "MVAPICH2": Launcher("MVAPICH", "src/pm/mpirun/mpispawn.c", family("MV2_COMM_WORLD_")),
    "Cray PALS": Launcher("Cray PALS", "Slurm, mpi/cray_shasta/mpi_cray_shasta.c", pals),
    "jsrun": Launcher(
        "jsrun", "lightning/fabric/plugins/environments/lsf.py", family("JSM_NAMESPACE_")
    ),
    "srun": Launcher("Slurm", "slurm.schedmd.com/srun.html; tests/commands/test_slurm.py", srun),
    "srun --mpi=pmix": Launcher("Slurm", "slurm.schedmd.com/mpi_guide.html", srun_with_pmix),
    "mpirun below sbatch": Launcher("Open MPI", "docs.open-mpi.org, Slurm", mpirun_in_slurm),
    "Flux": Launcher("Flux", "flux-core, src/shell/task.c", flux),
    "SageMaker": Launcher(
        "SageMaker",
        "sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md",
        sagemaker,
        one_each=True,
    ),
    "SageMaker with MPI": Launcher("Open MPI", "the same; MPI's variables inside", sagemaker_mpi),
    "TF_CONFIG": Launcher(
        "TF_CONFIG", "tensorflow.org, TFConfigClusterResolver", tf_config, one_each=True
    ),
    "torchrun below mpirun": Launcher("torchrun", "captured here", torchrun_below_mpirun),
    "torchrun below srun": Launcher("torchrun", "slurm_nodes of a review", torchrun_below_srun),
}


def forget_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the variables of all launchers from the environment of this process."""
    for launcher in LAUNCHERS.values():
        for name in launcher.environment(Place(0, [1], 0, 0)):
            monkeypatch.delenv(name, raising=False)
