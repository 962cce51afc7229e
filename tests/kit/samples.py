"""Samples made up for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hypothesis import strategies as st

from imagenet_prep.dataset.samples import Sample


def sha256(of: object) -> str:
    return hashlib.sha256(repr(of).encode()).hexdigest()


def kept(key: str, class_index: int = 0) -> Sample:
    """Returns the sample of an image that was kept as it was."""
    image = (len(key) + 100, 8, 9, sha256(key))
    return Sample(key, class_index, *image, "kept", "", *image)


keys = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=[*map(chr, range(32)), "\x7f"]),
    min_size=1,
    max_size=12,
)
_images = st.tuples(
    st.integers(1, 10**17), st.integers(1, 65_500), st.integers(1, 65_500), st.binary().map(sha256)
)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Draws a sample that prepare could have written."""
    head = draw(keys), draw(st.integers(0, 10**17))
    action = draw(st.sampled_from(["kept", "shrunk", "repaired"]))
    reason = draw(st.from_regex(r"[a-z0-9_+]{1,64}", fullmatch=True)) if action[0] == "r" else ""
    image = draw(_images)
    return Sample(*head, *image, action, reason, *(image if action == "kept" else draw(_images)))


def tree_hash(leaves: Sequence[bytes]) -> bytes:
    """RFC 6962, section 2.1, word by word."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + tree_hash(leaves[:k]) + tree_hash(leaves[k:])).digest()
