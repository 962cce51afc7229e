"""Changes of a dataset for `amend`, chosen from its tables."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

from tests.kit.tfrecords import plain


class Changes(NamedTuple):
    """Files for --exclude, --relabel and --add, and their content.

    Attributes:
      exclude, relabel, add: the files, and the folder.
      excluded: the keys of two images, of train and of validation.
      relabelled: the key of an image of train.
      label: its new class index.
      added: the keys of three images of train.
    """

    exclude: Path
    relabel: Path
    add: Path
    excluded: list[str]
    relabelled: str
    label: int
    added: list[str]

    @property
    def flags(self) -> tuple[str, ...]:
        """All of them on a command line."""
        exclude = ("--exclude", str(self.exclude))
        relabel = ("--relabel", str(self.relabel))
        return (*exclude, *relabel, "--add", str(self.add))


def make_changes(out: Path, folder: Path) -> Changes:
    """Writes changes of a dataset into a new folder."""
    folder.mkdir()
    names = [line.split()[0] for line in (out / "labels.txt").read_text().splitlines()]
    train, validation = (list(rows(out, split).values()) for split in ("train", "validation"))
    excluded = [train[3][0], validation[1][0]]
    relabelled, was = train[0][:2]
    label = (int(was) + 1) % len(names)
    (folder / "exclude.txt").write_text("".join(f"{key}\n" for key in excluded))
    (folder / "relabel.csv").write_text(f"key,class\n{relabelled},{names[label]}\n")
    added = []
    for number, name in enumerate(names[:3]):
        added.append(f"{name}/{name}_9000{number}.JPEG")
        path = folder / "add" / "train" / added[-1]
        path.parent.mkdir(parents=True)
        path.write_bytes(plain(number))
    files = folder / "exclude.txt", folder / "relabel.csv", folder / "add"
    return Changes(*files, excluded, relabelled, label, added)


def rows(out: Path, split: str = "") -> dict[str, list[str]]:
    """Returns the lines of the tables of a dataset by key, shard by shard."""
    found: dict[str, list[str]] = {}
    for path in sorted((out / "samples").glob(f"{split}*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            found |= {row[0]: row for row in list(csv.reader(file))[1:]}
    return found


def shards_of(out: Path, *keys: str) -> set[str]:
    """Returns the shards that have these images in their tables."""
    tables = {path.stem: path.read_text() for path in (out / "samples").glob("*.csv")}
    return {name for name, text in tables.items() if any(f"\n{key}," in text for key in keys)}
