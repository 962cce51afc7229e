"""Faults over `train`: one rank, and two under `launch`; damaged checkpoints."""

from __future__ import annotations

import importlib.util
import json
import signal
import time
from pathlib import Path
from typing import Any

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.trainer import checkpoint
from tests.campaign.story import INTERRUPTED, KILL, Story, hold
from tests.kit import faults
from tests.kit.training import arguments, flags

STEPS = 16
KEEP = 3
# Each of them starts two interpreters with TensorFlow.
TWO_RANKS_CHANCE = 0.1
_STOPPED = 4
# Folders for the settings of Keras and Matplotlib; by default, they use the home.
_OF_OTHERS = {"KERAS_HOME": "keras", "MPLCONFIGDIR": "matplotlib"}


class Train:
    """Rounds of `train`, two epochs of eight steps with a checkpoint after every second."""

    def __init__(self, story: Story, data: Path) -> None:
        """Trains undisturbed; keeps the weights."""
        self.data = data
        log = story.folder / "log"
        began = time.monotonic()
        story.undisturbed(self.words(log))
        self.seconds = time.monotonic() - began
        self.changes = story.changes()
        self.last = _last(log)

    def words(self, log: Path, **more: Any) -> list[str]:
        settings = flags(self.data, log, checkpoint_every=2, keep=KEEP, **more)
        return ["train", *arguments(settings)]

    def round(self, story: Story) -> None:
        log = story.folder / "log"
        launched = story.rng.random() < TWO_RANKS_CHANCE and importlib.util.find_spec("horovod")
        words = self.words(log)
        seconds = self.seconds
        if launched:
            words = ["launch", "-np", "2", "--", *self.words(log, batch_size=4)]
            seconds = 25.0
        # A launch of two ranks takes half a minute.
        for _ in range(1 if launched else story.rng.randint(2, 5)):
            damaged = self._damage(story, log) if story.rng.random() < 0.6 else ""
            self._disturb(story, words, seconds, launched=bool(launched))
            self._hold(log, damaged)
        story.undisturbed(words, env=_OF_OTHERS)
        self._hold(log, "")
        found = _last(log)
        hold(found["step"] == self.last["step"], f"ended after step {found['step']}")
        if not launched:
            other = [name for name in self.last if found.get(name) != self.last[name]]
            hold(not other, f"an undisturbed run ends with other {other}")

    def _disturb(self, story: Story, words: list[str], seconds: float, *, launched: bool) -> None:
        signum = story.rng.choice((KILL, signal.SIGTERM))
        if not launched:
            story.start(words, at=story.place(self.changes), signum=int(signum))
        else:
            story.start(words, env=_OF_OTHERS)
            if not story.warm.ended(story.rng.uniform(0, seconds)):
                story.warm.send(signum)
        ended = story.finish(0, _STOPPED, INTERRUPTED, -KILL, 128 + signal.SIGTERM)
        if ended.code:
            story.faults[f"{signum.name}{' of launch' * launched}"] += 1

    def _damage(self, story: Story, log: Path) -> str:
        """Damages the newest of several checkpoints; returns its name."""
        there = checkpoint.steps(log)
        if len(there) < 2:
            return ""
        path = log / checkpoint.name(there[-1])
        if story.rng.random() < 0.5:
            faults.cut(path, story.rng.randrange(0, path.stat().st_size))
        else:
            faults.flip_bit(path, path.stat().st_size // 2)
        story.faults["checkpoint damaged"] += 1
        return path.name

    def _hold(self, log: Path, damaged: str) -> None:
        """Every checkpoint but one that was damaged on purpose is sound, every line of the log."""
        steps = checkpoint.steps(log)
        for step in steps:
            name = checkpoint.name(step)
            try:
                hold(checkpoint.load(log / name).step == step, f"{name} is of a different step")
            except DataDamagedError as error:
                hold(name == damaged, f"half visible: {error}")
        if damaged:
            (log / damaged).unlink(missing_ok=True)


def _last(log: Path) -> dict[str, Any]:
    """Returns step and digests of the last checkpoint's variables."""
    found = checkpoint.load(log / checkpoint.name(checkpoint.steps(log)[-1]))
    arrays = {name: array.tobytes() for name, array in found.arrays.items()}
    return {"step": found.step, "reader": json.dumps(found.facts["reader"]), **arrays}
