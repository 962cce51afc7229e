"""Names of the files of a data set: how they are made, and which are refused; and the cache."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

MANIFEST = "dataset.json"
# The SSH signature of the manifest, by the name that ssh-keygen gives it.
SIGNATURE = f"{MANIFEST}.sig"
# In replicas that hold a part of the set: which one.
PLACEMENT = "placement.json"
# In the --log-dir of a run.
TRAINING_LOG = "train.jsonl"
LABELS = "labels.txt"
QUARANTINE = "quarantine.jsonl"
TFDS_FEATURES = "features.json"
TFDS_INFO = "dataset_info.json"
# TensorFlow Datasets looks for the names of a ClassLabel's values under the name of its key.
TFDS_LABELS = "image-class-label.labels.txt"
TFDS_FILES = (TFDS_FEATURES, TFDS_INFO, TFDS_LABELS)
WORK = ".work"
# The manifest that a run is replacing.
REPLACED = f"{WORK}/replaced.json"
# A line for each place that `replicate` has proven a replica at, for `report`.
REPLICAS = f"{WORK}/replicas.jsonl"
# The ledger of the shards that `verify --if-changed` has verified.
VERIFIED = f"{WORK}/verified.jsonl"
# The ledger of the files of columns that readers have verified.
READ_COLUMNS = f"{WORK}/columns.jsonl"
REPORT = "report.html"
# `export` writes at the end of its run which images it has exported.
EXPORT = "export.json"
INDEX = "index"
SAMPLES = "samples"
# The folder of columns: a folder for each.
COLUMNS = "columns"
# Folders of what lies beside the shards, a file for each.
BESIDE = (INDEX, SAMPLES)

# The variable that names the cache folder, and where that is without it.
CACHE = "IMAGENET_PREP_CACHE"
_CACHE = "~/.cache/imagenet-prep"

# Numbers in names have five digits.
MAX_SHARDS = 99_999
# No hidden file, none in another folder.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SHARD = re.compile(r"(?P<split>[a-z]+)-(?P<index>\d{5})-of-(?P<num_shards>\d{5})")


# The longest name of a file that Linux's file systems take, in bytes.
_MAX_NAME_BYTES = 255


def cache_folder() -> Path:
    """Returns the folder of this user and machine for what need not be found out again."""
    return Path(os.environ.get(CACHE) or _CACHE).expanduser()


class ShardName(NamedTuple):
    """The parts of `train-00017-of-01024`; `number` is 0-based."""

    split: str
    number: int
    num_shards: int


def shard_name(split: str, index: int, num_shards: int) -> str:
    """Returns the file name of one shard, 0-based and padded to five digits."""
    if not 0 <= index < num_shards <= MAX_SHARDS:
        raise ValueError(
            f"shard index {index} is outside [0, {num_shards}), at most {MAX_SHARDS:,} shards"
        )
    return f"{split}-{index:05d}-of-{num_shards:05d}"


def parse_shard_name(name: str) -> ShardName | None:
    """Returns the parts of a shard's base name, or None where it is no shard name."""
    match = _SHARD.fullmatch(name)
    if match is None:
        return None
    return ShardName(match["split"], int(match["index"]), int(match["num_shards"]))


def looks_like_shard(name: str) -> bool:
    """Returns whether readers that take `train*`, `valid*` or `holdout*` would take this file."""
    return name.startswith(("train", "valid", "holdout"))


def is_small_file(name: str) -> bool:
    """Returns whether a manifest may name such a file beside the shards."""
    return (
        _PLAIN.fullmatch(name) is not None
        and len(name) <= _MAX_NAME_BYTES
        and name not in (MANIFEST, SIGNATURE, PLACEMENT, REPORT, COLUMNS, *BESIDE)
        and not looks_like_shard(name)
        and parse_shard_name(name) is None
    )


def index_name(shard: str) -> str:
    """Returns the path, relative to the data set, of a shard's DALI index."""
    return f"{INDEX}/{shard}"


def samples_name(shard: str) -> str:
    """Returns the path, relative to the data set, of a shard's table of samples."""
    return f"{SAMPLES}/{shard}.csv"


def beside(shard: str) -> tuple[str, str]:
    """Returns the paths of both files that lie beside a shard."""
    return index_name(shard), samples_name(shard)


def check_inside(name: str) -> str:
    """Returns a relative name unchanged, if it can only mean a place inside its folder.

    Names come from manifests, receipts and peers, and become paths and object keys. So every
    store and cache asks this, whoever calls it.
    """
    for part in name.split("/"):
        if part in ("", ".", ".."):
            raise ValueError(f"the name {name!r} leads outside its folder, or nowhere")
        try:
            num_bytes = len(part.encode())
        except UnicodeEncodeError:
            raise ValueError(f"the name {name!r} is not Unicode text") from None
        if num_bytes > _MAX_NAME_BYTES:
            raise ValueError(f"the name {name[:64]!r}... is longer than {_MAX_NAME_BYTES} bytes")
    if "\\" in name or not name.isprintable():
        raise ValueError(f"the name {name!r} holds a character that no file of a data set has")
    return name
