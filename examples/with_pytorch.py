"""Trains with PyTorch on any number of ranks; after a kill, it resumes mid-epoch.

torchrun --nproc-per-node 2 examples/with_pytorch.py --data-dir /data/set --batch-size 16
imagenet-prep launch -np 2 -- python examples/with_pytorch.py --data-dir /data/set --batch-size 16

With --labels FILE ..., the script also prints the table of `imagenet-prep score` for these labels.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from torch import distributed, nn

from imagenet_prep.evaluation import score
from imagenet_prep.read import make_dataset

parser = argparse.ArgumentParser()
parser.add_argument("--data-dir", required=True)
parser.add_argument("--image-size", type=int, default=64)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--learning-rate", type=float, default=0.05)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints")
parser.add_argument("--out", type=Path, default=Path("model.pt"))
parser.add_argument(
    "--labels", nargs="*", help="label files: print the table of scores after the last epoch"
)
flags = parser.parse_args()
if "RANK" not in os.environ:
    raise SystemExit("Start this script with torchrun --nproc-per-node 1, or imagenet-prep launch.")

gpu = torch.cuda.is_available()
distributed.init_process_group("nccl" if gpu else "gloo")
rank = distributed.get_rank()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")


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
        fields=("images", "class_index", "mask", "key"),
    )


def tensors(batch):
    """Returns images, labels and mask of a batch, on this rank's device."""
    names = ("images", "class_index", "mask")
    return [batch[name].to(device, non_blocking=True) for name in names]


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
).to(device)
parallel = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), flags.learning_rate, momentum=0.9)


def save():
    """Writes a checkpoint by renaming a complete file, so a kill leaves the old or the new one."""
    parts = {"model": model, "optimizer": optimizer, "reader": train}
    partial = flags.out.with_suffix(".partial")
    torch.save({name: part.state_dict() for name, part in parts.items()}, partial)
    partial.replace(flags.out)


def evaluate():
    """Returns the numbers of correct and of all images on all ranks, and this rank's scores."""
    counted = torch.zeros(2, device=device)
    said: dict[str, np.ndarray] = {}
    with torch.no_grad():
        for batch in validation:
            images, labels, mask = tensors(batch)
            scores = model(images)
            right = (scores.argmax(1) == labels) & mask
            counted += torch.stack([right.sum(), mask.sum()])
            # Padding in the last batch has no key.
            keys = list(filter(None, batch["key"]))
            rows = scores[mask].float().cpu().numpy()
            said |= zip(keys, rows, strict=True)
    distributed.all_reduce(counted)
    return *map(int, counted), said


if flags.out.exists():
    saved = torch.load(flags.out, map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    # The position is the same on every rank, for any number of ranks.
    train.load_state_dict(saved["reader"])
said = None
if rank == 0 and train.epoch >= flags.epochs:
    print(f"{flags.out} is finished (epochs: {train.epoch}). Raise --epochs, or use another --out.")
while train.epoch < flags.epochs:
    epoch = train.epoch
    for step, batch in enumerate(train, 1):
        images, labels, _ = tensors(batch)
        loss = nn.functional.cross_entropy(parallel(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # After the last step the reader is already in the next epoch: evaluate this epoch first.
        if rank == 0 and step % flags.save_every == 0 and train.epoch == epoch:
            save()
    right, counted, said = evaluate()
    if rank == 0:
        row = {"epoch": epoch, "loss": loss.item(), "top1": right / counted, "images": counted}
        print(json.dumps(row), flush=True)
        save()
if flags.labels is not None:
    if said is None:  # The checkpoint was already that of the last epoch.
        *_, said = evaluate()
    parts: list[dict[str, np.ndarray]] = [{}] * distributed.get_world_size()
    distributed.gather_object(said, parts if rank == 0 else None)
    if rank == 0:
        for part in parts:
            said |= part
        table = score(np.stack([*said.values()]), flags.data_dir, labels=flags.labels, keys=[*said])
        print(table)
distributed.destroy_process_group()
