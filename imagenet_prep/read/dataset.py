"""`make_dataset`: all that may be asked of a reader, and what is taken where nothing is said."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from imagenet_prep.core.world import World
from imagenet_prep.read.batch import (
    DECODED,
    Backend,
    Device,
    Dtype,
    Field,
    Framework,
    Layout,
    OnBadRecord,
    RecipeName,
)
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.reader import Reader


def make_dataset(
    data_dir: str | os.PathLike[str],
    split: str,
    batch_size: int,
    image_size: int = 224,
    *,
    training: bool | None = None,
    world: World | None = None,
    seed: int = 0,
    backend: Backend = "auto",
    framework: Framework | None = None,
    recipe: RecipeName = "resnet",
    colour: bool = False,
    dtype: Dtype = "float32",
    layout: Layout = "NHWC",
    antialias: bool | None = None,
    device: Device = "cpu",
    shuffle_window: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_gb: float | None = None,
    num_threads: int = 0,
    on_bad_record: OnBadRecord = "raise",
    out: Callable[[], Any] | None = None,
    fields: Sequence[Field | str] = DECODED,
    views: int = 1,
    originals: bool | None = None,
    classes: Sequence[str | int] | None = None,
    remap: bool = False,
    keys: str | os.PathLike[str] | None = None,
    exclude: str | os.PathLike[str] | None = None,
    fraction: float = 1.0,
    fold: tuple[int, int] = (0, 1),
    others: bool = False,
    choice_seed: int = 0,
) -> Reader:
    """Returns the batches of one rank of a prepared data set.

    Labels, counts and shards come from the manifest. Every example comes exactly once an
    epoch over all ranks; training leaves out what does not fill a step of all ranks
    (`Reader.dropped_per_epoch`), evaluation pads its last step and masks the padding.

    Args:
      data_dir: folder of the data set, or its s3:// or http(s):// address.
      split: "train", "validation", or another one of the set: "holdout", "test".
      batch_size: examples a step and rank.
      image_size: height and width of the images in pixels.
      training: shuffled random crops, or the central crop in record order; by default the
        train split is for training.
      world: this process among those that train together; by default as the launcher says.
      seed: decides order, crops and mirroring, together with epoch and example.
      backend: "tfdata", "dali", "native", which needs no framework, or "auto": DALI for a GPU;
        else the first of tf.data, DALI and native that is installed.
      framework: what batches hold: tensors of "tensorflow", "numpy" arrays, or "dlpack", from
        which PyTorch and JAX take them without a copy; by default NumPy's of the native backend,
        and TensorFlow's of the others.
      recipe: "resnet"; "tutorial" as the 2018 tutorial cropped and normalised; "cifar10",
        whose training shifts the picture by up to 4 pixels; "mnist", the picture as it is; "adm",
        the square crop of image generators with the bytes of Pillow (native, uint8).
      colour: change the colours at random while training, as the tutorial's `--increased_aug`.
      dtype: "float32", "bfloat16" (not DALI) or "float16" (not tf.data) normalised, or "uint8".
      layout: "NHWC" or "NCHW".
      antialias: filter before shrinking, as Pillow does; by default only in evaluation. It costs
        tf.data a fifth of its speed.
      device: "cpu", or "gpu" for DALI on the GPU of this local rank.
      shuffle_window: shards whose examples are shuffled with each other; 0 is all of them, and
        the default for a folder. A few keep reads near each other on disks that seek, and let
        a remote set be read while it is fetched: there the default is 16.
      cache_dir: where the ranks of a node keep a remote set; by default what
        IMAGENET_PREP_CACHE names, or ~/.cache/imagenet-prep.
      cache_gb: what the cache may hold, in 1e9 bytes: two windows of shards or more, beyond which
        only what readers of the node hold stays; by default all of the set.
      num_threads: images decoded at once; 0 is one a core this process may use, shared
        among the ranks of a host.
      on_bad_record: "raise", or "skip": mask, count and list in `Reader.skipped`. A disk or a
        server that fails, and a shard that is damaged as a whole, are raised either way.
      out: gives the memory for the images of each batch (native): an array of NumPy, or what has
        the DLPack or buffer protocol, with the shape and type of `images`. It is asked up to three
        batches ahead, and `images` is then what it gave.
      fields: what batches hold, in this order; some of the keys of `Batch`; by default
        images, class_index and mask; "column:NAME" is a column of the dataset. Without "images"
        nothing is decoded, and without "boxes" no record is read: the rest is in the tables.
      views: independent crops of each training image; of several, images and boxes have an axis
        behind the batch's.
      originals: for recipe "adm", whether a dataset is refused whose images are not the source's:
        True: if any was changed by `prepare`; False: never; by default, if larger images were
        downscaled to `image_size` or less.
      classes: WNIDs or class indices whose examples are read; by default all.
      remap: number the chosen `classes` from 0 without gaps, in the order of the class list;
        `Reader.classes` says which is which.
      keys: a file of the keys that are read, one a line.
      exclude: a file of the keys that are not read, one a line.
      fraction: share of the examples that is read, as hashes of their keys fall: 0.1 is a part
        of 0.2.
      fold: (k, n): part k, from 0, of n that such hashes deal out; all n together are the whole.
      others: read all parts but this one of `fold`.
      choice_seed: decides these hashes.

    Raises:
      UsageError: no manifest, an unknown choice, a backend that is not installed, or a part of
        a partitioned set that other hosts than its own are to read.
      DataDamagedError: shards are missing or cut.
      StoreError: the system cannot read them, or the server refuses.
      IncompleteError: the server fails again and again, or the disk is full.

    Example:
      >>> from imagenet_prep.read import make_dataset
      >>> reader = make_dataset("/data/imagenet-480", "train", batch_size=8, backend="native")
      >>> for batch in reader:
      ...     images, labels = batch["images"], batch["class_index"]
      >>> images.shape, str(images.dtype), labels.shape, str(labels.dtype)
      ((8, 224, 224, 3), 'float32', (8,), 'int32')
    """
    return Reader(ReadConfig(**{**locals(), "data_dir": os.fspath(data_dir)}))
