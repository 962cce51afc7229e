"""What a data set was made with: `config` of its manifest, and of unfinished work's run.json.

A prepared set has one flat object of settings, since one run makes all its splits; they name the
splits. Sets of other verbs have `{"verb": ..., "splits": {split: settings}}`, since a run may add a
split to what others made. Before that shape there was `{verb: {split: settings}}`, which is still
read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

PREPARE = "prepare"
RESIZE = "resize"
ADOPT = "adopt"
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


def parse(config: dict[str, Any]) -> Settings:
    """Returns the settings that `config` holds.

    Raises:
      ValueError: no version of this program has written it.
    """
    verb, splits = config.get("verb"), config.get("splits")
    if verb is None:
        if type(splits) is list and all(type(split) is str for split in splits):
            return Settings(PREPARE, dict.fromkeys(splits, config))
        verb, splits = next(((v, config[v]) for v in (RESIZE, ADOPT) if v in config), (None, None))
        if verb == ADOPT and type(splits) is dict:
            verb, splits = _adopted_before(splits)
    if verb not in (RESIZE, ADOPT) or type(splits) is not dict:
        raise ValueError("its settings are of no verb of this program")
    if not all(type(settings) is dict for settings in splits.values()):
        raise ValueError("the settings of a split are no JSON object")
    return Settings(verb, splits)


def _adopted_before(splits: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns verb and settings of splits whose settings say only whether they were rewritten."""
    rewritten = {
        split: {**KEEP_ORIGINAL, "source": settings.get("source")}
        for split, settings in splits.items()
        if type(settings) is dict and settings.get("rewrite") is True
    }
    return (RESIZE, rewritten) if rewritten else (ADOPT, {split: {} for split in splits})
