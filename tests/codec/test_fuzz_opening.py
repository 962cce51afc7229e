"""Damaged JPEGs of every frame type, through every call of the codec, under sanitizers."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from imagenet_prep.codec import planes
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


def test_guard_notices_a_write_behind_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: planes.Workspace, *arguments: int) -> None:
        *_, address = arguments
        ctypes.memset(address + 10 * 12 * 3, 0, 1)

    monkeypatch.setattr(planes.Workspace, "_read", read)
    with pytest.raises(SystemExit, match="libjpeg wrote behind 10 x 12 pixels"):
        fuzz_opening.guarded(planes.workspace(), b"", 10, 12, 8, strict=True)
