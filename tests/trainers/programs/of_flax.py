"""Reads TFDS's form of a dataset by the input pipeline of flax's examples/imagenet.

python of_flax.py CHECKOUT, with TFDS_DATA_DIR in the environment. Prints pairs of the class that
the pixels encode and the label next to them.
"""

import itertools
import json
import sys

import numpy as np
import tensorflow_datasets as tfds

sys.path.insert(0, f"{sys.argv[1]}/examples/imagenet")
import input_pipeline
from configs import default

from tests.kit import flat

builder = tfds.builder(default.get_config().dataset)
pairs = []
for train, batches in ((True, 40), (False, 20)):
    split = input_pipeline.create_split(builder, 50, train, image_size=64)
    for batch in itertools.islice(split.as_numpy_iterator(), batches):
        pixels = batch["image"] * input_pipeline.STDDEV_RGB + np.array(input_pipeline.MEAN_RGB)
        pairs += zip(map(flat.class_of, pixels), batch["label"].tolist(), strict=True)
print(json.dumps(pairs))
