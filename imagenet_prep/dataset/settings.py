"""What a data set was made with: `config` of its manifest, and of unfinished work's run.json.

A prepared set has one flat object of settings, since one run makes all its splits; they name the
splits. Sets of other verbs have `{"verb": ..., "splits": {split: settings}}`, since a run may add a
split to what others made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from imagenet_prep.core import records

# Settings by name. Verbs have different ones.
Config = dict[str, Any]

PREPARE = "prepare"
RESIZE = "resize"
ADOPT = "adopt"
# The setting of prepare --exclude: how many images, and the digest of the list.
EXCLUDED = "excluded"
# What was done with EXIF orientation, one of `orientation.RULES`; without it, tags were kept.
ORIENTATION = "orientation"
# Settings of `resize --keep-original`, which is what `adopt --rewrite` does.
KEEP_ORIGINAL: Config = {"short_side": None, "quality": None, "stretch": False}


class Settings(NamedTuple):
    """Who makes a data set, and what decides its bytes.

    Attributes:
      verb: "prepare", "resize" or "adopt".
      splits: the settings of each split; for prepare the same for all.
    """

    verb: str
    splits: dict[str, Config]

    @property
    def config(self) -> Config:
        """The same as a manifest holds it."""
        if self.verb == PREPARE:
            return next(iter(self.splits.values()))
        return {"verb": self.verb, "splits": self.splits}


def num_excluded(config: Config) -> int:
    """Returns how many images were left out because a list of keys asked for it."""
    excluded: Any = config.get(EXCLUDED)
    try:
        return records.parse(int, excluded["images"])
    except (ValueError, TypeError, KeyError):
        return 0


def parse(config: Config) -> Settings:
    """Returns the settings that `config` holds.

    Raises:
      ValueError: this program has not written it.
    """
    splits, verb = config.get("splits"), config.get("verb")
    if verb is None:
        return Settings(PREPARE, dict.fromkeys(records.parse(list[str], splits), config))
    if verb not in (RESIZE, ADOPT):
        raise ValueError("these are settings of no verb of this program")
    return Settings(verb, records.parse(dict[str, Config], splits))
