"""The settings of a reader and of its decoder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_prep.core import address
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset import naming, schema
from imagenet_prep.read.augment import RECIPES, Recipe

# The fields of every batch, unless `ReadConfig.fields` names others.
DECODED = ("images", "class_index", "mask")
FIELDS = (*DECODED, "key", "number", "boxes", "width", "height")
_CHOICES = {
    "split": schema.SPLITS,
    "backend": ("auto", "tfdata", "dali", "native"),
    "framework": ("tensorflow", "numpy", "dlpack"),
    "recipe": tuple(RECIPES),
    "dtype": ("float32", "bfloat16", "float16", "uint8"),
    "layout": ("NHWC", "NCHW"),
    "device": ("cpu", "gpu"),
    "on_bad_record": ("raise", "skip"),
}
# The default of `shuffle_window` for remote sets.
_REMOTE_WINDOW = 16
_LEAST = {"batch_size": 1, "image_size": 1, "views": 1, "num_threads": 0, "shuffle_window": 0}


@dataclass(frozen=True)
class ReadConfig:
    """The settings of one rank's reader; UsageError for impossible ones.

    Attributes:
      data_dir: folder of the data set, or its s3:// or http(s):// address.
      split: "train", "validation", or another one of the set.
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
        whose training shifts the picture by up to 4 pixels; "mnist", the picture as it is.
      colour: change the colours at random while training, as the tutorial's --increased_aug.
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
      fields: what batches hold, in this order; some of FIELDS. Without "images" nothing
        is decoded.
      views: independent crops of each training image; of several, images and boxes have an axis
        behind the batch's.
      classes: WNIDs or class indices whose examples are read; by default all.
      remap: number the chosen `classes` from 0 without gaps, in the order of the class list;
        `Reader.classes` says which is which.
      keys: a file of the keys that are read, one a line.
      exclude: a file of the keys that are not read, one a line.
      fraction: share of the examples that is read, as hashes of their keys fall: 0.1 is a part
        of 0.2.
      fold: (k, n): part k, from 0, of n that such hashes deal out; all n together are the whole.
      others: read all parts but this one of `fold`.
      choice_seed: of these hashes.
      on_bad_record: "raise", or "skip": mask, count and list in `Reader.skipped`. A disk or a
        server that fails, and a shard that is damaged as a whole, are raised either way.
      out: gives the memory for the images of each batch (native): an array of NumPy, or what has
        the DLPack or buffer protocol, with the shape and type of `images`. It is asked up to three
        batches ahead, and `images` is then what it gave.
    """

    data_dir: str
    split: str
    batch_size: int
    image_size: int = 224
    training: bool | None = None
    world: World | None = None
    seed: int = 0
    backend: str = "auto"
    framework: str | None = None
    recipe: str = "resnet"
    colour: bool = False
    dtype: str = "float32"
    layout: str = "NHWC"
    antialias: bool | None = None
    device: str = "cpu"
    shuffle_window: int | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_gb: float | None = None
    num_threads: int = 0
    on_bad_record: str = "raise"
    out: Callable[[], Any] | None = None
    fields: tuple[str, ...] = DECODED
    views: int = 1
    classes: Sequence[str | int] | None = None
    remap: bool = False
    keys: str | os.PathLike[str] | None = None
    exclude: str | os.PathLike[str] | None = None
    fraction: float = 1.0
    fold: tuple[int, int] = (0, 1)
    others: bool = False
    choice_seed: int = 0

    def __post_init__(self) -> None:
        """Refuses unknown choices, numbers that are too small, and options that contradict."""
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed and not (name == "framework" and value is None):
                expected = ", ".join(map(repr, allowed))
                raise UsageError(f"{name}={value!r}: expected one of {expected}")
        for name, least in _LEAST.items():
            number = getattr(self, name)
            if number is not None and number < least:
                raise UsageError(f"{name}={number}: expected at least {least}")
        if not self.fields or set(self.fields) - set(FIELDS):
            expected = ", ".join(map(repr, FIELDS))
            raise UsageError(f"fields={self.fields!r}: expected some of {expected}")
        if self.views > 1 and not self.is_training:
            raise UsageError(f"views={self.views}: evaluation shows one, the middle of the image")
        self._check_choice()
        if self.is_remote:
            try:
                address.check_base(self.data_dir)
            except ValueError as error:
                raise UsageError(f"data_dir: {error}") from None
        elif self.cache_dir is not None or self.cache_gb is not None:
            raise UsageError(
                f"{self.data_dir} is a folder: cache_dir and cache_gb are for remote sets"
            )

    def _check_choice(self) -> None:
        """Refuses what chooses nothing, or has nothing to choose from."""
        if not 0 < self.fraction <= 1:
            raise UsageError(f"fraction={self.fraction}: expected more than 0, at most 1")
        part, parts = self.fold
        if not 0 <= part < parts:
            raise UsageError(f"fold={self.fold}: expected (k, n) with 0 <= k < n")
        if self.others and parts == 1:
            raise UsageError("others=True reads all parts but one of a fold: give fold=(k, n) too")
        if self.remap and self.classes is None:
            raise UsageError("remap=True numbers the chosen classes anew: give classes=[...] too")
        if self.classes is not None and (isinstance(self.classes, str) or not len(self.classes)):
            raise UsageError(
                f"classes={self.classes!r}: expected a list of WNIDs or class indices; leave it "
                "out for all"
            )

    @property
    def is_remote(self) -> bool:
        """Whether the data set lies at an address, not in a folder."""
        return "://" in self.data_dir

    @property
    def cache_folder(self) -> Path:
        """The folder of this machine below which each data set has its own."""
        return Path(self.cache_dir).expanduser() if self.cache_dir else naming.cache_folder()

    @property
    def is_training(self) -> bool:
        """Whether batches are shuffled random crops; by default for the train split."""
        return self.split == schema.TRAIN if self.training is None else self.training

    @property
    def is_antialiased(self) -> bool:
        """Whether images are filtered before they shrink; by default in evaluation."""
        return not self.is_training if self.antialias is None else self.antialias

    @property
    def rank(self) -> World:
        """This process among those that train together; alone where no world is given."""
        return self.world or World()

    @property
    def decode_threads(self) -> int:
        """Images decoded at once; by default one a core of this rank's share."""
        cores = len(os.sched_getaffinity(0))
        return self.num_threads or max(1, cores // self.rank.local_size)

    @property
    def array_framework(self) -> str:
        """The framework whose arrays batches hold; `backend` is no longer "auto"."""
        return self.framework or ("numpy" if self.backend == "native" else "tensorflow")

    @property
    def window(self) -> int:
        """Shards whose examples are shuffled with each other; 0 is all of them."""
        if self.shuffle_window is None:
            return _REMOTE_WINDOW if self.is_remote else 0
        return self.shuffle_window

    @property
    def is_coloured(self) -> bool:
        """Whether colours are changed: only in training."""
        return self.colour and self.is_training

    @property
    def constants(self) -> Recipe:
        """The constants of the recipe."""
        return RECIPES[self.recipe]
