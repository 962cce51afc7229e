"""Constants and file names of a dataset: keys, splits, counts and levels of verification.

The keys come from inception/slim's build_imagenet_data.py. The readers of TensorFlow, NVIDIA and
MLPerf expect these keys.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core.errors import UsageError

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
# The folder and the columns of the Parquet files of `export`.
PARQUET_FOLDER = "data"
PARQUET_FIELDS = PARQUET_IMAGE, PARQUET_LABEL = "image", "label"
# The field of the metadata.jsonl of an exported folder with the name of the image.
METADATA_FILE = "file_name"
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
# The first of these that a dataset has is the split on which networks are evaluated.
EVALUATED_SPLITS = (TEST, VALIDATION, HOLDOUT, TRAIN)

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


MANIFEST = "dataset.json"
# Ends the name of an SSH signature; ssh-keygen chooses this ending.
_SIGNATURE = ".sig"
SIGNATURE = MANIFEST + _SIGNATURE
# The part of the dataset that a partial replica has.
PLACEMENT = "placement.json"
# The log in the --log-dir of a training run.
TRAINING_LOG = "train.jsonl"
LABELS = "labels.txt"
QUARANTINE = "quarantine.jsonl"
# Begins the name of each folder that `amend --add` has added, in the manifest's sources.
ADDED = "added-"
TFDS_FEATURES = "features.json"
TFDS_INFO = "dataset_info.json"
# TensorFlow Datasets derives this name from the key of the ClassLabel feature.
TFDS_LABELS = "image-class-label.labels.txt"
TFDS_FILES = (TFDS_FEATURES, TFDS_INFO, TFDS_LABELS)
WORK = ".work"
# These files exist during a run of prepare, resize or adopt, and after it was killed.
BEGUN = (f"{WORK}/run.json", f"{WORK}/adopt.json")
# The old manifest, while a run replaces it.
REPLACED = f"{WORK}/replaced.json"
# The locations of replicas that `replicate` has verified, one per line, for `report`.
REPLICAS = f"{WORK}/replicas.jsonl"
# Ledger of the shards verified by `verify --if-changed`.
VERIFIED = f"{WORK}/verified.jsonl"
# Ledger of the column files that readers have verified.
READ_COLUMNS = f"{WORK}/columns.jsonl"
REPORT = "report.html"
# The images that `export` has written; `export` writes this file at the end.
EXPORT = "export.json"
# The keys in an export that its readers cannot derive from class and file name.
EXPORT_KEYS = "export_keys.json"
INDEX = "index"
SAMPLES = "samples"
COLUMNS = "columns"
# Folders with one file per shard.
BESIDE = (INDEX, SAMPLES)

# The environment variable for the cache folder, and the default folder.
CACHE = "IMAGENET_PREP_CACHE"
_CACHE = "~/.cache/imagenet-prep"

MAX_SHARDS = 99_999
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SHARD = re.compile(r"([a-z]+)-(\d{5})-of-(\d{5})")
# Linux's limit for a file name.
_MAX_NAME_BYTES = 255


def cache_folder() -> Path:
    """Returns the cache folder of this user on this machine.

    Raises:
      UsageError: the user has no home folder.
    """
    return expanded(os.environ.get(CACHE) or _CACHE)


def expanded(path: str) -> Path:
    """Returns a path with the home folder instead of ~.

    Raises:
      UsageError: the user has no home folder, for example in a container with a random user ID.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(
            f"{path}: user ID {os.getuid()} has no home folder: HOME is not set, and /etc/passwd "
            f"has no entry. Set HOME, or {CACHE} for the cache, to a folder of this user."
        ) from None


class ShardName(NamedTuple):
    """The parts of a name such as `train-00017-of-01024`; `number` is 0-based."""

    split: str
    number: int
    num_shards: int


def signature_name(name: str) -> str:
    """Returns the name of a file's SSH signature."""
    return name + _SIGNATURE


def shard_name(split: str, index: int, num_shards: int) -> str:
    """Returns the file name of a shard; `index` is 0-based."""
    if not 0 <= index < num_shards <= MAX_SHARDS:
        raise ValueError(
            f"shard index {index} of {num_shards} shards, expected at most {MAX_SHARDS:,} shards"
        )
    return f"{split}-{index:05d}-of-{num_shards:05d}"


def parse_shard_name(name: str) -> ShardName | None:
    """Returns the parts of a shard's base name, or None if it is not a shard name."""
    match = _SHARD.fullmatch(name)
    return ShardName(match[1], int(match[2]), int(match[3])) if match else None


def looks_like_shard(name: str) -> bool:
    """Returns whether a reader's pattern `train*`, `valid*` or `holdout*` matches this name."""
    return name.startswith(("train", "valid", "holdout"))


def is_small_file(name: str) -> bool:
    """Returns whether a manifest may list a file with this name next to the shards."""
    return (
        _PLAIN.fullmatch(name) is not None
        and len(name) <= _MAX_NAME_BYTES
        and name not in (MANIFEST, SIGNATURE, PLACEMENT, REPORT, COLUMNS, *BESIDE)
        and not looks_like_shard(name)
        and parse_shard_name(name) is None
    )


def replica_ledger(digest: str) -> str:
    """Returns the path of the ledger of a replica, which `replicate` writes into it."""
    return f"{WORK}/replica-{digest[:16]}.jsonl"


def index_name(shard: str) -> str:
    """Returns the path of a shard's DALI index, relative to the dataset."""
    return f"{INDEX}/{shard}"


def samples_name(shard: str) -> str:
    """Returns the path of a shard's table of samples, relative to the dataset."""
    return f"{SAMPLES}/{shard}.csv"


def beside(shard: str) -> tuple[str, str]:
    """Returns the paths of a shard's index and table of samples."""
    return index_name(shard), samples_name(shard)


def shard_of(name: str) -> str:
    """Returns the shard of an index, a table or a shard itself; of other files their base name."""
    return name.rpartition("/")[2].removesuffix(".csv")


def split_of(name: str) -> str:
    """Returns the split of a shard, an index or a table, or "" for all other files."""
    shard = parse_shard_name(shard_of(name))
    return shard.split if shard else ""


def require_relative_name(name: str) -> str:
    """Returns a relative name unchanged; raises ValueError if it could leave its folder.

    Names from manifests, receipts and peers become paths and object keys, so every store and cache
    checks them.
    """
    for part in name.split("/"):
        if part in ("", ".", ".."):
            raise ValueError(f"the name {name!r} has a part that is empty, . or ..")
        try:
            num_bytes = len(part.encode())
        except UnicodeEncodeError:
            raise ValueError(f"the name {name!r} is not Unicode text") from None
        if num_bytes > _MAX_NAME_BYTES:
            raise ValueError(f"the name {name[:64]!r}... is longer than {_MAX_NAME_BYTES} bytes")
    if "\\" in name or not name.isprintable():
        raise ValueError(f"the name {name!r} has a character that is not allowed in a dataset")
    return name
