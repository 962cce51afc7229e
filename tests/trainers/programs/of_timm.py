"""Reads a dataset by timm with the arguments of its train.py: python of_timm.py ARGUMENTS SPLIT.

ARGUMENTS is JSON: those of create_dataset. Prints pairs of the class that the pixels encode and the
label next to them, after two training steps with these batches.
"""

import json
import sys

import timm
import torch
from timm.data import create_dataset, create_loader
from timm.optim import create_optimizer_v2

from tests.kit import flat


def batches(split):
    """Returns batches of a split, with values from 0 to 1."""
    dataset = create_dataset(split=split, batch_size=50, **json.loads(sys.argv[1]))
    how = {"input_size": (3, 64, 64), "batch_size": 50, "num_workers": 2}
    return create_loader(dataset, use_prefetcher=False, mean=(0, 0, 0), std=(1, 1, 1), **how)


pairs = []
for images, labels in batches(sys.argv[2]):
    pixels = images.permute(0, 2, 3, 1).numpy() * 255
    pairs += zip(map(flat.class_of, pixels), labels.tolist(), strict=True)
model = timm.create_model("resnet10t", num_classes=flat.CLASSES)
optimizer = create_optimizer_v2(model, "sgd", lr=0.01)
for _, (images, labels) in zip(range(2), batches(sys.argv[2]), strict=False):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    assert loss.isfinite(), "a label is outside the classes"
    loss.backward()
    optimizer.step()
print(json.dumps(pairs))
