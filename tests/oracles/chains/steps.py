"""The steps of a chain: each draws a command, runs it, and returns the state that it must make."""

from __future__ import annotations

import csv
import itertools
import json
import random
import re
import shlex
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from imagenet_prep import adopt, amend, export, resize, verify
from imagenet_prep.core.world import World
from imagenet_prep.pipelines import prepare
from imagenet_prep.read import ColumnWriter
from tests.kit import command, faults, foreign, layouts
from tests.kit.messages import exactly, says
from tests.oracles import documented, plain_reading
from tests.oracles.chains import pictures, source
from tests.oracles.chains.model import Image, Name, State, checked
from tests.oracles.chains.pictures import Picture
from tests.oracles.chains.source import TRAIN, VALIDATION, Numbers, Place, Source

DONE = 0
USAGE = 2
DAMAGED = 3
_EMPTY_SHARD = (says("exclude-leaves-no-image-no"), says("shards-expected-most-one-each"))
_NO_USABLE_IMAGE = "can be used"  # of a shard, so no dataset is made
HOLDOUT = "holdout"
_SPLITS = (TRAIN, VALIDATION, HOLDOUT, "test")
_TRAIN_AND_HOLDOUT = frozenset({TRAIN, HOLDOUT})
# More images than this make a second shard, unless a flag says otherwise.
_IMAGES_OF_A_SHARD = 1_252
# A killed command dies at a change of a name up to this number; `prepare` makes about 25.
_LAST_CHANGE = 25
COLUMN = "marks"


class RefusedError(Exception):
    """A command has refused a request as documented, so the chain ends here."""


@dataclass
class Chain:
    """One chain of commands.

    Attributes:
      files: the pictures of all sources, by number.
      history: the commands so far, for the report of a failure.
    """

    rng: random.Random
    folder: Path
    numbers: Numbers = field(default_factory=Numbers)
    files: dict[int, Picture] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    num_places: int = 0

    def place(self, name: str) -> Path:
        """Returns a new path in the folder of the chain."""
        self.num_places += 1
        return self.folder / f"{self.num_places:02d}-{name}"

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def picture(self, kind: str) -> Picture:
        picture = self.numbers.picture(self.rng, kind)
        self.files[picture.number] = picture
        return picture

    def run(self, verb: ModuleType, *words: Any, refusals: Sequence[re.Pattern[str]] = ()) -> str:
        """Runs a command, which must end with exit code 0; returns its output.

        It is sometimes killed before. `refusals` are the messages of exit code 2 that end a chain.
        """
        line = [str(word) for word in words]
        if self.chance(0.25):
            self.kill(verb, *words)
        self.history.append(shlex.join([_name(verb), *line]))
        code, text = documented.run(verb.run, line)
        is_refused = code == DAMAGED and _NO_USABLE_IMAGE in text
        if is_refused or (code == USAGE and any(refusal.search(text) for refusal in refusals)):
            raise RefusedError(text)
        assert code == DONE, f"exit code {code}: {text}"
        return text

    def kill(self, verb: ModuleType, *words: Any) -> None:
        """Runs a command that dies at a random change of a name."""
        last = str(self.rng.randint(0, _LAST_CHANGE))
        line = [str(word) for word in words]
        self.history.append(shlex.join(["dying", last, _name(verb), *line]))
        command.run(last, _name(verb), *line, program=faults.DYING)


def _name(verb: ModuleType) -> str:
    return verb.__name__.rpartition(".")[2]


# Lists of keys


def spelled(chain: Chain, state: State, names: Iterable[Name]) -> list[str]:
    """Returns the lines of a list that name these images."""
    lines = []
    for split, key in names:
        looks_like_a_split = key.partition(":")[0] in _SPLITS
        if state.is_ambiguous(key) or looks_like_a_split or chain.chance(0.4):
            lines.append(f"{split}:{key}")
        else:
            lines.append(key)
    return lines


