"""`show`: one shard, looked into with nothing but the shard."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.dataset import Reference, everything, records
from tests.kit.faults import cut, flip_bit

NAME = "train-00003-of-00008"


def test_a_row_a_record_with_its_label_size_and_name(reference: Reference) -> None:
    result = command.run("show", reference.out / NAME)

    images = records(reference.out / NAME)
    rows = result.out.splitlines()
    assert (result.code, result.err) == (0, "")
    assert len(rows) == len(images)
    for number, (row, image) in enumerate(zip(rows, images, strict=True)):
        assert row.split()[0] == str(number)
        assert f" {image.stored_label} {image.wnid} " in row
        assert f"{image.width}x{image.height}" in row
        assert image.filename in row
        assert row.endswith(image.text)


def test_json_is_one_object_a_line(reference: Reference) -> None:
    result = command.run("show", reference.out / NAME, "--json", "--limit", "4")

    images = records(reference.out / NAME)[:4]
    offsets = reference.contents[f"index/{NAME}"].decode().splitlines()[:4]
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert (result.code, result.err) == (0, "")
    assert [f"{row['offset']} {row['size']}" for row in rows] == offsets
    for number, (row, image) in enumerate(zip(rows, images, strict=True)):
        assert row["record"] == number
        assert row["encoded_bytes"] == len(image.encoded)
        assert {key: row[key] for key in ("filename", "stored_label", "wnid", "text")} == {
            "filename": image.filename,
            "stored_label": image.stored_label,
            "wnid": image.wnid,
            "text": image.text,
        }


@pytest.mark.parametrize("number", [0, 7, -1], ids=["first", "middle", "last"])
def test_an_image_is_written_as_it_is_stored(
    reference: Reference, tmp_path: Path, number: int
) -> None:
    images = records(reference.out / NAME)
    number %= len(images)
    out = tmp_path / "image.jpg"
    result = command.run("show", reference.out / NAME, "--image", str(number), "--out", out)

    assert (result.code, result.err) == (0, "")
    assert out.read_bytes() == images[number].encoded
    assert out.read_bytes().startswith(b"\xff\xd8\xff")
    assert f"{images[number].width}x{images[number].height}" in result.out


@pytest.mark.parametrize("number", ["9999", "-1"])
def test_a_record_that_is_not_there_is_refused_with_those_that_are(
    reference: Reference, tmp_path: Path, number: str
) -> None:
    last = len(records(reference.out / NAME)) - 1
    out = tmp_path / "image.jpg"
    result = command.run("show", reference.out / NAME, "--image", number, "--out", out)

    assert (result.code, result.out) == (2, "")
    assert number in result.err
    assert f"0 to {last}" in result.err
    assert not out.exists()


@pytest.mark.parametrize(
    "flags", [("--image", "1"), ("--out", "x.jpg"), ("--image", "one", "--out", "x.jpg")]
)
def test_half_a_request_is_refused(
    reference: Reference, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    result = command.run("show", reference.out / NAME, *flags, cwd=tmp_path)

    assert (result.code, result.out) == (2, "")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_shard_is_shown_up_to_the_damage(reference: Reference, prepared: Path) -> None:
    offsets = [int(text) for text in reference.contents[f"index/{NAME}"].split()[::2]]
    flip_bit(prepared / NAME, offsets[5] + 500)
    result = command.run("show", prepared / NAME)

    assert result.code == 3
    assert len(result.out.splitlines()) == 5
    assert f"{NAME}: record 5 at byte {offsets[5]:,}: data CRC" in result.err


def test_a_cut_shard_names_the_record_it_ends_in(reference: Reference, prepared: Path) -> None:
    offsets = [int(text) for text in reference.contents[f"index/{NAME}"].split()[::2]]
    cut(prepared / NAME, offsets[4] + 20)
    result = command.run("show", prepared / NAME)

    assert result.code == 3
    assert f"{NAME}: record 4 at byte {offsets[4]:,}: " in result.err


@pytest.mark.parametrize("what", ["missing", "a folder"])
def test_what_cannot_be_opened_is_named(tmp_path: Path, what: str) -> None:
    path = tmp_path / "train-00000-of-00001"
    if what == "a folder":
        path.mkdir()
    result = command.run("show", path)

    assert (result.code, result.out) == (2, "")
    assert str(path) in result.err


def test_a_file_that_is_no_shard_is_damaged_data(tmp_path: Path) -> None:
    path = tmp_path / "train-00000-of-00001"
    path.write_text("no TFRecord " * 100)
    result = command.run("show", path)

    assert (result.code, result.out) == (3, "")
    assert "record 0 at byte 0" in result.err


def test_a_place_that_cannot_be_written_is_named(reference: Reference, tmp_path: Path) -> None:
    out = tmp_path / "no" / "folder.jpg"
    result = command.run("show", reference.out / NAME, "--image", "0", "--out", out)

    assert (result.code, result.out) == (1, "")
    assert str(out) in result.err


def test_a_reader_that_has_seen_enough_ends_it_quietly(prepared: Path) -> None:
    """`show | head -1`, with more output than a pipe holds."""
    shard = prepared / NAME
    shard.write_bytes(shard.read_bytes() * 60)
    process = subprocess.Popen(
        [sys.executable, *command.PROGRAM, "show", str(shard), "--json"],
        cwd="/",
        env=command.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first = process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()

    assert json.loads(first)["record"] == 0
    assert (process.wait(command.PATIENCE_S), err) == (141, b"")


@pytest.mark.parametrize("name", ["", "/dataset.json"])
def test_a_set_is_shown_as_a_whole(reference: Reference, name: str) -> None:
    result = command.run("show", f"{reference.out}{name}")

    manifest = json.loads(reference.contents["dataset.json"])
    split = manifest["splits"]["train"]
    assert (result.code, result.err) == (0, "")
    lines = dict(line.split(": ", 1) for line in result.out.splitlines())
    assert lines["train"].startswith(f"{split['examples']} examples in 8 shards, ")
    assert lines["classes"] == "8, of its own"
    assert lines["made by"].startswith("imagenet-prep ")
    assert "quality 90" in lines["settings"]
    assert lines["manifest"] == f"{reference.out}/dataset.json ({manifest['digest'][:16]})"
    assert "subset" in lines, "counts are not ILSVRC2012's, as whose archives these came"
    first = manifest["sources"][0]
    assert f"from: {first['name']}: " in result.out


def test_a_set_is_shown_as_json(reference: Reference) -> None:
    result = command.run("show", "--json", "--data-dir", reference.out)

    manifest = json.loads(reference.contents["dataset.json"])
    shown = json.loads(result.out)
    assert (shown["digest"], shown["subset"]) == (manifest["digest"], True)
    assert shown["splits"]["train"]["examples"] == manifest["splits"]["train"]["examples"]


def test_what_is_for_a_shard_is_refused_of_a_set(reference: Reference, tmp_path: Path) -> None:
    for flags in (("--limit", "3"), ("--image", "1", "--out", tmp_path / "1.jpg")):
        result = command.run("show", reference.out, *flags)
        assert (result.code, result.out) == (2, "")
        assert f"{reference.out} is a data set" in result.err


def test_show_changes_nothing(reference: Reference) -> None:
    before = everything(reference.out)
    command.run("show", reference.out / NAME)

    assert everything(reference.out) == before
