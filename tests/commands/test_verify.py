"""`verify` accepts valid datasets, and finds and names all changes."""

from __future__ import annotations

import bisect
import dataclasses
import errno
import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import verbs, verify
from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import example, manifest, record_files, schema
from tests.kit import command
from tests.kit.amended import rows
from tests.kit.dataset import SETTINGS, Reference, contents, everything, records, shard_names
from tests.kit.faults import disk, flip_bit, remount
from tests.kit.messages import says, wording
from tests.kit.opens import opens
from tests.kit.replicas import make_dataset
from tests.kit.system import System
from tests.kit.tfrecords import framed

LEVELS = ("manifest", "crc", "decode")


def record_at(reference: Reference, shard: str, position: int) -> str:
    """Returns verify's name for the record that contains byte `position` of a shard."""
    index = reference.contents[f"index/{shard}"].decode().split()
    offsets = [int(text) for text in index[::2]]
    number = bisect.bisect_right(offsets, position) - 1
    return f"{shard}: record {number} at byte {offsets[number]:,}: "


def rewritten(out: Path, shard: str, images: list[example.ImageExample]) -> None:
    """Forges a shard: new records with valid CRCs and index, and matching digests in the manifest.

    The manifest of its split lists no tables, which would show the difference.
    """
    frames = [framed(example.encode(image)) for image in images]
    lines = []
    offset = 0
    for frame in frames:
        lines.append(record_files.index_line(offset, len(frame)))
        offset += len(frame)
    data = b"".join(frames)
    index = "".join(lines).encode()
    (out / shard).write_bytes(data)
    (out / "index" / shard).write_bytes(index)
    path = out / "dataset.json"
    there = manifest.loads(path.read_bytes(), "dataset.json")
    name = shard.partition("-")[0]
    split = there.splits[name]
    shards = [
        dataclasses.replace(
            s,
            examples=len(images),
            num_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            index_bytes=len(index),
            index_sha256=hashlib.sha256(index).hexdigest(),
        )
        if s.name == shard
        else s
        for s in (dataclasses.replace(s, samples_bytes=0, samples_sha256="") for s in split.shards)
    ]
    num_bytes = sum(s.num_bytes for s in shards)
    split = dataclasses.replace(split, shards=shards, num_bytes=num_bytes, samples_root="")
    forged = dataclasses.replace(there, splits=there.splits | {name: split})
    path.write_bytes(forged.dumps())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("flags", [(), ("--workers", "1")], ids=" ".join)
def test_valid_dataset_is_reported_as_sound(
    reference: Reference, level: str, flags: tuple[str, ...]
) -> None:
    before = everything(reference.out)
    result = command.run("verify", reference.out, "--level", level, *flags)

    assert (result.code, result.complaints) == (0, "")
    verdict = "names and sizes match: " if level == "manifest" else "sound: "
    assert result.out.startswith(verdict)
    assert f"11 shards, level {level}" in result.out
    assert everything(reference.out) == before


def test_level_manifest_lists_the_unread_files(prepared: Path) -> None:
    flip_bit(prepared / "train-00001-of-00008", 5000)
    result = command.run("verify", prepared, "--level", "manifest")

    assert (result.code, "sound" in result.out) == (0, False)
    assert f"\n{wording('not-read-shards-indexes-tables')}\n" in result.out
    assert command.run("verify", prepared).code == 3


@pytest.mark.parametrize("level", LEVELS)
def test_json_has_the_same_result(reference: Reference, level: str) -> None:
    result = command.run("verify", reference.out, "--level", level, "--json")

    stated = json.loads(reference.contents["dataset.json"])
    assert (result.code, result.complaints) == (0, "")
    assert result.json == {
        "dataset": str(reference.out),
        "digest": stated["digest"],
        "level": level,
        "unchanged_since": None,
        "excluded": 0,
        "shards": 11,
        "examples": sum(split["examples"] for split in stated["splits"].values()),
        "part": None,
        "oriented": 0 if level == "decode" else None,
        "has_samples": True,
        "columns": [],
        "incomplete_columns": {},
        "problems": [],
        "unreadable": [],
    }


