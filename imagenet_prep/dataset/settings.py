"""The settings of a dataset: `config` in its manifest, or in run.json while work is unfinished.

The config has one of three forms, which only this module tells apart:

- `prepare` writes one flat object for all splits, since one run makes all of them: a `Recipe`.
- `amend` writes `{"verb": "amend", "splits": [...], "amendments": [...], "base": ...}`: the list of
  changes, and the config of the original dataset.
- Other verbs write `{"verb": ..., "splits": {split: settings}}`, since each of their runs may add a
  split.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from imagenet_prep.core import strict_json
from imagenet_prep.core.strict_json import Json
from imagenet_prep.dataset import schema

Config = Json

PREPARE = "prepare"
RESIZE = "resize"
ADOPT = "adopt"
AMEND = "amend"
# Verbs that make all splits in one run.
_ALL_AT_ONCE = (PREPARE, AMEND)
# The setting for --exclude of prepare and resize; its value has the fields of `ListDigest`.
EXCLUDED = "excluded"
# The rule for EXIF orientation, one of `jpeg.RULES`. If missing, tags were kept.
ORIENTATION = "orientation"
# The setting for --holdout-per-class of prepare, which `resize` copies from its input.
HOLDOUT_PER_CLASS = "holdout_per_class"
# The setting for --licence of prepare and resize: text, or an SPDX identifier.
LICENCE = "licence"
# Settings of `resize --keep-original`, which `adopt --rewrite` also uses.
KEEP_ORIGINAL: Config = {"short_side": None, "quality": None, "stretch": False}


@dataclass(frozen=True)
class ListDigest:
    """A user's list of images: its length, and a digest of its contents."""

    images: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of `prepare` that decide the bytes of a dataset, as its manifest stores them.

    Fields that have their default value are omitted from the manifest, so that older datasets keep
    their settings.
    """

    splits: tuple[str, ...]  # of the dataset, in the order of `schema.SPLITS`
    train_shards: int | None  # None for the official number of images per shard
    validation_shards: int | None
    short_side: int | None  # None to keep all sizes
    quality: int
    check: str
    seed: int
    label_offset: int
    subset_classes: tuple[str, ...]  # as typed; () for all
    subset_per_class: int | None  # maximum number of images per class; None for all
    # "1000 by class" or "10% by class": the images to move from train to holdout. Old holdouts
    # without "by class" were chosen regardless of class.
    holdout: str = ""
    holdout_per_class: int = 0  # images of each class to move from train to validation
    boxes: bool
    border: int = 0  # pixels to cut off each side first
    encoded_from_pixels: str = ""  # the encoder of images that were no JPEGs
    excluded: ListDigest | None = None
    orientation: str = ""  # one of `jpeg.RULES`; "" if tags are kept
    licence: str = ""  # of the images; "" if not given

    @property
    def held_out_split(self) -> str | None:
        """The split to which images of train are moved; None if none are.

        Raises ValueError if the settings contradict each other.
        """
        if not self.holdout_per_class:
            return schema.HOLDOUT if self.holdout else None
        if self.holdout or {*self.splits} != {*schema.SOURCE_SPLITS}:
            raise ValueError(
                "--holdout-per-class: makes both train and validation. Include both in --splits, "
                "and remove --holdout"
            )
        return schema.VALIDATION

    @property
    def source_splits(self) -> tuple[str, ...]:
        """The splits to read from the source."""
        return tuple(split for split in self.splits if split != self.held_out_split)

    @property
    def config(self) -> Config:
        """The settings in the form of the manifest."""
        # The JSON round trip makes this equal to a config that is read from a manifest.
        stored = strict_json.loads(strict_json.dumps(self))
        return {name: stored[name] for name in strict_json.fields(self)}


@dataclass(frozen=True)
class Amendment:
    """The changes of one run of amend."""

    parent: str  # digest of the manifest of the dataset that was changed
    exclude: ListDigest | None = None  # excluded keys; the digest is `keys.KeyList.sha256`
    # The digest covers the sorted [key, class index] lists, as compact JSON.
    relabel: ListDigest | None = None
    # The digest covers the sorted [split, key, class index, sha256 of its file] lists.
    add: ListDigest | None = None
    splits: tuple[str, ...] = ()  # the lists are only for these splits; () for all
    forget: ListDigest | None = None  # forgotten images; the digest is salted


@dataclass(frozen=True)
class DatasetSettings:
    """The verb that makes a dataset, and for each split the settings that decide its bytes.

    With prepare and amend, all splits have the same settings.

    Attributes:
      verb: "" if a different program wrote the config.
      amendments: the changes since the dataset was first made, oldest first.
      base: the config before the first amendment; None if there is none.
    """

    verb: str
    splits: dict[str, Config]
    amendments: list[Amendment] = field(default_factory=list)
    base: Config | None = None

    @property
    def config(self) -> Config:
        """The settings in the form of the manifest."""
        if self.all_at_once:
            return next(iter(self.splits.values()))
        return {"verb": self.verb, "splits": self.splits}

    @property
    def all_at_once(self) -> bool:
        """Whether one run makes all splits; a different list of splits then means a new dataset."""
        return self.verb in _ALL_AT_ONCE

    @property
    def first(self) -> DatasetSettings:
        """The settings before the first amendment."""
        return self if self.base is None else recognised(self.base)

    @property
    def holdout_split(self) -> str:
        """The split to which `prepare` moved images of train if it held out any."""
        is_validation = any(made.get(HOLDOUT_PER_CLASS) for made in self.first.splits.values())
        return schema.VALIDATION if is_validation else schema.HOLDOUT

    @property
    def licence(self) -> str:
        """The licence of the images; "" if it is not recorded."""
        found = (made.get(LICENCE) for made in self.first.splits.values())
        return "; ".join(dict.fromkeys(text for text in found if text and isinstance(text, str)))

    def origin(self, split: str) -> str:
        """Returns the source split of a split: the holdout and train share one set of keys."""
        return schema.TRAIN if split == self.holdout_split else split

    def short_side(self, split: str) -> int | None:
        """Returns the short side to which a split was downscaled; None if unchanged or unknown."""
        with contextlib.suppress(ValueError, KeyError):
            return strict_json.parse(int, self.first.splits[split]["short_side"])
        return None


def prepared(recipe: Recipe) -> DatasetSettings:
    """Returns the settings of a dataset that `prepare` makes."""
    return DatasetSettings(PREPARE, dict.fromkeys(recipe.splits, recipe.config))


def amended(
    splits: Iterable[str], amendments: Sequence[Amendment], base: Config
) -> DatasetSettings:
    """Returns the settings of a dataset with all its amendments, oldest first."""
    config = {"verb": AMEND, "splits": [*splits], "amendments": amendments, "base": base}
    # The JSON round trip makes this config equal to the one that is read from a manifest.
    return parse(strict_json.loads(strict_json.dumps(config)))


def parse(config: Config) -> DatasetSettings:
    """Returns the settings in a config; raises ValueError if it is invalid."""
    splits = config.get("splits")
    verb = config.get("verb")
    if verb is None:
        return DatasetSettings(PREPARE, dict.fromkeys(strict_json.parse(list[str], splits), config))
    if verb == AMEND:
        return DatasetSettings(
            AMEND,
            dict.fromkeys(strict_json.parse(list[str], splits), config),
            strict_json.parse(list[Amendment], config.get("amendments")),
            strict_json.parse(Config, config.get("base")),
        )
    if verb not in (RESIZE, ADOPT):
        raise ValueError(f"unknown verb {verb!r}")
    return DatasetSettings(verb, strict_json.parse(dict[str, Config], splits))


def recognised(config: Config) -> DatasetSettings:
    """Like `parse`, but returns settings without a verb and splits if the config is invalid."""
    try:
        return parse(config)
    except ValueError:
        return DatasetSettings("", {})
