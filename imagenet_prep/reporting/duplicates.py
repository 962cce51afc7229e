"""Renders the page of `imagenet-prep duplicates`, with pictures of each group of duplicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from imagenet_prep.core.canonical import Json
from imagenet_prep.matching.groups import Group
from imagenet_prep.reporting import pictures
from imagenet_prep.reporting.render import render

# These limits keep the page below 20 MB.
_MOST_GROUPS = 300
_MOST_PICTURES = 6
_SIDE = 224
_QUALITY = 70


def page(
    groups: Sequence[Group],
    read: Callable[[int], bytes],
    counts: Json,
    numbers: Sequence[tuple[str, int]],
    *,
    made_at: datetime,
) -> str:
    """Returns the page as HTML; `counts` is the object that `duplicates --json` prints.

    `numbers` are the numbers that the command prints, with their names.
    """
    ordered = sorted(groups, key=lambda group: len({image.wnid for image in group}) < 2)
    with_pictures = [
        [(image, _picture(read(image.number))) for image in group[:_MOST_PICTURES]]
        for group in ordered[:_MOST_GROUPS]
    ]
    return render(
        "duplicates.html.jinja",
        "Duplicates",
        made_at,
        data={},
        counts=counts,
        numbers=numbers,
        groups=list(zip(with_pictures, ordered, strict=False)),
        num_groups=len(groups),
    )


def _picture(data: bytes) -> str:
    image = pictures.decode(data, _SIDE)
    if image is None:
        return ""
    image.thumbnail((_SIDE, _SIDE))
    return pictures.data_uri(image, _QUALITY)
