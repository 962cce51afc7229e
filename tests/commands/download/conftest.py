"""Archives of a few bytes, the files of a download, and an official list that fits them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep import download
from imagenet_prep.download import ARCHIVES

MIB = 1 << 20
TRAIN, VALIDATION, DEVKIT = (ARCHIVES[what][0].name for what in ("train", "validation", "devkit"))


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


# Several parts of 1 MiB with a rest; smaller than a part; a few bytes.
FILES = {
    TRAIN: noise(1, 8 * MIB + 12_345),
    VALIDATION: noise(2, 2 * MIB),
    DEVKIT: noise(3, 1000),
}


def arguments(into: Path, base: object, *more: str) -> list[str]:
    return ["--into", str(into), "--base-url", str(base), "--part-size", "1", *more]


def archives(into: Path) -> dict[str, bytes]:
    """Returns the files that a user sees."""
    return {path.name: path.read_bytes() for path in into.iterdir() if path.is_file()}


def finished(into: Path, name: str = TRAIN) -> dict[int, int]:
    """Returns size by start of the ranges with a receipt."""
    paths = into.glob(f".work/fetch-{name}-*/receipts/*.json")
    receipts = [json.loads(path.read_bytes()) for path in paths]
    return {receipt["start"]: receipt["num_bytes"] for receipt in receipts}


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the given contents, by default `FILES`, the official archives."""

    def declare(files: dict[str, bytes] | None = None) -> None:
        contents = FILES if files is None else files
        for what, (archive, *more) in list(ARCHIVES.items()):
            if (data := contents.get(archive.name)) is not None:
                size = len(data) if archive.size else None
                known = archive._replace(md5=hashlib.md5(data).hexdigest(), size=size)
                monkeypatch.setitem(download.ARCHIVES, what, (known, *more))

    return declare
