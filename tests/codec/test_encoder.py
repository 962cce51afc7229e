"""encoder.c: it writes the files of libjpeg, byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from imagenet_prep.codec import planes
from tests.kit.codec import corpus, jpegs, native, variety
from tests.kit.lengths import long_except


@pytest.mark.slow
@pytest.mark.parametrize("count", long_except([40], [40, 100_000]))
def test_random_planes_give_the_files_of_libjpeg(tmp_path: Path, count: int) -> None:
    """By plain C and vector code, at all qualities, into buffers of exactly the needed size."""
    if reason := native.missing(native.SANITIZED):
        pytest.skip(reason)
    try:
        program = native.build(tmp_path, native.SANITIZED, sources=native.ENCODER_HARNESS)
    except AssertionError as error:
        pytest.skip(f"no sanitizers here: {error}")

    equal = int(native.run(program, native.libjpeg(), count, count))

    assert equal in (count, 2 * count)  # this processor may lack AVX2


@pytest.mark.parametrize("count", long_except([100], [100, 3_000]))
@pytest.mark.parametrize("simd", ["best", "plain"])
def test_photographs_give_the_files_of_libjpeg(simd: str, count: int) -> None:
    loaded = planes.require()
    workspaces = [planes.Workspace(loaded, simd, name) for name in ("own", "libjpeg")]
    made = 0
    for number, data in enumerate([*corpus.files().values(), *variety.files(count, seed=32)]):
        # A quality is learnt from its first image, so it must appear twice.
        job = (data, 1 + 53 * number % 97, 1 + 31 * number % 131, 1 + number // 2 % 100, 1 << 24)
        own, libjpeg = (workspace.shrink(*job) for workspace in workspaces)
        assert own == libjpeg
        made += own is not None
    assert made > 0.9 * count


def test_file_larger_than_the_expected_size_is_written() -> None:
    """Noise at the highest quality takes three bytes per pixel; half a byte is expected."""
    noise = np.random.default_rng(0).integers(0, 2, (600, 900, 3), np.uint8) * 255
    data = jpegs.encode(noise, 100, "444")
    loaded = planes.require()
    own, libjpeg = (planes.Workspace(loaded, "best", name) for name in ("own", "libjpeg"))
    own.shrink(data, 9, 9, 100, 1 << 24)  # it learns from this one

    made = own.shrink(data, 600, 900, 100, 1 << 24)

    assert made is not None
    assert len(made) > 600 * 900
    assert made == libjpeg.shrink(data, 600, 900, 100, 1 << 24)
