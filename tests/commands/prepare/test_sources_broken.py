"""Archives that are missing, cut, mixed up or tampered with: said before a shard is written."""

from __future__ import annotations

import copy
import io
import json
import random
import shutil
import tarfile
from pathlib import Path

import pytest

from imagenet_prep.testing.miniature import DEVKIT_ARCHIVE, TRAIN_ARCHIVE, VALIDATION_ARCHIVE
from tests.kit import command
from tests.kit.command import Finished
from tests.kit.dataset import SETTINGS, Reference, contents, shard_names, split_records
from tests.kit.faults import cut, flip_bit
from tests.kit.lengths import long_but
from tests.kit.miniature import Synset, edit_train_tar, make_devkit, rewrite_tar

TARS = (TRAIN_ARCHIVE, VALIDATION_ARCHIVE)
ALL = (*TARS, DEVKIT_ARCHIVE)


def prepare(source: Path, out: Path, *more: str) -> Finished:
    return command.run("prepare", "--source", source, "--out", out, *SETTINGS, *more)


def assert_refused(result: Finished, code: int, *words: str, out: Path) -> None:
    """The run said what is wrong, and no shard came of it."""
    assert (result.code, result.out) == (code, ""), result
    assert [word for word in words if word not in result.err] == [], result.err
    assert "Traceback" not in result.err
    assert not out.exists() or shard_names(contents(out)) == set()


@pytest.mark.parametrize("name", TARS)
@pytest.mark.parametrize("how", ["missing", "a folder", "a dangling link"])
def test_what_is_not_there_is_named(source: Path, tmp_path: Path, name: str, how: str) -> None:
    (source / name).unlink()
    if how == "a folder":
        (source / name).mkdir()
    elif how == "a dangling link":
        (source / name).symlink_to("/no/where")
    result = prepare(source, tmp_path / "out")

    assert_refused(result, 2, name, str(source), out=tmp_path / "out")


def test_an_empty_folder_lists_what_it_should_hold_and_then_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    result = prepare(folder, tmp_path / "out")

    assert_refused(result, 2, *ALL, out=tmp_path / "out")
    assert f"--source {folder}: holds nothing, which matches no " in result.err.splitlines()[-1]


