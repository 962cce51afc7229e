"""decoder.c: it gives the planes of libjpeg, or declines; accepted files are sound."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from imagenet_prep.codec import planes, transform
from imagenet_prep.dataset import jpeg
from tests.kit.codec import corpus, fuzz, jpegs, mutations, native, variety, warned
from tests.kit.installed import Installed
from tests.kit.lengths import long_except

# Plain C, SSE2 and AVX2, or plain C and NEON.
NUM_KINDS = {"x86_64": 3, "aarch64": 2}[platform.machine()]


def frame_of(data: bytes) -> jpeg.JpegFrame:
    frame = jpeg.refuse_bombs(data)
    assert frame is not None
    return frame


def sanitized(folder: Path) -> Path:
    if reason := native.missing(native.SANITIZED):
        pytest.skip(reason)
    try:
        return native.build(folder, native.SANITIZED, sources=native.DECODER_HARNESS)
    except AssertionError as error:
        pytest.skip(f"no sanitizers here: {error}")


@pytest.mark.parametrize("count", long_except([30], [30, 6_000]))
def test_planes_equal_those_of_libjpeg(tmp_path: Path, count: int) -> None:
    """Complete, halved and in windows, by plain C and all vector code."""
    program = sanitized(tmp_path)
    made = [*corpus.files().values(), *variety.files(count)]
    files = native.write(tmp_path / "corpus", [native.Job(data, 1, 1) for data in made])

    found = native.run(program, "equal", native.libjpeg(), files, 3)

    num_files, taken, sound_but_declined, num_planes = map(int, found.split())
    assert num_files == len(made)
    assert taken > 0.9 * num_files  # the others are progressive or CMYK
    assert sound_but_declined < 0.05 * num_files * NUM_KINDS
    assert num_planes > NUM_KINDS * 5 * taken  # complete, halved, windows


@pytest.mark.slow
@pytest.mark.parametrize("count", long_except([1_000], [1_000, 300_000]))
def test_damaged_files_are_accepted_only_if_sound(tmp_path: Path, count: int) -> None:
    program = sanitized(tmp_path)
    files = native.write(tmp_path / "corpus", fuzz.sources(0))

    found = native.run(program, "fuzz", native.libjpeg(), files, count, count)

    num_files, taken, _, num_planes = map(int, found.split())
    assert num_files == count
    assert count / 10 < taken < count / 2
    assert num_planes > taken


@pytest.mark.parametrize("seed", long_except(range(2), range(40)))
def test_file_is_verified_only_if_libjpeg_is_silent(seed: int) -> None:
    proven = 0
    for _, data in mutations.mutated(3000 + seed, 250):
        if planes.proves(data):
            jpegs.decode_strictly(data)
            proven += 1
    assert proven > 10


@pytest.mark.parametrize("seed", long_except(range(2), range(40)))
def test_windows_of_damaged_files_equal_those_of_libjpeg(seed: int) -> None:
    """Both ignore damage below a window."""
    loaded = planes.require()
    decoders = [planes.Workspace(loaded, "best", name) for name in ("own", "libjpeg")]
    look = planes.Look(20, 30, planes.BYTES, planes.LINEAR)
    done = 0
    cut = [("cut", data[: len(data) // 2] + b"\xff\xff") for data in mutations.sources().values()]
    for how, data in [*cut, *mutations.mutated(4000 + seed, 250)]:
        for window in ((0, 0, 40, 60), (30, 50, 60, 70), (100, 100, 20, 60)):
            found = [np.zeros((20, 30, 3), np.uint8) for _ in decoders]
            pairs = zip(decoders, found, strict=True)
            verdicts = [look.decode(data, window, to, within=decoder) for decoder, to in pairs]
            assert verdicts[0] == verdicts[1], (how, window)
            assert not verdicts[0] or np.array_equal(*found), (how, window)
            done += verdicts[0]
    assert done > 100


def test_libjpeg_only_verifies_files_that_ours_declines(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def read(_: planes.Workspace, data: bytes, *__: int) -> None:
        asked.append(data)

    monkeypatch.setattr(planes.Workspace, "read_through", read)
    for data in mutations.sources().values():
        transform.read_through(data, frame_of(data))

    assert asked == [mutations.sources()[kind] for kind in ("progressive", "cmyk")]


@pytest.fixture
def unloaded() -> Iterator[None]:
    """Nothing is loaded before the test, and nothing of the test stays loaded."""

    def forget() -> None:
        planes.require.cache_clear()
        planes.is_available.cache_clear()
        planes.forget()

    forget()
    yield
    forget()


@pytest.mark.usefixtures("unloaded")
def test_environment_variable_turns_our_decoder_off(monkeypatch: pytest.MonkeyPatch) -> None:
    data = mutations.sources()["420"]
    made = planes.workspace().shrink(data, 50, 60, 90, 1 << 20)
    assert planes.proves(data)
    planes.forget()
    monkeypatch.setenv(planes.JPEG_VARIABLE, "libjpeg")

    assert not planes.proves(data)
    assert planes.workspace().shrink(data, 50, 60, 90, 1 << 20) == made


@pytest.mark.usefixtures("unloaded")
def test_missing_library_verifies_no_file(installed: Installed) -> None:
    installed.library("codec.planes")
    data = warned.plain()

    assert not planes.proves(data)
    with pytest.raises(planes.CodecUnavailableError):
        transform.read_through(data, frame_of(data))
