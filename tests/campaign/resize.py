"""Faults over `resize`: a set from another program's shards, and a split more in a finished one."""

from __future__ import annotations

from pathlib import Path

from tests.campaign.prepare import Prepare
from tests.campaign.story import Story
from tests.kit.dataset import contents

_FLAGS = ("--short-side", "32", "--workers", "2")
# Of rounds that add validation to a finished train.
_ADDING_CHANCE = 0.5


class Resize(Prepare):
    """Rounds of `resize` into a folder; what may happen is what may happen to `prepare`."""

    stages = ("resize-train", "resize-validation")

    def __init__(self, story: Story, source: Path) -> None:
        """Makes each of both sets once, undisturbed; keeps their bytes."""
        self._splits = "train"
        super().__init__(story, source)
        self._train = self.reference
        self._splits = "train,validation"
        story.undisturbed(self.words(story.folder / "out"))
        self._both = contents(story.folder / "out")

    def words(self, out: Path | str, *more: str) -> list[str]:
        places = ["-i", str(self.source), "-o", str(out), "--splits", self._splits]
        return ["resize", *places, *_FLAGS, *more]

    def begin(self, story: Story, out: Path) -> None:
        """Chooses what the round makes; where it adds a split, train is there before."""
        self._splits = "train"
        self.reference = self._train
        self.earlier = None
        if story.rng.random() < _ADDING_CHANCE:
            story.undisturbed(self.words(out))
            self._splits = "train,validation"
            self.reference = self._both
            self.earlier = self._train
