"""Flags of several commands: the dataset (positional, or --data-dir), and --allow-unknown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from imagenet_prep.core.flags import Place, flag, switch
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


def unknown_keys(**how: Any) -> Any:
    """Returns a dataclass field for --allow-unknown, which concerns lists of keys."""
    return switch(
        help="accept listed keys that no image has, and print their number; for a list that is "
        "applied repeatedly",
        **how,
    )