@pytest.mark.parametrize("trial", range(6))
def test_flipped_bit_in_any_file_is_located(
    reference: Reference, prepared: Path, trial: int
) -> None:
    """One bit in each of 38 files, six times: all 228 positions are reported."""
    rng = random.Random(f"bits {trial}")
    expected = []
    for name, data in reference.contents.items():
        if name == "dataset.json":
            continue
        position = rng.randrange(len(data))
        flip_bit(prepared / name, position, rng.randrange(8))
        shard = name in shard_names(reference.contents)
        expected.append(record_at(reference, name, position) if shard else f"{name}: ")
    result = command.run("verify", prepared)

    lines = result.out.splitlines()
    assert result.code == 3
    assert [what for what in expected if not any(line.startswith(what) for line in lines)] == []
    assert len(lines) == len(expected) == 38
    assert "38 problems" in result.err


@pytest.mark.parametrize("level", LEVELS)
def test_flipped_bit_in_the_manifest_is_found(
    reference: Reference, prepared: Path, level: str
) -> None:
    rng = random.Random(f"manifest {level}")
    data = reference.contents["dataset.json"]
    for _ in range(8):
        (prepared / "dataset.json").write_bytes(data)
        position = rng.randrange(len(data))
        bit = rng.randrange(8)
        flip_bit(prepared / "dataset.json", position, bit)
        result = command.run("verify", prepared, "--level", level)

        assert (result.code, result.out) == (3, ""), (position, bit, result)
        assert "dataset.json" in result.err
        assert "Traceback" not in result.err


def test_record_of_a_wrong_class_changes_the_counts(prepared: Path) -> None:
    name = "train-00001-of-00008"
    images = records(prepared / name)
    one = images[3]
    other = next(i for i in images if i.wnid != images[3].wnid)
    images[3] = one._replace(stored_label=other.stored_label, wnid=other.wnid, text=other.text)
    rewritten(prepared, name, images)

    assert command.run("verify", prepared).code == 0
    result = command.run("verify", prepared, "--level", "decode")
    assert result.code == 3
    assert says("class-manifest-says", "train", one.stored_label - 1).search(result.out)
    assert says("class-manifest-says", "train", other.stored_label - 1).search(result.out)


def test_root_that_contradicts_the_tables_is_found(prepared: Path) -> None:
    path = prepared / "dataset.json"
    there = manifest.loads(path.read_bytes(), str(path))
    train = dataclasses.replace(there.splits["train"], samples_root="0" * 64)
    path.write_bytes(dataclasses.replace(there, splits=there.splits | {"train": train}).dumps())

    assert command.run("verify", prepared, "--level", "manifest").code == 0
    result = command.run("verify", prepared)
    assert result.code == 3
    assert [line.partition(":")[0] for line in result.out.splitlines()] == ["train"]


def test_unfinished_dataset_is_reported_as_incomplete(prepared: Path) -> None:
    (prepared / "dataset.json").unlink()
    result = command.run("verify", prepared)

    assert (result.code, result.out) == (4, "")
    assert "again to resume" in result.err


@pytest.mark.parametrize("what", ["empty folder", "no folder", "a file"])
def test_path_without_a_dataset_is_a_usage_error(tmp_path: Path, what: str) -> None:
    path = tmp_path / "it"
    if what == "empty folder":
        path.mkdir()
    elif what == "a file":
        path.write_text("not a folder")
    result = command.run("verify", path)

    assert (result.code, result.out) == (2, "")
    assert str(path) in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "flags",
    [("--level", "deep"), ("--workers", "-1"), ("--unknown",), ("--worker-kind", "horses"), ()],
    ids=" ".join,
)
def test_impossible_requests_are_refused(prepared: Path, flags: tuple[str, ...]) -> None:
    result = command.run("verify", *([prepared] if flags else []), *flags)

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("imagenet-prep: ")
    assert result.err.endswith(". Help: imagenet-prep verify --help\n")


