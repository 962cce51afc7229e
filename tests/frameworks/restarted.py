"""Connects both ranks of a job through torchrun's store, then only rank 0 of a second attempt.

Prints the number of connected ranks and the error of the second attempt as JSON.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from torch.distributed import TCPStore

from imagenet_prep.core.world import World
from imagenet_prep.trainer import pytorch_comm

ADDRESS = "127.0.0.1"


def connect(rank: int, limit_s: float) -> None:
    world = World(rank, 2, rank, 2)
    pytorch_comm._all_ranks(world, timedelta(seconds=limit_s))


if __name__ == "__main__":
    # Torchrun keeps its store, with the keys of the first attempt, when it restarts the ranks.
    store = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
    os.environ |= {
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    with ThreadPoolExecutor(2) as pool:
        connected = [*pool.map(connect, range(2), [60.0] * 2)]
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
    problem = ""
    try:
        connect(0, 1.0)
    except TimeoutError as error:
        problem = str(error)
    print(json.dumps([len(connected), problem]))
