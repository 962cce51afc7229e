"""Reads a dataset by TensorFlow's Model Garden: python model_garden.py SET SPLIT BATCHES.

Prints pairs of the class that the pixels encode and the label next to them.
"""

import json
import sys

import numpy as np
from official.core import exp_factory, task_factory
from official.vision import registry_imports  # noqa: F401 - it registers resnet_imagenet
from official.vision.ops import preprocess_ops

from tests.kit import flat

out = sys.argv[1]
split = sys.argv[2]
batches = int(sys.argv[3])
config = exp_factory.get_exp_config("resnet_imagenet")
data = config.task.train_data if split == "train" else config.task.validation_data
data.input_path = f"{out}/{split}*"
data.global_batch_size = 50
pairs = []
for images, labels in task_factory.get_task(config.task).build_inputs(data).take(batches):
    pixels = images.numpy() * preprocess_ops.STDDEV_RGB + np.array(preprocess_ops.MEAN_RGB)
    pairs += zip(map(flat.class_of, pixels), labels.numpy().tolist(), strict=True)
print(json.dumps(pairs))
