"""What a data set was made with: `config` of its manifest, and of unfinished work's run.json.

A prepared set has one flat object of settings, since one run makes all its splits; they name the
splits. An amended one has `{"verb": "amend", "splits": [...], "amendments": [...], "base": ...}`:
what was changed since, step by step, and the config of the set that was changed first. Sets of
other verbs have `{"verb": ..., "splits": {split: settings}}`, since a run may add a split to what
others made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from imagenet_prep.core import records

# Settings by name. Verbs have different ones.
Config = dict[str, Any]

PREPARE = "prepare"
RESIZE = "resize"
ADOPT = "adopt"
AMEND = "amend"
# One run of these makes all splits of a set.
_ALL_AT_ONCE = (PREPARE, AMEND)
# The setting of --exclude of prepare and resize: how many images, and the digest of the list.
EXCLUDED = "excluded"
# The rule for EXIF orientation, one of `orientation.RULES`; without it, tags were kept.
ORIENTATION = "orientation"
# Settings of `resize --keep-original`, which is what `adopt --rewrite` does.
KEEP_ORIGINAL: Config = {"short_side": None, "quality": None, "stretch": False}


class Settings(NamedTuple):
    """Who makes a data set, and what decides its bytes.

    Attributes:
      verb: "prepare", "resize", "adopt" or "amend".
      splits: the settings of each split; for prepare and amend the same for all.
    """

    verb: str
    splits: dict[str, Config]

    @property
    def config(self) -> Config:
        """The same as a manifest holds it."""
        if self.all_at_once:
            return next(iter(self.splits.values()))
        return {"verb": self.verb, "splits": self.splits}

    @property
    def all_at_once(self) -> bool:
        """Whether one run makes all splits, so that with others it is another set."""
        return self.verb in _ALL_AT_ONCE


@dataclass(frozen=True)
class Listed:
    """A list that somebody gave: how many images it names, and a digest of what it says."""

    images: int
    sha256: str


@dataclass(frozen=True)
class Amendment:
    """One run of amend: what became of which set.

    Attributes:
      parent: the digest of the manifest of the set that was changed.
      exclude: the keys that were left out; see `keys.KeyList.sha256`.
      relabel: the digest is that of the sorted [key, class index] of each, as compact JSON.
      add: the digest is that of the sorted [split, key, class index, sha256 of its file] of each.
    """

    parent: str
    exclude: Listed | None = None
    relabel: Listed | None = None
    add: Listed | None = None


def amendments(config: Config) -> list[Amendment]:
    """Returns what was changed of a set since it was made, the first change first."""
    if config.get("verb") != AMEND:
        return []
    return records.parse(list[Amendment], config.get("amendments"))


def base(config: Config) -> Config:
    """Returns what the set was made with that the first amendment has changed."""
    found: Any = config.get("base") if config.get("verb") == AMEND else config
    return records.parse(dict[str, Any], found)


def changes(config: Config) -> tuple[int, list[Amendment]]:
    """Returns the number of images that lists of keys have excluded, and all amendments.

    Nothing of a config that this program did not write.
    """
    try:
        made = base(config)
        of_splits = made["splits"].values() if "verb" in made else [made]
        lists: list[Any] = [each[EXCLUDED] for each in of_splits if each.get(EXCLUDED)]
        number = sum(records.parse(int, each["images"]) for each in lists)
        steps = amendments(config)
    except (ValueError, TypeError, KeyError, AttributeError):
        return 0, []
    return number + sum(step.exclude.images for step in steps if step.exclude), steps


def short_side(config: Config, split: str) -> int | None:
    """Returns the length to which short sides of a split were downscaled; None: not, or unknown."""
    try:
        made = base(config)
        return records.parse(int, (made["splits"][split] if "verb" in made else made)["short_side"])
    except (ValueError, TypeError, KeyError):
        return None


def parse(config: Config) -> Settings:
    """Returns the settings that `config` holds."""
    splits, verb = config.get("splits"), config.get("verb")
    if verb in (None, AMEND):
        names = records.parse(list[str], splits)
        return Settings(verb or PREPARE, dict.fromkeys(names, config))
    if verb not in (RESIZE, ADOPT):
        raise ValueError("these are settings of no verb of this program")
    return Settings(verb, records.parse(dict[str, Config], splits))
