"""What a data set was made with: `config` of its manifest, and of unfinished work's run.json.

A prepared set has one flat object of settings, since one run makes all its splits; they name the
splits. Sets of other verbs have `{"verb": ..., "splits": {split: settings}}`, since a run may add a
split to what others made. Before that shape there was `{verb: {split: settings}}`, which is still
read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from imagenet_prep.core import records

# Settings by name. Verbs and versions have different ones.
Config = dict[str, Any]

PREPARE = "prepare"
RESIZE = "resize"
ADOPT = "adopt"
# The setting of prepare --exclude: how many images, and the digest of the list.
EXCLUDED = "excluded"
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
      ValueError: no version of this program has written it.
    """
    verb: Any = config.get("verb")
    if verb is None and isinstance(config.get("splits"), list):
        splits = records.parse(list[str], config["splits"])
        return Settings(PREPARE, dict.fromkeys(splits, config))
    if verb is None:
        verb = next((verb for verb in (RESIZE, ADOPT) if verb in config), "")
    if verb not in (RESIZE, ADOPT):
        raise ValueError("these are settings of no verb of this program")
    of_each = records.parse(dict[str, Config], config.get("splits" if "verb" in config else verb))
    if any(each.get("rewrite") for each in of_each.values()):
        return Settings(
            RESIZE, {s: {**KEEP_ORIGINAL, "source": of_each[s].get("source")} for s in of_each}
        )
    return Settings(verb, {split: {} for split in of_each} if verb == ADOPT else of_each)
