"""Faults over `adopt`: shards that are renamed where they lie, or linked elsewhere."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from imagenet_prep.dataset import schema
from tests.campaign.story import Story, hold, hold_whole_or_absent
from tests.kit import faults
from tests.kit.dataset import contents

_FAULTS = ("signal",) * 5 + ("full disk",) + ("damaged shard",)
_ELSEWHERE_CHANCE = 0.4


class Adopt:
    """Rounds of `adopt`, in place and with --out."""

    def __init__(self, story: Story, source: Path) -> None:
        """Adopts undisturbed; keeps the bytes of the shards and of the data set."""
        self.source = source
        self.shards = sorted(contents(source).values())
        there = story.folder / "set"
        shutil.copytree(source, there)
        began = time.monotonic()
        story.undisturbed(_words(there, there))
        self.seconds = time.monotonic() - began
        self.changes = story.changes()
        self.reference = contents(there)

    def round(self, story: Story) -> None:
        """Disturbs one set until it is adopted in spite of all."""
        with story.disk() as disk:
            there = disk / "set"
            shutil.copytree(self.source, there)
            out = disk / "out" if story.rng.random() < _ELSEWHERE_CHANCE else there
            words = _words(there, out)
            for _ in range(story.rng.randint(3, 8)):
                fault = story.rng.choice(_FAULTS)
                if fault == "full disk":
                    story.little_room(disk, 40_000)
                    story.start(words, blind=True)
                    story.faults.update([fault] * (story.finish(0, 4).code == 4))
                    story.much_room(disk)
                elif fault == "damaged shard":
                    self._refuse(story, there, words, finished=(out / schema.MANIFEST).exists())
                else:
                    story.ended_early(words, self.changes, self.seconds)
                self._hold(there, out)
            story.undisturbed(words)
            hold(contents(out) == self.reference, "another data set")
            self._hold(there, out)

    def _refuse(self, story: Story, there: Path, words: list[str], *, finished: bool) -> None:
        """Damages a shard: what is not adopted yet is refused, and mended by what was there."""
        path = story.rng.choice(sorted(there.glob("*-of-*")))
        # By its descriptor: it may get another name meanwhile, and a link may be in the set.
        with path.open("r+b") as file:
            whole = file.read()
            faults.flip_bit(path, story.rng.randrange(len(whole)))
            story.start(words)
            # A set that is finished is `verify`'s business.
            story.finish(*((0, 3) if finished else (3,)))
            story.faults["shard damaged"] += 1
            file.seek(0)
            file.write(whole)

    def _hold(self, there: Path, out: Path) -> None:
        """No shard is lost or changed; beside them is what the set will have, or nothing."""
        found = contents(there)
        shards = sorted(found[name] for name in found if schema.looks_like_shard(name))
        hold(shards == self.shards, f"{there}: {len(shards)} shards, or with other bytes")
        if out != there:
            hold_whole_or_absent(out, self.reference)
            return
        beside = {name: data for name, data in found.items() if not schema.looks_like_shard(name)}
        partial = [name for name, data in beside.items() if self.reference.get(name) != data]
        hold(not partial, f"{there}: other bytes in {partial}")
        hold(schema.MANIFEST not in found or found == self.reference, "a manifest too early")


def _words(there: Path, out: Path) -> list[str]:
    more = [] if out == there else ["--out", str(out)]
    return ["adopt", str(there), *more, "--allow-subset", "--workers", "2"]