def _write_list(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def _drawn(chain: Chain, state: State, number: int) -> list[Name]:
    """Draws images, so that each class of each split keeps at least two."""
    remaining = Counter((split, image.class_id) for (split, _), image in state.images.items())
    names = sorted(state.images)
    chain.rng.shuffle(names)
    drawn: list[Name] = []
    for name in names:
        group = name[0], state.images[name].class_id
        if len(drawn) < number and remaining[group] > 2:
            drawn.append(name)
            remaining[group] -= 1
    return drawn


# prepare


def prepared(chain: Chain) -> State:
    """Draws and prepares a source; its images may change while a run is interrupted."""
    rng = chain.rng
    root = chain.place("source")
    out = chain.place("set")
    made = source.draw(rng, chain.numbers)
    words: list[Any] = ["--source", root, "--out", out, "--allow-subset", "--json"]
    words += rng.choice((["--short-side", 24], ["--keep-original"], []))
    if made.splits == [TRAIN] and made.kind != "classes":
        words += ["--splits", TRAIN]
    families = _holdout(chain, made, words)
    is_large = chain.chance(0.1) and made.kind in ("splits", "classes")
    if is_large:
        _enlarge(chain, made)
    else:
        words += ["--train-shards", rng.randint(1, 3)]
    made.write(root)
    excluded: set[Name] = set()
    if is_large or chain.chance(0.35):
        chain.kill(prepare, *words)
        if not (out / "dataset.json").exists():
            _change(chain, made)
            made.write(root)
    else:
        excluded = _exclude_from_source(chain, made, families, words)
    chain.files |= {picture.number: picture for picture in made.files.values()}
    refusals = (*_EMPTY_SHARD, exactly("no image"), exactly("expected at most"))
    chain.run(prepare, *words, refusals=refusals)
    return checked(_prepared_state(made, out, families, excluded))


def _holdout(chain: Chain, made: Source, words: list[Any]) -> tuple[frozenset[str], ...]:
    """Draws flags of a holdout; returns the splits that share keys."""
    chance = chain.rng.random()
    if chance < 0.4:
        words += ["--holdout", chain.rng.choice(("3", "20%", "40%"))]
    elif chance < 0.6 and made.splits == [TRAIN]:
        if "--splits" in words:
            del words[words.index("--splits") :][:2]
            words[:] = [word for word in words if word not in ("--splits", TRAIN)]
        words += ["--holdout-per-class", 1]
        return (frozenset({TRAIN, VALIDATION}),)
    return (_TRAIN_AND_HOLDOUT,)


def _enlarge(chain: Chain, made: Source) -> None:
    """Adds images until train has more than one shard by default."""
    small = pictures.draw(chain.rng, 0, "jpeg")
    for number in range(_IMAGES_OF_A_SHARD):
        # The pictures only differ in a comment. This is enough: the model knows their number.
        comment = b"\xff\xfe\0\x06%04d" % number
        data = small.data[:2] + comment + small.data[2:]
        name = made.class_names[number % len(made.class_names)]
        suffix = f"{name}_{10_000 + number}.JPEG" if made.has_wnids else f"small{number}.jpg"
        made.files[Place(TRAIN, name, suffix)] = Picture(0, "jpeg", data)


def _change(chain: Chain, made: Source) -> None:
    """Removes, adds or replaces some images of a source."""
    rng = chain.rng
    small = [place for place, picture in made.files.items() if picture.number == 0]
    for place in small[:200]:
        del made.files[place]
    for _ in range(rng.randint(1, 4)):
        place = rng.choice(sorted(place for place in made.files if place not in small))
        alike = [other for other in made.files if other[:2] == place[:2]]
        sound = [other for other in alike if made.files[other].is_sound]
        if chain.chance(0.5) and (len(sound) > 2 or not made.files[place].is_sound):
            del made.files[place]
            made.boxes.pop((place.split, made.key(place)), None)
        elif chain.chance(0.5):
            source.add(made, rng, chain.numbers, place.split, place.class_name)
        elif made.files[place].kind == "jpeg":
            made.files[place] = chain.picture("jpeg")


def _exclude_from_source(
    chain: Chain, made: Source, families: tuple[frozenset[str], ...], words: list[Any]
) -> set[Name]:
    """Draws images for --exclude; returns their splits in the source and keys."""
    if chain.chance(0.7):
        return set()
    images = {
        (split, key): Image(picture.number, class_name)
        for split, key, class_name, picture in made.keyed()
        if picture.is_sound
    }
    state = State(chain.folder, made.class_ids, images, families=families)
    names = [name for name in _drawn(chain, state, 3) if made.files]
    if not names:
        return set()
    # A held-out image gets its split during the run, so its line has no split.
    is_divided = "--holdout" in words or "--holdout-per-class" in words
    if is_divided:
        names = [
            (split, key)
            for split, key in names
            if not state.is_ambiguous(key) and key.partition(":")[0] not in _SPLITS
        ]
        lines = [key for _, key in names]
    else:
        lines = spelled(chain, state, names)
    if lines:
        words += ["--exclude", _write_list(chain.place("exclude.txt"), lines)]
    return set(names)


def _prepared_state(
    made: Source, out: Path, families: tuple[frozenset[str], ...], excluded: set[Name]
) -> State:
    """Returns the state after `prepare`; only the choice of a holdout is taken from the dataset."""
    boxes = source.boxes_of(made)
    observed = _observed(out)
    labels = (out / "labels.txt").read_text("utf-8").splitlines()
    class_ids = tuple(line.partition(" ")[0] for line in labels)
    assert class_ids == made.class_ids
    state = State(out, class_ids, {}, families=families)
    images: dict[Name, Image] = {}
    requested: dict[Name, Image] = {}
    quarantined: Counter[Name] = Counter()
    for split, key, class_name, picture in made.keyed():
        parts = [part for part in state.family(split) if (part, key) in observed]
        name = (parts[0] if len(parts) == 1 else split), key
        of_image = tuple(boxes.get((split, key), ()))
        image = Image(picture.number, class_name, frozenset({picture.sha256}), of_image)
        if (split, key) in excluded:
            requested[name] = image
        elif picture.is_sound:
            images[name] = image
        else:
            quarantined[name] += 1
    return replace(state, images=images, excluded=requested, quarantined=quarantined)


def _observed(out: Path) -> set[Name]:
    """Returns the split and key of each row and of each line of quarantine.jsonl."""
    manifest = json.loads((out / "dataset.json").read_bytes())
    names: set[Name] = set()
    for split, described in manifest["splits"].items():
        for shard in described["shards"]:
            names |= {(split, key) for key in plain_reading.keys(out, shard["name"])}
    lines = (out / "quarantine.jsonl").read_text("utf-8").splitlines()
    return names | {
        (line["split"], line["key"]) for line in map(json.loads, lines) if "split" in line
    }


# TFRecords of other programs


def adopted_from_others(chain: Chain) -> State:
    """Writes TFRecords as a different program does, and adopts them."""
    rng = chain.rng
    made = Source("tfrecords", tuple(sorted(rng.sample(("cat", "dog", "emu"), 2))))
    for split in (TRAIN, VALIDATION):
        for name in made.class_names:
            for _ in range(rng.randint(3, 6)):
                picture = chain.picture("jpeg")
                # Names with small numbers are often equal.
                place = Place(split, name, f"{rng.randint(1, 4)}.jpg/{picture.number}")
                made.files[place] = picture
    writer = rng.choice((foreign.slim, foreign.tpu, foreign.flowers))
    stored = [_foreign_image(place, picture) for place, picture in made.files.items()]
    root = chain.place("tfrecords")
    out = chain.place("set")
    foreign.write(
        root,
        stored,
        writer,
        num_shards={TRAIN: rng.randint(1, 3), VALIDATION: 1},
        first=rng.randint(0, 1),
        offset=rng.randint(0, 1),
        own_classes=True,
    )
    words = [root, "--out", out, "--allow-subset", "--rewrite", "--json"]
    chain.run(adopt, *words)
    boxes = {image.data: tuple((b[0], b[2], b[1], b[3]) for b in image.boxes) for image in stored}
    images: dict[Name, Image] = {}
    number_of = {picture.sha256: picture.number for picture in made.files.values()}
    for split, shards in plain_reading.dataset(out).items():
        for record in itertools.chain.from_iterable(shards):
            name = record.key.rpartition("/")[2].partition(".")[0].partition("~")[0]
            place, picture = next(
                (place, picture)
                for place, picture in made.files.items()
                if picture.sha256 == record.sha256
            )
            assert (place.split, place.class_name) == (split, record.wnid)
            assert record.key.startswith(f"{place.class_name}/")
            assert name == place.name.partition(".")[0], record.key
            of_image = boxes[picture.data] if writer is foreign.slim else ()
            hashes = frozenset({picture.sha256})
            images[split, record.key] = Image(
                number_of[record.sha256], place.class_name, hashes, of_image
            )
    assert len(images) == len(made.files)
    families = (_TRAIN_AND_HOLDOUT,)
    state = State(out, made.class_ids, images, families=families, is_encoding=False)
    return checked(state)


def _foreign_image(place: Place, picture: Picture) -> foreign.Image:
    (width, height), _ = foreign.look(picture.data)
    key = f"{place.class_name}/{place.name.partition('/')[0]}"
    return foreign.Image(
        place.split, key, place.class_name, place.class_name, picture.data, width, height
    )


# amend


def amended(chain: Chain, state: State) -> State:
    """Excludes, relabels and adds images."""
    out = chain.place("amended")
    words: list[Any] = [state.root, "--out", out, "--json"]
    names = _drawn(chain, state, chain.rng.randint(2, 5))
    middle = chain.rng.randint(0, len(names))
    images = dict(state.images)
    excluded = dict(state.excluded)
    if gone := names[:middle]:
        lines = spelled(chain, state, gone)
        words += ["--exclude", _write_list(chain.place("exclude.txt"), lines)]
        excluded |= {name: images.pop(name) for name in gone}
    moved = _relabelled(chain, state, names[middle:])
    if moved:
        path = chain.place("relabel.csv")
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["key", "class"])
            lines = spelled(chain, state, moved)
            rows.writerows(zip(lines, moved.values(), strict=True))
        words += ["--relabel", path]
        for name, new in moved.items():
            images[name] = images[name]._replace(class_id=new)
    state = replace(state, root=out, images=images, excluded=excluded)
    is_changed = bool(gone or moved)
    if chain.chance(0.7) or not is_changed:
        addition = Addition(chain, state, chain.place("add"), readmits=chain.chance(0.3))
        addition.draw(set(gone))
        addition.write()
        words += ["--add", addition.root, *addition.flags]
        if not addition.num_new and not is_changed:
            raise RefusedError("nothing to add")
        state = addition.state
    refusals = (*_EMPTY_SHARD, exactly("leaves no image"), exactly("would lose"))
    chain.run(amend, *words, refusals=refusals)
    return checked(state)


