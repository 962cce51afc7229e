"""Runs a document's validation loop for networks of known top-1.

`python top1.py SET CODE` runs the code of the file CODE with this dataset, and prints one line with
the counts and top-1 of each network. torchrun may start it.
"""

import json
import os
import sys

import torch
from torch import distributed, nn


class Constant(nn.Module):
    """Predicts one class for every image."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, images):
        """Returns logits [batch, 100]."""
        assert images.shape[1:] == (3, 224, 224)
        logits = torch.zeros(len(images), 100)
        logits[:, self.answer] = 1
        return logits


class ByColour(Constant):
    """Predicts the class that the colour of an image encodes."""

    def forward(self, images):
        """Returns logits [batch, 512]."""
        mean = torch.tensor([123.675, 116.28, 103.53]).reshape(3, 1, 1)
        std = torch.tensor([58.395, 57.12, 57.375]).reshape(3, 1, 1)
        digits = ((images * std + mean).mean((2, 3)) - 16) / 32
        classes = (digits.round() @ torch.tensor([1.0, 8.0, 64.0])).long()
        return nn.functional.one_hot(classes, 512)


def main():
    """Prints the results on rank 0."""
    data, file = sys.argv[1:]
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
    with open(file, encoding="utf-8") as opened:
        code = opened.read()
    found = {}
    for name, model in {
        "class 0": Constant(0),
        "class 53": Constant(53),
        "right": ByColour(0),
    }.items():
        scope = {"model": model, "DATA": data}
        exec(code, scope)
        assert not model.training
        if "counts" in scope:
            counts = scope["counts"].tolist()
        else:
            counts = [int(scope["right"]), int(scope["total"])]
        found[name] = [*counts, scope["top1"]]
    if not distributed.is_initialized() or distributed.get_rank() == 0:
        print(json.dumps(found))
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
