"""Faults over `duplicates`: one set is searched, until all that was found is written down."""

from __future__ import annotations

import io
import shutil
import time
from pathlib import Path

from PIL import Image, ImageOps

from tests.campaign.story import Story, hold
from tests.kit import faults
from tests.kit.codec import corpus
from tests.kit.dataset import all_files, contents

_FAULTS = ("signal",) * 5 + ("full disk", "damaged shard", "lost hashes")
_SHARDS = ("--train-shards", "4", "--validation-shards", "1")
# The page says when it was made.
_PAGE = "duplicates.html"


class Duplicates:
    """Rounds of `duplicates` over a set that keeps its hashes below `.work`."""

    def __init__(self, story: Story, folder: Path) -> None:
        """Makes a set with planted duplicates and searches it undisturbed; keeps what is found."""
        self._set = folder / "duplicates"
        words = ["prepare", "--source", _photographs(folder), "--out", self._set, *_SHARDS]
        story.undisturbed(words)
        self._bytes = contents(self._set)
        place = story.folder / "searched"
        shutil.copytree(self._set, place)
        began = time.monotonic()
        story.undisturbed(self._words(place, story.folder / "found"))
        self._seconds = time.monotonic() - began
        self._changes = story.changes()
        self._found = _written(story.folder / "found")
        planted = self._found["exclude-train.txt"].count(b"\n")
        hold(planted >= 6, f"only {planted} of 6 planted duplicates were found")

    def round(self, story: Story) -> None:
        """Searches the set in spite of all."""
        with story.disk() as disk:
            place = disk / "set"
            out = disk / "found"
            shutil.copytree(self._set, place)
            words = self._words(place, out)
            for _ in range(story.rng.randint(3, 7)):
                fault = story.rng.choice(_FAULTS)
                if fault == "full disk":
                    story.little_room(disk, sum(map(len, self._found.values())))
                    story.start(words)
                    story.faults.update([fault] * (story.finish(0, 1, 4).code != 0))
                    story.much_room(disk)
                elif fault == "damaged shard":
                    self._damaged(story, place)
                elif fault == "lost hashes":
                    rows = sorted((place / ".work").glob("hashes-*/*.rows"))
                    for path in story.rng.sample(rows, min(len(rows), 2)):
                        path.unlink()
                        story.faults["hashes lost"] += 1
                else:
                    story.ended_early(words, self._changes, self._seconds)
                self._hold(place, out)
            story.undisturbed(words)
            self._hold(place, out)
            hold(_written(out) == self._found, "other duplicates than in an undisturbed run")
            hold((out / _PAGE).read_bytes().rstrip().endswith(b"</html>"), "half a page")

    def _damaged(self, story: Story, place: Path) -> None:
        """Damages a shard for one run, which tells of it unless all was hashed before."""
        path = story.rng.choice(sorted(place.glob("train-*")))
        whole = path.read_bytes()
        faults.flip_bit(path, story.rng.randrange(len(whole)))
        story.start(self._words(place, place.with_name("other")))
        story.faults["shard damaged"] += story.finish(0, 3).code == 3
        path.write_bytes(whole)

    def _hold(self, place: Path, out: Path) -> None:
        """The set is as it was, and each list that can be seen is a whole one."""
        hold(contents(place) == self._bytes, "the set has changed")
        found = _written(out)
        wrong = sorted(name for name in found if found[name] != self._found.get(name))
        hold(not wrong, f"other bytes in {wrong}")

    def _words(self, place: Path, out: Path) -> list[str]:
        return ["duplicates", str(place), "--out", str(out), "--workers", "2"]


def _written(out: Path) -> dict[str, bytes]:
    """Returns the lists that a user sees, by name."""
    files = all_files(out) if out.is_dir() else {}
    return {name: data for name, data in files.items() if name != _PAGE and ".work" not in name}


def _photographs(folder: Path) -> Path:
    """Makes a folder of two classes; six of its images are other forms of six others."""
    root = folder / "photographs"
    pictures = []
    for data in corpus.photographs(8):
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        picture.thumbnail((120, 120))
        pictures.append(picture)
    mirrored = [ImageOps.mirror(picture) for picture in pictures[:3]]
    for number, picture in enumerate([*pictures, *pictures[3:6], *mirrored, pictures[7]]):
        split = "val" if number in (6, 7) else "train"
        path = root / split / f"n0000000{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, quality=95 if number < len(pictures) else 80)
    return root
