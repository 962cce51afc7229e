"""Reads a dataset by big_vision's input pipeline: python of_big_vision.py CHECKOUT INPUT.

INPUT is JSON: `config.input` of a training. Prints pairs of the class that the pixels encode and
the label next to them.
"""

import itertools
import json
import sys

import ml_collections

sys.path.insert(0, sys.argv[1])
import big_vision.pp.ops_general
import big_vision.pp.ops_image  # noqa: F401
from big_vision import input_pipeline

from tests.kit import flat

given = json.loads(sys.argv[2])
given["data"]["skip_decode"] = tuple(given["data"]["skip_decode"])  # as in a config
config = ml_collections.ConfigDict(given)
batches, num_examples = input_pipeline.training(config)
pairs = []
for batch in itertools.islice(batches.as_numpy_iterator(), num_examples // config.batch_size):
    assert batch["labels"].sum(axis=1).tolist() == [1.0] * len(batch["labels"])
    shown = map(flat.class_of, batch["image"])
    pairs += zip(shown, batch["labels"].argmax(axis=1).tolist(), strict=True)
print(json.dumps(pairs))
