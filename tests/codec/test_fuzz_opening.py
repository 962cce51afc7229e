"""Damaged JPEGs of every frame type, through every call of the codec, under sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.codec import fuzz_opening, native
from tests.kit.lengths import long_but


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := native.missing(native.GCC):
        pytest.skip(reason)
    return fuzz_opening.build(tmp_path_factory.mktemp("sanitized"))


@pytest.mark.slow
@pytest.mark.parametrize("batches", long_but([0], [0, 60]))
def test_damaged_frames_of_every_type_make_no_report(library: Path, batches: int) -> None:
    """300,000 files in `make test-long`."""
    seeds = [(1000 + number, fuzz_opening.BATCH) for number in range(batches)] or [(1, 100)]
    for seed, count in seeds:
        taken = fuzz_opening.batch(library, seed, count)
        assert taken.keys() == fuzz_opening.CALLS.keys()
        assert min(taken.values()) > count / 20
        assert max(taken.values()) < count


@pytest.mark.slow
@pytest.mark.parametrize(
    "decode",
    [
        "fuzz_opening.guarded(simplejpeg.decode_jpeg, data, 'GRAY', min_height=1, min_factor=8)",
        "ctypes.memset(np.empty(4000, np.uint8).ctypes.data, 0xA5, 1 << 20)",
    ],
    ids=["simplejpeg", "memory"],
)
def test_the_watch_sees_what_is_written_behind_its_memory(library: Path, decode: str) -> None:
    program = (
        "import ctypes, numpy as np, simplejpeg\n"
        "from tests.kit.codec import frames, fuzz_opening\n"
        f"data = frames.lossless(np.zeros((100, 100, 1), np.uint8))\n{decode}\n"
    )
    done = fuzz_opening.watched("-c", program)

    assert done.returncode != 0
    assert "simplejpeg wrote behind" in done.stderr or "AddressSanitizer" in done.stderr
