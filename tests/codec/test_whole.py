"""Damaged JPEGs with all their pixels: compared with the pixels before the damage."""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec import damage, opening
from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import prove_stored, transform
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import jpeg
from imagenet_prep.dataset.formats import LINE_ENDS
from tests.kit.codec import frames, mutations
from tests.kit.lengths import long_except
from tests.kit.messages import says

EOI = b"\xff\xd9"
TEXT = b"Hello world, this text follows the picture.\n" * 20
VIDEO = b"\0\0\0\x18ftypmp42" + random.Random(3).randbytes(50_000)
FILLS = (b"\0", b"\xff\0", b"\xff", b"\xff\xd0", b"\0\xff\0", b"\xff\xd3\0", b"\xff\xff\0")


def encoded(image: Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **({"quality": 85} | options))
    return buffer.getvalue()


def kinds() -> dict[str, bytes]:
    """Returns small JPEGs of each coding; none is lossless or arithmetic."""
    pixels = mutations.photograph((61, 43))
    image = Image.fromarray(pixels)
    return {
        "baseline": encoded(image),
        "444": encoded(image, subsampling="4:4:4"),
        "progressive": encoded(image, progressive=True),
        "restarts": encoded(image, restart_marker_blocks=3),
        "progressive restarts": encoded(image, progressive=True, restart_marker_blocks=3),
        "grey": encoded(image.convert("L")),
        "progressive grey": encoded(image.convert("L"), progressive=True),
        "cmyk": encoded(image.convert("CMYK")),
        "optimized": encoded(image, quality=30, optimize=True),
        "flat": encoded(Image.new("RGB", (64, 48), "white"), optimize=True),
    }


KINDS = sorted(kinds())


