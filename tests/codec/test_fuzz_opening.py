"""Damaged JPEGs of every frame type, through every call of the codec, under sanitizers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from tests.kit.codec import fuzz_opening, native
from tests.kit.lengths import long_except


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := native.missing(native.GCC):
        pytest.skip(reason)
    return fuzz_opening.build(tmp_path_factory.mktemp("sanitized"))


@pytest.mark.slow
@pytest.mark.parametrize("batches", long_except([0], [0, 60]))
def test_damaged_frames_of_every_type_give_no_report(library: Path, batches: int) -> None:
    """300,000 files in `make test-long`."""
    seeds = [(1000 + number, fuzz_opening.BATCH) for number in range(batches)] or [(1, 100)]
    for seed, count in seeds:
        taken = fuzz_opening.batch(library, seed, count)
        assert taken.keys() == fuzz_opening.CALLS.keys()
        assert min(taken.values()) > count / 20
        assert max(taken.values()) < count


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_sanitizer_notices_a_write_behind_a_buffer() -> None:
    program = (
        "import ctypes\n"
        "room = ctypes.create_string_buffer(4000)\n"
        "ctypes.memset(ctypes.addressof(room), 0xA5, 1 << 20)\n"
    )
    done = fuzz_opening.watched("-S", "-c", program)

    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr


def test_guard_notices_a_write_of_simplejpeg() -> None:
    data = simplejpeg.encode_jpeg(np.zeros((10, 10, 1), np.uint8), colorspace="GRAY")

    def decode(*_: object, buffer: np.ndarray) -> np.ndarray:
        buffer[100] = 0
        return buffer

    with pytest.raises(SystemExit, match="simplejpeg wrote behind 10 x 10 x 1 bytes"):
        fuzz_opening.guarded(decode, data, "GRAY")
