"""Sources that change between two runs: class folders, archives, and datasets of any verb."""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from tests.kit import foreign, layouts
from tests.kit.miniature import Miniature

Images = dict[str, bytes]
"""Bytes by "SPLIT/CLASS/FILE"; the images that `amend` adds have "add" in place of a split."""

# Names of classes of one length: a relabelled dataset has the sizes of its parent.
CLASSES = ("cat", "dog", "owl")
_HEIGHT = 24
_WIDTH = 32
_NUM_BYTES = 1600
_SHARDS = {"train": 2, "validation": 1}


@cache
def photograph(number: int) -> bytes:
    """Returns a JPEG; all have one size in pixels, and one in bytes."""
    rng = np.random.default_rng(number)
    small = Image.fromarray(rng.integers(0, 256, (3, 4, 3), np.uint8))
    buffer = io.BytesIO()
    small.resize((_WIDTH, _HEIGHT)).save(buffer, "JPEG", quality=85)
    data = buffer.getvalue()
    length = _NUM_BYTES - len(data) - 2
    # A comment after the marker of the beginning.
    return data[:2] + b"\xff\xfe" + length.to_bytes(2, "big") + bytes(length - 2) + data[2:]


class Changes:
    """The images of a source, and the changes of them in one round."""

    def __init__(self, images: Images, own_names: bool) -> None:
        """Starts with some images.

        Args:
          images: by path.
          own_names: the name of a file starts with its class.
        """
        self.images = dict(images)
        self._first = dict(images)
        self._own_names = own_names
        self._rng = random.Random(0)

    def apply(self, kind: str, choice: int) -> None:
        """Changes the images in one of the ways that `Source.kinds` name.

        Args:
          kind: the way; "back" makes them those of the beginning.
          choice: of images; the same images, kind and choice give the same images, so that other
            rounds know the outputs of undisturbed runs.
        """
        self._rng = random.Random(f"{digest(self.images)} {kind} {choice}")
        now = dict(self.images)
        getattr(self, f"_{kind}")(now)
        self.images = now

    def _replaced(self, now: Images) -> None:
        path = self._some(now)
        length = len(now[path])
        new = photograph(self._rng.randrange(1000, 100_000))
        # A shorter one is damaged in its headers.
        now[path] = new.ljust(length, b"\0") if len(new) <= length else new[:length]

    def _damaged(self, now: Images) -> None:
        path = self._some(now)
        now[path] = self._rng.randbytes(len(now[path]))

    def _exchanged(self, now: Images) -> None:
        one = self._some(now)
        other = self._some(now)
        now[one], now[other] = now[other], now[one]

    def _moved(self, now: Images) -> None:
        path = self._some(now, spare=True)
        split, was, _ = path.split("/")
        classes = sorted({path.split("/")[1] for path in now} - {was})
        new = self._path(split, self._rng.choice(classes), Path(path).stem.rpartition("_")[2])
        now[new] = now.pop(path)

    def _added(self, now: Images) -> None:
        split, name, _ = self._some(now, spare=True).split("/")
        number = self._rng.randrange(1000, 100_000)
        now[self._path(split, name, str(number))] = photograph(number)

    def _removed(self, now: Images) -> None:
        del now[self._some(now, spare=True)]

    def _renamed(self, now: Images) -> None:
        path = self._some(now, spare=True)
        split, name, _ = path.split("/")
        new = self._path(split, name, str(self._rng.randrange(1000, 100_000)))
        now[new] = now.pop(path)

    def _back(self, now: Images) -> None:
        now.clear()
        now.update(self._first)

    def _touched(self, now: Images) -> None:
        pass

    def _path(self, split: str, name: str, number: str) -> str:
        stem = f"{name}_{number}" if self._own_names else number
        return f"{split}/{name}/{stem}.JPEG"

    def _some(self, now: Images, *, spare: bool = False) -> str:
        """Returns an image; a spare one is of train, and neither the first nor the last."""
        paths = sorted(now)
        if spare:
            # The others are named by lists.
            paths = [
                p for p in paths if p.startswith("train/") and Path(p).stem[-2:] not in ("00", "01")
            ]
            of_class: dict[str, int] = {}
            for path in paths:
                of_class[path.split("/")[1]] = of_class.get(path.split("/")[1], 0) + 1
            paths = [path for path in paths if of_class[path.split("/")[1]] > 1]
        return self._rng.choice(paths)


