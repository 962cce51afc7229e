"""Ranks of PyTorch that record the examples of their steps in a checkpoint; may be killed.

torchrun --nproc-per-node N train.py SET CHECKPOINT LOADER WORKERS HOLD

LOADER is "reader", "plain" (torch's DataLoader), "stateful" (torchdata's) or "horovod": the reader,
and ranks that communicate by Horovod. After HOLD steps, all ranks wait to be killed; 0 never waits.
Only every third step is saved, so the steps after it are trained again.
"""

import json
import signal
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from imagenet_prep.read import make_dataset

EPOCHS = 2
BATCH = 2
SAVE_EVERY = 3
root, name, kind, workers, hold = sys.argv[1:]
checkpoint = Path(name)


def gathered(numbers):
    """Returns the numbers of all ranks, in the order of ranks."""
    everyone = [torch.empty_like(numbers) for _ in range(distributed.get_world_size())]
    distributed.all_gather(everyone, numbers)
    return torch.cat(everyone)


if kind == "horovod":
    import horovod.torch as hvd

    hvd.init()
    rank = hvd.rank()
    gather = hvd.allgather
else:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    gather = gathered
reader = make_dataset(root, "train", BATCH, 16, backend="native", dtype="uint8", seed=4)
sampler = reader.sampler()
how = {"batch_size": None, "sampler": sampler, "num_workers": int(workers)}
if kind in ("reader", "horovod"):
    loader = stateful = reader
elif kind == "plain":
    loader = DataLoader(reader, **how)
    stateful = sampler
else:
    loader = stateful = StatefulDataLoader(reader, **how)

saved = {"epoch": 0, "done": 0, "seen": [[] for _ in range(EPOCHS)]}
if checkpoint.exists():
    saved = torch.load(checkpoint)
    stateful.load_state_dict(saved["state"])
resumed_after, done, seen = saved["done"], saved["done"], saved["seen"]
for epoch in range(saved["epoch"], EPOCHS):
    for step, batch in enumerate(loader, 1):
        assert batch["images"].shape == (BATCH, 16, 16, 3)
        numbers = torch.as_tensor(batch["class_index"])
        seen[epoch] += gather(numbers).tolist()
        done += 1
        if rank == 0 and done % SAVE_EVERY == 0:
            state = sampler.state_dict(step) if kind == "plain" else stateful.state_dict()
            partial = checkpoint.with_suffix(".partial")
            torch.save({"epoch": epoch, "done": done, "seen": seen, "state": state}, partial)
            partial.replace(checkpoint)
        if done == int(hold):
            checkpoint.with_suffix(f".waits{rank}").touch()
            signal.pause()
if rank == 0:
    print(json.dumps({"seen": seen, "resumed_after": resumed_after}))
if kind != "horovod":
    distributed.destroy_process_group()
