"""JPEGs that some decoder refuses, and doubtful JPEGs: all verbs report the same."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.kit import command, foreign
from tests.kit.dataset import split_records
from tests.kit.layouts import write
from tests.kit.messages import says
from tests.kit.photographs import photograph

EMPTY_JFIF = b"\xff\xe0\0\x07JFIF\0"
TEXT = b"Hello world, this text follows the picture.\n" * 20
ADVICE = says("resize-adopt-rewrite-encodes-again")


def refused(seed: int) -> bytes:
    """Returns a JPEG that Pillow cannot open."""
    data = photograph(60, 80, seed)
    return data[:2] + EMPTY_JFIF + data[data.index(b"\xff\xdb") :]


def doubtful() -> bytes:
    """Returns a JPEG with text in place of its end marker, and at the end of its scan."""
    for seed in range(100):
        data = photograph(60, 80, seed)[:-2]
        if data[-1:].isalpha():
            return data + TEXT
    raise AssertionError("none of 100 photographs ends with a letter")


@pytest.fixture
def existing(tmp_path: Path) -> Path:
    """Returns shards of a different program; two of their images are refused."""
    names = [(f"n0000000{number}", f"class {number}") for number in (1, 2)]
    images = []
    for wnid, words in names:
        seed = ord(wnid[-1])
        for n, data in enumerate((photograph(60, 80, seed), refused(seed))):
            key = f"{wnid}/{wnid}_{n}.JPEG"
            images.append(foreign.Image("train", key, wnid, words, data, 80, 60))
    folder = tmp_path / "existing"
    folder.mkdir()
    labels = {"n00000001": 1, "n00000002": 2}
    payloads = [foreign.frame(foreign.encode(foreign.slim(i, labels[i.wnid]))) for i in images]
    (folder / "train-00000-of-00001").write_bytes(b"".join(payloads))
    return folder


def test_stored_images_open_in_pillow(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"source/cat/{number}.jpg", refused(number))
        write(tmp_path / f"source/dog/{number}.jpg", photograph(60, 80, number + 50))

    made = command.run("prepare", "source", "out", "--keep-original", "--json", cwd=tmp_path)

    assert (made.code, made.json["repaired"], made.json["quarantined"]) == (0, {"header": 3}, {})
    for record in split_records(tmp_path / "out", "train"):
        with Image.open(io.BytesIO(record.encoded)) as image:
            assert np.asarray(image).shape == (60, 80, 3)
    assert command.run("verify", "out", "--level", "decode", cwd=tmp_path).code == 0


def test_all_verbs_report_a_refused_image(existing: Path) -> None:
    out = existing.with_name("out")
    adopted = command.run("adopt", existing, "--allow-subset", cwd=existing.parent)
    assert adopted.code == 0
    assert says("refused-pillow-dali-because-header", "2 images").search(adopted.out)

    verified = command.run("verify", existing, "--level", "decode")
    assert verified.code == 3
    assert len(ADVICE.findall(verified.err)) + len(ADVICE.findall(verified.out)) >= 2
    reported = command.run("report", existing, "--out", existing.with_name("page.html"))
    assert reported.code == 0
    assert len(ADVICE.findall(existing.with_name("page.html").read_text())) >= 2
    found = command.run("duplicates", existing, "--out", existing.with_name("found"))
    assert (found.code, len(ADVICE.findall(found.err + found.out)) >= 2) == (3, True)

    resized = command.run("resize", existing, "-o", out, "--keep-original")
    assert (resized.code, "repaired: 2 (2 header)" in resized.out) == (0, True), resized.err
    assert command.run("verify", out, "--level", "decode").code == 0


def test_adopt_rewrites_a_refused_image(existing: Path) -> None:
    out = existing.with_name("out")
    made = command.run("adopt", existing, "--rewrite", "--out", out, "--allow-subset")
    assert made.code == 0
    assert command.run("verify", out, "--level", "decode").code == 0


@pytest.mark.parametrize(
    ("flags", "code"),
    [((), 0), (("--max-bad", "1"), 0), (("--max-bad", "0"), 3), (("--on-bad-image", "fail"), 3)],
)
def test_doubtful_image_is_treated_as_bad(
    flags: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    write(tmp_path / "source/cat/1.jpg", doubtful())
    write(tmp_path / "source/dog/1.jpg", photograph(60, 80, 200))

    made = command.run("prepare", "source", "out", *flags, cwd=tmp_path)

    assert made.code == code
    if code:
        assert "cat/1.jpg" in made.err
    else:
        assert "repaired: 1 (1 doubtful_end)" in made.out
        again = command.run("prepare", "source", "out", "--max-bad", "0", cwd=tmp_path)
        assert again.code == 3
        assert says("finished-images-quarantined-doubtful-only", ..., "1", "0").search(again.err)


def test_tiff_of_13_bands_is_named(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("L", (16, 16)).save(buffer, "TIFF")
    # SamplesPerPixel, a SHORT, instead of PlanarConfiguration
    planar = b"\x1c\x01\x03\0\x01\0\0\0\x01"
    assert planar in buffer.getvalue()
    bands = buffer.getvalue().replace(planar, b"\x15\x01\x03\0\x01\0\0\0\x0d")
    for name in ("forest", "river"):
        write(tmp_path / f"source/{name}/1.tif", bands)

    made = command.run("prepare", "source", "out", cwd=tmp_path)

    assert made.code == 3
    assert says("bands-bits-compression", "/1.tif: a TIFF (13", "8", "grey", "1").search(made.err)
    assert "fewer shards" not in made.err
    assert "can be decoded" not in made.err