@pytest.mark.parametrize("name", TARS)
@pytest.mark.parametrize("place", ["empty", "in a header", "a third", "two thirds", "no end"])
def test_a_truncated_archive_is_called_truncated(
    source: Path, tmp_path: Path, name: str, place: str
) -> None:
    size = (source / name).stat().st_size
    with tarfile.open(source / name) as tar:
        last = tar.getmembers()[-1]
    positions = {
        "empty": 0,
        "in a header": 300,
        "a third": size // 3,
        "two thirds": size * 2 // 3,
        "no end": last.offset_data + -(-last.size // 512) * 512,
    }
    cut(source / name, positions[place])
    result = prepare(source, tmp_path / "out")

    assert_refused(result, 3, name, "truncated", "download it again", out=tmp_path / "out")


@pytest.mark.parametrize("name", TARS)
@pytest.mark.parametrize("content", ["random", "text", "gzip", "zip"])
def test_a_file_that_is_no_tar_is_called_so(
    source: Path, tmp_path: Path, name: str, content: str
) -> None:
    start = {"random": b"", "text": b"<html>login please", "gzip": b"\x1f\x8b\x08", "zip": b"PK"}
    noise = random.Random(content).randbytes(50_000)
    (source / name).write_bytes(start[content] + noise)
    result = prepare(source, tmp_path / "out")

    assert_refused(result, 3, name, "not a tar", out=tmp_path / "out")


def test_train_and_validation_archives_by_each_others_name_are_told_apart(
    source: Path, tmp_path: Path
) -> None:
    (source / TRAIN_ARCHIVE).rename(source / "aside")
    (source / VALIDATION_ARCHIVE).rename(source / TRAIN_ARCHIVE)
    (source / "aside").rename(source / VALIDATION_ARCHIVE)
    result = prepare(source, tmp_path / "out")

    assert_refused(result, 3, out=tmp_path / "out")
    # Two workers list the archives at the same time, and the first refusal ends the run.
    reasons = ("not the train archive", "expected the name ILSVRC2012_val_<8 digits>.JPEG")
    assert any(reason in result.err for reason in reasons)


def test_a_devkit_with_another_class_list_does_not_belong(source: Path, tmp_path: Path) -> None:
    leaves = [Synset(i, f"n0000000{i}", f"thing {i}") for i in range(1, 9)]
    root = Synset(9, "n00001740", "entity", children=tuple(range(1, 9)), wordnet_height=19)
    make_devkit(source / DEVKIT_ARCHIVE, leaves, [root], [1 + i % 8 for i in range(32)])
    result = prepare(source, tmp_path / "out")

    assert_refused(result, 3, "do not match", TRAIN_ARCHIVE, out=tmp_path / "out")


def test_a_devkit_with_too_few_labels_does_not_belong(
    reference: Reference, source: Path, tmp_path: Path
) -> None:
    labels = (reference.out / "labels.txt").read_text().splitlines()
    leaves = [Synset(i, *line.split(" ", 1)) for i, line in enumerate(labels, start=1)]
    root = Synset(9, "n00001740", "entity", children=tuple(range(1, 9)), wordnet_height=19)
    make_devkit(source / DEVKIT_ARCHIVE, leaves, [root], [1] * 31)
    result = prepare(source, tmp_path / "out")

    assert_refused(result, 3, "labels for images 1 to 31", out=tmp_path / "out")


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "another tar", "no meta.mat"])
def test_a_broken_devkit_is_named_with_what_to_use(
    source: Path, tmp_path: Path, damage: str
) -> None:
    path = source / DEVKIT_ARCHIVE
    if damage == "cut":
        cut(path, path.stat().st_size * 2 // 3)
    elif damage == "empty":
        cut(path, 0)
    elif damage == "noise":
        path.write_bytes(random.Random(0).randbytes(2000))
    elif damage == "another tar":
        shutil.copy(source / VALIDATION_ARCHIVE, path)
    else:
        with tarfile.open(path, "w:gz") as tar:
            tar.addfile(tarfile.TarInfo("ILSVRC2012_devkit_t12/readme.txt"), io.BytesIO())
    result = prepare(source, tmp_path / "out")

    assert_refused(result, 3, DEVKIT_ARCHIVE, "original", out=tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("part", long_but([0], range(4)))
def test_a_flipped_bit_in_the_devkit_never_changes_a_label(
    reference: Reference, source: Path, tmp_path: Path, part: int
) -> None:
    rng = random.Random(f"devkit {part}")
    path = source / DEVKIT_ARCHIVE
    whole = path.read_bytes()
    truth = {r.filename: r.stored_label for r in split_records(reference.out, "validation")}
    for number in range(6):
        path.write_bytes(whole)
        position = rng.randrange(len(whole))
        bit = rng.randrange(8)
        flip_bit(path, position, bit)
        out = tmp_path / f"out-{number}"
        arguments = ("--source", source, "--out", out, "--splits", "validation", "--allow-subset")
        result = command.run("prepare", *arguments, "--short-side", "64", "--check", "header")

        assert result.code in (0, 3), (position, bit, result)
        assert "Traceback" not in result.err
        if result.code == 0:
            labels = {r.filename: r.stored_label for r in split_records(out, "validation")}
            assert labels == truth, (position, bit)
            assert (out / "labels.txt").read_bytes() == reference.contents["labels.txt"]


def test_an_empty_class_is_an_archive_that_is_not_whole(source: Path, tmp_path: Path) -> None:
    def empty(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        return [] if info.name.startswith("n02123045") else [(info, data)]

    edit_train_tar(source / TRAIN_ARCHIVE, source / TRAIN_ARCHIVE, empty)
    result = prepare(source, tmp_path / "out")

    assert_refused(result, 3, "n02123045", "holds no image", out=tmp_path / "out")


@pytest.mark.parametrize("name", TARS)
def test_a_key_that_comes_twice_is_an_error(source: Path, tmp_path: Path, name: str) -> None:
    done = []

    def twice(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if done:
            return [(info, data)]
        done.append(info.name)
        return [(info, data), (copy.copy(info), b"another image")]

    edit = edit_train_tar if name == TRAIN_ARCHIVE else rewrite_tar
    edit(source / name, source / name, twice)
    result = prepare(source, tmp_path / "out")

    assert_refused(result, 3, name, done[0], "appears twice", out=tmp_path / "out")


def test_a_class_that_comes_twice_is_an_error(source: Path, tmp_path: Path) -> None:
    def twice(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        if info.name != "n02123045.tar":
            return [(info, data)]
        return [(info, data), (copy.copy(info), data)]

    rewrite_tar(source / TRAIN_ARCHIVE, source / TRAIN_ARCHIVE, twice)
    result = prepare(source, tmp_path / "out")

    assert_refused(result, 3, TRAIN_ARCHIVE, "n02123045", "twice", out=tmp_path / "out")


@pytest.mark.parametrize("name", TARS)
@pytest.mark.parametrize("evil", ["../../evil.JPEG", "/etc/evil.JPEG", "a/../../evil.JPEG"])
def test_a_name_that_leaves_its_folder_is_tampering(
    source: Path, tmp_path: Path, name: str, evil: str
) -> None:
    def tamper(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        extra = tarfile.TarInfo(evil)
        return [(info, data), (extra, b"x")]

    edit = edit_train_tar if name == TRAIN_ARCHIVE else rewrite_tar
    edit(source / name, source / name, tamper)
    result = prepare(source, tmp_path / "out")

    assert_refused(result, 3, name, evil, "tampered", out=tmp_path / "out")


@pytest.mark.parametrize("name", TARS)
@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE], ids=repr
)
def test_a_member_that_is_no_plain_file_is_tampering(
    source: Path, tmp_path: Path, name: str, kind: bytes
) -> None:
    def tamper(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        extra = copy.copy(info)
        extra.name = "link.JPEG"
        extra.type = kind
        extra.linkname = "/etc/passwd"
        return [(info, data), (extra, b"")]

    edit = edit_train_tar if name == TRAIN_ARCHIVE else rewrite_tar
    edit(source / name, source / name, tamper)
    result = prepare(source, tmp_path / "out")

    assert_refused(result, 3, name, "link.JPEG", "tampered", out=tmp_path / "out")


def test_counts_that_are_not_imagenets_need_allow_subset(source: Path, tmp_path: Path) -> None:
    flags = [flag for flag in SETTINGS if flag != "--allow-subset"]
    result = command.run("prepare", "--source", source, "--out", tmp_path / "out", *flags)

    assert_refused(result, 3, "--allow-subset", "8 classes", out=tmp_path / "out")


def test_on_bad_image_fail_names_the_image_and_its_place(
    reference: Reference, tmp_path: Path
) -> None:
    lines = reference.contents["quarantine.jsonl"].splitlines()
    bad = [i for i in map(json.loads, lines) if i["action"] == "quarantined"]
    result = prepare(reference.source, tmp_path / "out", "--on-bad-image", "fail")

    assert (result.code, result.out) == (3, "")
    assert any(
        i["key"] in result.err and f"{i['archive']} byte {i['offset']:,}" in result.err for i in bad
    )
    assert "--on-bad-image fail" in result.err
    assert not (tmp_path / "out" / "dataset.json").exists()


def test_max_bad_stops_the_run_and_without_it_the_run_resumes(
    reference: Reference, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    lines = reference.contents["quarantine.jsonl"].splitlines()
    bad = [i for i in map(json.loads, lines) if i["action"] == "quarantined"]
    stopped = prepare(reference.source, out, "--max-bad", "0")

    assert (stopped.code, stopped.out) == (3, "")
    assert "--max-bad 0" in stopped.err
    assert any(i["key"] in stopped.err and f"{i['offset']:,}" in stopped.err for i in bad)
    assert not (out / "dataset.json").exists()

    enough = prepare(reference.source, out, "--max-bad", str(len(bad)))
    assert enough.code == 0, enough
    assert contents(out) == reference.contents


def test_max_bad_counts_what_earlier_runs_found(reference: Reference, tmp_path: Path) -> None:
    for _ in range(2):
        result = prepare(reference.source, tmp_path / "out", "--max-bad", "0", "--workers", "1")

        assert result.code == 3, result
        assert "--max-bad 0" in result.err


def test_a_shard_of_nothing_but_bad_images_is_an_error_not_an_empty_file(
    source: Path, tmp_path: Path
) -> None:
    def ruin(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        return [(info, data[:50])]

    rewrite_tar(source / VALIDATION_ARCHIVE, source / VALIDATION_ARCHIVE, ruin)
    result = prepare(source, tmp_path / "out")

    assert (result.code, result.out) == (3, "")
    assert "none of its" in result.err
    assert not (tmp_path / "out" / "dataset.json").exists()


def test_damage_inside_one_image_costs_that_image_alone(
    reference: Reference, source: Path, tmp_path: Path
) -> None:
    name = "ILSVRC2012_val_00000007.JPEG"
    with tarfile.open(source / VALIDATION_ARCHIVE) as tar:
        member = tar.getmember(name)
    with (source / VALIDATION_ARCHIVE).open("r+b") as archive:
        archive.seek(member.offset_data + member.size // 2)
        archive.write(bytes(member.size - member.size // 2))
    out = tmp_path / "out"
    result = prepare(source, out)

    assert result.code == 0, result
    before = {r.filename: r for r in split_records(reference.out, "validation")}
    after = {r.filename: r for r in split_records(out, "validation")}
    assert before.keys() - after.keys() == {name}
    assert {key: before[key] for key in after} == after
    assert name in (out / "quarantine.jsonl").read_text()


def test_an_archive_that_changes_between_two_runs_is_not_mixed(
    reference: Reference, source: Path, tmp_path: Path
) -> None:
    """Unfinished shards of the old archive must not meet shards of the new one."""
    out = tmp_path / "out"
    first = prepare(source, out, "--max-bad", "0", "--workers", "1")
    assert first.code == 3, first

    def swap(info: tarfile.TarInfo, data: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
        return [] if info.name.endswith("1.JPEG") else [(info, data)]

    edit_train_tar(source / TRAIN_ARCHIVE, source / TRAIN_ARCHIVE, swap)
    result = prepare(source, out)
    fresh = prepare(source, tmp_path / "fresh")

    assert fresh.code == 0, fresh
    assert result.code in (0, 2), result
    if result.code == 0:
        assert contents(out) == contents(tmp_path / "fresh")