@pytest.mark.root
def test_dataset_on_a_read_only_disk_is_verified(reference: Reference, tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=64m"):
        out = shutil.copytree(reference.out, tmp_path / "disk" / "out")
        remount(tmp_path / "disk", "ro")
        for level in LEVELS:
            result = command.run("verify", out, "--level", level)

            assert (result.code, result.complaints) == (0, "")


def make_unreadable(system: System, shard: str) -> None:
    def opened(real: Callable[..., int], path: Any, flags: int, *args: Any, **how: Any) -> int:
        if str(path).endswith(shard) and not flags & os.O_CREAT:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, flags, *args, **how)

    system.instead("open", opened)


def test_unreadable_shard_is_listed_but_not_called_damaged(
    prepared: Path, system: System, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = "train-00001-of-00008"
    make_unreadable(system, shard)
    for flags in ((), ("--json",)):
        with pytest.raises(StoreError, match=says("cannot-read-listed-above-nothing")) as failed:
            verify.run([str(prepared), "--workers", "1", *flags])
        assert failed.value.exit_code == 1
        assert says("cannot-read-listed-above-nothing", ..., "1 shard", "11").search(
            str(failed.value)
        )
        out = capsys.readouterr().out
        listed = json.loads(out)["unreadable"] if flags else out.splitlines()
        assert [line.partition(":")[0] for line in listed] == [shard]
        assert not flags or json.loads(out)["problems"] == []
    with pytest.raises(StoreError) as raised:
        verbs.verify(str(prepared), workers=1)
    assert [note.partition(":")[0] for note in raised.value.__notes__] == [shard]


def test_unreadable_shard_is_not_recorded_as_verified(prepared: Path, system: System) -> None:
    make_unreadable(system, "train-00001-of-00008")
    for _ in range(2):
        with pytest.raises(StoreError, match=says("cannot-read-listed-above-nothing")):
            verify.run([str(prepared), "--workers", "1", "--if-changed"])


def test_advice_of_verify_repairs_the_dataset(reference: Reference, prepared: Path) -> None:
    name = "train-00004-of-00008"
    flip_bit(prepared / name, 4321)
    found = command.run("verify", prepared)
    assert found.code == 3
    assert says("delete-damaged-shards-any-extra").search(found.err)

    (prepared / name).unlink()
    arguments = ("--source", reference.source, "--out", prepared, *SETTINGS)
    again = command.run("prepare", *arguments)
    assert again.code == 0, again
    assert contents(prepared) == reference.contents


def test_advice_of_verify_restores_a_shared_shard(prepared: Path, tmp_path: Path) -> None:
    """An amended version links the unchanged shards of its parent, with their damage."""
    original = contents(prepared)
    key = rows(prepared, "validation").popitem()[0]
    (tmp_path / "keys.txt").write_text(f"validation:{key}\n", "utf-8")
    amend = ("amend", prepared, "--exclude", tmp_path / "keys.txt", "--out", tmp_path / "new")
    assert command.run(*amend).code == 0
    before = contents(tmp_path / "new")
    shard = min(name for name in shard_names(original) if name.startswith("train-"))
    flip_bit(tmp_path / "new" / shard, 5000)

    found = command.run("verify", tmp_path / "new")
    assert found.code == 3
    assert wording("verify-dataset-amended-since-both") in found.err
    assert command.run("verify", prepared).code == 3
    for folder in (prepared, tmp_path / "new"):
        (folder / shard).unlink()
    (prepared / shard).write_bytes(original[shard])
    assert command.run(*amend).code == 0
    assert command.run("verify", tmp_path / "new").code == 0
    assert contents(tmp_path / "new") == before


def test_damaged_manifest_is_made_again(reference: Reference, prepared: Path) -> None:
    os.truncate(prepared / schema.MANIFEST, 100)
    found = command.run("verify", prepared)
    assert found.code == 3
    assert says("copy-again-original-dataset-run").search(found.err)

    (prepared / schema.MANIFEST).unlink()
    arguments = ("--source", reference.source, "--out", prepared, *SETTINGS)
    again = command.run("prepare", *arguments)
    assert again.code == 0, again
    assert contents(prepared) == reference.contents


def test_files_are_not_read_again_if_unchanged(prepared: Path) -> None:
    def verify(*flags: str) -> Any:
        result = command.run("verify", prepared, "--if-changed", "--json", *flags)
        assert result.code == 0, result
        return json.loads(result.out)["unchanged_since"]

    assert verify() is None
    proven = verify()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", proven)
    assert verify("--level", "manifest") == proven
    # The earlier result has a lower level.
    assert verify("--level", "decode") is None
    assert verify() is not None

    # A different file with the same bytes must be read, even if its times are old.
    shard = prepared / "train-00000-of-00008"
    stat = shard.stat()
    shutil.copy2(shard, prepared / "copy")
    (prepared / "copy").rename(shard)
    assert shard.stat().st_mtime_ns == stat.st_mtime_ns
    assert verify() is None
    assert verify() is not None


@pytest.mark.parametrize("level", LEVELS[1:])
def test_files_are_read_again_if_touched(prepared: Path, level: str) -> None:
    check = ("verify", prepared, "--if-changed", "--level", level)
    assert command.run(*check).code == 0
    shard = prepared / "train-00001-of-00008"
    stat = shard.stat()
    flip_bit(shard, 40)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    for _ in range(2):
        result = command.run(*check)
        assert result.code == 3, result
        assert says("record-byte-3", shard.name, 0, 0).search(result.out)


def test_files_are_read_again_for_a_new_manifest(prepared: Path) -> None:
    check = ("verify", prepared, "--if-changed")
    assert command.run(*check).code == 0
    path = prepared / "dataset.json"
    there = manifest.loads(path.read_bytes(), str(path))
    train = there.splits["train"]
    wrong = dataclasses.replace(train.shards[0], sha256="0" * 64)
    train = dataclasses.replace(train, shards=[wrong, *train.shards[1:]])
    changed = dataclasses.replace(there, splits=there.splits | {"train": train})
    path.write_bytes(changed.dumps())

    for _ in range(2):
        result = command.run(*check)
        assert (result.code, result.out.startswith(wrong.name)) == (3, True)


def test_time_of_the_earliest_verification_is_printed(prepared: Path) -> None:
    check = ("verify", prepared, "--if-changed", "--json")
    assert command.run(*check).code == 0
    ledger = prepared / ".work" / "verified.jsonl"
    notes = [json.loads(line) for line in ledger.read_text().splitlines()]
    notes[3]["utc"] = "2001-02-03T04:05:06Z"
    ledger.write_text("".join(f"{json.dumps(note)}\n" for note in notes))
    assert command.run(*check).json["unchanged_since"] == "2001-02-03T04:05:06Z"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"level": "all"}', None])
