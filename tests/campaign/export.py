"""Faults over `export`: one set into a place, in one of the formats, until it is whole."""

from __future__ import annotations

import time
from pathlib import Path

from tests.campaign.story import Story, hold
from tests.kit import faults
from tests.kit.dataset import all_files

_FAULTS = ("signal",) * 5 + ("full disk",) + ("damaged shard",)
_FORMATS = ("folder", "tfds", "webdataset", "parquet", "recordio")

Files = dict[str, bytes]


class Export:
    """Rounds of `export` into a folder."""

    def __init__(self, story: Story, source: Path, folder: Path) -> None:
        """Makes a set and exports it undisturbed in each format; keeps the bytes of the files."""
        self.root = folder / "export"
        shards = ("--train-shards", "4", "--validation-shards", "1")
        story.undisturbed(
            ["prepare", "--source", source, "--out", self.root, "--allow-subset", *shards]
        )
        self.exported: dict[str, Files] = {}
        self.changes: dict[str, int] = {}
        self.seconds = 0.0
        for to in _FORMATS:
            began = time.monotonic()
            story.undisturbed(self._words(to, story.folder / to))
            self.seconds = max(self.seconds, time.monotonic() - began)
            self.exported[to] = _seen(story.folder / to)
            self.changes[to] = story.changes()

    def round(self, story: Story) -> None:
        """Exports the set in spite of all."""
        to = story.rng.choice(_FORMATS)
        with story.disk() as disk:
            words = self._words(to, disk / "out")
            for _ in range(story.rng.randint(4, 10)):
                fault = story.rng.choice(_FAULTS)
                if fault == "full disk":
                    story.little_room(disk, sum(map(len, self.exported[to].values())))
                    story.start(words, blind=True)
                    story.faults.update([fault] * (story.finish(0, 4).code == 4))
                    story.much_room(disk)
                elif fault == "damaged shard":
                    self._damaged(story, words)
                else:
                    story.ended_early(words, self.changes[to], self.seconds)
                self._hold(to, disk / "out")
            story.undisturbed(words)
            hold(_seen(disk / "out") == self.exported[to], f"{to}: other files")

    def _damaged(self, story: Story, words: list[str]) -> None:
        """Damages a shard of the set for one run, which ends well where it was exported before."""
        path = story.rng.choice(sorted(self.root.glob("train-*")))
        whole = path.read_bytes()
        try:
            faults.flip_bit(path, story.rng.randrange(len(whole)))
            story.start(words)
            story.faults["shard damaged"] += story.finish(0, 3).code == 3
        finally:
            path.write_bytes(whole)

    def _hold(self, to: str, out: Path) -> None:
        """Whatever can be seen is whole, and the receipt is there only with everything else."""
        seen = _seen(out)
        whole = self.exported[to]
        wrong = sorted(name for name in seen if seen[name] != whole.get(name))
        hold(not wrong, f"{to}: other bytes in {wrong}")
        receipts = [name for name in seen if name.endswith("export.json")]
        hold(not receipts or seen == whole, f"{to}: a receipt without {whole.keys() - seen.keys()}")

    def _words(self, to: str, out: Path) -> list[str]:
        flags = ["--split", "train", "--allow-empty-class"] if to == "folder" else []
        return ["export", str(self.root), "--to", to, "--out", str(out), "--workers", "2", *flags]


def _seen(out: Path) -> Files:
    """Returns the files of an export that a user sees, by name."""
    return {name: data for name, data in all_files(out).items() if ".work" not in Path(name).parts}