def _relabelled(chain: Chain, state: State, names: Sequence[Name]) -> dict[Name, str]:
    """Returns new classes of images; some moves make two images of a class have one file name."""
    moved = {}
    for name in names:
        others = [each for each in state.class_ids if each != state.images[name].class_id]
        alike = [
            image.class_id
            for (split, key), image in state.images.items()
            if split == name[0] and key.rpartition("/")[2] == name[1].rpartition("/")[2]
        ]
        wanted = [each for each in others if each in alike] or others
        # The first classes of a complete class list are enough.
        moved[name] = chain.rng.choice(wanted[:5])
    return moved


class Addition:
    """A folder for `amend --add`, and the state after the run."""

    def __init__(self, chain: Chain, state: State, root: Path, *, readmits: bool) -> None:
        self.chain = chain
        self.state = state
        self.root = root
        self.readmits = readmits
        self.num_new = 0
        self._files: dict[Path, bytes] = {}

    @property
    def flags(self) -> list[str]:
        return ["--readmit"] if self.readmits else []

    def draw(self, just_excluded: set[Name]) -> None:
        """Draws new, damaged, known, held-out and excluded images, and other files."""
        chain = self.chain
        for _ in range(chain.rng.randint(1, 4)):
            self._add_new(chain.rng.choice(self._targets))
        known = sorted(self.state.images)
        for name in chain.rng.sample(known, min(2, len(known))):
            self._add_existing(name)
        excluded = sorted(name for name in self.state.excluded if name not in just_excluded)
        for name in chain.rng.sample(excluded, min(2, len(excluded))):
            if chain.chance(0.7):
                self._add_excluded(name)

    @property
    def _targets(self) -> list[str]:
        """The splits to which a folder can add images."""
        splits = [TRAIN]
        is_divided = VALIDATION in self.state.family(TRAIN)
        if VALIDATION in self.state.splits and not is_divided:
            splits.append(VALIDATION)
        return [split for split in splits if split in self.state.splits]

    def _add_new(self, split: str) -> None:
        chain = self.chain
        class_name = chain.rng.choice(self.state.class_ids[:5])
        sound = pictures.SOUND if self.state.is_encoding else ("jpeg",)
        picture = chain.picture(chain.rng.choice((*sound, "truncated")))
        key = self._put(split, class_name, picture)
        if picture.is_sound:
            self._store((split, key), Image(picture.number, class_name))
        else:
            quarantined = self.state.quarantined + Counter([(split, key)])
            self.state = replace(self.state, quarantined=quarantined)
            self.num_new += 1

    def _add_existing(self, name: Name) -> None:
        """Adds the file of an image that the dataset has, or has held out."""
        split, key = name
        picture = self._file_of(self.state.images[name])
        class_name, slash, file_name = key.partition("/")
        if picture is None or not slash or class_name not in self.state.class_ids:
            return
        target = split if split in self._targets else TRAIN
        if target not in self.state.splits or split not in self.state.family(target):
            return
        if target == split or self.chain.chance(0.5):
            self._files[self._path(target, class_name, file_name)] = picture.data
        else:
            self._put(target, class_name, picture)

    def _add_excluded(self, name: Name) -> None:
        """Adds the file of an excluded image, with its name or a new one."""
        split, key = name
        image = self.state.excluded[name]
        picture = self._file_of(image)
        class_name, slash, file_name = key.partition("/")
        if picture is None or not slash or class_name not in self.state.class_ids:
            return
        if not self.state.is_encoding and picture.kind not in ("jpeg", "turned"):
            return  # it would be quarantined
        target = split if split in self._targets else TRAIN
        if self.chain.chance(0.5) and split in self.state.family(target):
            self._files[self._path(target, class_name, file_name)] = picture.data
            new_key = key
        else:
            class_name = self.chain.rng.choice(self.state.class_ids[:5])
            new_key = self._put(target, class_name, picture)
        if self.readmits:
            left = {each: of for each, of in self.state.excluded.items() if each != name}
            self.state = replace(self.state, excluded=left)
            self._store((target, new_key), Image(picture.number, class_name))

    def _file_of(self, image: Image) -> Picture | None:
        """Returns the source file of an image, if the dataset still knows its hash."""
        picture = self.chain.files.get(image.number)
        if picture is None or picture.sha256 not in image.hashes:
            return None
        return picture

    def _store(self, name: Name, image: Image) -> None:
        self.state = replace(self.state, images={**self.state.images, name: image})
        self.num_new += 1

    def _put(self, split: str, class_name: str, picture: Picture) -> str:
        """Writes a picture under a new name; returns its key."""
        number = len(self._files)
        name = f"new-{self.chain.num_places}-{number}.jpg"
        if class_name.startswith("n0000"):
            name = f"{class_name}_{self.chain.num_places}{number:04d}.JPEG"
        self._files[self._path(split, class_name, name)] = picture.data
        return f"{class_name}/{name}"

    def _path(self, split: str, class_name: str, name: str) -> Path:
        return self.root / source.FOLDERS[split] / class_name / name

    def write(self) -> None:
        """Writes the folder, with files that are no images."""
        for path, data in self._files.items():
            layouts.write(path, data)
        first = next(iter(self._files))
        layouts.write(first.parent / "notes.txt", b"no image")


