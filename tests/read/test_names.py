"""The keys of examples in memory."""

from __future__ import annotations

import numpy as np
import pytest

from imagenet_prep.read.selection import _compact


def num_bytes(keys: object) -> int:
    if isinstance(keys, np.ndarray):
        return keys.nbytes
    assert isinstance(keys, list)
    return sum(8 + 33 + len(key) for key in keys)


def test_one_long_key_makes_the_others_no_longer() -> None:
    """An array of NumPy would take 40 MB for these 340 kB."""
    keys = [f"n01440764/n01440764_{number}.JPEG".encode() for number in range(10_000)]
    keys[777] = b"k" * 4_096
    stored = _compact(keys)

    assert num_bytes(stored) < 1_000_000
    assert [bytes(key) for key in stored] == keys


@pytest.mark.parametrize("number", [1, 10_000])
def test_usual_keys_take_as_many_bytes_as_the_longest(number: int) -> None:
    keys = [f"n01440764/n01440764_{each}.JPEG".encode() for each in range(number)]
    stored = _compact(keys)

    assert isinstance(stored, np.ndarray)
    assert stored.nbytes == number * max(map(len, keys))
    assert [bytes(key) for key in stored] == keys
