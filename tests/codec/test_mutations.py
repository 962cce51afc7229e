"""Thousands of damaged JPEGs: each is stored sound or left out with a reason, never a crash."""

from __future__ import annotations

import pytest
import simplejpeg

from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import prove_stored, transform
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset.member import PreparedImage
from tests.codec import mutations

REASONS = {"empty", "truncated", "corrupt", "undecodable", "unknown_format"}
REASONS |= {"too_many_pixels", "too_many_scans"}
REPAIRS = {None, "gray", "cmyk", "ycck", "surplus_data"}
# A size made up by a flipped bit is decoded up to here: memory and time of the test.
MAX_PIXELS = 4_000_000
POLICIES = {
    "keep": Policy(None, max_pixels=MAX_PIXELS),
    "keep-header": Policy(None, check="header", max_pixels=MAX_PIXELS),
    "shrink": Policy(64, max_pixels=MAX_PIXELS),
}


def fate(data: bytes, policy: Policy) -> PreparedImage | str:
    try:
        return transform(data, policy)
    except BadImageError as error:
        return error.reason


@pytest.mark.parametrize("kind", sorted(mutations.sources()))
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_the_images_are_sound_before_they_are_damaged(kind: str, policy: Policy) -> None:
    assert isinstance(fate(mutations.sources()[kind], policy), PreparedImage)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_damaged_images_are_stored_sound_or_left_out_with_a_reason(
    policy: Policy, seed: int
) -> None:
    fates = []
    for how, data in mutations.mutated(seed, 250):
        found = fate(data, policy)
        assert found == fate(data, policy), how
        if isinstance(found, str):
            assert found in REASONS, how
            fates.append("quarantined")
            continue
        assert found.repair in REPAIRS, how
        fates.append("kept" if found.repair is None else "repaired")
        if found.encoded is not data:
            prove_stored(found.encoded, found.height, found.width)
        elif policy.check == "decode":
            # strict: libjpeg had nothing to warn of
            pixels = simplejpeg.decode_jpeg(found.encoded, "RGB")
            assert pixels.shape == (found.height, found.width, 3), how

    assert {"kept", "repaired", "quarantined"} == set(fates)
