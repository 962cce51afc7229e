"""Reading of MAT-files that SciPy wrote."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from imagenet_prep.sources import labels
from tests.kit.messages import says


def written(compressed: bool, **arrays: object) -> bytes:
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, arrays, do_compression=compressed)
    return buffer.getvalue()


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_of_all_kinds_are_read_back(compressed: bool) -> None:
    data = written(
        compressed,
        n=np.arange(12.0).reshape(3, 4),
        words="tench, Tinca tinca; crêpe, 猫",
        empty="",
        cells=np.array(["a", 7, np.zeros((0, 0))], object),
        struct={"one": 1, "words": "two", "inner": {"three": np.int8(3)}},
        rows=np.array([(1, "a"), (2, "bc")], [("id", object), ("name", object)]),
    )

    assert labels.read(data) == {
        "n": (0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11),
        "words": "tench, Tinca tinca; crêpe, 猫",
        "empty": "",
        "cells": ["a", (7,), ()],
        "struct": {"one": [(1,)], "words": ["two"], "inner": [{"three": [(3,)]}]},
        "rows": {"id": [(1,), (2,)], "name": ["a", "bc"]},
    }


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_numbers_of_every_kind_keep_their_values(kind: str) -> None:
    limits = np.finfo(kind) if kind[0] == "f" else np.iinfo(kind)
    values = np.array([limits.min, 0, 1, limits.max], kind)

    assert labels.read(written(False, x=values)) == {"x": tuple(values.tolist())}


def test_unsupported_arrays_and_damaged_files_are_refused() -> None:
    with pytest.raises(ValueError, match="too many values to unpack"):
        labels.read(written(False, x=np.array([1 + 2j])))
    with pytest.raises(ValueError, match=says("array-unsupported-kind")):
        labels.read(written(False, x=scipy.sparse.csc_array(np.eye(2))))
    sound = written(False, x=np.arange(9.0))
    for cut in (8, 64):
        with pytest.raises(ValueError, match=says("ends-inside-element")):
            labels.read(sound[:-cut])
    with pytest.raises(ValueError, match=says("element-kind-expected-array", "9")):
        labels.read(sound[:128] + struct.pack("<II", 9, 8) + bytes(8))
    with pytest.raises(ValueError, match=says("not-mat-file-version-5")):
        labels.read(b"MATLAB 7.3 MAT-file".ljust(512))


@pytest.mark.parametrize("shape", [(1, 8), (1, 10), (1,) * 33])
def test_shape_that_contradicts_the_values_is_refused(shape: tuple[int, ...]) -> None:
    values = np.arange(9.0).reshape(1, 9)
    data = written(False, x=values)
    sides = struct.pack("<IIII", 5, 8, 1, 9)
    assert data.count(sides) == 1
    if len(shape) == 2:
        data = data.replace(sides, struct.pack("<IIII", 5, 8, *shape))
    else:
        data = written(False, x=np.zeros(shape))

    with pytest.raises(ValueError, match=says("array-values")):
        labels.read(data)
