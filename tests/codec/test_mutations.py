"""Thousands of damaged JPEGs: each is stored sound or refused with a reason, never a crash."""

from __future__ import annotations

import numpy as np
import pytest

from imagenet_prep.codec import opening
from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import prove_stored, transform
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset.member import PreparedImage
from tests.kit.codec import jpegs, mutations
from tests.kit.lengths import long_except
from tests.kit.messages import says

REASONS = {"empty", "truncated", "corrupt", "undecodable", "unknown_format"}
REASONS |= {"too_many_pixels", "too_many_scans"}
REPAIRS = {None, "gray", "cmyk", "ycck", "surplus_data", "header", "sampling", "no_end_marker"}
# A size changed by a flipped bit is decoded up to this limit: memory and time of the test.
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
def test_undamaged_images_are_sound(kind: str, policy: Policy) -> None:
    assert isinstance(fate(mutations.sources()[kind], policy), PreparedImage)


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_except(range(2), range(8)))
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_damaged_images_are_stored_sound_or_refused(policy: Policy, seed: int) -> None:
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
            pixels = jpegs.decode_strictly(found.encoded)
            assert pixels.shape == (found.height, found.width, 3), how

    assert {"kept", "repaired", "quarantined"} == set(fates)


@pytest.mark.parametrize("seed", long_except(range(2), range(40)))
def test_stored_image_is_sound_only_if_it_decodes(seed: int) -> None:
    """`verify` makes no pixels; its verdict equals that of a complete decoder."""
    sound = 0
    for _, data in mutations.mutated(2000 + seed, 250):
        try:
            header = opening.header(data, MAX_PIXELS)
        except BadImageError:
            continue
        if header is None:
            continue
        try:
            pixels = jpegs.decode_strictly(data)
        except ValueError:
            # The verdict follows prepare: most of these files are refused, and some repaired.
            made = fate(data, POLICIES["keep"])
            is_odd = opening.is_refused(data, header)
            if isinstance(made, str) or made.repair == "no_end_marker" or is_odd:
                with pytest.raises(BadImageError):
                    prove_stored(data, header.height, header.width, any_colorspace=True)
            else:
                prove_stored(data, header.height, header.width, any_colorspace=True)
            continue
        if opening.is_refused(data, header):
            assert fate(data, POLICIES["keep"]).repair
            continue
        prove_stored(data, *pixels.shape[:2], any_colorspace=True)
        with pytest.raises(BadImageError, match=says("record-says-x")):
            prove_stored(data, pixels.shape[0] + 1, pixels.shape[1], any_colorspace=True)
        sound += 1

    assert sound > 10


def test_chroma_that_cannot_be_enlarged_is_not_sound() -> None:
    """Three columns of luma over two of chroma: it decompresses, and has no pixels."""
    data = bytearray(jpegs.encode(np.full((8, 24, 3), 128, np.uint8), 90, "444"))
    frame = data.index(b"\xff\xc0")
    scan = data.index(b"\xff\xda")
    for component, factors in enumerate((0x31, 0x21, 0x21)):
        data[frame + 11 + 3 * component] = factors
    header_end = scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")
    # Each block is two codes: no change of its mean, and no other coefficients.
    codes = 3 * "001010" + 4 * "0000" + "111111"
    odd = bytes(data[:header_end]) + int(codes, 2).to_bytes(5, "big") + b"\xff\xd9"

    with pytest.raises(BadImageError, match="undecodable"):
        prove_stored(odd, 8, 24)
