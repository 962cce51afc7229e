"""Checks the arguments of `make_dataset`, and computes their defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from imagenet_prep.core import address
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.limits import num_cores
from imagenet_prep.core.world import World
from imagenet_prep.dataset import class_list, column, schema
from imagenet_prep.read import batch
from imagenet_prep.read.augment import RECIPES, CropRecipe

_CHOICES: dict[str, Sequence[str]] = {
    "split": schema.SPLITS,
    "backend": get_args(batch.Backend),
    "framework": get_args(batch.Framework),
    "recipe": get_args(batch.RecipeName),
    "dtype": get_args(batch.Dtype),
    "layout": get_args(batch.Layout),
    "device": get_args(batch.Device),
    "on_bad_record": get_args(batch.OnBadRecord),
}
_REMOTE_WINDOW = 16  # default of `shuffle_window` for remote datasets
_LEAST = {"batch_size": 1, "image_size": 1, "views": 1, "num_threads": 0, "shuffle_window": 0}


@dataclass(frozen=True, kw_only=True)
class WantedExamples:
    """The arguments of `make_dataset` that select examples; the defaults select all."""

    classes: Sequence[str | int] | None = None
    remap: bool = False
    keys: str | os.PathLike[str] | None = None
    exclude: str | os.PathLike[str] | None = None
    allow_unknown: bool = False
    fraction: float = 1.0
    fold: tuple[int, int] = (0, 1)
    others: bool = False
    choice_seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise UsageError(f"fraction={self.fraction}: expected more than 0, at most 1")
        part, parts = self.fold
        if not 0 <= part < parts:
            raise UsageError(f"fold={self.fold}: expected (k, n) with 0 <= k < n")
        if self.others and parts == 1:
            raise UsageError("others=True reads all parts except part k: add fold=(k, n)")
        if self.remap and self.classes is None:
            raise UsageError("remap=True renumbers the chosen classes: add classes=[...]")
        if self.classes is not None and (isinstance(self.classes, str) or not len(self.classes)):
            raise UsageError(
                f"classes={self.classes!r}: expected a list of WNIDs or class indices, or None for "
                "all"
            )


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """The arguments of `make_dataset` that describe batches; `ColumnWriter` accepts them too."""

    backend: batch.Backend = "auto"
    framework: batch.Framework | None = None
    recipe: batch.RecipeName = "resnet"
    dtype: batch.Dtype | None = None
    layout: batch.Layout = "NHWC"
    antialias: bool | None = None
    device: batch.Device = "cpu"
    num_threads: int = 0
    fields: Sequence[batch.Field | str] = batch.DECODED
    originals: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Pass:
    """The arguments of `make_dataset` that describe a pass over the chosen examples."""

    training: bool | None = None
    world: World | None = None
    seed: int = 0
    colour: bool = False
    views: int = 1
    shuffle_window: int | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_gb: float | None = None
    on_bad_record: batch.OnBadRecord = "raise"
    out: Callable[[], Any] | None = None


@dataclass(frozen=True)
class ReadConfig(WantedExamples, Decoding, Pass):
    """The arguments of `make_dataset`, whose docstring describes them."""

    data_dir: str | os.PathLike[str]
    split: str
    batch_size: int
    image_size: int = 224

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed and not (value is None and name in ("framework", "dtype")):
                expected = ", ".join(map(repr, allowed))
                raise UsageError(f"{name}={value!r}: expected one of {expected}")
        for name, least in _LEAST.items():
            number = getattr(self, name)
            if number is not None and number < least:
                raise UsageError(f"{name}={number}: expected at least {least}")
        plain = {field for field in self.fields if not field.startswith(column.PREFIX)}
        if not self.fields or isinstance(self.fields, str) or plain - set(batch.FIELDS):
            expected = ", ".join(map(repr, batch.FIELDS))
            raise UsageError(
                f"fields={self.fields!r}: expected some of {expected}, '{column.PREFIX}NAME'"
            )
        if self.views > 1 and not self.is_training:
            raise UsageError(f"views={self.views}: evaluation has one view, the central crop")
        if self.is_remote:
            try:
                address.require_base(self.where)
            except ValueError as error:
                raise UsageError(f"data_dir: {error}") from None
        elif self.cache_dir is not None or self.cache_gb is not None:
            raise UsageError(
                f"{self.where} is a folder: cache_dir and cache_gb need a remote dataset"
            )

    @property
    def where(self) -> str:
        """The folder or URL of the dataset."""
        return os.fspath(self.data_dir)

    @property
    def is_remote(self) -> bool:
        """Whether `data_dir` is a URL, not a folder."""
        return "://" in self.where

    @property
    def is_training(self) -> bool:
        """Whether batches are shuffled random crops; by default only for the train split."""
        return self.split == schema.TRAIN if self.training is None else self.training

    @property
    def columns(self) -> tuple[str, ...]:
        """The distinct fields that name columns."""
        return tuple(dict.fromkeys(f for f in self.fields if f.startswith(column.PREFIX)))

    def view(self, edition: str) -> str | None:
        """Returns a description of an edition's crops, as columns record it; None if random."""
        # With a recipe without crops, training uses the evaluation view, possibly mirrored.
        if self.is_training and (self.constants.padding != 0 or self.is_coloured):
            return None
        crop = self.recipe_for(edition).evaluation
        share = "" if crop == self.constants.evaluation else f" of {crop:.1%}"
        unusual = "" if self.is_antialiased else ", not antialiased"
        return f"evaluation crop{share}, recipe {self.recipe}, {self.image_size} px{unusual}"

    def recipe_for(self, edition: str) -> CropRecipe:
        """Returns the constants of the recipe, with the evaluation crop that an edition needs."""
        known = class_list.named(edition)
        if known is None or known.crop is None:
            return self.constants
        return replace(self.constants, evaluation=known.crop)

    @property
    def array_dtype(self) -> batch.Dtype:
        """The type of images in batches; by default "uint8" for recipe "adm", else "float32"."""
        return self.dtype or ("uint8" if self.constants.square else "float32")

    @property
    def is_antialiased(self) -> bool:
        """Whether images are filtered when downscaled; by default only in the evaluation view."""
        if self.antialias is None:
            return not self.is_training or self.constants.padding == 0
        return self.antialias

    @property
    def rank(self) -> World:
        """Rank and size of this process; by default rank 0 of 1."""
        return self.world or World()

    @property
    def decode_threads(self) -> int:
        """The number of images decoded in parallel; by default this rank's share of the cores."""
        cores = num_cores()
        return self.num_threads or max(1, cores // self.rank.local_size)

    @property
    def array_framework(self) -> str:
        """The framework of the arrays in batches, if `backend` is not "auto"."""
        return self.framework or ("tensorflow" if self.backend == "tfdata" else "numpy")

    @property
    def window(self) -> int:
        """Size of the shuffle window in shards; 0 for all shards."""
        if self.shuffle_window is None:
            return _REMOTE_WINDOW if self.is_remote else 0
        return self.shuffle_window

    @property
    def is_coloured(self) -> bool:
        """Whether colours are changed randomly; False in evaluation."""
        return self.colour and self.is_training

    @property
    def constants(self) -> CropRecipe:
        """The constants of the recipe."""
        return RECIPES[self.recipe]
