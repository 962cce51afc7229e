"""`make_dataset`, which opens a reader; its arguments are the fields of `ReadConfig`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec

from imagenet_prep.core import arguments
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.reader import Reader, open_reader

_Arguments = ParamSpec("_Arguments")

_WORKERS = (
    "num_threads= sets the threads of this process that decode. For worker processes, pass the "
    "reader to a DataLoader: docs/pytorch.md, With a DataLoader's workers"
)
_TRANSFORMS = (
    "Apply transforms to the images of a batch: docs/pytorch.md, Your transforms. recipe=, area= "
    "and mirror= choose the crops"
)
_ORDER = "The reader chooses the order and divides it among the ranks: seed=, weights= and world="
# Arguments of PyTorch's DataLoader and of datasets of other libraries.
_ELSEWHERE = {
    "shuffle": "training=True shuffles and crops at random; training=False does neither",
    "num_workers": _WORKERS,
    "workers": _WORKERS,
    "persistent_workers": _WORKERS,
    "prefetch_factor": _WORKERS,
    "transform": _TRANSFORMS,
    "transforms": _TRANSFORMS,
    "collate_fn": _TRANSFORMS,
    "drop_last": "Training drops the last step if it is not full, and evaluation pads it: see mask "
    "in docs/reading.md, Evaluation",
    "sampler": _ORDER,
    "batch_sampler": _ORDER,
    "rank": _ORDER,
    "pin_memory": "out= is a function that returns memory for images, which may be pinned",
    "root": "Did you mean data_dir?",
    "path": "Did you mean data_dir?",
    "size": "Did you mean image_size? sizes= changes the size from epoch to epoch",
}


def _taking(
    config: Callable[_Arguments, ReadConfig],
) -> Callable[[Callable[[ReadConfig], Reader]], Callable[_Arguments, Reader]]:
    """Decorates a function of a config: it takes the arguments that make the config instead."""
    signature = inspect.signature(config)
    parameters = [*signature.parameters.values()]

    def decorate(function: Callable[[ReadConfig], Reader]) -> Callable[_Arguments, Reader]:
        @functools.wraps(function)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Reader:
            arguments.require(function.__name__, signature, args, kwargs, _ELSEWHERE)
            return function(config(*args, **kwargs))

        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            parameters, return_annotation=Reader
        )
        return call

    return decorate


@_taking(ReadConfig)
def make_dataset(config: ReadConfig) -> Reader:
    """Returns a reader of the batches of one rank.

    In each epoch, the ranks together read every example exactly once. If the last step of an epoch
    is not full, training drops it (`Reader.dropped_per_epoch`); evaluation pads it, and `mask` is
    False for the padding.

    Args:
      data_dir: folder of the dataset, or its s3:// or http(s):// URL.
      split: "train", "validation", "holdout" or "test"; the dataset must have this split.
      batch_size: examples per step and rank.
      image_size: side, or (height, width), of the images in pixels.
      training: True for shuffled random crops, False for central crops in record order; by
        default True only for the train split.
      world: rank and size of this process; by default from the launcher or framework.
      seed: seed of the order of examples and of random crops, mirroring and colours.
      area: (low, high): range of crop area / image area in training; by default the recipe's.
      aspect: (low, high): range of width / height of crops in training; by default the recipe's.
      mirror: share of the training images that are mirrored, from 0 to 1; by default the recipe's.
      colour: random colour changes in training, as with the tutorial's `--increased_aug`.
      views: independent crops per training image; if > 1, images and boxes get a second axis of
        this size after the batch axis. Or a list of `View` (only for the native backend): `images`
        is then a tuple with an array [batch, count, ...] for each item. An image is decoded once
        for all its crops, or twice if they need two scales.
      sizes: a list of `Size` (training on the native backend): the size of images and batches from
        an epoch on. If several sizes begin with the same epoch, each step draws one of them.
        `images` has the size of the step, and `Reader.steps_per_epoch` is that of the current
        epoch.
      weights: how often examples appear in a training epoch; by default once. "classes": each class
        equally often, in an epoch of the same length; a number: each example this often, on
        average; or a dict of weights by WNID or class index (1 for all other classes), in an epoch
        of the same length. Each appearance of an example has its own crops.
      shuffle_window: number of shards that are shuffled together; 0 means all. The default is 0
        for a folder and 16 for a remote dataset, which is fetched window by window. Small windows
        also reduce seeks on disks.
      cache_dir: folder for a node's copy of a remote dataset; by default IMAGENET_PREP_CACHE or
        ~/.cache/imagenet-prep.
      cache_gb: size limit of the cache in GB (1e9 bytes), at least two windows of shards; by
        default no limit. Shards that readers of this node use are kept even above the limit.
      on_bad_record: "raise", or "skip": mask damaged records and list them in `Reader.skipped`.
        Errors of the disk or server, and a completely damaged shard, always raise.
      as_tuple: batches are tuples for training loops instead of dicts: (images, labels) with
        framework="torch", where padding has the label -100; otherwise (images, labels, weights),
        where padding has the label 0 and the weight 0. In evaluation, count the images with
        `(labels >= 0).sum()` or `weights.sum()`. `fields` must have its default.
      out: function that returns memory for the images of a batch (only for the native backend): a
        NumPy array or an object that supports DLPack or the buffer protocol, with the shape and
        type of `images`. It is called up to three batches ahead; `images` is what it returned.
      backend: "tfdata", "dali", "native" (no framework needed) or "auto": DALI with device="gpu",
        otherwise native. The choice does not depend on the installed packages.
      framework: "tensorflow", "torch" or "jax": arrays of this framework; with "torch",
        `class_index` is int64. "numpy": NumPy arrays. "dlpack": images that PyTorch and JAX import
        without a copy. By default "tensorflow" for tf.data and "numpy" for the other backends.
      recipe: "resnet": crops as in torchvision (with tf.data, "resnet-1"); "resnet-1": the same
        without antialiasing in training, as "resnet" was in version 0.1.0; "tutorial": crops and
        normalisation of the 2018 tutorial; "cifar10": training shifts images by up to 4 pixels;
        "mnist": complete images without shifts; "adm": the square crop of image generators, with
        the same bytes as Pillow (only for the native backend and uint8); "timm": the defaults of
        timm, with a filter drawn for each training image (native only); "torchvision-v2":
        antialiased crops, as for torchvision's weights V2; "mae": bicubic crops of 20 to 100 % of
        the area. Evaluation of ImageNet-C and ObjectNet shows the complete square, as in their
        authors' programs ("tutorial": the complete image), unless `share` is given.
      share: side of the evaluation crop / side of the largest crop with its aspect ratio; without
        `keep_aspect`, height and width of the crop / those of the image. By default the recipe's.
      keep_aspect: True: evaluation crops have the aspect ratio of the result, and `aspect` is
        measured in image pixels. False: evaluation squashes the image, and training chooses crops
        as if the image had the result's aspect ratio. By default the recipe's.
      filter: how crops are resized: "bilinear"; "bicubic" (Keys 1981, a = -0.5, as in Pillow); or
        "random": one of both, drawn for each training image, and bicubic in evaluation (native
        only). By default the recipe's.
      mean: mean of R, G and B in [0, 255], for normalised images; by default the recipe's.
      std: standard deviation of R, G and B in [0, 255], likewise.
      dtype: "float32", "bfloat16" (not DALI) or "float16" (not tf.data) for normalised images;
        "uint8" for images from 0 to 255. By default "float32"; "uint8" for recipe "adm".
      layout: "NHWC" or "NCHW".
      antialias: filter images when downscaling, as Pillow does; by default True, except in
        training with the filter bilinear and the recipes "resnet-1", "tutorial" and "cifar10". It
        slows native down by 1 to 4 %, DALI by 5 to 13 %, and makes tf.data 2.1 to 2.6 times slower.
      device: "cpu", or "gpu" for DALI on the GPU of this local rank.
      num_threads: number of images decoded in parallel; 0 for this rank's share of the cores.
      fields: keys of `Batch` in order, or "column:NAME" for a column of the dataset; by default
        images, class_index and mask. Without "images", no image is decoded. Without "images",
        "encoded" and "boxes", only the tables of samples are read.
      originals: with recipe "adm", True raises UsageError if `prepare` changed any image, and False
        never does. By default, UsageError is raised if `prepare` downscaled larger images to a
        shorter side of `image_size` or less.
      classes: WNIDs or class indices to read; by default all.
      remap: renumber the chosen `classes` from 0 in class list order, as in `Reader.classes`.
      keys: file with the keys to read, one per line.
      exclude: file with the keys to skip, one per line; or the quarantine.jsonl of a dataset, whose
        excluded keys are skipped.
      allow_unknown: accept keys in `keys`, `exclude` and `where` that no example has; print the
        number of those in files.
      where: condition that examples must meet, such as "width >= 512 and class in ('n01440764',)".
        It has the names width, height, bytes, class, class_index and key, and columns with one
        number per image; numbers and strings; + - * / %, comparisons, in, and, or, not.
      fraction: share of the examples to read, chosen by a hash of the key. With the same seed, the
        examples of fraction 0.1 are a subset of those of 0.2.
      fold: (k, n): read part k (from 0) of n disjoint parts, split by a hash of the key.
      others: read all parts of `fold` except part k.
      choice_seed: seed of the hashes for `fraction` and `fold`.

    Raises:
      UsageError: the dataset has no manifest, an argument is invalid, a backend is not installed,
        or this is a different host's part of a partitioned dataset.
      DataDamagedError: shards are missing or truncated.
      StoreError: files cannot be read, or the server refuses access.
      IncompleteError: the server fails repeatedly, or the disk is full.

    Example:
      >>> from imagenet_prep.read import make_dataset
      >>> reader = make_dataset("/data/imagenet-480", "train", batch_size=8, backend="native")
      >>> for batch in reader:
      ...     images, labels = batch["images"], batch["class_index"]
      >>> images.shape, str(images.dtype), labels.shape, str(labels.dtype)
      ((8, 224, 224, 3), 'float32', (8,), 'int32')
    """
    return open_reader(config)
