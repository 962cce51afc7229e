"""Several faults over one command, one after the other, then one undisturbed run."""

from __future__ import annotations

import random
from collections.abc import Iterable

from tests.campaign.attempts import Attempt, hold_next, hold_tidy
from tests.campaign.scenes import Scene, Theatre, hold_visible, seen
from tests.campaign.table import DAMAGED, Row
from tests.kit import faults

_FAULTS = ("signal",) * 5 + ("full disk", "lost file", "damaged source")
# Most scenes take about this long; a signal comes at any time of it.
_SECONDS = 0.5


class SeveralFaults:
    """Three to eight faults over a scene, by two workers; the case is the seed."""

    def sample(self, _theatre: Theatre, _row: Row, rng: random.Random) -> str:
        return str(rng.getrandbits(32))

    def every(self, _theatre: Theatre, _row: Row) -> Iterable[str]:
        """Returns only two seeds: there are more than anyone can try."""
        return map(str, range(2))

    def attempt(self, theatre: Theatre, row: Row, case: str) -> Attempt:
        scene = theatre.scene(row.command)
        story = theatre.story
        story.rng = random.Random(case)
        story.faults.clear()
        words = list(scene.words)
        if "--workers" in words:
            words[words.index("--workers") + 1] = "2"
        theatre.reset(scene)
        lost: set[str] = set()
        for _ in range(story.rng.randint(3, 8)):
            fault = story.rng.choice(_FAULTS)
            if fault == "lost file":
                lost |= _lose(theatre, scene)
            if fault == "full disk":
                theatre.start(scene, fail=("create", story.rng.randint(1, 30), "ENOSPC", True))
                story.faults[fault] += story.finish(0, *row.promise.codes).code != 0
            elif fault == "damaged source":
                _damage(theatre, scene, words)
            else:
                story.ended_early(words, scene.changes, _SECONDS, **scene.settings)
            hold_visible(scene, but=lost)
            theatre.hold_sources(scene)
        hold_next(theatre, scene, row)
        hold_tidy(story, scene)
        return Attempt([], story.faults.copy())


def _lose(theatre: Theatre, scene: Scene) -> set[str]:
    """Removes a shard or another large file of the output that the command makes again."""
    made = scene.after.keys() - scene.before.keys()
    names = sorted(name for name in seen(scene.target) if name in made and "-of-" in name)
    # `adopt` renames or links shards, and does not make them again.
    if not names or scene.words[0] == "adopt":
        return set()
    name = theatre.story.rng.choice(names)
    (scene.target / name).unlink()
    theatre.story.faults["file lost"] += 1
    return {name}


def _damage(theatre: Theatre, scene: Scene, words: list[str]) -> None:
    """Damages a shard of the source for one run, which refuses it or does not need it."""
    story = theatre.story
    shards = sorted(scene.source.glob("train-*")) + sorted(scene.source.glob("train/*"))
    # `duplicates` judges all other images; `adopt` in place renames its source.
    if not shards or scene.words[0] == "duplicates" or scene.source == scene.target:
        return
    path = story.rng.choice(shards)
    data = path.read_bytes()
    # Not in place: a second name of the file may be part of the output.
    path.unlink()
    path.write_bytes(data)
    faults.flip_bit(path, story.rng.randrange(len(data)))
    story.start(words, **scene.settings)
    story.faults["source damaged"] += story.finish(0, DAMAGED).code == DAMAGED
    path.unlink()
    path.write_bytes(data)
