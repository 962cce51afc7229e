"""The vocabulary of the data set: feature keys, splits, and ILSVRC2012's official figures.

Keys are those of inception/slim's build_imagenet_data.py, the de-facto schema that
TensorFlow, NVIDIA and MLPerf readers share.
"""

from __future__ import annotations

ENCODED = "image/encoded"
FORMAT = "image/format"
HEIGHT = "image/height"
WIDTH = "image/width"
CHANNELS = "image/channels"
COLORSPACE = "image/colorspace"
FILENAME = "image/filename"
LABEL = "image/class/label"
SYNSET = "image/class/synset"
TEXT = "image/class/text"
BBOX_XMIN = "image/object/bbox/xmin"
BBOX_XMAX = "image/object/bbox/xmax"
BBOX_YMIN = "image/object/bbox/ymin"
BBOX_YMAX = "image/object/bbox/ymax"
BBOX_LABEL = "image/object/bbox/label"

BYTES_KEYS = (ENCODED, FORMAT, COLORSPACE, FILENAME, SYNSET, TEXT)
INT64_KEYS = (HEIGHT, WIDTH, CHANNELS, LABEL, BBOX_LABEL)
FLOAT_KEYS = (BBOX_XMIN, BBOX_XMAX, BBOX_YMIN, BBOX_YMAX)
ALL_KEYS = tuple(sorted(BYTES_KEYS + INT64_KEYS + FLOAT_KEYS))

TRAIN = "train"
VALIDATION = "validation"
# What sources have; the holdout is taken out of train.
SOURCE_SPLITS = (TRAIN, VALIDATION)
HOLDOUT = "holdout"
SPLITS = (*SOURCE_SPLITS, HOLDOUT)

# Shard counts that published consumers expect; MLPerf's references hard-code them.
DEFAULT_NUM_SHARDS = {TRAIN: 1024, VALIDATION: 128}

# ILSVRC2012 devkit readme: 732...1300 a class in train, 50 a class in validation.
OFFICIAL_NUM_CLASSES = 1000
OFFICIAL_NUM_EXAMPLES = {TRAIN: 1_281_167, VALIDATION: 50_000}
OFFICIAL_CLASS_RANGE = {TRAIN: (732, 1300), VALIDATION: (50, 50)}

# Stored label = class index + offset; 0 is the background class of the slim schema.
DEFAULT_LABEL_OFFSET = 1
