"""Prints facts about untrained networks of PyTorch's learner, and of torchvision's, as JSON.

`python networks.py MODEL ...`; of a model that torchvision lacks, only our own facts.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import torch
import torchvision
from torch import nn

from imagenet_prep.trainer import pytorch_learner


def shapes(network: Any) -> dict[str, list[int]]:
    return {name: list(values.shape) for name, values in network.state_dict().items()}


def facts(name: str) -> dict[str, Any]:
    torch.manual_seed(0)
    network = pytorch_learner.build(name, 32, 10)
    found: dict[str, Any] = {"ours": shapes(network)}
    published = getattr(torchvision.models, name.removesuffix("-v1"), None)
    if published is not None:
        theirs = shapes(published(num_classes=10))
        found["theirs"] = {key: theirs[key] for key in theirs if "num_batches" not in key}
    norms = {key: each for key, each in network.named_modules() if isinstance(each, nn.BatchNorm2d)}
    found["zero"] = [key for key, each in norms.items() if not each.weight.any()]
    found["dropouts"] = [each.p for each in network.modules() if isinstance(each, nn.Dropout)]
    with torch.no_grad():
        found["outputs"] = list(network.eval()(torch.zeros(2, 3, 32, 32)).shape)
    found["dense"] = float(network.fc.weight.detach().std())
    for each in network.modules():
        if isinstance(each, nn.Conv2d) and each.bias is None and each.weight.numel() > 10_000:
            fan_out = each.out_channels * math.prod(each.kernel_size)
            spread = float(each.weight.detach().std()) / math.sqrt(2 / fan_out)
            found.setdefault("spreads", []).append(spread)
    return found


if __name__ == "__main__":
    print(json.dumps({name: facts(name) for name in sys.argv[1:]}))
