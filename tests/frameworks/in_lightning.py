"""Counts the images of each validation, with Lightning's sanity check and limits.

`python in_lightning.py SET` prints the number of images of each validation, and of a loop after it.
"""

import json
import logging
import sys
import warnings

import lightning
import torch
from torch import nn

from imagenet_prep.read import World, make_dataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


class Counting(lightning.LightningModule):
    """Counts the images of each validation."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.seen = 0
        self.validations = []

    def training_step(self, batch, _):
        """Returns any loss."""
        return self.layer(batch["images"].float().mean((1, 2))).mean()

    def validation_step(self, batch, _):
        """Counts the images of a batch."""
        self.seen += int(batch["mask"].sum())

    def on_validation_epoch_end(self):
        """Ends a count."""
        self.validations.append([self.trainer.sanity_checking, self.seen])
        self.seen = 0

    def configure_optimizers(self):
        """Returns any optimizer."""
        return torch.optim.SGD(self.parameters(), 0.1)


class Tensors:
    """A reader with tensors as arrays, as a user's script would wrap it."""

    def __init__(self, reader):
        self.reader = reader

    def __len__(self):
        return len(self.reader)

    def __iter__(self):
        for batch in self.reader:
            yield {name: torch.from_dlpack(batch[name]) for name in ("images", "mask")}


def reader(split):
    """Returns the reader of a single process."""
    settings = {"world": World(), "framework": "dlpack"}
    return make_dataset(sys.argv[1], split, 4, 16, backend="native", **settings)


found = {}
for limit in (1.0, 2):
    train = reader("train")
    validation = reader("validation")
    module = Counting()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        num_sanity_val_steps=2,
        limit_val_batches=limit,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, Tensors(train), Tensors(validation))
    after = sum(int(batch["mask"].sum()) for batch in validation)
    found[str(limit)] = {"validations": module.validations, "after": after}
print(json.dumps(found))
