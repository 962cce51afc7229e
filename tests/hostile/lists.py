"""Plants lists of images that no source has, each with the receipt of a finished task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from imagenet_prep.dataset import schema

Row = list[Any]

_CHANGES: dict[str, Callable[[Row], Row]] = {
    "an archive that is not there": lambda row: [row[0], "other.tar", *row[2:]],
    "an offset of 100 bits": lambda row: [*row[:2], 10**30, *row[3:]],
    "an image behind the end": lambda row: [*row[:2], 1 << 40, *row[3:]],
    "an image of terabytes": lambda row: [*row[:3], 1 << 40, row[4]],
    "a class of 100 bits": lambda row: [*row[:4], 10**30],
    "a class that is not there": lambda row: [*row[:4], 999],
    "a key that leads out": lambda row: ["../../beside/key.pem", *row[1:]],
    "boxes of text": lambda row: [*row, [["0"], ["1"], ["0"], ["1"]]],
}


def plants(out: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields (description, function that writes it) for the first list below `out`."""
    path = min((out / schema.WORK).glob("index-*/members/*.jsonl"))
    for kind, change in _CHANGES.items():
        yield kind, _planting(out, path, change)


def _planting(out: Path, path: Path, change: Callable[[Row], Row]) -> Callable[[], None]:
    def plant() -> None:
        first, *others = map(json.loads, path.read_bytes().splitlines())
        lines = [json.dumps(row) for row in (change(first), *others)]
        path.write_text("".join(f"{line}\n" for line in lines))
        receipt = path.parents[1] / "receipts" / f"{path.stem}.json"
        content = json.loads(receipt.read_bytes())
        for output in content["outputs"]:
            output["num_bytes"] = (out / output["name"]).stat().st_size
        receipt.write_text(json.dumps(content))

    return plant
