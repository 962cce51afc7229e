"""Reads a prepared data set for training: every example once, on every rank, in one order.

For example::

    from imagenet_prep.read import make_dataset

    reader = make_dataset("/data/imagenet-480", "train", batch_size=256)
    for epoch in range(90):
        for batch in reader:
            step(batch["images"], batch["class_index"])
"""

from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.reader import Reader, make_dataset, open_reader

__all__ = ["ReadConfig", "Reader", "make_dataset", "open_reader"]
