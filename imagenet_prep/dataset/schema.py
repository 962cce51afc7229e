"""Constants of the dataset: keys, splits, ILSVRC2012's counts, levels of verification.

The keys come from inception/slim's build_imagenet_data.py. The readers of TensorFlow, NVIDIA and
MLPerf expect these keys.
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
# In the order of `member.Boxes`.
FLOAT_KEYS = (BBOX_XMIN, BBOX_XMAX, BBOX_YMIN, BBOX_YMAX)
ALL_KEYS = tuple(sorted(BYTES_KEYS + INT64_KEYS + FLOAT_KEYS))
# This field in a Parquet file's metadata means that the paths of images are their keys.
PARQUET_KEYS = "imagenet_prep.keys"
# The columns of the Parquet files of `export`.
PARQUET_FIELDS = PARQUET_IMAGE, PARQUET_LABEL = "image", "label"
# The extensions of an image's files in the tars of `export`.
WEBDATASET_FIELDS = ("cls", "jpg", "json")
TYPES: dict[str, type] = {
    **dict.fromkeys(BYTES_KEYS, bytes),
    **dict.fromkeys(FLOAT_KEYS, float),
    **dict.fromkeys(INT64_KEYS, int),
}

# Values of the manifest's `lacks`, for records of other programs.
ABSENT = "absent"
EMPTY = "empty"
WRONG = "untrue"

TRAIN = "train"
VALIDATION = "validation"
# Splits of a source. The holdout is taken from train; only exports and WebDataset tars have one.
SOURCE_SPLITS = (TRAIN, VALIDATION)
HOLDOUT = "holdout"
# The only split of an evaluation set, such as ImageNetV2.
TEST = "test"
SPLITS = (*SOURCE_SPLITS, HOLDOUT, TEST)

# The licence of ObjectNet only allows evaluation.
OBJECTNET = "objectnet"
# The class index of padding and of skipped records in batches: no prediction is equal to it.
NO_CLASS = -1

# Shard counts that published readers expect; MLPerf's reference implementations hard-code them.
DEFAULT_NUM_SHARDS = {TRAIN: 1024, VALIDATION: 128}

# ILSVRC2012 devkit readme: 732...1300 per class in train, 50 per class in validation.
OFFICIAL_NUM_CLASSES = 1000
OFFICIAL_NUM_EXAMPLES = {TRAIN: 1_281_167, VALIDATION: 50_000}
OFFICIAL_CLASS_RANGE = {TRAIN: (732, 1300), VALIDATION: (50, 50)}

# Stored label = class index + offset. Label 0 is the background class of the slim schema.
DEFAULT_LABEL_OFFSET = 1

# Levels of verification and their guarantees; each level includes the previous ones.
LEVEL_MANIFEST = "manifest"
LEVEL_CRC = "crc"
LEVEL_DECODE = "decode"
LEVELS = {
    LEVEL_MANIFEST: "every file exists and has the expected size",
    LEVEL_CRC: "every byte of every file is unchanged",
    LEVEL_DECODE: "every byte is unchanged, and every image decodes and has its label",
}
