"""Flags of replicate that contradict each other."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset.column import WHOLE, Placement
from imagenet_prep.distribute.config import ReplicateConfig
from tests.kit.messages import says


@pytest.mark.parametrize("names", [*itertools.combinations(("check", "repair", "dry_run"), 2)])
def test_a_run_checks_repairs_or_previews(names: tuple[str, str]) -> None:
    for name in names:
        ReplicateConfig(dataset="/set", to="/copy", **{name: True})
    with pytest.raises(ValueError, match=says("check-repair-dry-run-expected-most")):
        ReplicateConfig(dataset="/set", to="/copy", **dict.fromkeys(names, True))


ADDRESSES = ["node10", "node9", "alpha"]


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_parts_follow_the_order_of_hosts(copies: int) -> None:
    """Ranks on the host in line K of the file read part K, so its address does not matter."""
    config = ReplicateConfig(
        dataset="/set", to="hosts:hosts:/copy", mode="partition", copies=copies
    )
    parts = config.placements(ADDRESSES)

    assert [*parts.items()] == [
        (address, Placement(line, 3, copies)) for line, address in enumerate(ADDRESSES)
    ]


def test_every_host_gets_all_shards_by_default() -> None:
    config = ReplicateConfig(dataset="/set", to="hosts:hosts:/copy")

    assert config.placements(ADDRESSES) == dict.fromkeys(ADDRESSES, WHOLE)


@pytest.mark.parametrize("copies", [0, 4])
def test_more_copies_than_hosts_are_refused(copies: int) -> None:
    config = ReplicateConfig(
        dataset="/set", to="hosts:hosts:/copy", mode="partition", copies=copies
    )
    with pytest.raises(UsageError, match=f"--copies {copies} on 3 hosts: "):
        config.placements(ADDRESSES)


NO_PART, NO_BUCKET = "part-k-n-required-folder", "mode-partition-expected-hosts-hostsfile"


@pytest.mark.parametrize(
    ("to", "part", "said"),
    [
        ("hosts:hosts:/copy", None, None),
        ("hosts:hosts:/copy", "0/2", NO_PART),
        ("/copy", None, NO_PART),
        ("/copy", "0/2", None),
        ("s3://bucket/copy", None, NO_BUCKET),
        ("s3://bucket/copy", "0/2", NO_BUCKET),
    ],
)
def test_only_a_folder_needs_its_part(to: str, part: str | None, said: str | None) -> None:
    """Each host of a file gets the part of its line."""
    refused = pytest.raises(ValueError, match=says(said)) if said else contextlib.nullcontext()
    with refused:
        ReplicateConfig(dataset="/set", to=to, mode="partition", part=part)
