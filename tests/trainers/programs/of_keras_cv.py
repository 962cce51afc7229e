"""Reads a dataset by KerasCV's imagenet.load, as the page says: python of_keras_cv.py SET SPLIT.

Prints pairs of the class that the pixels encode and the label next to them.
"""

import json
import sys

from tests.kit import blocks, flat

small = {"/data/imagenet-480": sys.argv[1], "batch_size=256": "batch_size=50", "224": "64"}
loaded = blocks.run("trainers.md: KerasCV", small)
pairs = []
for images, labels in loaded[sys.argv[2]]:
    assert labels.shape[1] == flat.CLASSES
    assert labels.numpy().sum(axis=1).tolist() == [1.0] * len(labels)
    shown = map(flat.class_of, images.numpy())
    pairs += zip(shown, labels.numpy().argmax(axis=1).tolist(), strict=True)
print(json.dumps(pairs))