# resize and adopt


def resized(chain: Chain, state: State) -> State:
    """Resizes a dataset, at once or split by split, and excludes images."""
    out = chain.place("resized")
    keeps = chain.chance(0.4)
    how = ["--keep-original"] if keeps else ["--short-side", chain.rng.choice((20, 28))]
    words: list[Any] = ["-i", state.root, "-o", out, *how]
    images = dict(state.images)
    excluded = dict(state.excluded)
    gone = _drawn(chain, state, chain.rng.randint(0, 2))
    if gone:
        lines = spelled(chain, state, gone)
        words += ["--exclude", _write_list(chain.place("exclude.txt"), lines)]
        excluded |= {name: images.pop(name) for name in gone}
    runs = [",".join(state.splits)]
    if chain.chance(0.4):
        runs = chain.rng.sample(state.splits, len(state.splits))
    for splits in runs:
        chain.run(
            resize,
            *words,
            "--splits",
            splits,
            refusals=(exactly("no image"), exactly("would be empty")),
        )
    known = tuple(family for family in state.families if HOLDOUT in family)
    return checked(
        replace(
            state,
            root=out,
            images=images,
            excluded=excluded,
            families=known or (_TRAIN_AND_HOLDOUT,),
            is_encoding=not keeps,
        )
    )