def digest(images: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for path, data in sorted(images.items()):
        whole.update(f"{path}\0{len(data)}\0".encode() + data)
    return whole.hexdigest()


class Source(ABC):
    """One kind of source.

    Attributes:
      kinds: of changes that it may have.
      own_names: as for `Changes`.
    """

    kinds: tuple[str, ...] = (
        "replaced",
        "damaged",
        "exchanged",
        "moved",
        "added",
        "removed",
        "renamed",
        "back",
        "touched",
    )
    own_names = False

    def images(self) -> Images:
        """Returns the images that it starts with."""
        found = {}
        for number in range(15):
            name = CLASSES[number % 3]
            found[f"train/{name}/{number:02d}.JPEG"] = photograph(number)
        for number in range(20, 26):
            found[f"validation/{CLASSES[number % 3]}/{number}.JPEG"] = photograph(number)
        return found

    @abstractmethod
    def lay(self, images: Images, place: Path) -> None:
        """Makes a folder of these images."""


class Folders(Source):
    """Class folders."""

    def lay(self, images: Images, place: Path) -> None:
        for path, data in images.items():
            split, _, rest = path.partition("/")
            layouts.write(place / {"validation": "val"}.get(split, split) / rest, data)


class Archives(Source):
    """The archives of ILSVRC2012: a tar of class tars for train, a flat tar for validation."""

    own_names = True

    def __init__(self, mini: Miniature) -> None:
        self._mini = mini

    def images(self) -> Images:
        wnid_of = {key: image.wnid for key, image in self._mini.of("validation").items()}
        return {
            f"{split}/{key if '/' in key else f'{wnid_of[key]}/{key}'}": data
            for split, key, data in layouts.images(self._mini)
        }

    def lay(self, images: Images, place: Path) -> None:
        shutil.copytree(self._mini.root, place)
        tars: dict[str, dict[str, bytes]] = {}
        flat = {}
        for path, data in sorted(images.items()):
            split, name, file = path.split("/")
            if split == "train":
                tars.setdefault(f"{name}.tar", {})[file] = data
            else:
                flat[file] = data
        train = layouts.tar({name: layouts.tar(files) for name, files in tars.items()})
        (place / "ILSVRC2012_img_train.tar").write_bytes(train)
        (place / "ILSVRC2012_img_val.tar").write_bytes(layouts.tar(dict(sorted(flat.items()))))


class ClassTars(Archives):
    """A folder with a tar per class."""

    def images(self) -> Images:
        return {path: data for path, data in super().images().items() if path.startswith("train/")}

    def lay(self, images: Images, place: Path) -> None:
        tars: dict[str, dict[str, bytes]] = {}
        for path, data in sorted(images.items()):
            _, name, file = path.split("/")
            tars.setdefault(name, {})[file] = data
        for name, files in tars.items():
            layouts.write(place / "winter21_whole" / f"{name}.tar", layouts.tar(files))


class RecordIO(Source):
    """Records of MXNet, with their lists."""

    def lay(self, images: Images, place: Path) -> None:
        for split, name in (("train", "train"), ("validation", "val")):
            rows = [
                (CLASSES.index(path.split("/")[1]), path.partition("/")[2], data)
                for path, data in sorted(images.items())
                if path.startswith(split)
            ]
            layouts.write_recordio(place / f"{name}.rec", rows)
        (place / "synset.txt").write_text("".join(f"{name}\n" for name in CLASSES))


class Parquet(Archives):
    """Files of Hugging Face's ImageNet."""

    def lay(self, images: Images, place: Path) -> None:
        wnids, words = zip(*self._mini.classes, strict=True)
        for split in _SHARDS:
            rows = []
            for path, data in sorted(images.items()):
                of_split, wnid, file = path.split("/")
                if of_split == split:
                    called = f"{Path(file).stem}_{wnid}.JPEG"
                    image = {"bytes": data, "path": called}
                    rows.append({"image": image, "label": wnids.index(wnid)})
            file = place / "data" / f"{split}-00000-of-00001.parquet"
            layouts.write_parquet(file, rows, words, packed_by="none")


class Shards(Source):
    """TFRecords of a different program."""

    def lay(self, images: Images, place: Path) -> None:
        stored = []
        for path, data in sorted(images.items()):
            split, name, file = path.split("/")
            if split in _SHARDS:
                key = f"{name}/{file}"
                stored.append(foreign.Image(split, key, name, name, data, _WIDTH, _HEIGHT))
        write = foreign.flowers
        foreign.write(place / "set", stored, write, num_shards=_SHARDS, own_classes=True)
        _write_added(images, place)


Run = Callable[[list[str]], object]


class Dataset(Source):
    """A dataset of this program, at `set` in the place, made by undisturbed runs."""

    def __init__(self, run: Run, scratch: Path) -> None:
        """Notes how runs are made.

        Args:
          run: carries out a command undisturbed.
          scratch: an empty folder for it.
        """
        self._run, self._scratch = run, scratch
        self._made: dict[str, Path] = {}

    def images(self) -> Images:
        return {**super().images(), "add/cat/900.JPEG": photograph(900)}

    def lay(self, images: Images, place: Path) -> None:
        of_set = {path: data for path, data in images.items() if not path.startswith("add/")}
        name = digest(of_set)
        if name not in self._made:
            made = self._scratch / name[:16]
            self.make(of_set, made)
            self._made[name] = made
        shutil.copytree(self._made[name], place / "set")
        _write_added(images, place)

    @abstractmethod
    def make(self, images: Images, out: Path) -> None:
        """Makes a dataset of some images."""


def _write_added(images: Images, place: Path) -> None:
    for path, data in images.items():
        if path.startswith("add/"):
            layouts.write(place / "add" / "train" / path.partition("/")[2], data)


class Prepared(Dataset):
    """A dataset of `prepare`."""

    def make(self, images: Images, out: Path) -> None:
        source = self._scratch / "source"
        Folders().lay(images, source)
        self._run(["prepare", "--source", str(source), "--out", str(out), *PREPARE])
        shutil.rmtree(source)


class Amended(Dataset):
    """A dataset of `amend`, whose parent stays the same: a changed class may keep the size."""

    kinds = ("moved", "added", "removed", "back", "touched")

    def make(self, images: Images, out: Path) -> None:
        start = {p: d for p, d in self.images().items() if not p.startswith("add/")}
        parent = self._scratch / "parent"
        if not parent.exists():
            Prepared(self._run, self._scratch).make(start, parent)
        lists = self._scratch / "lists"
        shutil.rmtree(lists, ignore_errors=True)
        lists.mkdir()
        was, now = ({Path(path).name: path for path in each} for each in (start, images))
        excluded = [was[name].partition("/")[2] for name in was.keys() - now.keys()]
        moved = [(was[n], now[n]) for n in was.keys() & now.keys() if was[n] != now[n]]
        words = ["amend", str(parent), "--out", str(out), "--workers", "2"]
        if excluded:
            (lists / "exclude").write_text("".join(f"{key}\n" for key in sorted(excluded)))
            words += ["--exclude", str(lists / "exclude")]
        if moved:
            rows = [f"{old.partition('/')[2]},{new.split('/')[1]}\n" for old, new in sorted(moved)]
            (lists / "relabel.csv").write_text(f"key,class\n{''.join(rows)}")
            words += ["--relabel", str(lists / "relabel.csv")]
        if added := now.keys() - was.keys():
            for name in added:
                layouts.write(lists / "add" / now[name], images[now[name]])
            words += ["--add", str(lists / "add")]
        if len(words) > 6:
            self._run(words)
        else:
            shutil.copytree(parent, out)


class Adopted(Dataset):
    """A dataset of `adopt`: shards of a different program, all of them sound."""

    kinds = tuple(kind for kind in Source.kinds if kind != "damaged")

    def make(self, images: Images, out: Path) -> None:
        Shards().lay(images, out.parent / "shards")
        (out.parent / "shards" / "set").rename(out)
        shutil.rmtree(out.parent / "shards")
        self._run(["adopt", str(out), "--allow-subset", "--workers", "2"])


PREPARE = (
    "--train-shards",
    "2",
    "--validation-shards",
    "1",
    "--short-side",
    "16",
    "--allow-subset",
    "--workers",
    "2",
)


def settle(new: Path, place: Path, how: str, *, keep_times: bool) -> None:
    """Brings a changed source to the place of the old one; `new` is gone afterwards.

    Args:
      new: the changed source.
      place: the old one.
      how: "in place" writes into files that are there, "replaced" renames the files that differ,
        "swapped" renames the folder.
      keep_times: give files the times that they had before, as `cp -p` does.
    """
    was = {p.relative_to(place): p for p in place.rglob("*") if p.is_file()}
    now = {p.relative_to(new): p for p in new.rglob("*") if p.is_file()}
    times = {name: path.stat().st_mtime_ns for name, path in was.items()}
    if how == "swapped":
        aside = place.with_name("aside")
        place.rename(aside)
        new.rename(place)
        shutil.rmtree(aside)
    else:
        for name in was.keys() - now.keys():
            was[name].unlink()
        for name, path in now.items():
            there = place / name
            if name in was and there.read_bytes() == path.read_bytes():
                continue
            there.parent.mkdir(parents=True, exist_ok=True)
            if how == "in place" and name in was:
                there.write_bytes(path.read_bytes())
            else:
                path.rename(there)
        shutil.rmtree(new)
    if keep_times:
        oldest = min(times.values())
        for name in now:
            os.utime(place / name, ns=(time := times.get(name, oldest), time))
