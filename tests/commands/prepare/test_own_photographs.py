"""A folder of photographs with only class folders and odd files: all files are accounted for."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from imagenet_prep import report
from tests.kit import command
from tests.kit.dataset import split_records
from tests.kit.layouts import write
from tests.kit.messages import says, wording
from tests.kit.photographs import exif, photograph, pixels

JXL = b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(200)


MOV = b"\0\0\0\x14ftypqt  " + bytes(200)


def saved(kind: str, mode: str = "RGB", seed: int = 0) -> bytes:
    buffer = io.BytesIO()
    pixels(60, 80, seed).convert(mode).save(buffer, kind)
    return buffer.getvalue()


FILES = {
    "cats/IMG_1.jpg": photograph(60, 80, 1),
    "cats/2021/IMG_1.jpg": photograph(60, 80, 2),
    "cats/2021/Ferien am See/Kätzchen ä.JPG": photograph(60, 80, 3),
    "cats/IMG_2.HEIC": photograph(60, 80, 4),  # a JPEG, as phones export them
    "cats/IMG_3": photograph(60, 80, 5),
    "cats/IMG_4.jpg": JXL,
    "cats/turned.jpg": photograph(60, 80, 6, exif=exif(6)),
    "cats/empty.jpg": b"",
    "cats/IMG_5.heic": JXL,
    "cats/IMG_6.heic": JXL,
    "cats/film.mov": MOV,
    "cats/.DS_Store": b"\0\0\0\1Bud1",
    "cats/._IMG_1.jpg": b"\0\5\26\7",
    "dogs/a.png": saved("PNG", "RGBA"),
    "dogs/b.webp": saved("WEBP"),
    "dogs/c.avif": saved("AVIF"),
    "dogs/d.jpg": saved("AVIF"),
    "dogs/cmyk.jpg": saved("JPEG", "CMYK"),
    "dogs/list.txt": b"BM is how many a text begins",
    "dogs/raw.dng": saved("TIFF"),
    "dogs/scan.tif": saved("TIFF"),
    "dogs/.thumbnails/a.jpg": photograph(30, 40),
    "notes.txt": b"mine",
    ".DS_Store": b"\0\0\0\1Bud1",
}


IGNORED = {
    ".DS_Store": 2,
    ".dng": 1,
    ".mov": 1,
    ".thumbnails/": 1,
    ".txt": 2,
    "hidden .jpg": 1,
}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    root = tmp_path / "photos"
    for name, data in FILES.items():
        write(root / name, data)
    return root


def prepare(source: Path, out: Path, *more: object) -> command.Finished:
    return command.run("prepare", "--source", source, "--out", out, *map(str, more))


def quarantine(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "quarantine.jsonl").read_bytes().splitlines()]


@pytest.mark.slow
def test_photographs_are_stored_quarantined_or_counted(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = prepare(photos, out)
    assert made.code == 0, made
    assert "folder: photos; 2 classes (cats, dogs; " in made.err
    assert says("no-train-val-folder-images").search(made.err)
    assert (
        "\nignored: 8 files: 2 .DS_Store, 2 .txt, 1 .dng, 1 .mov, 1 .thumbnails/, 1 hidden .jpg "
        "(photographs in .dng are not read: convert them to JPEG)\n"
    ) in made.out

    manifest = json.loads((out / "dataset.json").read_bytes())
    (source,) = manifest["sources"]
    assert source["ignored"] == IGNORED
    assert [*manifest["splits"]] == ["train"]
    records = split_records(out, "train")
    keys = {f"{record.wnid}/{record.filename}" for record in records}
    lines = {line["key"]: line for line in quarantine(out)}
    bad = {key for key, line in lines.items() if line["action"] == "quarantined"}
    unread = {"cats/IMG_4.jpg", "cats/IMG_5.heic", "cats/IMG_6.heic"}
    assert bad == {*unread, "cats/empty.jpg"}
    assert keys.isdisjoint(bad)
    assert len(keys) == len(records)
    assert keys | bad <= FILES.keys()
    assert len(keys) + len(bad) + sum(IGNORED.values()) == len(FILES)
    said = "is JPEG XL, which is not read here: convert to JPEG or PNG"
    assert {lines[key]["detail"] for key in unread} == {said}
    reasons = Counter(line["reason"] for line in lines.values() if line["action"] == "repaired")
    assert reasons == {"png": 1, "avif": 2, "webp": 1, "cmyk": 1, "tiff": 1, "orientation": 1}
    assert command.run("verify", out, "--level", "decode").code == 0

    # The keys stay in the resized dataset, and a second run has no work.
    resized = command.run("resize", "-i", out, "-o", tmp_path / "small", "-r", "32")
    assert resized.code == 0, resized
    again = {f"{r.wnid}/{r.filename}" for r in split_records(tmp_path / "small", "train")}
    assert again == keys
    assert says("run-nothing-left").search(prepare(photos, out).out)


WITHOUT_DECODERS = """
import importlib.util, runpy
from imagenet_prep.codec import cage
cage.enter()  # images are opened in this process, which lacks the decoders
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name in ("pillow_heif", "PIL._avif") else find(name, package)
)
runpy.run_module("imagenet_prep", run_name="__main__")
"""


def test_summary_names_the_extra_of_a_format(tmp_path: Path) -> None:
    heic = b"\0\0\0\x18ftypheic" + bytes(200)
    avif = b"\0\0\0\x18ftypavif" + bytes(200)
    files = {"a.jpg": photograph(60, 80), "b.heic": heic, "c.jpg": heic, "d.avif": avif}
    for name, data in (files | {"e.jxl": JXL, "f.jpg": b"text" * 50}).items():
        write(tmp_path / "photos" / "cats" / name, data)
    lines = [
        "quarantined: 5 (5 unknown_format)",
        (
            "1 quarantined image: the format is AVIF, which is not read here: run pip install "
            "--force-reinstall --only-binary :all: pillow, or convert to JPEG or PNG, then prepare "
            "to a new --out"
        ),
        (
            "2 quarantined images: the format is HEIC, which is not read here: run pip install "
            "'imagenet-prep[heif]', or convert to JPEG or PNG, then prepare to a new --out"
        ),
        (
            "1 quarantined image: the format is JPEG XL, which is not read here: convert to JPEG "
            "or PNG, then prepare to a new --out"
        ),
    ]
    for _ in range(2):  # the second run finds a finished dataset
        flags = ("--source", tmp_path / "photos", "--out", tmp_path / "out")
        made = command.run(
            "prepare", *flags, "--worker-kind", "threads", program=("-c", WITHOUT_DECODERS)
        )
        assert made.code == 0, made
        assert "\n".join(lines) in made.out


@pytest.mark.slow
def test_excluded_photographs_have_quarantine_lines(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    keys = tmp_path / "keys"
    keys.write_text("cats/2021/IMG_1.jpg\n")
    made = prepare(photos, out, "--exclude", keys)
    assert made.code == 0, made
    (line,) = [line for line in quarantine(out) if line["action"] == "excluded"]
    assert line == {
        "key": "cats/2021/IMG_1.jpg",
        "archive": "photos/cats/2021/IMG_1.jpg",
        "offset": 0,
        "size": len(FILES["cats/2021/IMG_1.jpg"]),
        "class_index": 0,
        "action": "excluded",
        "reason": "listed",
        "detail": wording("list-exclude"),
        "split": "train",
        "source_sha256": hashlib.sha256(FILES["cats/2021/IMG_1.jpg"]).hexdigest(),
    }
    assert "\nexcluded: 1\n" in made.out


def test_imagenet_folders_only_read_jpeg_names(
    tmp_path: Path,
) -> None:
    root = tmp_path / "train"
    for number, wnid in enumerate(("n01440764", "n01443537")):
        (root / wnid / "more").mkdir(parents=True)
        (root / wnid / "more" / f"{wnid}_1.JPEG").write_bytes(photograph(60, 80, number))
        (root / wnid / f"{wnid}_2.HEIC").write_bytes(photograph(60, 80, number))
    made = prepare(root, tmp_path / "out", "--allow-subset")
    assert made.code == 0, made
    assert "\nignored: 2 files: 2 .heic " in made.out
    found = {record.filename for record in split_records(tmp_path / "out", "train")}
    assert found == {"n01440764_1.JPEG", "n01443537_1.JPEG"}


@pytest.mark.extras
@pytest.mark.usefixtures("unplotted")
def test_report_shows_ignored_and_quarantined_files(photos: Path, tmp_path: Path) -> None:
    assert prepare(photos, tmp_path / "out").code == 0
    assert report.run([str(tmp_path / "out")]) == 0
    page = (tmp_path / "out/report.html").read_text()
    assert says("photographs-not-read-convert-them", ".dng").search(page)
    assert "3 unknown_format" in page


def test_turned_photograph_is_stored_upright(photos: Path, tmp_path: Path) -> None:
    assert prepare(photos, tmp_path / "out").code == 0
    (record,) = [r for r in split_records(tmp_path / "out", "train") if r.filename == "turned.jpg"]
    image = Image.open(io.BytesIO(record.encoded))
    assert image.size == (60, 80) == (record.width, record.height)
