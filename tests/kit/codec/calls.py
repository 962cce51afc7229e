"""Every function of ours that decodes an untrusted image."""

from __future__ import annotations

from collections.abc import Callable

from imagenet_prep.codec import decoding, likeness, transform
from imagenet_prep.codec.policy import PORTABLE, Policy
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.matching import search
from imagenet_prep.read import decoder
from imagenet_prep.reporting import sample


def shown(data: bytes) -> object:
    """Returns an image as a report renders it."""
    image = sample.decode(data, 52)
    if image is None:
        raise BadImageError("undecodable", "no picture")
    return image


def diagnosed(data: bytes) -> None:
    """Raises a reader's error for an image that its framework refuses."""
    if problem := decoder.problem(data, lambda _: None, "native"):
        raise BadImageError("undecodable", problem)


CALLS: dict[str, Callable[[bytes], object]] = {
    "prepare": lambda data: transform.transform(data, Policy(32)),
    "prepare, portable": lambda data: transform.transform(data, Policy(32, codec=PORTABLE)),
    "prepare, headers": lambda data: transform.transform(data, Policy(None, check="header")),
    "prepare, border": lambda data: transform.transform(data, Policy(32, border=2)),
    "adopt": transform.keep,
    "verify": lambda data: transform.prove_stored(data, 1, 1, any_size=True, any_colorspace=True),
    "hash": search.of,
    "proof": likeness.means,
    "equal pixels": decoding.digest,
    "report": shown,
    "reader": lambda data: decoder.cropped(data, [0, 0, 8, 8]),
    "diagnosis": diagnosed,
}
# Those that only accept JPEGs.
READERS = {"reader", "diagnosis", "adopt", "verify"}
