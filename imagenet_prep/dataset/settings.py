"""What a data set was made with: `config` of its manifest, and of unfinished work's run.json.

A prepared set has one flat object of settings, since one run makes all its splits; they name the
splits. Sets of other verbs have `{"verb": ..., "splits": {split: settings}}`, since a run may add a
split to what others made. Before that shape there was `{verb: {split: settings}}`, which is still
read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from imagenet_prep.core import canonical

PREPARE = "prepare"
RESIZE = "resize"
ADOPT = "adopt"
# The setting of prepare --exclude: how many images, and the digest of the list.
EXCLUDED = "excluded"
# What was done with EXIF orientation, one of `orientation.RULES`; without it, tags were kept.
ORIENTATION = "orientation"
# Settings of `resize --keep-original`, which is what `adopt --rewrite` does.
KEEP_ORIGINAL: dict[str, Any] = {"short_side": None, "quality": None, "stretch": False}


class Settings(NamedTuple):
    """Who makes a data set, and what decides its bytes.

    Attributes:
      verb: "prepare", "resize" or "adopt".
      splits: the settings of each split; for prepare the same for all.
    """

    verb: str
    splits: dict[str, dict[str, Any]]

    @property
    def config(self) -> dict[str, Any]:
        """The same as a manifest holds it."""
        if self.verb == PREPARE:
            return next(iter(self.splits.values()))
        return {"verb": self.verb, "splits": self.splits}


def num_excluded(config: dict[str, Any]) -> int:
    """Returns how many images were left out because a list of keys asked for it."""
    excluded: Any = config.get(EXCLUDED)
    return excluded["images"] if canonical.fits(excluded, {"images": int}) else 0


def parse(config: dict[str, Any]) -> Settings:
    """Returns the settings that `config` holds.

    Raises:
      ValueError: no version of this program has written it.
    """
    verb: Any = config.get("verb")
    splits: Any = config.get("splits")
    if verb is None:
        if canonical.fits(splits, [str]):
            return Settings(PREPARE, dict.fromkeys(splits, config))
        verb = next((verb for verb in (RESIZE, ADOPT) if verb in config), "")
        splits = config.get(verb)
    if verb not in (RESIZE, ADOPT) or not canonical.fits(splits, {str: {}}):
        raise ValueError("these are settings of no verb of this program")
    if any(each.get("rewrite") for each in splits.values()):
        return Settings(
            RESIZE, {s: {**KEEP_ORIGINAL, "source": splits[s].get("source")} for s in splits}
        )
    return Settings(verb, {split: {} for split in splits} if verb == ADOPT else splits)
