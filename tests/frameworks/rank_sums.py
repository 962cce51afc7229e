"""Prints, for each of four ranks on two hosts, the results of all operations of PyTorch's ranks.

The ranks are threads that exchange their tensors in memory.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from imagenet_prep.core.world import World
from imagenet_prep.trainer.pytorch_comm import _ProcessGroup

RANKS = 4
LIMIT_S = 60.0


class InMemory(_ProcessGroup):
    """A rank whose tensors are exchanged in `room`, by rank."""

    def __init__(self, rank: int, room: dict[int, Any], barrier: threading.Barrier) -> None:
        self.world = World(rank, RANKS, rank % 2, RANKS // 2)
        self._room = room
        self._barrier = barrier

    def _exchanged(self, tensor: Any) -> list[Any]:
        self._barrier.wait()
        self._room[self.world.rank] = tensor.clone()
        self._barrier.wait()
        return [self._room[rank] for rank in range(RANKS)]

    def _add_up(self, tensor: Any) -> None:
        tensor.copy_(sum(self._exchanged(tensor)))

    def _send(self, tensor: Any) -> None:
        tensor.copy_(self._exchanged(tensor)[0])


def results(comm: InMemory) -> list[Any]:
    """Returns the results of one rank; arguments stay unchanged, except those to be replaced."""
    rank = comm.world.rank
    sums = torch.tensor([1, rank, 5], dtype=torch.float64)
    means = [torch.tensor([[rank, 8.0]]), torch.tensor(float(rank))]
    firsts = [torch.tensor([[rank], [7.0]]), torch.tensor(float(rank))]
    found: list[Any] = [comm.totals(sums), sums.tolist() == [1, rank, 5], comm.sum(2.0)]
    comm.average(means)
    comm.broadcast(firsts, "weight")
    comm.average([])
    found += [[each.tolist() for each in (*means, *firsts)]]
    found += [comm.gather(np.array([rank, 10 * rank]), "row").tolist()]
    return [*found, comm.broadcast_object({"rank": rank})]


if __name__ == "__main__":
    room: dict[int, Any] = {}
    barrier = threading.Barrier(RANKS, timeout=LIMIT_S)
    with ThreadPoolExecutor(RANKS) as pool:
        every = [InMemory(rank, room, barrier) for rank in range(RANKS)]
        print(json.dumps([*pool.map(results, every)]))
