"""Trains with PyTorch and Horovod on any number of ranks; after a kill, it resumes mid-epoch.

imagenet-prep launch -np 2 -- python examples/pytorch_horovod.py --data-dir /data/set
"""

import argparse
import json
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn

from imagenet_prep.read import make_dataset

parser = argparse.ArgumentParser()
parser.add_argument("--data-dir", required=True)
parser.add_argument("--image-size", type=int, default=64)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints")
parser.add_argument("--out", type=Path, default=Path("model.pt"))
flags = parser.parse_args()

hvd.init()


def reader(split):
    """Returns this rank's batches of a split; the rank comes from the environment."""
    return make_dataset(
        flags.data_dir,
        split,
        flags.batch_size,
        flags.image_size,
        backend="native",
        framework="torch",
        layout="NCHW",
    )


def tensors(batch):
    """Returns images, labels and mask of a batch."""
    return [batch[name] for name in ("images", "class_index", "mask")]


train = reader("train")
validation = reader("validation")
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, train.num_classes),
)
# optimizer.step waits for the average of all ranks' gradients.
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), flags.learning_rate, momentum=0.9),
    named_parameters=model.named_parameters(),
)


def save():
    """Writes a checkpoint by renaming a complete file, so a kill leaves the old or the new one."""
    parts = {"model": model, "optimizer": optimizer, "reader": train}
    partial = flags.out.with_suffix(".partial")
    torch.save({name: part.state_dict() for name, part in parts.items()}, partial)
    partial.replace(flags.out)


saved = None
if hvd.rank() == 0 and flags.out.exists():
    saved = torch.load(flags.out, weights_only=True)
# Only rank 0 needs the file. The name must be given: Horovod's default is the type of the object,
# which is dict on rank 0 and NoneType on the other ranks, so all would wait forever.
saved = hvd.broadcast_object(saved, root_rank=0, name="checkpoint")
if saved is not None:
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train.load_state_dict(saved["reader"])
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
if hvd.rank() == 0 and train.epoch >= flags.epochs:
    print(f"{flags.out} is finished (epochs: {train.epoch}). Raise --epochs, or use another --out.")
while train.epoch < flags.epochs:
    epoch = train.epoch
    for step, batch in enumerate(train, 1):
        images, labels, _ = tensors(batch)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # After the last step the reader is already in the next epoch: evaluate this epoch first.
        if hvd.rank() == 0 and step % flags.save_every == 0 and train.epoch == epoch:
            save()
    counted = torch.zeros(2)
    with torch.no_grad():
        for batch in validation:
            images, labels, mask = tensors(batch)
            right = (model(images).argmax(1) == labels) & mask
            counted += torch.stack([right.sum(), mask.sum()])
    counted = hvd.allreduce(counted, op=hvd.Sum)
    if hvd.rank() == 0:
        top1 = float(counted[0] / counted[1])
        row = {"epoch": epoch, "loss": loss.item(), "top1": top1, "images": int(counted[1])}
        print(json.dumps(row), flush=True)
        save()
