"""The planes codec: the same bytes everywhere, the quality of RGB, windows for readers."""

from __future__ import annotations

import ctypes
import hashlib
import io
import itertools
import json
import multiprocessing
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec import planes
from imagenet_prep.codec.policy import PLANES, PORTABLE, Policy
from imagenet_prep.codec.transform import transform
from imagenet_prep.core.errors import BadImageError, UsageError
from tests.kit import command
from tests.kit.codec import corpus, jpegs, mutations
from tests.kit.installed import Installed
from tests.kit.lengths import long_except
from tests.kit.messages import says

MAX_PIXELS = 10_000_000
MAX_LOSS_DB = 0.3


def supported() -> list[str]:
    found = []
    for simd in planes.SIMD:
        try:
            planes.workspace(simd).shrink(b"", 1, 1, 90, MAX_PIXELS)
            found.append(simd)
        except UsageError:
            continue
    return found


def psnr(expected: np.ndarray, found: np.ndarray) -> float:
    error = np.mean((expected.astype(float) - found.astype(float)) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def lanczos(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    image = Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS)
    return np.asarray(image)


few_but_all = pytest.mark.parametrize("count", long_except([corpus.FEW], [corpus.FEW, corpus.ALL]))


@few_but_all
def test_name_of_a_codec_stands_for_its_bytes(count: int) -> None:
    assert corpus.digests(count) == corpus.golden(count)


def digests_of_a_process(count: int, *before: object, **env: str) -> dict[str, str]:
    """Returns the digests of a separate Python, which uses the settings when it loads."""
    code = (
        "import json; from tests.kit.codec import corpus;"
        f"print(json.dumps(corpus.digests({count})))"
    )
    done = subprocess.run(
        [*map(str, before), sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=command.environment(**env),
    )
    assert done.returncode == 0, done.stderr
    digests: dict[str, str] = json.loads(done.stdout)
    return digests


@few_but_all
@pytest.mark.parametrize(
    "settings",
    long_except(
        ["JSIMD_FORCENONE=1 OPENCV_IPP=disabled"],
        [
            "JSIMD_FORCESSE2=1 OPENCV_IPP=sse42",
            "JSIMD_FORCENONE=1 OPENCV_IPP=disabled",
            "OPENCV_IPP=avx2",
        ],
    ),
)
def test_processor_settings_of_libraries_change_no_byte(settings: str, count: int) -> None:
    env = dict(setting.split("=") for setting in settings.split())
    assert digests_of_a_process(count, **env) == corpus.golden(count)


@pytest.mark.long
def test_old_processor_gives_the_same_bytes() -> None:
    """Of all libraries: NumPy and Pillow also choose their code by the processor."""
    emulator = shutil.which("qemu-x86_64-static")
    if platform.machine() != "x86_64" or emulator is None:
        pytest.skip("no x86-64 or no qemu-x86_64-static here")
    found = digests_of_a_process(corpus.FEW, emulator, "-cpu", "Nehalem")
    assert found == corpus.golden(corpus.FEW)


@few_but_all
def test_every_kernel_gives_the_same_bytes(count: int) -> None:
    assert {"best", "plain"} < set(supported())
    jobs = [(data, (256, 341)) for data in corpus.photographs(count)]
    sizes = ((1, 1), (31, 45), (64, 64), (130, 7))
    jobs += itertools.product(corpus.files().values(), sizes)
    for data, size in jobs:
        made = {planes.workspace(s).shrink(data, *size, 90, MAX_PIXELS) for s in supported()}
        assert len(made) == 1, size


def _planes_digest(count: int) -> str:
    return corpus.digest(PLANES, count)


@few_but_all
def test_threads_and_processes_give_the_same_bytes(count: int) -> None:
    expected = {corpus.golden(count)[PLANES]}
    assert {_planes_digest(count)} == expected
    with ThreadPoolExecutor(6) as threads:
        assert set(threads.map(_planes_digest, [count] * 6)) == expected
    # A fork inherits a workspace that its parent continues to use.
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert set(pool.map(_planes_digest, [count] * 2)) == expected
    assert {_planes_digest(count)} == expected


def test_no_image_affects_the_next() -> None:
    """libjpeg keeps tables: an image without its own must not use those of the last one."""
    whole = corpus.files()["96x128 420"]
    at = whole.index(b"\xff\xc4")
    size = int.from_bytes(whole[at + 2 : at + 4], "big") + 2
    without = whole[:at] + whole[at + size :]

    alone = planes.workspace().shrink(without, 32, 32, 90, MAX_PIXELS)
    planes.workspace().shrink(whole, 32, 32, 90, MAX_PIXELS)

    assert planes.workspace().shrink(without, 32, 32, 90, MAX_PIXELS) == alone


@pytest.mark.parametrize("sampling", [*corpus.SAMPLINGS, "progressive", "restarts", "grey"])
@pytest.mark.parametrize("side", [60, 150, 233])
def test_each_sampling_is_as_accurate_as_through_rgb(sampling: str, side: int) -> None:
    differences = []
    for height, width in ((300, 400), (401, 299)):
        pixels = corpus.photograph(height, width)
        image = Image.fromarray(pixels)
        buffer = io.BytesIO()
        if sampling == "progressive":
            image.save(buffer, "JPEG", quality=93, progressive=True)
        elif sampling == "restarts":
            image.save(buffer, "JPEG", quality=93, restart_marker_blocks=3)
        elif sampling == "grey":
            image.convert("L").save(buffer, "JPEG", quality=93)
        else:
            buffer.write(jpegs.encode(pixels, 93, sampling))
        data = buffer.getvalue()
        ours, rgb = (transform(data, Policy(side, codec=c)) for c in (PLANES, PORTABLE))
        assert ours[1:] == rgb[1:]
        expected = lanczos(jpegs.decode(data), ours.height, ours.width)
        found = [psnr(expected, jpegs.decode(image.encoded)) for image in (ours, rgb)]
        differences.append(found[0] - found[1])
    assert min(differences) > -MAX_LOSS_DB


@pytest.mark.parametrize("sampling", corpus.SAMPLINGS)
def test_odd_sizes_are_exact(sampling: str) -> None:
    for height, width in corpus.SIZES:
        data = corpus.files()[f"{height}x{width} {sampling}"]
        for target in ((1, 1), (1, 9), (17, 1), (15, 16), (33, 31)):
            made = planes.workspace().shrink(data, *target, 90, MAX_PIXELS)
            assert made is not None
            assert jpegs.decode(made).shape == (*target, 3)


def test_neither_luma_nor_chroma_is_shifted() -> None:
    """Chroma is in the middle of its pixels: a red cross in the very middle stays there."""
    source = np.zeros((201, 301, 3), np.uint8)
    source[95:106] = source[:, 145:156] = (255, 0, 0)
    for sampling, side in itertools.product(corpus.SAMPLINGS, (50, 67, 101, 150)):
        data = jpegs.encode(source, 98, sampling)
        image = transform(data, Policy(side, 98))
        red = jpegs.decode(image.encoded)[..., 0].astype(float)
        for line in (red[:, 3] + red[:, -4], red[3] + red[-4]):
            middle = (line * np.arange(len(line))).sum() / line.sum()
            assert abs(middle - (len(line) - 1) / 2) < 0.3, (sampling, side)


def test_flat_images_stay_flat() -> None:
    for shade, (height, width) in itertools.product((0, 1, 128, 254, 255), corpus.SIZES):
        pixels = np.full((height, width, 3), shade, np.uint8)
        data = jpegs.encode(pixels, 100, "420")
        found = corpus.decoded(data, 21, 43)
        assert found is not None
        assert np.unique(found).tolist() == [shade]


@pytest.mark.parametrize("seed", long_except(range(2), range(40)))
def test_damage_gets_the_same_verdict_from_both_codecs(seed: int) -> None:
    """Files with any warning of libjpeg are decoded the portable way."""

    def verdict(data: bytes, codec: str) -> object:
        try:
            return transform(data, Policy(64, max_pixels=MAX_PIXELS, codec=codec))[1:]
        except BadImageError as error:
            return error.reason

    for how, data in mutations.mutated(1000 + seed, 250):
        assert verdict(data, PLANES) == verdict(data, PORTABLE), how


def test_error_for_short_memory_has_its_known_number() -> None:
    """An image that failed for lack of memory must not be decoded the portable way: other bytes."""
    manager = ctypes.create_string_buffer(168)
    planes.require().libjpeg.jpeg_std_error(manager)
    table = ctypes.c_void_p.from_buffer(manager, 136).value

    text = ctypes.cast(table, ctypes.POINTER(ctypes.c_char_p))[54]

    assert text.startswith(b"Insufficient memory")


@pytest.mark.parametrize(
    "call",
    [
        "space.shrink(data, 500, 500, 90, 10**8)",
        "space.shrink(data, 9000, 9000, 90, 10**8)",
        "space.means(data, 10**8)",
        "look.decode(data, None, pixels[0])",
        "look.decode_many(jobs)",
    ],
)
def test_lack_of_memory_is_no_verdict(call: str) -> None:
    data = jpegs.encode(corpus.photograph(1500, 2000), 90, "444")
    code = (
        "import resource, sys; import numpy as np; from imagenet_prep.codec import planes\n"
        "data = sys.stdin.buffer.read(); space = planes.allowed_here()\n"
        "look = planes.Look(1000, 1000, planes.BYTES, planes.LINEAR)\n"
        "pixels = np.zeros((2, 1000, 1000, 3), np.uint8)\n"
        "windows = np.array([[0, 0, 1500, 2000]] * 2, np.int32)\n"
        "jobs = look.jobs([data] * 2, windows, np.zeros(2, bool), pixels)\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20),) * 2)\n"
        f"try: {call}\n"
        "except MemoryError as error: print('short:', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True)

    assert done.stdout.startswith(b"short:"), done.stderr


@pytest.mark.parametrize("count", long_except([3_000], [3_000, 100_000]))
def test_images_leak_no_memory(count: int) -> None:
    code = (
        "import sys; from itertools import cycle, islice\n"
        "from imagenet_prep.codec import cage, planes\n"
        "from tests.kit.codec import corpus\n"
        "def rss(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "small = [data for data in corpus.files().values() if len(data) < 3_000]\n"
        "def work(n):\n"
        "    for i, data in enumerate(islice(cycle(small), n)):\n"
        "        part, size = data[: len(data) - i % 3], (9 + i % 50, 9 + i % 31)\n"
        "        planes.workspace().shrink(part, *size, 90, 10**6), corpus.decoded(part, *size)\n"
        "cage.enter()\n"
        f"work(2000); before = rss(); work({count}); print(rss() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=command.environment()
    )
    assert int(done.stdout) < 4 << 20, done.stderr


def test_other_formats_are_declined() -> None:
    buffer = io.BytesIO()
    Image.new("CMYK", (40, 30)).save(buffer, "JPEG")
    rgb = io.BytesIO()
    Image.new("RGB", (40, 30)).save(rgb, "JPEG", keep_rgb=True)
    for data in (buffer.getvalue(), rgb.getvalue(), b"", b"\x89PNG", b"\xff\xd8\xff"):
        assert planes.workspace().shrink(data, 10, 10, 90, MAX_PIXELS) is None
        assert corpus.decoded(data, 10, 10) is None


def test_impossible_sizes_are_declined() -> None:
    data = corpus.files()["96x128 420"]
    for height, width in ((0, 5), (5, 0), (-1, 5), (5, 65_501), (2**31 - 1, 1)):
        assert planes.workspace().shrink(data, height, width, 90, MAX_PIXELS) is None
    assert planes.workspace().shrink(data, 10, 10, 90, 96 * 128 - 1) is None


WINDOWS = [
    (0, 0, 300, 400),
    (40, 52, 200, 180),
    (41, 53, 199, 171),
    (299, 399, 1, 1),
    (7, 0, 293, 3),
    (100, 120, 64, 64),
]


USUAL = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
# Values such as 128.5 and 254.25 are between two numbers of type bfloat16.
HALVES = ((0.5, -0.5, 0.25), (1.0, 1.0, 0.5))


@pytest.mark.parametrize("scale", [USUAL, HALVES], ids=["usual", "halves"])
def test_bfloat16_is_the_nearest_or_even_number(scale: Any) -> None:
    exact = planes.Values("float32", *scale).table.astype(np.float64)
    table = planes.Values("bfloat16", *scale).table

    def distance(bits: np.ndarray) -> np.ndarray:
        numbers = (bits.astype(np.uint32) << 16).view(np.float32)
        return np.abs(numbers.astype(np.float64) - exact)

    # 0 has no number below it with the same sign.
    below, above = distance(np.maximum(table, 1) - 1), distance(table + 1)
    nearest = np.minimum(below, above)
    assert (distance(table) <= nearest).all()
    ties = distance(table) == nearest
    assert (table[ties] % 2 == 0).all()
    assert ties.any() == (scale is HALVES)


@pytest.mark.parametrize("scale", [USUAL, HALVES], ids=["usual", "halves"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_every_kernel_gives_the_same_pixels(dtype: str, scale: Any) -> None:
    values = planes.Values(dtype, *scale)
    shape = (37, 45, 3)  # no multiple of any vector
    for name, first, mirrored in itertools.product(
        ("96x128 420", "96x128 444"), *[(False, True)] * 2
    ):
        look = planes.Look(*shape[:2], values, planes.NEIGHBOURS, channels_first=first)
        bytes_ = planes.Look(*shape[:2], planes.BYTES, planes.NEIGHBOURS)
        data = corpus.files()[name]
        window = (7, 31, 60, 90)
        pixels = np.empty(shape, np.uint8)
        assert bytes_.decode(data, window, pixels)
        expected = np.stack([values.table[c][pixels[..., c]] for c in range(3)])
        expected = expected if first else expected.transpose(1, 2, 0)
        expected = expected[..., ::-1] if first and mirrored else expected
        expected = expected[:, ::-1] if mirrored and not first else expected
        for simd in supported():
            found = np.empty_like(expected, order="C")
            own = planes.workspace(simd)
            assert look.decode(data, window, found, mirrored=mirrored, within=own)
            assert np.array_equal(found, expected), (simd, name, first, mirrored)


@pytest.mark.parametrize("first", [False, True])
def test_batch_call_equals_single_calls(first: bool) -> None:
    sound = [corpus.files()[name] for name in ("96x128 420", "96x128 444")]
    encoded = [sound[0], sound[1][:300], memoryview(bytearray(sound[1])), sound[1], sound[0]]
    windows = np.array([[7, 31, 60, 90]] * 4 + [[7, 31, 60, 98]], np.int32)
    mirrored = np.array([False, False, True, False, True])
    values = planes.Values("float32", (123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
    look = planes.Look(37, 45, values, planes.LINEAR, channels_first=first)
    # Every second image of an array, as in an array of several views.
    pixels = np.zeros((5, 2, 37 * 45 * 3), np.float32)

    done = look.decode_many(look.jobs(encoded, windows, mirrored, pixels[:, 1]))

    assert done.tolist() == [True, False, True, True, False]
    assert not pixels[:, 0].any()
    for i in np.flatnonzero(done):
        alone = np.empty(37 * 45 * 3, np.float32)
        assert look.decode(encoded[i], windows[i].tolist(), alone, mirrored=bool(mirrored[i]))
        assert np.array_equal(pixels[i, 1], alone), i


@pytest.mark.parametrize("sampling", [*corpus.SAMPLINGS, "progressive", "grey", "restarts"])
def test_window_has_the_samples_of_the_complete_image(sampling: str) -> None:
    """libjpeg skips columns of blocks: the rest stays at its position, at any edge."""
    pixels = corpus.photograph(93, 117)
    buffer = io.BytesIO()
    image = Image.fromarray(pixels).convert("L" if sampling == "grey" else "RGB")
    how = {"progressive": {"progressive": True}, "restarts": {"restart_marker_blocks": 3}}
    if sampling in corpus.SAMPLINGS:
        buffer.write(jpegs.encode(pixels, 90, sampling))
    else:
        image.save(buffer, "JPEG", **how.get(sampling, {}))
    whole = corpus.decoded(buffer.getvalue(), 93, 117)
    assert whole is not None
    for left, width in itertools.product(
        (0, 1, 7, 8, 33, 64, 96, 109, 116), (1, 5, 9, 18, 40, 117)
    ):
        width = min(width, 117 - left)
        found = corpus.decoded(buffer.getvalue(), 70, width, (20, left, 70, width))
        assert found is not None
        # Around the edge of a window, chroma is enlarged from its inside.
        inside = slice(8 if left else 0, width - 8 if left + width < 117 else width)
        expected = whole[20:90, left : left + width]
        assert np.array_equal(found[8:-8, inside], expected[8:-8, inside]), (left, width)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("sampling", [*corpus.SAMPLINGS, "progressive"])
def test_window_equals_a_crop_of_the_image(
    window: tuple[int, int, int, int], sampling: str
) -> None:
    pixels = corpus.photograph(300, 400)
    if sampling == "progressive":
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=95, progressive=True)
        data = buffer.getvalue()
    else:
        data = jpegs.encode(pixels, 95, sampling)
    top, left, height, width = window
    whole = jpegs.decode(data)[top : top + height, left : left + width]
    for size in ((96, 96), (224, 224), (height, width)):
        found = corpus.decoded(data, *size, window)
        assert found is not None
        assert found.shape == (*size, 3)
        image = Image.fromarray(whole).resize(size[::-1], Image.Resampling.BICUBIC)
        assert psnr(np.asarray(image), found) > (33 if min(height, width) > 3 else 25), size


def test_grey_image_is_decoded_to_three_equal_channels() -> None:
    found = corpus.decoded(mutations.sources()["grey"], 50, 60)

    assert found is not None
    assert (found == found[..., :1]).all()


@pytest.mark.parametrize(
    "window", [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 0, 5), (92, 0, 5, 5), (0, 124, 5, 5)]
)
def test_window_that_leaves_the_image_is_declined(window: tuple[int, int, int, int]) -> None:
    assert corpus.decoded(corpus.files()["96x128 420"], 8, 8, window) is None


@pytest.fixture
def unloaded() -> Iterator[None]:
    """Nothing is loaded before the test, and nothing of the test stays loaded."""
    planes.require.cache_clear()
    yield
    planes.require.cache_clear()


@pytest.mark.usefixtures("unloaded")
def test_missing_library_names_the_compiler_to_install(
    installed: Installed, tmp_path: Path
) -> None:
    installed.library("codec.planes")
    with pytest.raises(UsageError, match=says("images-cannot-converted-checked", "C compiler")):
        planes.require()


@pytest.mark.usefixtures("unloaded")
def test_missing_pillow_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planes, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=says("images-cannot-converted-checked", "pip install")):
        planes.require()


@pytest.mark.usefixtures("unloaded")
def test_libjpeg_with_different_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planes, "_PROOF", hashlib.sha256(b"others").hexdigest())
    with pytest.raises(UsageError, match=says("not-produce-expected-bytes")):
        planes.require()


@pytest.mark.usefixtures("unloaded")
def test_libjpeg_that_skips_wrong_columns_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = planes.Look.decode
    monkeypatch.setattr(
        planes.Look,
        "decode",
        lambda look, data, window, pixels, within: whole(
            look, data, (window[0], window[1] // 2, *window[2:]), pixels, within=within
        ),
    )
    with pytest.raises(UsageError, match=says("skips-wrong-columns-image")):
        planes.require()


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("version", ["2.1.5", None])
def test_old_libjpeg_turbo_is_refused(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    from PIL import features

    monkeypatch.setattr(features, "version_feature", lambda _: version)
    with pytest.raises(UsageError, match=says("libjpeg-turbo-expected-3.0-newer")):
        planes.require()
