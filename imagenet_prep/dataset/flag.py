"""The dataset argument of every command: positional, or --data-dir."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from imagenet_prep.core.flags import Place, flag
from imagenet_prep.dataset import naming


def data_set(
    default: Any = dataclasses.MISSING,
    *,
    help: str = "folder, s3:// or http(s):// address of the dataset",
    place: Place = Place.ANYWHERE,
    names: Sequence[str] = (),
) -> Any:
    """Returns a dataclass field for an existing dataset; `names` are aliases of its flag."""
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
    """Returns SET if a user has typed SET/dataset.json; other text is returned unchanged."""
    base, slash, name = typed.rpartition("/")
    return (base or slash or ".") if name == naming.MANIFEST else typed
