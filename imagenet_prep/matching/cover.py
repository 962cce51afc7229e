"""Chooses the images to keep, so that each excluded image has a duplicate that is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from imagenet_prep.matching.find import Found
from imagenet_prep.matching.groups import KINDS, Group, Member, rank


def divide(connected: Sequence[Member], found: Found) -> list[Group]:
    """Divides images, which chains of proven pairs connect, into groups of proven duplicates.

    In the order of `rank`, an image is kept unless it is proven against an image that is already
    kept. So each excluded image has a kept duplicate, and no two kept images are duplicates.
    """
    members = {member.number: member for member in sorted(connected, key=rank)}
    kept_of = _covered(members, found)
    elsewhere = _elsewhere(members, found)
    members_of: dict[int, list[Member]] = {kept: [] for kept in kept_of.values()}
    for number, member in members.items():
        other = kept_of.get(number, elsewhere.get(number))
        changes: dict[str, Any] = {"kept": number not in kept_of}
        if number in elsewhere:
            changes["elsewhere"] = members[elsewhere[number]].line
        if number not in members_of and other is not None:
            changes["kind"] = found.kind(number, other)
            changes["distance"] = int(found.distances(number, np.array([other], np.uint32))[0])
            changes["proven_against"] = members[other].line
            # Its duplicate may be excluded itself, in favour of a kept image.
            home = kept_of.get(other, other)
            members_of.setdefault(home, []).append(member._replace(**changes))
        members[number] = member._replace(**changes)
    groups: list[Group] = []
    for kept, others in members_of.items():
        nearest = min((member.kind for member in others), key=KINDS.index)
        groups.append([members[kept]._replace(kind=nearest), *others])
    return groups


def _covered(members: Mapping[int, Member], found: Found) -> dict[int, int]:
    """Returns the kept duplicate of each excluded image; `members` are in the order of `rank`."""
    kept: dict[str, list[int]] = {}
    kept_of: dict[int, int] = {}
    for number, member in members.items():
        # First compare with the kept images of the most preferred split.
        tries = (found.nearest(number, of_split) for of_split in kept.values())
        other = next((each for each in tries if each is not None), None)
        if other is None:
            kept.setdefault(member.split, []).append(number)
        else:
            kept_of[number] = other
    return kept_of


def _elsewhere(members: Mapping[int, Member], found: Found) -> dict[int, int]:
    """Returns, for each image with a duplicate in a different split, the nearest of these."""
    elsewhere: dict[int, int] = {}
    for split in {member.split for member in members.values()}:
        others = [number for number, member in members.items() if member.split != split]
        for number, member in members.items():
            if others and member.split == split:
                other = found.nearest(number, others)
                if other is not None:
                    elsewhere[number] = other
    return elsewhere
