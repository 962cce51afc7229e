"""Checks the arguments of `make_dataset`, and computes their defaults."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, SupportsIndex, get_args

import numpy as np

from imagenet_prep.core.address import AddressKind
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.limits import num_cores
from imagenet_prep.core.world import World
from imagenet_prep.dataset import class_list, column, schema
from imagenet_prep.read import batch
from imagenet_prep.read.order import Size, SizeSchedule
from imagenet_prep.read.recipes import (
    BICUBIC,
    BILINEAR,
    RANDOM,
    RECIPES,
    RESNET,
    RESNET_1,
    CropRecipe,
    Filter,
    Range,
    View,
    height_and_width,
    refuse_aliasing,
)

# How often examples appear in an epoch: "classes", a number, or a weight for each class.
Weights = Literal["classes"] | float | Mapping[str | int, float]

_CHOICES: dict[str, Sequence[str]] = {
    "split": schema.SPLITS,
    "backend": get_args(batch.Backend),
    "framework": get_args(batch.Framework),
    "recipe": tuple(RECIPES),
    "dtype": get_args(batch.Dtype),
    "layout": get_args(batch.Layout),
    "device": get_args(batch.Device),
    "on_bad_record": get_args(batch.OnBadRecord),
}
_REMOTE_WINDOW = 16  # default of `shuffle_window` for remote datasets
# The types of arguments, by name or by annotation. NumPy's numbers are allowed, but 8.0 is no
# integer, and a text such as "no" would be true.
_TYPES: dict[str, tuple[str, Any]] = {
    "data_dir": ("a path or an address", str | os.PathLike),
    "int": ("an integer", SupportsIndex),
    "int | None": ("an integer", SupportsIndex | None),
    "float | None": ("a number", Real | None),
    "bool": ("True or False", bool | np.bool_),
    "bool | None": ("True, False or None", bool | np.bool_ | None),
    "fields": ("a list of names", Collection),
    "sizes": ("a list of Size", Collection),
    "world": ("World(rank, size)", World | None),
    "out": ("a function that returns the memory for a batch", Callable | None),
}
_LEAST = {"batch_size": 1, "num_threads": 0, "shuffle_window": 0}


@dataclass(frozen=True, kw_only=True)
class WantedExamples:
    """The arguments of `make_dataset` that select examples; the defaults select all."""

    classes: Sequence[str | int] | None = None
    remap: bool = False
    keys: str | os.PathLike[str] | None = None
    exclude: str | os.PathLike[str] | None = None
    allow_unknown: bool = False
    where: str | None = None
    fraction: float = 1.0
    fold: tuple[int, int] = (0, 1)
    others: bool = False
    choice_seed: int = 0

    def __post_init__(self) -> None:
        try:
            is_share = 0 < self.fraction <= 1
        except TypeError:
            is_share = False
        if not is_share:
            raise UsageError(f"fraction={self.fraction!r}: expected more than 0, at most 1")
        try:
            part, parts = map(operator.index, self.fold)
        except (TypeError, ValueError):
            part = parts = 0
        if not 0 <= part < parts:
            raise UsageError(f"fold={self.fold!r}: expected (k, n) with 0 <= k < n")
        if self.others and parts == 1:
            raise UsageError("others=True reads all parts except part k: add fold=(k, n)")
        if self.remap and self.classes is None:
            raise UsageError("remap=True renumbers the chosen classes: add classes=[...]")
        for name in ("keys", "exclude"):
            path = getattr(self, name)
            if not isinstance(path, str | os.PathLike | None):
                raise UsageError(f"{name}={path!r}: expected the path of a file with keys")
        is_list = isinstance(self.classes, Collection) and not isinstance(self.classes, str)
        if self.classes is not None and not (is_list and len(self.classes)):
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
    share: float | None = None
    keep_aspect: bool | None = None
    filter: Filter | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
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
    area: Range | None = None
    aspect: Range | None = None
    mirror: float | None = None
    colour: bool = False
    views: int | Sequence[View] = 1
    sizes: Sequence[Size] = ()
    weights: Weights | None = None
    shuffle_window: int | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_gb: float | None = None
    on_bad_record: batch.OnBadRecord = "raise"
    as_tuple: bool = False
    out: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Shown:
    """What the images of one array show: `count` crops of height x width pixels."""

    height: int
    width: int
    crops: CropRecipe
    count: int
    antialias: bool  # images are filtered when downscaled

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.height, self.width

    def description(self) -> str:
        """Describes the random crops."""
        crops = self.crops
        words = [f"{self.height} x {self.width} px", crops.filter]
        if self.count > 1:
            words.insert(0, f"{self.count} views")
        if self.antialias:
            words.append("antialiased")
        if crops.padding is None:
            words.append("area {:g} to {:g}".format(*crops.area))
            words.append("aspect {:.6g} to {:.6g}".format(*crops.aspect))
        words.append(f"mirrored {crops.mirror:.0%}")
        return ", ".join(words)


@dataclass(frozen=True)
class ReadConfig(WantedExamples, Decoding, Pass):
    """The arguments of `make_dataset`, whose docstring describes them."""

    data_dir: str | os.PathLike[str]
    split: str
    batch_size: int
    image_size: int | tuple[int, int] = 224

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed and not (value is None and name in ("framework", "dtype")):
                expected = ", ".join(map(repr, allowed))
                raise UsageError(f"{name}={value!r}: expected one of {expected}")
        self._require_types()
        for name, least in _LEAST.items():
            number = getattr(self, name)
            if number is not None and number < least:
                raise UsageError(f"{name}={number}: expected at least {least}")
        plain = {name for name in self.fields if not str(name).startswith(column.PREFIX)}
        if not self.fields or isinstance(self.fields, str) or plain - set(batch.FIELDS):
            expected = ", ".join(map(repr, batch.FIELDS))
            raise UsageError(
                f"fields={self.fields!r}: expected some of {expected}, '{column.PREFIX}NAME'"
            )
        if self.as_tuple and tuple(self.fields) != batch.DECODED:
            raise UsageError("as_tuple=True returns images and labels: remove fields=")
        _require_views(self.views)
        if not self.is_training and self.views != 1:
            raise UsageError(f"views={self.views}: evaluation has one view, the central crop")
        self._check_sizes()
        _ = self.shown  # refuses sizes and crops that are invalid or contradict the recipe
        if self.array_dtype == "uint8" and (self.mean, self.std) != (None, None):
            raise UsageError(
                "mean= and std=: images of uint8 are not normalised. Remove both, or choose "
                "dtype='float32'"
            )
        try:
            AddressKind.ANYWHERE.check("data_dir", self.location)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if not self.is_remote and (self.cache_dir is not None or self.cache_gb is not None):
            raise UsageError(
                f"{self.location} is a folder: cache_dir and cache_gb need a remote dataset"
            )

    def _require_types(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            expected, types = _TYPES.get(field.name) or _TYPES.get(str(field.type)) or ("", object)
            if not isinstance(value, types):
                raise UsageError(f"{field.name}={value!r}: expected {expected}")
        for size in self.sizes:
            if not isinstance(size, Size):
                raise UsageError(f"sizes={self.sizes!r}: expected a list of Size")

    def _check_sizes(self) -> None:
        if self.weights is not None and not self.is_training:
            raise UsageError("weights= changes the order of training, not of evaluation")
        if not self.sizes:
            return
        if not self.is_training:
            raise UsageError("sizes= changes the size of batches in training, not in evaluation")
        for size in self.sizes:
            if size.batch_size is not None and size.batch_size < 1:
                raise UsageError(f"{size}: batch_size: expected at least 1")
            if size.epoch < 0 or not 0 < size.share < math.inf:
                raise UsageError(f"{size}: expected an epoch from 0, and a share above 0")
        if min(size.epoch for size in self.sizes) > 0:
            raise UsageError(f"sizes={[*self.sizes]}: expected a size with epoch=0")

    @property
    def location(self) -> str:
        """The folder or URL of the dataset."""
        return os.fspath(self.data_dir)

    @property
    def is_remote(self) -> bool:
        """Whether `data_dir` is a URL, not a folder."""
        return "://" in self.location

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
        if self.is_training and (self.crops.padding != 0 or self.is_coloured):
            return None
        named = RECIPES[self.recipe]
        crops = self.recipe_for(edition)
        filter_ = self.shown[0][0].crops.filter
        parts = ["evaluation crop"]
        if crops.share != named.share:
            parts[0] += f" of {_percent(crops.share)}"
        if crops.keep_aspect != named.keep_aspect:
            parts.append("aspect ratio kept" if crops.keep_aspect else "squashed")
        if self.filter not in (None, named.filter):
            parts.append(filter_)
        parts.append(f"recipe {self.recipe}")
        height, width = self.size
        parts.append(f"{height} px" if height == width else f"{height} x {width} px")
        for name in ("mean", "std"):
            values = getattr(crops, name)
            if values != getattr(named, name):
                parts.append(f"{name} {' '.join(map(str, values))}")
        if not self.shown[0][0].antialias:
            parts.append("not antialiased")
        return ", ".join(parts)

    def recipe_for(self, edition: str) -> CropRecipe:
        """Returns the settings of crops, with the evaluation crop that an edition needs."""
        known = class_list.named(edition)
        if known is None or known.crop is None or self.share is not None:
            return self.crops
        return replace(self.crops, share=known.crop)

    @property
    def array_dtype(self) -> batch.Dtype:
        """The type of images in batches; by default "uint8" for recipe "adm", else "float32"."""
        return self.dtype or ("uint8" if self.crops.square else "float32")

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

    @functools.cached_property
    def crops(self) -> CropRecipe:
        """The settings of crops: those of the recipe, with the arguments that change them."""
        names = ("area", "aspect", "filter", "share", "keep_aspect", "mean", "std", "mirror")
        wanted = {name: getattr(self, name) for name in names}
        return RECIPES[self.recipe_version].changed(self.recipe, wanted)

    @property
    def recipe_version(self) -> str:
        """The recipe; "resnet-1" instead of "resnet" with tf.data, which is slow otherwise."""
        if self.recipe == RESNET and self.backend == "tfdata" and self.antialias is None:
            return RESNET_1
        return self.recipe

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return height_and_width(self.image_size)

    @property
    def has_view_list(self) -> bool:
        """Whether `views` is a list; each of its items then has an array of images in batches."""
        return not isinstance(self.views, int)

    @functools.cached_property
    def schedule(self) -> SizeSchedule:
        """The sizes of batches by epoch and step; a single one, unless `sizes` has more."""
        sizes = tuple(self.sizes) or (Size(),)
        batch_sizes = [size.batch_size or self.batch_size for size in sizes]
        return SizeSchedule(sizes, batch_sizes, self.seed)

    @functools.cached_property
    def shown(self) -> tuple[tuple[Shown, ...], ...]:
        """For each size, what each array of images in a batch shows.

        There is one array, unless `views` is a list.
        """
        if isinstance(self.views, int):
            views: Sequence[View] = (View(count=self.views),)
        else:
            views = self.views
        return tuple(
            tuple(self._shown(view, size) for view in views) for size in self.schedule.sizes
        )

    def description(self) -> str:
        """Describes the images of training, for the log of a run."""
        arrays = itertools.chain.from_iterable(self.shown)
        texts = dict.fromkeys(array.description() for array in arrays)
        return f"recipe {self.recipe_version}: {'; '.join(texts)}"

    def _shown(self, view: View, size: Size) -> Shown:
        wanted = {name: getattr(view, name) for name in ("area", "aspect", "filter")}
        crops = self.crops.changed(self.recipe, wanted)
        if crops.filter == RANDOM and not self.is_training:
            crops = replace(crops, filter=BICUBIC)
        antialias = self.antialias
        if antialias is None:
            filters = crops.antialias or crops.filter != BILINEAR
            antialias = filters or not self.is_training or crops.padding == 0
        elif not antialias:
            refuse_aliasing(crops.filter)
        image_size = self.image_size
        for wanted_size in (size.image_size, view.image_size):
            if wanted_size is not None:
                image_size = wanted_size
        return Shown(*height_and_width(image_size), crops, view.count, antialias)


def each_view(shown: Sequence[Shown]) -> tuple[Shown, ...]:
    """Returns what each view shows, in the order of `EncodedBatch.views`."""
    repeated = [itertools.repeat(array, array.count) for array in shown]
    return tuple(itertools.chain.from_iterable(repeated))


def _percent(share: float) -> str:
    """Returns a share in percent, exactly: different shares have different texts."""
    rounded = round(100 * share, 1)
    return f"{rounded}%" if rounded / 100 == share else f"{100 * share!r}%"


def _require_views(views: object) -> None:
    """Raises UsageError unless `views` is a number, or a list of views."""
    if isinstance(views, int):
        if views >= 1 and not isinstance(views, bool):
            return
    elif isinstance(views, Sequence) and views and all(isinstance(v, View) for v in views):
        return
    raise UsageError(f"views={views!r}: expected at least 1, or a list of View")