def test_foreign_verification_result_is_ignored(prepared: Path, content: bytes | None) -> None:
    proof = prepared / ".work" / "verified.jsonl"
    if content is None:
        proof.mkdir(parents=True)
    else:
        proof.parent.mkdir(exist_ok=True)
        proof.write_bytes(content)
    result = command.run("verify", prepared, "--if-changed")

    assert result.code == 0, result
    assert not says("not-modified-since-last-verification").search(result.out)


@pytest.mark.parametrize("flags", [(), ("--", "--runner=NoSuchRunner")], ids=" ".join)
def test_level_manifest_opens_nothing_per_shard(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """No worker is started, also with options for Beam, and no receipt is written."""
    number = opens()
    opened = []
    for shards in (2, 9):
        root = tmp_path / str(shards)
        make_dataset(root, shards=shards, shard_bytes=100)
        for _ in range(2):  # the first run imports modules
            before = number()
            assert verify.run([str(root), "--level", "manifest", *flags]) == 0
        opened.append(number() - before)
    assert opened[0] == opened[1]
    (root / "index" / schema.shard_name("train", 7, 9)).write_bytes(b"")
    (root / schema.shard_name("train", 8, 9)).unlink()
    with pytest.raises(DataDamagedError, match="2 problems"):
        verify.run([str(root), "--level", "manifest", *flags])


def test_missing_and_additional_shards_are_found_without_reading(prepared: Path) -> None:
    assert command.run("verify", prepared, "--if-changed").code == 0
    name = "train-00000-of-00008"
    stranger = prepared / "train-00008-of-00008"
    for change, undo in (
        (
            lambda: (prepared / name).rename(prepared / "away"),
            lambda: (prepared / "away").rename(prepared / name),
        ),
        (lambda: shutil.copy(prepared / name, stranger), stranger.unlink),
        (
            lambda: (prepared / "labels.txt").rename(prepared / "away"),
            lambda: (prepared / "away").rename(prepared / "labels.txt"),
        ),
    ):
        change()
        assert command.run("verify", prepared, "--if-changed").code == 3
        undo()
    assert command.run("verify", prepared, "--if-changed").code == 0


def test_metrics_file_has_images_bytes_and_quarantine(prepared: Path, tmp_path: Path) -> None:
    file = tmp_path / "set.prom"
    done = command.run("verify", prepared, "--log-format=json", "--metrics-file", file)
    manifest = json.loads((prepared / "dataset.json").read_text())
    images = sum(split["examples"] for split in manifest["splits"].values())

    assert (done.code, done.err) == (0, "")
    lines = file.read_text().splitlines()
    assert f'imagenet_prep_images{{run="set",verb="verify",stage="verify"}} {images}' in lines
    bad = sum(manifest["quarantined"].values())
    assert f'imagenet_prep_quarantined{{run="set",verb="verify"}} {bad}' in lines
    (read,) = [line.split()[-1] for line in lines if line.startswith("imagenet_prep_bytes")]
    assert int(read) > sum(path.stat().st_size for path in prepared.glob("*-of-*"))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "name", ["train-00008-of-00009", "train-00000-of-00008.bak", "validation", "index/train-x"]
)
def test_additional_file_is_named_at_all_levels(prepared: Path, level: str, name: str) -> None:
    (prepared / name).write_bytes(b"")
    result = command.run("verify", prepared, "--level", level)

    assert result.code == 3
    assert [line.partition(":")[0] for line in result.out.splitlines()] == [name]


