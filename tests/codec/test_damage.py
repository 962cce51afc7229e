"""Warnings of libjpeg: those that cost pixels, and equal verdicts of all calls about such files."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec import damage, likeness, opening, planes, transform
from imagenet_prep.codec.policy import PLANES, PORTABLE, Policy
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset.jpeg import JpegFrame, refuse_bombs
from tests.kit.bounds import limited_memory
from tests.kit.codec import frames, mutations, warned
from tests.kit.codec.calls import CALLS
from tests.kit.hostile import bombs
from tests.kit.hostile.bombs import jpeg


def cases(files: Mapping[str, Iterable[bytes]]) -> list[tuple[str, bytes]]:
    """Returns each file with its name."""
    found: list[tuple[str, bytes]] = []
    for name, contents in files.items():
        found += [(name, data) for data in contents]
    return found


HARMLESS = cases(warned.harmless())
HARMFUL = cases(warned.harmful())


def ids(named: list[tuple[str, bytes]]) -> list[str]:
    return [f"{name.removeprefix('JWRN_')}-{number}" for number, (name, _) in enumerate(named)]


# Calls that decode all of a file, and show no part of a bad one.
JUDGES = CALLS.keys() - {"prepare, headers", "adopt", "report"}


def pixels_of(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def names(data: bytes) -> list[str]:
    warnings, _ = planes.workspace().warnings(data)
    return [damage.WARNINGS[code][0] for code in warnings]


@pytest.mark.parametrize("make", [jpeg.zeros_in_scan, jpeg.zeros_without_end])
def test_trailing_megabytes_of_zeros_take_little_memory(make: bombs.Make) -> None:
    """The search for their start once stored each of them, in 115 bytes."""
    data = make(3_000_000)
    with limited_memory(100 << 20):
        made = transform.transform(data, Policy(None))
    assert made.repair in (damage.SURPLUS, damage.NO_END)
    assert len(made.encoded) < 10_000


def test_table_lists_every_warning_with_a_file() -> None:
    for name, data in HARMLESS + HARMFUL:
        assert names(data)[0] == name
    made = {name for name, _ in HARMLESS + HARMFUL}
    assert {name for name, _ in damage.WARNINGS.values() if name} == made | warned.CANNOT_BE_MADE
    assert not made & warned.CANNOT_BE_MADE
    assert names(warned.plain()) == []


@pytest.mark.parametrize("codec", [PLANES, PORTABLE])
@pytest.mark.parametrize("short_side", [None, 48])
@pytest.mark.parametrize(("name", "data"), HARMLESS, ids=ids(HARMLESS))
def test_file_with_all_its_pixels_is_stored_repaired(
    name: str, data: bytes, short_side: int | None, codec: str
) -> None:
    made = transform.transform(data, Policy(short_side, codec=codec))

    assert made.repair == ("surplus_data" if name == "JWRN_EXTRANEOUS_DATA" else "header")
    assert names(made.encoded) == []
    plain = Image.open(io.BytesIO(warned.plain())).convert("RGB")
    expected = plain.resize((made.width, made.height), Image.Resampling.BICUBIC)
    assert abs(pixels_of(made.encoded) - np.asarray(expected).astype(int)).mean() < 6  # grain


@pytest.mark.parametrize(("name", "data"), HARMLESS, ids=ids(HARMLESS))
def test_all_calls_accept_files_with_all_pixels(name: str, data: bytes) -> None:
    assert np.array_equal(pixels_of(data), pixels_of(warned.plain())), name
    for call in CALLS.values():
        call(data)
    assert transform.prove_stored(data, 120, 160) is False
    assert transform.is_rgb(data)


@pytest.mark.parametrize(("name", "data"), HARMFUL, ids=ids(HARMFUL))
def test_all_calls_refuse_files_with_lost_pixels(name: str, data: bytes) -> None:
    reason = "truncated" if name == "JWRN_JPEG_EOF" else "corrupt"
    for call in sorted(JUDGES):
        with pytest.raises(BadImageError) as caught:
            CALLS[call](data)
        assert reason in str(caught.value), call


@pytest.mark.parametrize("name", warned.harmful())
def test_harmless_warning_hides_no_harmful_one(name: str) -> None:
    for data in warned.harmful()[name]:
        at = data.index(b"\xff\xdb")
        with pytest.raises(BadImageError) as caught:
            transform.transform(data[:at] + b"junk" + data[at:], Policy(None))
        assert "Corrupt JPEG data: 4 extraneous bytes" not in caught.value.detail


def test_surplus_bytes_in_a_scan_hide_no_truncation() -> None:
    restarts = warned.plain(restart_marker_blocks=4)
    at = restarts.index(b"\xff\xd1")
    for junk in (40 * b"surplus", bytes(40)):
        data = restarts[:at] + junk + restarts[at : len(restarts) // 2]
        with pytest.raises(BadImageError):
            transform.transform(data, Policy(None))


SAMPLINGS = {
    "4:1:0": ((4, 2), (1, 1), (1, 1)),
    "2x4": ((2, 4), (1, 1), (1, 1)),
    "1x4": ((1, 4), (1, 1), (1, 1)),
    "3x1": ((3, 1), (1, 1), (1, 1)),
    "3x2": ((3, 2), (1, 1), (1, 1)),
    "chroma differs": ((2, 2), (1, 1), (1, 2)),
    "chroma crossed": ((2, 2), (1, 2), (2, 1)),
    "less luma": ((1, 1), (2, 2), (2, 2)),
    "CMYK 4:2:0": ((2, 2), (1, 1), (1, 1), (1, 1)),
    "CMYK 4:2:2": ((2, 1), (1, 1), (1, 1), (1, 1)),
}


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("kind", SAMPLINGS)
def test_sampling_factors_without_a_name_are_decoded(kind: str, progressive: bool) -> None:
    rows, columns = np.mgrid[0:121, 0:161]
    pixels = np.stack([columns, 2 * rows, rows + columns // 2, 0 * rows], axis=2).astype(np.uint8)
    factors = SAMPLINGS[kind]
    data = frames.encoded(pixels[:, :, : len(factors)], sampling=factors, progressive=progressive)
    is_cmyk = kind.startswith("CMYK")
    for name, call in CALLS.items():
        if not (is_cmyk and name == "verify"):
            call(data)
    assert transform.is_rgb(data) is not is_cmyk
    for codec in (PLANES, PORTABLE):
        made = transform.transform(data, Policy(None, codec=codec))
        assert made.repair == ("cmyk" if is_cmyk else "sampling")
        assert abs(pixels_of(made.encoded) - pixels_of(data)).mean() < 3


def test_turned_photograph_with_an_odd_header_is_turned() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for data in (warned.plain(exif=exif), warned.plain(exif=exif, subsampling="4:4:4")):
        at = data.index(b"\xff\xdb")
        made = transform.transform(
            data[:at] + b"junk" + data[at:], Policy(None, orientation="apply")
        )
        assert (made.height, made.width, made.repair) == (160, 120, "surplus_data+orientation")


def test_hashes_of_16_bit_images_use_stored_pixels() -> None:
    """Pillow would make all of them white."""
    wide = mutations.photograph()[:, :, 0].astype(np.uint16) * 257
    buffer = io.BytesIO()
    Image.fromarray(wide).save(buffer, "PNG")
    with opening.opened(buffer.getvalue()) as opened:
        shown = opening.pixels(opened)
    assert np.array_equal(shown[:, :, 0], wide >> 8)
    expected = likeness.means_of_pixels((wide >> 8).astype(np.uint8))
    assert np.array_equal(likeness.means(buffer.getvalue()), expected)


# What jerror.h of libjpeg-turbo names as a warning, and codes of errors, notes and newer versions.
REPAIRED = {114: "header", 116: "surplus_data", 119: "header", 122: "header", 127: "header"}
LOST = {120: "truncated"}


@pytest.mark.parametrize("code", [*range(105, 131), 199, 254])
def test_only_warnings_in_the_table_are_harmless(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = warned.plain()
    frame = header_of(data)
    monkeypatch.setattr(planes.Workspace, "warnings", lambda *_: ({code: "a warning"}, ""))
    if code in REPAIRED:
        assert damage.repaired(data, frame) == (REPAIRED[code], data)
        return
    with pytest.raises(BadImageError) as caught:
        damage.repaired(data, frame)
    assert caught.value.reason == LOST.get(code, "corrupt")


def test_the_first_of_several_warnings_names_the_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    data = warned.plain()
    frame = header_of(data)
    for codes, repair in (([114, 116], "header"), ([116, 114], "surplus_data"), ([], None)):
        found = dict.fromkeys(codes, "a warning")
        monkeypatch.setattr(planes.Workspace, "warnings", lambda *_, found=found: ({**found}, ""))
        assert damage.repaired(data, frame) == (repair, data)
    assert damage.repaired(data, frame, "libjpeg's warning") == ("header", data)


def test_missing_scans_alone_are_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    data = warned.plain()
    frame = header_of(data)
    monkeypatch.setattr(planes.Workspace, "warnings", lambda *_: ({255: "less detail"}, ""))
    assert damage.repaired(data, frame) == (None, data)


def header_of(data: bytes) -> JpegFrame:
    frame = refuse_bombs(data)
    assert frame is not None
    return frame