def adopted(chain: Chain, state: State) -> State:
    """Adopts a dataset of this program, which keeps all names."""
    out = chain.place("adopted")
    words = [state.root, "--out", out, "--allow-subset", *chain.rng.choice(([], ["--rewrite"]))]
    chain.run(adopt, *words)
    return checked(replace(state, root=out, is_encoding=False))


# export


def exported(chain: Chain, state: State) -> State:
    """Exports a dataset and reads the export again, which brings back images, labels and names."""
    to = chain.rng.choice(("folder", "parquet", "recordio", "tfds"))
    place = chain.place(to)
    out = chain.place("again")
    refusals = (
        exactly("ImageFolder"),
        exactly("alphabetical"),
        exactly("has no image"),
        exactly("lacks"),
        exactly("differ only"),
        exactly("starts with"),
    )
    chain.run(export, state.root, place, "--to", to, refusals=refusals)
    if to == "tfds":
        place = next(place.rglob("export.json")).parent
        chain.run(adopt, place, "--rewrite", "--out", out, "--allow-subset")
    else:
        words = ["--source", place, "--out", out, "--keep-original", "--allow-subset"]
        chain.run(prepare, *words, "--splits", ",".join(state.splits))
    images = {name: image._replace(boxes=()) for name, image in state.images.items()}
    families = (_TRAIN_AND_HOLDOUT,)
    is_encoding = to != "tfds"
    again = State(out, state.class_ids, images, families=families, is_encoding=is_encoding)
    return checked(again)


