"""Faults over `export`: two sets by turns into files of the same names."""

from __future__ import annotations

import time
from pathlib import Path

from tests.campaign.story import Story, hold
from tests.kit import faults
from tests.kit.tfrecords import picture, plain, write_set

_FAULTS = ("signal",) * 5 + ("full disk",) + ("damaged shard",)
_ENDINGS = (".rec", ".idx", ".lst")
_CLASSES = 4

Files = dict[str, bytes | None]


class Export:
    """Rounds of `export` over files that are there."""

    name = "export"

    def __init__(self, story: Story, folder: Path) -> None:
        """Makes two sets and exports each undisturbed; keeps the bytes of the files."""
        self.sets = [folder / "export-0", folder / "export-1"]
        self.exported: list[Files] = []
        for number, root in enumerate(self.sets):
            images = [picture(n % _CLASSES, plain(n)) for n in range(number, 24 + 5 * number)]
            shards = [images[at::3] for at in range(3)]
            write_set(root, {"train": shards}, num_classes=_CLASSES)
            began = time.monotonic()
            story.undisturbed(_words(root, story.folder / "rec" / "train"))
            self.seconds = time.monotonic() - began
            self.exported.append(_files(story.folder / "rec" / "train"))
        self.changes = story.changes()

    def round(self, story: Story) -> None:
        """Exports one set over the other, in spite of all."""
        with story.disk() as disk:
            prefix = disk / "rec" / "train"
            which = 0
            for _ in range(story.rng.randint(4, 10)):
                which = story.rng.randrange(2)
                before = _files(prefix)
                words = _words(self.sets[which], prefix)
                fault = story.rng.choice(_FAULTS)
                if fault == "full disk":
                    story.little_room(disk, sum(len(d or b"") for d in self.exported[0].values()))
                    story.start(words, blind=True)
                    story.faults.update([fault] * (story.finish(0, 4).code == 4))
                    story.much_room(disk)
                elif fault == "damaged shard":
                    self._refuse(story, which, words)
                    hold(_files(prefix) == before, "files were replaced by a damaged set")
                else:
                    story.ended_early(words, self.changes, self.seconds)
                self._hold(prefix)
            story.undisturbed(_words(self.sets[which], prefix))
            hold(_files(prefix) == self.exported[which], "other files")
            left = sorted(path.name for path in prefix.parent.iterdir())
            hold(len(left) == len(_ENDINGS), f"left over: {left}")

    def _refuse(self, story: Story, which: int, words: list[str]) -> None:
        """Damages a shard of the set for one run."""
        path = story.rng.choice(sorted(self.sets[which].glob("*-of-*")))
        whole = path.read_bytes()
        try:
            faults.flip_bit(path, story.rng.randrange(len(whole)))
            story.start(words)
            story.finish(3)
        finally:
            path.write_bytes(whole)
        story.faults["shard damaged"] += 1

    def _hold(self, prefix: Path) -> None:
        """Whoever sees the large file sees the lists that belong to it; each file is whole."""
        found = _files(prefix)
        for ending, data in found.items():
            whole = [None, *(exported[ending] for exported in self.exported)]
            hold(data in whole, f"{prefix}{ending}: other bytes")
        if found[".rec"] is not None:
            hold(found in self.exported, f"{prefix}: lists of another set")


def _files(prefix: Path) -> Files:
    paths = {ending: prefix.with_name(f"{prefix.name}{ending}") for ending in _ENDINGS}
    return {e: path.read_bytes() if path.exists() else None for e, path in paths.items()}


def _words(dataset: Path, prefix: Path) -> list[str]:
    return ["export", str(dataset), "--out", str(prefix)]
