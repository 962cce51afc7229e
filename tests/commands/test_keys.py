"""Keys that lead out of a folder: all verbs that read them refuse the dataset."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from imagenet_prep import adopt, amend, diff, duplicates, export, resize, show, verify
from imagenet_prep.core.errors import DataDamagedError, SourceError
from imagenet_prep.dataset import example, keys, manifest, record_files, schema
from imagenet_prep.pipelines import prepare
from tests.kit import command, layouts
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.tfrecords import plain

FORMATS = ("folder", "webdataset", "parquet", "recordio", "tfds")
IN_TABLE = says("not-line-table-key-part")
IN_RECORD = says("name-part-empty")
IN_EXPORT = re.compile(f"{IN_RECORD.pattern}|{says('key-part-empty-file-would').pattern}")
# The key of the first image, without the folder of its class.
NAMES = (
    "../../x.jpg",
    "..",
    "./x.jpg",
    "a//x.jpg",
    "/etc/x.jpg",
    "a/",
    "..\\x.jpg",
    "a\\..\\,x.jpg",
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two classes with two images each, in one shard; read-only."""
    source, out = (tmp_path_factory.mktemp("sound") / name for name in ("source", "set"))
    for number, name in enumerate(("cats/a", "cats/b", "dogs/a", "dogs/b")):
        layouts.write(source / f"{name}.jpg", plain(number))
    flags = ("--splits", "train", "--train-shards", "1", "--json")
    assert prepare.run(["--source", str(source), "--out", str(out), *flags]) == 0
    return out


def renamed(sound: Path, root: Path, name: str, *, tables: bool = True) -> Path:
    """Returns a consistent copy of a dataset whose first record has this name."""
    shutil.copytree(sound, root)
    path = root / schema.MANIFEST
    made = manifest.loads(path.read_bytes(), str(path))
    (shard,) = made.splits["train"].shards
    records = b""
    lines = ""
    start = 0
    with open(root / shard.name, "rb") as file:
        for record in record_files.read_records(file, shard.name):
            image = example.decode(record.payload)
            image = image if record.number else image._replace(filename=name)
            records += b"".join(record_files.frame_parts((example.encode(image), b"", b"")))
            lines += record_files.index_line(start, len(records) - start)
            start = len(records)
    index = lines.encode()
    (root / shard.name).write_bytes(records)
    (root / schema.index_name(shard.name)).write_bytes(index)
    sums = sha256(records).hexdigest(), sha256(index).hexdigest()
    shard = dataclasses.replace(
        shard, num_bytes=start, sha256=sums[0], index_bytes=len(index), index_sha256=sums[1]
    )
    if not tables:
        shutil.rmtree(root / schema.SAMPLES)
        shard = dataclasses.replace(shard, samples_bytes=0, samples_sha256="")
    split = dataclasses.replace(made.splits["train"], shards=[shard], num_bytes=start)
    if not tables:
        split = dataclasses.replace(split, samples_root="")
    path.write_bytes(dataclasses.replace(made, splits={"train": split}).dumps())
    if tables:
        add_tables(root)
    return root


def test_keys_printed_by_show_are_read_back(sound: Path, tmp_path: Path) -> None:
    odd = ("\x85", "\u061c", "\u200e", "\u2028", "\u202a", "\u202f", "\u2066", "\xa0", "\\u200e")
    name = "".join(f"a{each}" for each in odd) + "\xa0"
    root = renamed(sound, tmp_path / "set", name)
    lines = command.run("show", root, "--keys").out.split("\n")
    assert len(lines) == 5
    (line,) = [each for each in lines if each.endswith(name)]
    (tmp_path / "keys").write_text(f"{line}\n", encoding="utf-8", newline="")
    assert [*keys.read_list(tmp_path / "keys").keys] == [line]
    flags = ("--exclude", tmp_path / "keys", "--out", tmp_path / "out", "--dry-run")
    amended = command.run("amend", root, *flags)
    assert amended.code == 0, amended


@pytest.fixture(params=NAMES)
def planted(request: pytest.FixtureRequest, sound: Path, tmp_path: Path) -> Iterator[Path]:
    """A dataset with a key that leads out; no file may appear next to the dataset."""
    home = tmp_path / "a" / "b"
    home.mkdir(parents=True)
    yield renamed(sound, home / "set", request.param)
    found = {path.name for path in tmp_path.rglob("*")}
    assert "x.jpg" not in found
    assert "x" not in found


def test_verify_finds_the_key_at_all_table_levels(
    planted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for level in ("crc", "decode"):
        with pytest.raises(DataDamagedError):
            verify.run([str(planted), "--level", level])
        assert IN_TABLE.search(capsys.readouterr().out)


@pytest.mark.parametrize("to", FORMATS)
def test_export_refuses_the_key_in_all_formats(planted: Path, to: str) -> None:
    out = planted.with_name("out")
    with pytest.raises(DataDamagedError, match=IN_TABLE):
        export.run([str(planted), "--to", to, "--out", str(out)])


def test_verbs_that_make_datasets_refuse_the_key(planted: Path, sound: Path) -> None:
    out = str(planted.with_name("out"))
    home = planted.parent
    (home / "keys").write_text("dogs/a.jpg\n")
    with pytest.raises(DataDamagedError, match=IN_TABLE):
        amend.run([str(planted), "--exclude", str(home / "keys"), "--out", out])
    with pytest.raises(DataDamagedError, match=IN_TABLE):
        diff.run([str(planted), str(sound)])
    with pytest.raises(DataDamagedError, match=IN_TABLE):
        show.run([str(planted), "--key", "dogs/a.jpg"])
    with pytest.raises(DataDamagedError, match=IN_TABLE):
        duplicates.run([str(planted), "--out", out])
    assert not list(home.glob("out/train*"))


@pytest.mark.parametrize("name", ["../x.jpg", "a//x.jpg", "a/."])
def test_foreign_datasets_with_the_key_are_refused(
    sound: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = renamed(sound, tmp_path / "set", name, tables=False)
    with pytest.raises(DataDamagedError):
        verify.run([str(root), "--level", "decode"])
    assert IN_RECORD.search(capsys.readouterr().out)
    for to in FORMATS:
        with pytest.raises(DataDamagedError, match=IN_EXPORT):
            export.run([str(root), "--to", to, "--out", str(tmp_path / to)])
    (root / schema.MANIFEST).unlink()
    with pytest.raises(DataDamagedError):
        adopt.run([str(root), "--allow-subset"])
    assert IN_RECORD.search("".join(capsys.readouterr()))
    with pytest.raises(DataDamagedError, match=IN_RECORD):
        resize.run(["-i", str(root), "-o", str(tmp_path / "out"), "--short-side", "16"])


@pytest.mark.parametrize("name", ["a\\..\\b.jpg", "a\\\\b.jpg", "a\\.jpg\\..\\b.jpg"])
def test_backslashes_that_lead_out_are_refused(sound: Path, tmp_path: Path, name: str) -> None:
    for number, path in enumerate(("cats/a.jpg", "dogs/b.jpg", f"cats/{name}")):
        layouts.write(tmp_path / "train" / path, plain(number))
    words = ["--source", str(tmp_path / "train"), "--out", str(tmp_path / "out")]
    with pytest.raises(SourceError, match=IN_RECORD):
        prepare.run(words)
    with pytest.raises(SourceError, match=IN_RECORD):
        amend.run([str(sound), "--add", str(tmp_path), "--out", str(tmp_path / "out")])
