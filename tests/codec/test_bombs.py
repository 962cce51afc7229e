"""Bombs and damaged images of all formats: each is stored or quarantined, within the limits."""

from __future__ import annotations

from collections import Counter

import pytest

from imagenet_prep.codec import cage
from imagenet_prep.dataset import formats
from tests.kit.bounds import limited_memory
from tests.kit.codec import costs
from tests.kit.codec.calls import CALLS
from tests.kit.hostile import bombs, mutated
from tests.kit.lengths import long_except

# The kernel counts complete seconds, and each try may need a new process.
SLACK_S = 4
MOST_BYTES = 1 << 30
# An image of 64 MP that decoder.c accepts is decoded in this process.
OWN_BYTES = 700 << 20
PICTURES_PER_SEED = 400
# Only JPEGs are decoded differently by each call. `report` also decodes truncated images.
DIFFERENT_CALLS = ("prepare", "report")


@pytest.fixture(autouse=True)
def inside() -> None:
    """These tests call from outside of the cage, as programs do."""


@pytest.fixture(autouse=True)
def child() -> None:
    """Starts a child, so that its start is not measured as the cost of an image."""
    costs.cost(CALLS["prepare"], b"\x89PNG\r\n\x1a\n")


def _cost(call: str, data: bytes, what: str) -> costs.Cost:
    """Returns the cost of a call, which must be within the limits."""
    with limited_memory(OWN_BYTES):
        cost = costs.cost(CALLS[call], data)
    where = f"{what}, {call}: {cost}"
    assert cost.own_s < cage.MOST_CPU_S + SLACK_S, where
    assert cost.child_s < cage.MOST_CPU_S + SLACK_S, where
    assert cost.peak_bytes < MOST_BYTES, where
    return cost


@pytest.mark.slow
@pytest.mark.parametrize("name", long_except(bombs.SMALLEST, bombs.BOMBS))
def test_bomb_is_stored_or_refused_within_the_limits(name: str) -> None:
    """By every call that decodes this format differently, with no more memory in this process."""
    data = bombs.BOMBS[name]()
    for call in CALLS if name.startswith("JPEG") else DIFFERENT_CALLS:
        _cost(call, data, name)


@pytest.mark.long
@pytest.mark.parametrize("name", bombs.SMALLEST)
def test_every_call_withstands_the_smallest_bombs(name: str) -> None:
    data = bombs.BOMBS[name]()
    for call in CALLS:
        _cost(call, data, name)


def test_every_readable_format_has_bombs() -> None:
    assert formats.READ | {formats.HEIC} <= bombs.TABLES.keys()
    assert len(bombs.BOMBS) > 500


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_except(range(1), range(50)))
def test_damaged_image_is_stored_or_refused_within_limits(seed: int) -> None:
    """20,000 images in `make test-long`."""
    ends: Counter[str] = Counter()
    for changes, data in mutated.mutated(seed, PICTURES_PER_SEED):
        cost = _cost("prepare", data, changes)
        ends[cost.end] += 1
        assert cost.end != cage.DECODER_DIED, f"{changes}: {cost}"

    assert ends[costs.STORED] > PICTURES_PER_SEED / 10
    assert ends["undecodable"] > PICTURES_PER_SEED / 10
