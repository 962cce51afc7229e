"""Plants links to the user's files in place of the program's own files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from imagenet_prep.dataset import schema

# Files below `.work` of any verb; the files of a stage are found in its folder.
FILES = (
    "lock",
    "run.json",
    "adopt.json",
    "origin.json",
    "verified.jsonl",
    "replicas.jsonl",
    "proven.jsonl",
    "ILSVRC2012_img_val.tar.partial",
    "incoming/train-00000-of-00002",
    "incoming/index/train-00000-of-00002",
)
FOLDERS = ("temporary", "incoming", "incoming/index", "plan", "unpacked", "archives", "locks")

SECRET_FILE = "home/.ssh/authorized_keys"
SECRET_FOLDER = "home/.ssh"


def plant(place: Path, target: Path) -> None:
    """Replaces a path by a link."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def plants(out: Path, secrets: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields (description, function that plants it) for a folder that a verb has left or will fill.

    Args:
        out: the folder; the current files of its `.work` are replaced too, one after the other.
        secrets: the arena's root.
    """
    work = out / schema.WORK
    there = {str(path.relative_to(work)): path.is_dir() for path in sorted(work.rglob("*"))}
    known = dict.fromkeys(FILES, False) | dict.fromkeys(FOLDERS, True)
    for name, is_folder in {**known, **there}.items():
        target = secrets / (SECRET_FOLDER if is_folder else SECRET_FILE)
        yield f"{name} -> {target.name}", _planting(work / name, target)
        missing = secrets / "home" / "made"
        yield f"{name} -> nothing", _planting(work / name, missing)
    yield ".work -> a folder", _planting(work, secrets / "home")
    yield ".work -> a file", _planting(work, secrets / SECRET_FILE)
    yield "index -> a folder", _planting(out / schema.INDEX, secrets / "beside")


def _planting(place: Path, target: Path) -> Callable[[], None]:
    return lambda: plant(place, target)


def journals(out: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields (description, function that writes it) for each JSON file below `.work`."""
    kept = [path for path in sorted((out / schema.WORK).rglob("*.json*")) if path.is_file()]
    # Receipts of one folder are alike.
    first = {
        (path.parent, path.name if "receipts" not in path.parts else ""): path for path in kept
    }
    for path in first.values():
        data = path.read_bytes()
        name = path.relative_to(out / schema.WORK)
        # The content of receipts is trusted, like the disk that stores them; their form is not.
        for kind, bad in _spoilt(data, by_key="receipts" not in path.parts):
            yield f"{name}: {kind}", _writing(path, bad)


def _writing(path: Path, data: bytes) -> Callable[[], None]:
    return lambda: path.write_bytes(data) and None


def _spoilt(data: bytes, *, by_key: bool) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "not text", b"\xff\xfe\x00"
    yield "null", b"null"
    yield "a list", b"[]"
    yield "an object", b"{}"
    yield "deep", b"[" * 100_000 + b"]" * 100_000
    yield "digits", b'{"a": ' + b"1" * 10_000 + b"}"
    try:
        content = json.loads(data)
    except ValueError:
        content = json.loads(data.splitlines()[-1])
    if not by_key or not isinstance(content, dict):
        return
    kinds = list(_VALUES)
    for number, key in enumerate(content):
        for kind in (kinds[number % len(kinds)], kinds[(number + 4) % len(kinds)]):
            changed = {**content, key: _VALUES[kind]}
            yield f"{key} is {kind}", json.dumps(changed).encode()
        less = {name: value for name, value in content.items() if name != key}
        yield f"without {key}", json.dumps(less).encode()


_VALUES = {
    "nothing": None,
    "a fraction": float("nan"),
    "large": 10**30,
    "a path": "../../home/.ssh/authorized_keys",
    "obeyed": "\x1b[2J\x1b]0;owned\x07",
    "a list of a path": ["../../home/.ssh/authorized_keys"],
    "outputs": [{"name": "../beside/key.pem", "num_bytes": 32}],
    "moves": [["../home/.ssh/id_ed25519", "train-00000-of-00002"], ["labels.txt", "../home/.x"]],
    "an object": {"\x1b[2J": None},
}
