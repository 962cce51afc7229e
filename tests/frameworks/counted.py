"""Writes which images this rank reads in an epoch: `python counted.py HOW SET OUT [STRATEGY]`.

HOW is reader or loader (of the launcher that starts this program), spawn (which this program does),
lightning-reader or lightning-loader (with Lightning's STRATEGY), or prepared-reader or
prepared-loader (of Accelerate). Each rank writes OUT/RANK.json.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader

from imagenet_prep.read import make_dataset

if "lightning" in sys.argv[1]:
    import lightning
else:  # its import takes seconds
    lightning = None

SPLITS = ("train", "validation")
HOW, ROOT, OUT, *MORE = sys.argv[1:]


def opened(split: str) -> Any:
    fields = ("images", "class_index", "mask", "number")
    return make_dataset(ROOT, split, 3, 16, backend="native", layout="NCHW", fields=fields)


def loader(split: str) -> DataLoader:
    reader = opened(split)
    return DataLoader(reader, batch_size=None, sampler=reader.sampler(), num_workers=1)


def numbers(batch: Any) -> list[int]:
    return batch["number"][batch["mask"]].tolist()


def read(batches: Any) -> list[int]:
    return [*itertools.chain.from_iterable(map(numbers, batches))]


def write(rank: int, seen: dict[str, list[int]]) -> None:
    (Path(OUT) / f"{rank}.json").write_text(json.dumps(seen))


def spawned(rank: int, size: int, port: int) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size
    )
    write(rank, {split: read(opened(split)) for split in SPLITS})
    distributed.barrier()
    distributed.destroy_process_group()


class Module(lightning.LightningModule if lightning else object):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make
        self.layer = torch.nn.Linear(3 * 16 * 16, 100)
        self.seen: dict[str, list[int]] = {split: [] for split in SPLITS}

    def train_dataloader(self) -> Any:
        return self.make("train")

    def val_dataloader(self) -> Any:
        return self.make("validation")

    def training_step(self, batch: Any, _number: int) -> Any:
        self.seen["train"] += numbers(batch)
        images, labels = (torch.as_tensor(batch[name]) for name in ("images", "class_index"))
        return torch.nn.functional.cross_entropy(self.layer(images.flatten(1)), labels.long())

    def validation_step(self, batch: Any, _number: int) -> None:
        self.seen["validation"] += numbers(batch)

    def on_train_end(self) -> None:
        write(self.global_rank, self.seen)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)


def by_lightning(make: Any, strategy: str, **more: Any) -> None:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=1,
        num_sanity_val_steps=0,
        **quiet,
        **more,
    )
    trainer.fit(Module(make))


def main() -> None:
    if HOW == "spawn":
        torch.multiprocessing.spawn(spawned, (2, int(MORE[0])), nprocs=2)
    elif HOW.startswith("lightning"):
        early = {split: opened(split) for split in SPLITS} if "early" in HOW else {}
        make = {"loader": loader, "reader": opened, "early": early.get}[HOW.partition("-")[2]]
        by_lightning(make, MORE[0], use_distributed_sampler="unsplit" not in MORE)
    elif HOW.startswith("prepared"):
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        make = loader if HOW == "prepared-loader" else opened
        seen = {split: read(accelerator.prepare(make(split))) for split in SPLITS}
        write(accelerator.process_index, seen)
    else:
        make = loader if HOW == "loader" else opened
        seen = {split: read(make(split)) for split in SPLITS}
        write(int(os.environ[MORE[0]]), seen)


if __name__ == "__main__":
    main()
