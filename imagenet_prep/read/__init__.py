"""Reads a prepared dataset for training. In each epoch, no two ranks read the same example.

For example::

    from imagenet_prep.read import make_dataset

    reader = make_dataset("/data/imagenet-480", "train", batch_size=256)
    for epoch in range(90):
        for batch in reader:
            step(batch["images"], batch["class_index"])
"""

from imagenet_prep.core.world import World
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.read.batch import Batch
from imagenet_prep.read.column_writer import ColumnWriter
from imagenet_prep.read.dataset import make_dataset
from imagenet_prep.read.decoder import decode
from imagenet_prep.read.mix import Alternation, Mix, make_buckets, make_mix
from imagenet_prep.read.order import Size, StepSampler
from imagenet_prep.read.reader import Reader
from imagenet_prep.read.recipes import View
from imagenet_prep.read.source import ExampleSource

__all__ = [
    "Alternation",
    "Batch",
    "ColumnWriter",
    "ExampleSource",
    "ImageExample",
    "Mix",
    "Reader",
    "Size",
    "StepSampler",
    "View",
    "World",
    "decode",
    "make_buckets",
    "make_dataset",
    "make_mix",
]
