"""Reads a dataset by KerasCV's imagenet.load: python of_keras_cv.py SET SPLIT.

Prints pairs of the class that the pixels encode and the label next to them.
"""

import json
import sys

from keras_cv.datasets import imagenet

from tests.kit import flat

pairs = []
for images, labels in imagenet.load(sys.argv[2], sys.argv[1], batch_size=50, img_size=(64, 64)):
    assert labels.shape[1] == flat.CLASSES
    assert labels.numpy().sum(axis=1).tolist() == [1.0] * len(labels)
    shown = map(flat.class_of, images.numpy())
    pairs += zip(shown, labels.numpy().argmax(axis=1).tolist(), strict=True)
print(json.dumps(pairs))
