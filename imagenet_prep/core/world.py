"""The rank of this process in a training run.

A process asks every launcher's variables and the frameworks that it has initialised. Two sources
agree if they give the same rank and size, or if one was started inside the other: `_contains`
says when. The innermost one decides. A process that belongs to several and does not know its rank
is an error: if it read everything, as if it were alone, the ranks would train on the same images.

In this module, -1 stands for a number that a source does not give.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from imagenet_prep.core.errors import UsageError

# A rank that ends because a different rank was lost writes this line to its standard error. The
# launcher hides the line, and looks for the cause in the output of other ranks.
LEFT = "@imagenet-prep left-by-another-rank"

_NUMBER = re.compile(r"[0-9]{1,9}")
# Templates of Kubernetes leave variables empty. Programs of Hugging Face write -1.
_NOT_SET = ("", "-1")
# Numbers of tasks per node, e.g. "8(x3),4": three nodes have 8 tasks, and one has 4.
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_REMEDY = (
    "Correct or unset these variables, or pass world=World(rank, size) to make_dataset. With "
    "PyTorch, Lightning, JAX or Horovod, open readers after the framework has connected the ranks."
)

# The kind of a source. An agent starts processes in any environment, even in one of several ranks.
_Kind = Literal["framework", "agent", "processes", "mpi", "scheduler"]


class _Launcher(NamedTuple):
    """The names of a launcher's variables; "" if it sets no such variable."""

    name: str
    kind: _Kind
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""
    mark: str = ""  # only this launcher sets this variable; others use the same names


_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