# Columns


def with_column(chain: Chain, state: State) -> State:
    """Writes a column by up to three ranks; a rank may stop early before."""
    for split in state.splits:
        if chain.chance(0.4):
            size = chain.rng.randint(1, 3)
            _write_rows(chain, state, split, World(chain.rng.randrange(size), size), most=1)
        size = chain.rng.randint(1, 3)
        for rank in chain.rng.sample(range(size), size):
            _write_rows(chain, state, split, World(rank, size))
    check_column(state, is_complete=True)
    return state


def _write_rows(
    chain: Chain, state: State, split: str, world: World, most: int | None = None
) -> None:
    """Writes the rows of a rank; stops after `most` batches."""
    chain.history.append(f"column of {split} by rank {world.rank} of {world.size}, {most=}")
    reader = {"backend": "native", "fields": ("key",)}
    with ColumnWriter(
        state.root, split, COLUMN, (1,), "int64", {"made": "from the key"},
        batch_size=chain.rng.randint(1, 9), reader=reader, world=world,
    ) as writer:  # fmt: skip
        for number, batch in enumerate(writer):
            if number == most:
                break
            writer.write(np.array([[_mark(key)] for key in batch["key"]], np.int64))


def _mark(key: str) -> int:
    return zlib.crc32(key.encode())


def check_column(state: State, *, is_complete: bool = False) -> None:
    """Compares each row of the column with the key of its record."""
    folder = state.root / "columns" / COLUMN
    manifest = json.loads((state.root / "dataset.json").read_bytes())
    shards: list[str] = []
    for described in manifest["splits"].values():
        shards += [shard["name"] for shard in described["shards"]]
    if not (folder / "column.json").exists():
        assert not is_complete, f"{folder} has no column.json"
        return
    record = json.loads((folder / "column.json").read_bytes())
    files = itertools.chain.from_iterable(record["splits"].values())
    listed = [file["shard"] for file in files]
    assert not is_complete or sorted(listed) == sorted(shards)
    for shard in listed:
        rows = np.load(folder / f"{shard}.npy").ravel().tolist()
        assert rows == [_mark(key) for key in plain_reading.keys(state.root, shard)], shard


Step = Callable[[Chain, State], State]
STEPS: Mapping[Step, int] = {amended: 5, resized: 2, adopted: 1, exported: 2, with_column: 1}


def run_chain(chain: Chain) -> int:
    """Runs a chain; returns the number of states that were compared."""
    first = adopted_from_others if chain.chance(0.15) else prepared
    num_states = 0
    try:
        state = first(chain)
        num_states += 1
        for _ in range(chain.rng.randint(1, 4)):
            (step,) = chain.rng.choices([*STEPS], [*STEPS.values()])
            state = step(chain, state)
            check_column(state)
            _verify(chain, state)
            num_states += 1
    except RefusedError as end:
        chain.history.append(f"refused: {end}")
    shutil.rmtree(chain.folder)
    return num_states


def _verify(chain: Chain, state: State) -> None:
    """Runs `verify`, whose counts must be those of the state."""
    result = json.loads(chain.run(verify, state.root, "--json"))
    assert not result["problems"], result["problems"]
    assert result["excluded"] == len(state.excluded)
