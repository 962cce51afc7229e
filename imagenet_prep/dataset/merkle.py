"""The Merkle tree of RFC 6962, section 2.1: one digest of a list of any length."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_LEAF = b"\0"
_NODE = b"\1"


def root(leaves: Iterable[bytes]) -> str:
    """Returns the root hash of the tree over these leaves, in hex; keeps few hashes in memory."""
    waiting: list[bytes] = []
    for number, leaf in enumerate(leaves, start=1):
        tree = hashlib.sha256(_LEAF + leaf).digest()
        while number % 2 == 0:
            tree = hashlib.sha256(_NODE + waiting.pop() + tree).digest()
            number //= 2
        waiting.append(tree)
    if not waiting:
        return hashlib.sha256().hexdigest()
    tree = waiting.pop()
    while waiting:
        tree = hashlib.sha256(_NODE + waiting.pop() + tree).digest()
    return tree.hex()