@pytest.mark.parametrize(
    ("place", "flags", "refused"),
    [
        ("s3://bucket/set", {"if_changed": True}, says("if-changed-only-used-local-folder")),
        ("http://h/set", {"if_changed": True}, says("if-changed-only-used-local-folder")),
        ("http://h/set", {"beam_args": ("--x",)}, says("options-apache-beam-need-dataset")),
        ("https://h/set", {"beam_args": ("--x",)}, says("options-apache-beam-need-dataset")),
        ("s3://bucket/set", {"beam_args": ("--x",)}, None),
        ("set", {"beam_args": ("--x",)}, None),
        ("set", {"if_changed": True}, None),
    ],
)
def test_flags_need_places_that_keep_receipts(
    place: str, flags: dict[str, Any], refused: re.Pattern[str] | None
) -> None:
    if refused is None:
        verify.VerifyConfig(place, **flags)
        return
    with pytest.raises(ValueError, match=refused):
        verify.VerifyConfig(place, **flags)


def test_quarantine_without_lines_is_named_by_verify(prepared: Path) -> None:
    """Its hash is that of the manifest, so only its contents are wrong."""
    data = b"[]\n"
    (prepared / schema.QUARANTINE).write_bytes(data)
    path = prepared / schema.MANIFEST
    there = manifest.loads(path.read_bytes(), "")
    claim = manifest.DatasetFile(schema.QUARANTINE, len(data), hashlib.sha256(data).hexdigest())
    others = [file for file in there.files if file.name != schema.QUARANTINE]
    path.write_bytes(dataclasses.replace(there, files=[*others, claim]).dumps())
    found = verify.verify(verify.VerifyConfig(str(prepared), level="manifest"))
    assert any(schema.QUARANTINE in problem for problem in found["problems"]), found["problems"]