# If several launchers give this process the same rank, the first one is named, and not a framework.
# fmt: off
_LAUNCHERS = (
    # docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables"
    _Launcher("torchrun", "agent", *_TORCH, mark="TORCHELASTIC_RUN_ID"),
    # launching/rank_command.py; with --mpi, only Open MPI numbers the ranks
    _Launcher("imagenet-prep launch", "processes", *_TORCH, mark="IMAGENET_PREP_LAUNCH"),
    # Horovod's horovod/runner/gloo_run.py, create_slot_env_vars
    _Launcher("Horovod", "processes", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK",
              "HOROVOD_LOCAL_SIZE"),
    # DeepSpeed's deepspeed/launcher/launch.py
    _Launcher("DeepSpeed", "processes", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE",
              mark="CROSS_SIZE"),
    # PyTorch's init_method="env://": Kubeflow's PyTorchJob (training-operator, pytorch/envvar.go,
    # no LOCAL_RANK), Azure ML, Composer, Ray Train and Accelerate set these variables. Lightning's
    # own launcher sets no RANK (lightning/fabric/strategies/launchers/subprocess_script.py).
    _Launcher("RANK and WORLD_SIZE", "processes", *_TORCH),
    # Open MPI 4 and 5: docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
    _Launcher("Open MPI", "mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    # MVAPICH2's src/pm/mpirun/mpispawn.c
    _Launcher("MVAPICH", "mpi", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
              "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    # HPE's PALS; also Slurm's src/plugins/mpi/cray_shasta/mpi_cray_shasta.c
    _Launcher("Cray PALS", "mpi", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE",
              mark="PALS_RANKID"),
    # The process manager Hydra of MPICH and Intel MPI: MPICH's src/pm/hydra
    _Launcher("MPICH", "mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # IBM's jsrun: lightning/fabric/plugins/environments/lsf.py
    _Launcher("jsrun", "mpi", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
              "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
    # The PMIx standard, chapter "Client initialization": no variable has the size
    _Launcher("PMIx", "mpi", "PMIX_RANK", ""),
    # MXNet's "Distributed Training in MXNet": its scheduler numbers the workers later
    _Launcher("MXNet", "processes", "", "DMLC_NUM_WORKER"),
    # torchrun's settings, which Kubeflow sets in each pod (training-operator, pytorch/elastic.go;
    # kubeflow/trainer), also for a script that is started without torchrun
    _Launcher("PET_NNODES", "scheduler", "PET_NODE_RANK", "PET_NNODES"),
    # flux-core's src/shell/task.c
    _Launcher("Flux", "scheduler", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
    # slurm.schedmd.com/srun.html; in a batch script, only SLURM_STEP_NUM_TASKS is not set
    _Launcher("Slurm", "scheduler", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
              mark="SLURM_STEP_NUM_TASKS"),
)
# fmt: on
# Modules of frameworks, and the names of the functions that return rank and size.
_FRAMEWORKS = (
    ("torch.distributed", "get_rank", "get_world_size"),
    ("horovod.tensorflow", "rank", "size"),
    ("horovod.torch", "rank", "size"),
    ("horovod.mxnet", "rank", "size"),
)


class _Claim(NamedTuple):
    """The numbers that one source gives this process."""

    name: str
    kind: _Kind
    rank: int
    size: int
    local_rank: int
    local_size: int
    text: str  # the variables and their values


@dataclass(frozen=True)
class World:
    """One of the processes that train together.

    Attributes:
      rank: 0-based number of this process.
      size: number of processes.
      local_rank, local_size: 0-based number of this process on its host, and number of processes
        on this host. By default, all processes are on one host.
      launcher: name of the launcher or framework that gave these numbers; "none" if there is
        none, and "" for a `World` that a script has made itself.

    Raises:
      ValueError: rank or size is invalid.

    Example:
      >>> from imagenet_prep.read import World
      >>> World(rank=5, size=8, local_rank=1, local_size=4).cross_rank
      1
      >>> World.from_environment({"RANK": "1", "WORLD_SIZE": "2"})
      World(rank=1, size=2, local_rank=1, local_size=2)
    """

    rank: int = 0
    size: int = 1
    local_rank: int = -1
    local_size: int = -1
    launcher: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.local_rank < 0:
            object.__setattr__(self, "local_rank", self.rank)
        if self.local_size < 0:
            object.__setattr__(self, "local_size", self.size)
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank}: expected 0 to {self.size - 1}")
        if not 0 <= self.local_rank < self.local_size <= self.size:
            raise ValueError(
                f"local rank {self.local_rank} of {self.local_size}, expected at most {self.size}"
            )

    @property
    def cross_rank(self) -> int:
        """0-based number of this host, if ranks are assigned host by host."""
        return self.rank // self.local_size

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> World:
        """Returns the rank that a launcher has set, or rank 0 of 1 if there is no launcher.

        Args:
          environment: variables of a launcher; by default those of this process. Then frameworks
            are asked, too, if this process has initialised them: torch.distributed, JAX, Horovod.

        Raises:
          ValueError: the variables are not numbers, are out of range, contradict each other or
            the framework, or name several processes without the rank of this one.
        """
        try:
            found = list(_launchers(os.environ if environment is None else environment))
            if environment is None:
                found += _frameworks()
            return _decided(found)
        except ValueError as error:
            raise ValueError(f"{error}. {_REMEDY}") from None


def this_process() -> World:
    """Returns `World.from_environment()` of this process; raises UsageError instead."""
    try:
        return World.from_environment()
    except ValueError as error:
        raise UsageError(error) from error


def require_same_ranks(world: World) -> None:
    """Raises UsageError if a framework has numbered the ranks since `world` was found."""
    if not world.launcher:
        return  # the script has decided
    for claim in _frameworks():
        if (claim.rank, claim.size) != (world.rank, world.size):
            raise UsageError(
                f"this reader was opened as rank {world.rank} of {world.size}, but {claim.text}. "
                "Open readers after the framework has connected the ranks (with Lightning, in "
                "train_dataloader and val_dataloader), or pass world=World(rank, size)."
            )


def _decided(found: Sequence[_Claim]) -> World:
    """Returns the numbers of the innermost source; raises ValueError if the sources contradict."""
    claims = [claim for claim in found if claim.rank >= 0 or claim.size > 1]
    if not claims:
        return World(launcher="none")
    for inner in claims:
        is_complete = inner.rank >= 0 and inner.size > 0
        if is_complete and all(
            _is_same(other, inner) or _contains(other, inner) for other in claims
        ):
            # Sources with the same numbers may know more: a framework knows no local rank.
            return _world([inner, *(claim for claim in found if _is_same(claim, inner))])
    given = "; ".join(dict.fromkeys(claim.text for claim in claims))
    raise ValueError(
        f"this process is one of several, but its rank and their number are unknown or "
        f"contradictory: {given}"
    )


def _is_same(claim: _Claim, decided: _Claim) -> bool:
    """Returns whether a claim, which may be incomplete, gives no other rank and size."""
    return claim.rank in (-1, decided.rank) and claim.size in (-1, decided.size)


def _contains(outer: _Claim, inner: _Claim) -> bool:
    """Returns whether a process of `outer` may have started the processes of `inner`."""
    if outer.kind == "framework":
        return False  # a framework that this process has initialised is never outside
    # torchrun's agents and mpirun under Slurm may start any number of processes.
    if inner.kind == "agent" or (inner.kind, outer.kind) == ("mpi", "scheduler"):
        return True
    if outer.size < 1:
        return outer.rank < inner.size
    # With 2 processes outside and 8 inside, each outer process has started 4. With 8 and 8, or 3
    # and 8, the two launchers contradict each other.
    count, rest = divmod(inner.size, outer.size)
    if rest or count == 1:
        return False
    # A script that starts processes itself, with a framework, numbers them host by host.
    return inner.kind != "framework" or outer.rank in (-1, inner.rank // count)


def _world(same: Sequence[_Claim]) -> World:
    """Returns the world of sources that give the same rank; the first one has rank and size."""
    inner = same[0]
    # A framework knows no local rank, and some launchers know no local size.
    local = max(same, key=lambda claim: (claim.local_rank >= 0, claim.local_size >= 0))
    try:
        return World(inner.rank, inner.size, local.local_rank, local.local_size, inner.name)
    except ValueError as error:
        raise ValueError(f"{inner.text}: {error}") from None


def _launchers(environment: Mapping[str, str]) -> Iterator[_Claim]:
    """Yields the numbers of all launchers that have set variables."""
    if environment.get("DMLC_ROLE") in ("server", "scheduler"):
        return  # a parameter server of MXNet reads nothing
    for launcher in _LAUNCHERS:
        if environment.get(launcher.mark) or not launcher.mark:
            yield _of_variables(launcher, environment)
    if environment.get("TF_CONFIG", "").strip():
        yield _of_tensorflow(environment["TF_CONFIG"])
    if environment.get("SM_HOSTS", "").strip():
        yield _of_sagemaker(environment["SM_HOSTS"], environment.get("SM_CURRENT_HOST", ""))


def _of_variables(launcher: _Launcher, environment: Mapping[str, str]) -> _Claim:
    names = launcher[2:6]
    rank, size, local_rank, local_size = (_number(environment, name) for name in names)
    if size < 0 and rank == 0 and launcher.size:
        rank = -1  # RANK=0 may be the only process
    if launcher.name == "Slurm":
        local_size = _tasks_of_node(environment)
        if size > 1 and environment.get("SLURM_PTY_PORT"):
            size = -1  # srun -n 4 --pty bash starts one shell
    if local_rank < 0:
        local_size = -1
    text = ", ".join(f"{name}={environment[name]}" for name in names if environment.get(name))
    return _Claim(launcher.name, launcher.kind, rank, size, local_rank, local_size, text)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "").strip()
    if text in _NOT_SET:
        return -1
    if name == "PET_NNODES":
        text = text.rpartition(":")[2]  # torchrun's --nnodes MIN:MAX
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{name}={text!r}: expected a number")
    return int(text)


def _tasks_of_node(environment: Mapping[str, str]) -> int:
    """Returns the number of tasks that srun has started on this node."""
    nodes_before = _number(environment, "SLURM_NODEID")
    if nodes_before < 0:
        return -1
    for number, times in _TASKS.findall(environment.get("SLURM_STEP_TASKS_PER_NODE", "")):
        nodes_before -= int(times or 1)
        if nodes_before < 0:
            return int(number)
    return -1


def _of_tensorflow(text: str) -> _Claim:
    """Returns the numbers in TF_CONFIG, as described for TFConfigClusterResolver of tf.distribute.

    Kubeflow's TFJob sets it. The chief (in TensorFlow 1: master) is the first worker.
    """
    try:
        config = json.loads(text)
        task = config.get("task", {})
        own = task.get("type"), int(str(task.get("index", -1)))
        workers: list[tuple[str, int]] = []
        for kind in ("master", "chief", "worker"):
            indices = range(len(config.get("cluster", {}).get(kind, ())))
            workers += [(kind, index) for index in indices]
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"TF_CONFIG={text[:200]!r}: not a cluster and a task: {error}") from None
    if own[0] in ("evaluator", "ps"):
        workers = []  # these tasks do not train
    return _of_list("TF_CONFIG", workers, own, f"TF_CONFIG={text}")


def _of_sagemaker(text: str, own: str) -> _Claim:
    """Returns the number of this host; SageMaker starts a script once per host.

    sagemaker-training-toolkit's ENVIRONMENT_VARIABLES.md describes the variables.
    """
    try:
        hosts = list(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"SM_HOSTS={text[:200]!r}: not a list of hosts: {error}") from None
    return _of_list("SageMaker", hosts, own, f"SM_HOSTS={text}, SM_CURRENT_HOST={own}")


def _of_list(name: str, processes: list[Any], own: Any, text: str) -> _Claim:
    """Returns the number of `own` among processes, each of which has its own host."""
    rank = processes.index(own) if own in processes else -1
    return _Claim(name, "scheduler", rank, len(processes), 0, 1, text)


def _frameworks() -> Iterator[_Claim]:
    """Yields the numbers of each framework that this process has initialised; imports none."""
    for name, rank, size in _FRAMEWORKS:
        module = sys.modules.get(name)
        # PyTorch has no such function if it was built without torch.distributed.
        if getattr(module, "is_initialized", bool)():
            yield _of_framework(name, getattr(module, rank)(), getattr(module, size)())
    # jax.process_index() would initialise JAX's devices, which a script may want to configure.
    jax: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if jax is not None and jax.client is not None:
        yield _of_framework("jax.distributed", jax.process_id, jax.num_processes)


def _of_framework(name: str, rank: int, size: int) -> _Claim:
    return _Claim(name, "framework", rank, size, -1, -1, f"{name} has rank {rank} of {size}")
