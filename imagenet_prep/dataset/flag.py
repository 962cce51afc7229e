"""The flag of the data set: one name for it in every verb, by place or as --data-dir."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from imagenet_prep.core.flags import Place, flag
from imagenet_prep.dataset import naming


def data_set(
    default: Any = dataclasses.MISSING,
    *,
    help: str = "the dataset in a folder, s3:// or http(s)://",
    place: Place = Place.ANYWHERE,
    names: Sequence[str] = (),
) -> Any:
    """Returns a dataclass field for a dataset that exists, also called by other `names`."""
    return flag(
        default,
        help=help,
        place=place,
        positional=True,
        aliases=("--data-dir", *names),
        metavar="SET",
        read=without_manifest,
    )


def without_manifest(typed: str) -> str:
    """Returns SET where SET/dataset.json was typed, since the manifest stands for the set."""
    base, slash, name = typed.rpartition("/")
    if name != naming.MANIFEST:
        return typed
    return base or slash or "."
