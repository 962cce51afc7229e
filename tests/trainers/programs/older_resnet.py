"""Reads a dataset by the Model Garden's older ResNet: python older_resnet.py SET SPLIT.

Prints pairs of the class that the pixels encode and the label next to them.
"""

import json
import sys

import numpy as np
from official.legacy.image_classification.resnet import imagenet_preprocessing

from tests.kit import flat

is_training = sys.argv[2] == "train"
dataset = imagenet_preprocessing.input_fn(is_training, sys.argv[1], 50)
pairs = []
for images, labels in dataset.take(40 if is_training else -1):  # training repeats for ever
    pixels = images.numpy() + np.array(imagenet_preprocessing.CHANNEL_MEANS)
    pairs += zip(map(flat.class_of, pixels), labels.numpy().ravel().tolist(), strict=True)
print(json.dumps(pairs))
