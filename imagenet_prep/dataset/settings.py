"""The settings of a dataset: `config` in its manifest, or in run.json while work is unfinished.

`prepare` writes one flat object for all splits, since one run makes all of them. `amend` writes
`{"verb": "amend", "splits": [...], "amendments": [...], "base": ...}`: the list of changes, and the
config of the original dataset. Other verbs write `{"verb": ..., "splits": {split: settings}}`,
since each of their runs may add a split.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, NamedTuple

from imagenet_prep.core import records
from imagenet_prep.dataset import schema

Config = dict[str, Any]

PREPARE = "prepare"
RESIZE = "resize"
ADOPT = "adopt"
AMEND = "amend"
# Verbs that make all splits in one run.
_ALL_AT_ONCE = (PREPARE, AMEND)
# The setting for --exclude of prepare and resize; its value has the fields of `Listed`.
EXCLUDED = "excluded"
# The rule for EXIF orientation, one of `orientation.RULES`. If missing, tags were kept.
ORIENTATION = "orientation"
# The setting for --holdout-per-class of prepare, which `resize` copies from its input.
HOLDOUT_PER_CLASS = "holdout_per_class"
# Settings of `resize --keep-original`, which `adopt --rewrite` also uses.
KEEP_ORIGINAL: Config = {"short_side": None, "quality": None, "stretch": False}


class Settings(NamedTuple):
    """The verb that makes a dataset, and for each split the settings that decide its bytes.

    With prepare and amend, all splits have the same settings.
    """

    verb: str
    splits: dict[str, Config]

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


@dataclass(frozen=True)
class Listed:
    """A user's list of images: its length, and a digest of its contents."""

    images: int
    sha256: str


@dataclass(frozen=True)
class Amendment:
    """The changes of one run of amend."""

    parent: str  # digest of the manifest of the dataset that was changed
    exclude: Listed | None = None  # excluded keys; the digest is `keys.KeyList.sha256`
    # The digest covers the sorted [key, class index] lists, as compact JSON.
    relabel: Listed | None = None
    # The digest covers the sorted [split, key, class index, sha256 of its file] lists.
    add: Listed | None = None
    splits: tuple[str, ...] = ()  # the lists are only for these splits; () for all


def amendments(config: Config) -> list[Amendment]:
    """Returns the amendments of a dataset, oldest first; raises ValueError if they are invalid."""
    if config.get("verb") != AMEND:
        return []
    return records.parse(list[Amendment], config.get("amendments"))


def base(config: Config) -> Config:
    """Returns the config of the dataset before its first amendment."""
    original: Any = config.get("base") if config.get("verb") == AMEND else config
    return records.parse(dict[str, Any], original)


def holdout_split(config: Config) -> str:
    """Returns the split to which `prepare` moves images of train if it holds out any."""
    with contextlib.suppress(ValueError, AttributeError):
        original = base(config)
        of_splits = original["splits"].values() if "verb" in original else [original]
        if any(of_split.get(HOLDOUT_PER_CLASS) for of_split in of_splits):
            return schema.VALIDATION
    return schema.HOLDOUT


def origin(split: str, config: Config) -> str:
    """Returns the source split of a split: the holdout and train share one set of keys."""
    return schema.TRAIN if split == holdout_split(config) else split


def short_side(config: Config, split: str) -> int | None:
    """Returns the short side to which a split was downscaled; None if unchanged or unknown."""
    try:
        original = base(config)
        of_split = original["splits"][split] if "verb" in original else original
        return records.parse(int, of_split["short_side"])
    except (ValueError, TypeError, KeyError):
        return None


def parse(config: Config) -> Settings:
    """Returns the settings in a config; raises ValueError if it is invalid."""
    splits = config.get("splits")
    verb = config.get("verb")
    if verb in (None, AMEND):
        names = records.parse(list[str], splits)
        return Settings(verb or PREPARE, dict.fromkeys(names, config))
    if verb not in (RESIZE, ADOPT):
        raise ValueError(f"unknown verb {verb!r}")
    return Settings(verb, records.parse(dict[str, Config], splits))