def pixels_of(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def judged(data: bytes) -> tuple[str | None, bytes]:
    """Returns the reason and the image of `damage`, or the reason of the quarantine and b""."""
    try:
        frame = jpeg.refuse_bombs(data)
        if frame is None:
            return "undecodable", b""
        return damage.repaired(data, frame)
    except BadImageError as error:
        return error.reason, b""


def reason(data: bytes) -> str | None:
    """Returns the reason of the repair or of the quarantine."""
    try:
        return transform(data, Policy(None)).repair
    except BadImageError as error:
        return error.reason


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", [b"", bytes(3000), VIDEO, b"\xff\0" * 2000], ids=len)
def test_truncated_image_is_never_called_complete(kind: str, tail: bytes) -> None:
    data = kinds()[kind]
    expected = pixels_of(data)
    step = 23 if tail else 1

    complete = 0
    last = len(data) - len(EOI)
    for cut in [*range(data.index(b"\xff\xda"), last - 40, step), *range(last - 40, last + 1)]:
        found, picture = judged(data[:cut] + tail)
        if picture:
            assert found == "no_end_marker"
            assert np.array_equal(pixels_of(picture), expected), cut
            complete += 1

    several_scans = kind.startswith("progressive")
    # In a file of several scans, every decoder searches the video for more scans.
    assert complete or (several_scans and tail is VIDEO)


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_and_padded_image_is_never_called_complete(kind: str) -> None:
    """An interrupted download leaves zeros; here also with an end marker."""
    data = kinds()[kind]
    expected = pixels_of(data)
    for cut in range(data.index(b"\xff\xda"), len(data) - len(EOI), 7):
        found, picture = judged(data[:cut] + bytes(4000) + EOI)
        if found == "surplus_data":
            assert np.array_equal(pixels_of(picture), expected), cut


@pytest.mark.parametrize("kind", KINDS)
def test_text_after_a_truncated_image_leaves_a_doubt(kind: str) -> None:
    """The first bytes of the text may replace the last ones of the image."""
    data = kinds()[kind]
    expected = pixels_of(data)
    last = len(data) - len(EOI)
    for cut in [*range(data.index(b"\xff\xda"), last - 40, 23), *range(last - 40, last + 1)]:
        found, picture = judged(data[:cut] + TEXT)
        if found == "no_end_marker":
            assert np.array_equal(pixels_of(picture), expected), cut
    assert found in ("no_end_marker", "doubtful_end")


def test_text_instead_of_end_marker_is_mostly_repaired() -> None:
    found: Counter[str | None] = Counter()
    with_marker: Counter[str | None] = Counter()
    for seed in range(200):
        image = Image.fromarray(np.roll(mutations.photograph((61, 43)), seed, axis=(0, 1)))
        data = encoded(image, quality=60 + seed % 40)
        open_end = data[: -len(EOI)] + TEXT
        found[judged(open_end)[0]] += 1
        # An end marker after the text does not show where the image ends.
        with_marker[judged(open_end + EOI)[0]] += 1

    assert found["no_end_marker"] + found["doubtful_end"] >= 196
    assert found["no_end_marker"] > found["doubtful_end"] > 0
    assert with_marker["doubtful_end"] == found["doubtful_end"]
    assert with_marker["surplus_data"] == found["no_end_marker"]


@pytest.mark.parametrize("kind", sorted(mutations.sources()))
def test_image_without_its_end_marker_is_repaired(kind: str) -> None:
    data = mutations.sources()[kind]
    for policy in (Policy(None), Policy(None, check="header"), Policy(60)):
        for tail in (b"", bytes(5000), data):
            if tail is data and (kind == "progressive" or policy.check == "header"):
                # Every decoder reads the second file's frame as one of the first, or finds an end
                # marker.
                continue
            made = transform(data[: -len(EOI)] + tail, policy)
            assert made.repair == "no_end_marker"
            whole = transform(data, policy)
            again = pixels_of(made.encoded) - pixels_of(whole.encoded)
            assert abs(again).mean() < 9
            prove_stored(made.encoded, made.height, made.width)


@pytest.mark.parametrize("kind", sorted(mutations.sources()))
def test_fill_before_the_end_marker_quarantines_no_image(kind: str) -> None:
    data = mutations.sources()[kind]
    sound = reason(data)
    for fill in FILLS:
        for count in (1, 2, 3, 5, 9, 17, 100, 3000):
            padded = data[: -len(EOI)] + count * fill + EOI
            assert reason(padded) in (sound, "surplus_data"), (fill, count)
            # The same bytes without the end marker
            assert reason(padded[: -len(EOI)]) == "no_end_marker", (fill, count)


@pytest.mark.parametrize("seed", long_except(range(3), range(20)))
def test_fill_before_a_scans_markers_quarantines_no_image(seed: int) -> None:
    rng = random.Random(seed)
    for kind in ("restarts", "progressive", "progressive restarts"):
        data = kinds()[kind]
        scan = data.index(b"\xff\xda") + 20
        for fill in (b"\0", b"\xff\0"):
            padded = bytearray(data[:scan])
            for at in range(scan, len(data)):
                if data[at] == 0xFF and data[at + 1 : at + 2] not in (b"\0", b""):
                    is_marker = data[at + 1] >= 0xC0 and data[at - 1] != 0xFF
                    if is_marker and data[at + 1] in (*range(0xD0, 0xD8), 0xD9):
                        padded += fill * rng.randrange(30)
                padded.append(data[at])
            assert reason(bytes(padded)) in (None, "surplus_data")


def damaged(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yields a JPEG with one flipped bit, one lost byte, and one inserted byte."""
    start = data.index(b"\xff\xda") + 14
    for how in ("flip", "drop", "insert"):
        at = rng.randrange(start, len(data) - len(EOI))
        changed = bytearray(data)
        if how == "flip":
            changed[at] ^= 1 << rng.randrange(8)
        elif how == "drop":
            del changed[at]
        else:
            changed.insert(at, rng.randrange(256))
        yield bytes(changed)


@pytest.mark.parametrize("progressive", [False, True])
def test_one_damaged_byte_is_rarely_called_a_repair(progressive: bool) -> None:
    found: Counter[str | None] = Counter()
    for seed in range(80):
        rng = random.Random(seed)
        size = (300 + seed, 220)
        image = Image.fromarray(np.roll(mutations.photograph(size), 9 * seed, axis=(0, 1)))
        data = encoded(image, quality=70 + seed % 25, progressive=progressive)
        for changed in damaged(data, rng):
            found[reason(changed)] += 1

    noticed = found.total() - found[None]
    assert noticed > 40
    assert found.total() - found[None] - found["corrupt"] - found["truncated"] <= noticed // 20


def test_byte_inserted_into_a_table_is_damage() -> None:
    data = kinds()["baseline"]
    for marker in (0xDB, 0xC4):
        for at in range(data.index(bytes((0xFF, marker))) + 6, data.index(b"\xff\xc0"), 9):
            changed = data[:at] + b"\x07" + data[at:]
            assert reason(changed) in ("corrupt", "undecodable")


@pytest.mark.parametrize("progressive", [False, True])
def test_translated_line_ends_are_named(progressive: bool) -> None:
    for seed in range(60):
        image = Image.fromarray(np.roll(mutations.photograph(), 7 * seed, axis=(0, 1)))
        data = encoded(image, quality=30 + seed % 66, progressive=progressive)
        changed = data.replace(b"\n", b"\r\n")
        if data.count(b"\n") < 3:
            continue  # too few to be sure
        for policy in (Policy(None), Policy(60), Policy(None, check="header")):
            with pytest.raises(BadImageError) as caught:
                transform(changed, policy)
            assert (caught.value.reason, caught.value.detail) == ("corrupt", LINE_ENDS)
        with pytest.raises(BadImageError, match=says("line-ends-translated-git-ftp")):
            opening.header(changed)


def test_line_ends_of_undamaged_files_are_kept() -> None:
    """One of these files only has LFs in a text with CR LF."""
    notes = b"\xff\xfe" + (2 + 60).to_bytes(2, "big") + 10 * b"note\r\n"
    flat = encoded(Image.new("RGB", (16, 16), "gray"), quality=100, optimize=True)
    assert b"\n" not in flat
    assert reason(flat[:2] + notes + flat[2:]) is None

    for seed in range(400):
        rng = np.random.default_rng(seed)
        small = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
        size = tuple(rng.integers(16, 120, 2).tolist())
        image = Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)
        data = encoded(image, quality=int(rng.integers(20, 96)), progressive=seed % 2 == 0)
        assert reason(data) is None, seed


def test_png_with_translated_line_ends_is_named() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    data = buffer.getvalue()
    for changed in (data.replace(b"\n", b"\r\n"), data.replace(b"\r\n", b"\n")):
        with pytest.raises(
            BadImageError, match=says("png-whose", says("line-ends-translated-git-ftp"))
        ):
            transform(changed, Policy(None))


def test_arithmetic_code_without_end_marker_is_truncated() -> None:
    data = frames.arithmetic(mutations.photograph((61, 43)))
    assert reason(data) is None
    assert reason(data[:-2]) == "truncated"


def test_missing_scans_are_not_called_complete() -> None:
    """A sequential file with a scan for each component, of which the last one is lost."""
    data = frames.encoded(mutations.photograph((61, 43)), progressive=True)
    scans = [at for at in range(len(data) - 1) if data[at : at + 2] == b"\xff\xda"]
    for scan in scans[1:]:
        assert judged(data[:scan])[1] == b""


def test_doubt_is_the_only_reason_of_turned_images() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for seed in range(40):
        image = Image.fromarray(np.roll(mutations.photograph((61, 43)), seed, axis=0))
        data = encoded(image, exif=exif)[: -len(EOI)] + TEXT
        if judged(data)[0] == "doubtful_end":
            made = transform(data, Policy(None, orientation="apply"))
            assert (made.repair, made.height, made.width) == ("doubtful_end", 61, 43)
            return
    raise AssertionError("none of 40 pictures ends with a byte of text")


def test_fewer_scans_with_end_marker_are_less_detailed() -> None:
    """No decoder calls such files damaged. With trailing bytes they are called incomplete."""
    sampling = ((4, 2), (1, 1), (1, 1))
    pixels = mutations.photograph((61, 43))
    data = frames.encoded(pixels, sampling=sampling, progressive=True)
    last = data.rindex(b"\xff\xda")
    assert reason(data[:last] + EOI) == "sampling"
    assert reason(data[: -len(EOI)] + bytes(100) + EOI) == "surplus_data"
    assert reason(data[:last] + bytes(100) + EOI) == "corrupt"


def test_last_byte_similar_to_fill_quarantines_no_image() -> None:
    """A scan may end with 0xFF and its stuffed zero."""
    count = 0
    for seed in range(1500):
        small = mutations.photograph((24, 16))
        data = encoded(Image.fromarray(np.roll(small, seed, axis=(0, 1))), quality=60 + seed % 40)
        if data.endswith(b"\xff\0" + EOI):
            count += 1
            for number in (20, 2000):
                padded = data[: -len(EOI)] + number * b"\xff\0" + EOI
                assert reason(padded) == "surplus_data"
                assert reason(padded[: -len(EOI)]) == "no_end_marker"
    assert count > 1
