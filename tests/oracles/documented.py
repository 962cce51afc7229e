"""A model of `prepare` for folders of photographs, in plain Python.

It follows docs/prepare.md and docs/data-format.md. Only `run` calls the product.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from imagenet_prep.core.errors import ImagenetPrepError
from tests.kit.photographs import exif, tagged
from tests.oracles.plain_reading import Stored

DONE = 0
USAGE = 2
DAMAGED = 3
# The EXIF orientation of all photographs that have one: a quarter turn.
_TURNED = 6
# The mean difference of two equal pictures after JPEG and different ways of resizing.
_NEAR = 15
Flags = Mapping[str, Any]


class Photograph(NamedTuple):
    """A file in a class folder.

    Attributes:
      kind: rgb, grey, png, turned (an EXIF orientation that is not 1) or bad.
      name: below the folder of its class.
      key: of the image.
      class_index: of its class.
      data: the file.
    """

    kind: str
    name: str
    key: str
    class_index: int
    data: bytes


@dataclass(frozen=True)
class Album:
    """A folder of photographs.

    Attributes:
        root: its path.
        classes: names of the class folders, sorted.
        has_splits: whether it has train/ and val/, or only the class folders of train.
        photographs: by split.
        ignored: files of each split that are no images.
    """

    root: Path
    classes: tuple[str, ...]
    has_splits: bool
    photographs: Mapping[str, Sequence[Photograph]]
    ignored: Mapping[str, int]

    @property
    def ids(self) -> list[str]:
        """The classes as labels.txt calls them."""
        return [name.replace(" ", "_") for name in self.classes]


_FOLDERS = {"train": "train", "validation": "val"}


def picture(rng: random.Random, kind: str) -> bytes:
    """Returns a file of a kind, with a unique picture."""
    width = rng.randint(24, 72)
    height = rng.randint(24, 72)
    small = np.array([rng.randrange(256) for _ in range(48)], np.uint8).reshape(4, 4, 3)
    image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image.convert("L" if kind == "grey" else "RGB").save(
        buffer, "PNG" if kind == "png" else "JPEG", **({} if kind == "png" else {"quality": 92})
    )
    data = buffer.getvalue()
    if kind == "bad":
        return rng.choice((data[: len(data) // 2], b"", b"GIF89a, but no more"))
    return tagged(data, _TURNED) if kind == "turned" else data


def write_album(root: Path, seed: int, *, has_splits: bool, shares_names: bool = True) -> Album:
    """Writes a folder of photographs of all kinds.

    Args:
        root: the folder, made here.
        seed: decides all of it.
        has_splits: write train/ and val/, or only class folders.
        shares_names: some images of different classes or splits have the same file name.
    """
    rng = random.Random(seed)
    # The last class has no image in validation.
    classes = ("big bird", "cat", "dog", "emu")
    photographs: dict[str, list[Photograph]] = {}
    ignored = {}
    for split in ("train", "validation") if has_splits else ("train",):
        photographs[split] = []
        top = root / _FOLDERS[split] if has_splits else root
        counts = (6, 7, 9, 4) if split == "train" else (3, 4, 3, 0)
        for index, (name, count) in enumerate(zip(classes, counts, strict=True)):
            for number in range(count):
                kind = _kind(split, index, number)
                data = picture(rng, kind)
                # Names with a blank, a non-Latin script, two dots, or a folder below the class.
                stem = ("a b", "é猫", "x.y", f"deep/er/{number}", str(number))[min(number, 4)]
                stem = stem if number < 4 else f"n{number}"
                if not shares_names or (split == "validation" and number):
                    stem += f"-{split[0]}{index}"
                file = f"{stem}.{'png' if kind == 'png' else 'jpg'}"
                path = top / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                key = f"{name.replace(' ', '_')}/{file}"
                photographs[split].append(Photograph(kind, file, key, index, data))
        for path in (top / "cat" / "notes.txt", top / "cat" / ".hidden", top / "list.csv"):
            path.write_bytes(b"no image")
        ignored[split] = 3
    return Album(root, classes, has_splits, photographs, ignored)


def _kind(split: str, index: int, number: int) -> str:
    kinds = {2: "turned", 3: "png" if index % 2 else "grey"}
    if (split, index, number) in {("train", 1, 5), ("train", 2, 4), ("validation", 2, 1)}:
        return "bad"
    return kinds.get(number, "rgb")


def keyed(seed: int, *parts: str) -> int:
    """Returns the hash of docs/data-format.md, "Order"."""
    key = seed.to_bytes(8, "big", signed=True)
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8, key=key)
    return int.from_bytes(digest.digest(), "big")


def in_order(photographs: Iterable[Photograph], seed: int, *words: str) -> list[Photograph]:
    """Returns photographs sorted by the hash of the words and their keys."""
    return sorted(photographs, key=lambda each: (keyed(seed, *words, each.key), each.key))


class Made(NamedTuple):
    """The expected result of a run.

    Attributes:
        code: the exit code; if it is not 0, the other fields are not used.
        shards: by split, the photographs of each shard in the order of the records.
        excluded: photographs that --exclude skips.
        bad: those that cannot be used.
    """

    code: int
    shards: Mapping[str, Sequence[Sequence[Photograph]]] = {}
    excluded: Sequence[Photograph] = ()
    bad: Sequence[Photograph] = ()


def expected(album: Album, flags: Flags) -> Made:
    """Returns the dataset that `prepare` must make of an album, by the documents."""
    if _contradict(album, flags):
        return Made(USAGE)
    seed = flags.get("seed", 0)
    per_class = flags.get("holdout-per-class", 0)
    splits = flags.get("splits", ("train", "validation") if album.has_splits else ("train",))
    chosen = {}
    for split in ("train",) if per_class else splits:
        chosen[split] = _chosen(album, album.photographs[split], flags)
        if not any(chosen[split]):
            return Made(USAGE)
    parts = dict(chosen)
    if "train" in chosen:
        whole = chosen["train"]
        if per_class:
            name = "validation"
            numbers = [min(per_class, len(of_class) // 2) for of_class in whole]
        else:
            name = "holdout"
            asked = flags.get("holdout", "0")
            numbers = _held_out(asked, [len(of_class) for of_class in whole])
            if asked not in ("0", "0%") and not any(numbers):
                return Made(USAGE)
        taken: set[str] = set()
        for number, of_class in zip(numbers, whole, strict=True):
            taken |= {each.key for each in in_order(of_class, seed, "holdout")[:number]}
        if taken:
            parts["train"] = [[each for each in c if each.key not in taken] for c in whole]
            parts[name] = [[each for each in c if each.key in taken] for c in whole]
        elif per_class:
            return Made(USAGE)
    listed = {*flags.get("exclude", ())}
    classes = itertools.chain.from_iterable(chosen.values())
    counts = Counter(each.key for each in itertools.chain.from_iterable(classes))
    if any(counts[key] != 1 for key in listed):
        return Made(USAGE)
    return _dealt(parts, flags, seed, listed)


def _contradict(album: Album, flags: Flags) -> bool:
    splits = flags.get("splits", ("train", "validation"))
    holds_out = flags.get("holdout", "0") not in ("0", "0%")
    has_validation = album.has_splits or bool(flags.get("holdout-per-class"))
    return (
        (holds_out and "train" not in splits)
        or bool(flags.get("holdout-per-class") and (holds_out or len(splits) < 2))
        or any(f"{split}-shards" in flags and split not in splits for split in _FOLDERS)
        or (not album.has_splits and "validation" in flags.get("splits", ()))
        or ("validation-shards" in flags and not has_validation)
        or flags.get("holdout") == "100%"
        or any(name not in album.ids for name in _named(flags))
    )


def _named(flags: Flags) -> Sequence[str]:
    asked: Sequence[str] = flags.get("subset-classes", ())
    return () if len(asked) == 1 and asked[0].isdecimal() else asked


def _chosen(album: Album, photographs: Sequence[Photograph], flags: Flags) -> list[Any]:
    """Returns the chosen photographs of each class, in the order in which they are dealt."""
    asked = flags.get("subset-classes", ())
    wanted = {album.ids.index(name) for name in _named(flags)}
    if asked and not wanted:
        wanted = {*range(int(asked[0]))}
    most = flags.get("subset-per-class")
    return [
        in_order((p for p in photographs if p.class_index == index), flags.get("seed", 0))[:most]
        if index in wanted or not asked
        else []
        for index in range(len(album.classes))
    ]


def _held_out(holdout: str, counts: Sequence[int]) -> list[int]:
    """Returns the number of held-out images of each class; all 0 if this is impossible."""
    if holdout.endswith("%"):
        share = float(holdout[:-1]) / 100
        return [min(max(1, round(n * share)), n - 1) if share and n else 0 for n in counts]
    taken = [0] * len(counts)
    for _ in range(int(holdout)):
        open_ = [i for i, n in enumerate(counts) if taken[i] < n - 1]
        if not open_:
            return [0] * len(counts)
        # The share of a class is the geometric mean of its current and next count.
        first = max(
            open_,
            key=lambda i: (
                counts[i] ** 2 / (taken[i] * (taken[i] + 1)) if taken[i] else float("inf"),
                counts[i],
                -i,
            ),
        )
        taken[first] += 1
    return taken


def _dealt(parts: Mapping[str, Any], flags: Flags, seed: int, listed: set[str]) -> Made:
    shards: dict[str, list[list[Photograph]]] = {}
    excluded = []
    bad = []
    code = DONE
    for split, classes in parts.items():
        sequence = [*itertools.chain.from_iterable(classes)]
        # So few images make one shard, unless a flag requests more.
        number = flags.get(f"{split}-shards", 1)
        if number > len(sequence):
            return Made(USAGE)
        shards[split] = []
        for first in range(number):
            dealt = sequence[first::number]
            excluded += [each for each in dealt if each.key in listed]
            kept = [each for each in dealt if each.key not in listed]
            bad += [each for each in kept if each.kind == "bad"]
            sound = [each for each in kept if each.kind != "bad"]
            if not kept:
                return Made(USAGE)
            if not sound:
                code = DAMAGED
            shards[split].append(in_order(sound, seed, "order"))
    most = 0 if flags.get("on-bad-image") == "fail" else flags.get("max-bad", len(bad))
    if len(bad) > most:
        code = DAMAGED
    return Made(code, shards, excluded, bad)


def action(photograph: Photograph, flags: Flags) -> tuple[str, str, bytes]:
    """Returns the action for an image, its reason, and its bytes if these are known.

    The reason of a grey image is not in the documents: it is "grey" here.
    """
    rule = _rule(flags)
    before = _size(photograph.data)
    shrinks = _resized(before, flags) != before
    reasons = [photograph.kind] if photograph.kind in ("png", "grey") else []
    if photograph.kind == "turned" and rule != "keep":
        reasons.append("orientation")
    if not reasons:
        return ("shrunk", "", b"") if shrinks else ("kept", "", photograph.data)
    in_place = photograph.kind == "turned" and rule == "neutral" and not shrinks
    upright = photograph.data.replace(exif(_TURNED), exif(1), 1)
    return "repaired", "+".join(reasons), upright if in_place else b""


def hold_image(photograph: Photograph, stored: Stored, flags: Flags) -> None:
    """Raises AssertionError unless a record matches the documents for this photograph."""
    did, reason, data = action(photograph, flags)
    row = stored.row
    assert row["action"] == did, (row, did)
    assert row["reason"] == reason or (photograph.kind == "grey" and row["reason"]), (row, reason)
    height, width = _size(photograph.data)
    source = {
        "source_bytes": len(photograph.data),
        "source_width": width,
        "source_height": height,
        "source_sha256": hashlib.sha256(photograph.data).hexdigest(),
    }
    assert {name: row[name] for name in source} == {k: str(v) for k, v in source.items()}, row
    assert not data or stored.encoded == data, row
    with Image.open(io.BytesIO(photograph.data)) as image:
        turns = photograph.kind == "turned" and _rule(flags) == "apply"
        pixels = (ImageOps.exif_transpose(image) if turns else image).convert("RGB")
    height, width = _resized((pixels.height, pixels.width), flags)
    assert (stored.width, stored.height) == (width, height), row
    with Image.open(io.BytesIO(stored.encoded)) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (width, height))
        shown = np.asarray(image, np.int16)
    wanted = np.asarray(pixels.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    # Pictures of an album differ by more than twice as much.
    assert np.abs(shown - wanted).mean() < _NEAR, row


def _rule(flags: Flags) -> str:
    return flags.get("orientation") or ("keep" if flags.get("keep-original") else "apply")


def _resized(size: tuple[int, int], flags: Flags) -> tuple[int, int]:
    """Returns the height and width of an image after it is resized."""
    side = flags.get("short-side", 480)
    short = min(size)
    if flags.get("stretch"):
        return side, side
    if flags.get("keep-original") or short <= side:
        return size
    height, width = (round(each * side / short) for each in size)
    return height, width


def _size(data: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(data)) as image:
        return image.height, image.width


def run(verb: Callable[[Sequence[str]], int], words: Sequence[str]) -> tuple[int, str]:
    """Runs a command in this process; returns its exit code and output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code = verb(words)
        except ImagenetPrepError as error:
            return error.exit_code, str(error)
    return code, printed.getvalue()
