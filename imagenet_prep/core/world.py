"""The rank of this process in a training run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

# SLURM_PROCID is also set in a batch script; only srun sets SLURM_STEP_NUM_TASKS.
_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
# Variables of launchers, most specific first: horovodrun, Open MPI, torchrun and Slurm's srun.
_RANK_AND_SIZE = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    _SRUN,
)
_LOCAL = (
    ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)

# Numbers of tasks per node, e.g. "8(x3),4": three nodes have 8 tasks, and one has 4.
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")

# A rank that ends because a different rank was lost writes this line to its standard error. The
# launcher hides the line, and looks for the cause in the output of other ranks.
LEFT = "@imagenet-prep left-by-another-rank"


@dataclass(frozen=True)
class World:
    """One of the processes that train together.

    Attributes:
      rank: 0-based number of this process.
      size: number of processes.
      local_rank, local_size: 0-based number of this process on its host, and number of processes
        on this host. By default, all processes are on one host.

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
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> World:
        """Returns the rank that a launcher has set, or rank 0 of 1 if there is no launcher.

        Args:
          environment: variables of `imagenet-prep launch`, Horovod, Open MPI, torchrun or
            Slurm's srun.

        Raises:
          ValueError: the variables are not numbers, or are out of range.
        """
        rank, size = _first(environment, _RANK_AND_SIZE) or (0, 1)
        local = _first(environment, _LOCAL)
        if local is None and _first(environment, _RANK_AND_SIZE[:-1]) is None:
            local = _of_srun(environment)
        local_rank, local_size = local or (-1, -1)
        return cls(rank, size, local_rank, local_size)


def _of_srun(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Returns the local rank and the local size of a task; None if srun did not start it."""
    names = ("SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE", *_SRUN)
    if not all(name in environment for name in names):
        return None
    local_rank, node, tasks = (environment[name] for name in names[:3])
    left = int(node)
    for number, times in _TASKS.findall(tasks):
        left -= int(times or 1)
        if left < 0:
            return int(local_rank), int(number)
    return None


def _first(
    environment: Mapping[str, str], names: tuple[tuple[str, str], ...]
) -> tuple[int, int] | None:
    for rank, size in names:
        if rank in environment and size in environment:
            return int(environment[rank]), int(environment[size])
    return None
