"""A working server or folder: exact files, no repeated download, and all checksums verified."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep import download
from imagenet_prep.core.errors import SourceError, StoreError, UsageError
from imagenet_prep.core.terminal import human_bytes
from imagenet_prep.sources import published
from tests.commands.download.conftest import (
    DEVKIT,
    FILES,
    MIB,
    TRAIN,
    VALIDATION,
    archives,
    arguments,
)
from tests.kit import command
from tests.kit.dataset import everything
from tests.kit.http_server import serve
from tests.kit.limits import Limits
from tests.kit.messages import exactly, says

Official = Callable[..., None]


def test_archives_arrive_exactly_and_by_ranges(tmp_path: Path) -> None:
    with serve(FILES) as server:
        result = command.run("download", *arguments(tmp_path, server.url, "--allow-other"))

    assert result.code == 0, result
    assert archives(tmp_path) == FILES
    for name, data in FILES.items():
        assert f"{name}: " in result.out
        assert hashlib.md5(data).hexdigest() in result.out
        parts = [(r.first, r.last) for r in server.reads(f"/{name}")]
        starts = range(0, len(data), MIB)
        assert sorted(parts) == [(s, min(s + MIB, len(data)) - 1) for s in starts]
    assert says("not-official-archive").search(result.out)
    assert not list(tmp_path.glob(".work/*.partial"))
    assert not list(tmp_path.glob(".work/fetch-*"))


@pytest.mark.parametrize("connections", [1, 2])
def test_connections_to_the_server_are_limited(tmp_path: Path, connections: int) -> None:
    flags = ["--allow-other", "--what", "train", "--connections", str(connections)]
    with serve(FILES) as server:
        result = command.run("download", *arguments(tmp_path, server.url, *flags))

    assert result.code == 0, result
    assert len(server.reads(f"/{TRAIN}")) == 9
    assert server.connections <= 1 + connections  # the first one reads the size


@pytest.mark.parametrize("planted", [".work", f".work/{TRAIN}.partial", ".work/lock"])
def test_planted_link_is_never_written_through(tmp_path: Path, planted: str) -> None:
    home = tmp_path / "home"
    into = tmp_path / "into"
    home.mkdir()
    (home / "key").write_bytes(b"secret")
    (into / planted).parent.mkdir(parents=True)
    (into / planted).symlink_to(home / ("" if planted == ".work" else "key"))
    source = tmp_path / "source"
    source.mkdir()
    for name, data in FILES.items():
        (source / name).write_bytes(data)

    with pytest.raises(StoreError, match=says("file-folder-above-link-wrong")):
        download.run(arguments(into, source, "--allow-other"))
    assert archives(home) == {"key": b"secret"}
    assert TRAIN not in archives(into)


def test_json_output_is_one_document(tmp_path: Path) -> None:
    with serve(FILES) as server:
        flags = arguments(tmp_path, server.url, "--allow-other", "--json", "--what", "devkit,train")
        first, second = (command.run("download", *flags) for _ in range(2))

    assert (first.code, first.complaints) == (0, "")
    assert [archive["name"] for archive in first.json["archives"]] == [TRAIN, DEVKIT]
    for archive in first.json["archives"]:
        data = FILES[archive["name"]]
        assert archive["md5"] == hashlib.md5(data).hexdigest()
        assert archive["bytes"] == archive["fetched_bytes"] == len(data)
        assert archive["official"] is False
    assert [archive["fetched_bytes"] for archive in second.json["archives"]] == [0, 0]


@pytest.mark.parametrize(
    ("what", "address"),
    [
        ("bbox", "https://image-net.org/data/ILSVRC/2012"),
        ("cifar10", "https://www.cs.toronto.edu/~kriz"),
        ("mnist", "https://ossci-datasets.s3.amazonaws.com/mnist"),
        (
            "real",
            "https://raw.githubusercontent.com/google-research/reassessed-imagenet/master",
        ),
    ],
)
def test_each_dataset_has_its_own_address(what: str, address: str) -> None:
    assert download.DownloadConfig(into="x", what=(what,)).address == address
    assert (
        download.DownloadConfig(into="x", what=(what,), base_url="s3://b/c").address == "s3://b/c"
    )


def test_real_labels_are_verified_and_wrong_ones_refused(
    tmp_path: Path, official: Official
) -> None:
    data = b"[[1], []]"
    with serve({"real.json": data}) as server:
        flags = ["--into", str(tmp_path), "--base-url", server.url, "--what", "real"]
        with pytest.raises(
            SourceError,
            match=says("bytes-official-archive-choose-different", "real.json", 9, 388_478),
        ):
            download.run(flags)
        assert archives(tmp_path) == {}
        official({"real.json": data})
        assert download.run(flags) == 0
    assert archives(tmp_path) == {"real.json": data}


@pytest.mark.parametrize("flags", [[], ["--allow-other"]])
def test_empty_file_is_no_archive(tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from/real.json").touch()
    into = tmp_path / "into"
    words = ["--into", str(into), "--base-url", str(tmp_path / "from"), "--what", "real"]
    with pytest.raises(StoreError, match=says("file-empty-choose-different-base-url")):
        download.run([*words, *flags])
    assert not into.exists() or archives(into) == {}


def test_existing_archive_of_wrong_size_is_refused(tmp_path: Path, official: Official) -> None:
    data = b"[[1], []]"
    official({"real.json": data})
    (tmp_path / "real.json").write_bytes(data[:-1])
    words = ["--into", str(tmp_path), "--base-url", "http://localhost:9", "--what", "real"]
    wanted = says("bytes-expected-unfinished-download-different", "real.json", 8, 9)
    with pytest.raises(SourceError, match=wanted):
        download.run(words)
    assert archives(tmp_path) == {"real.json": data[:-1]}


def test_mnist_files_are_compared_with_published_checksums(tmp_path: Path) -> None:
    files = {archive.name: archive.name.encode() * 9 for archive in published.MNIST}
    with serve(files) as server:
        flags = ("--into", tmp_path, "--what", "mnist", "--base-url", server.url, "--json")
        refused = command.run("download", *flags)
        accepted = command.run("download", *flags, "--allow-other")
        again = command.run("download", *flags)

    assert refused.code == 3, "neither size nor md5 is the published one"
    assert published.MNIST[0].name in refused.err
    assert accepted.code == 0, accepted
    assert [each["name"] for each in accepted.json["archives"]] == list(files)
    assert {each["official"] for each in accepted.json["archives"]} == {False}
    assert again.code == 3, "an archive is only accepted by the flag of the same command"
    assert archives(tmp_path) == files


def test_official_archives_need_no_flag(
    tmp_path: Path, official: Official, capsys: pytest.CaptureFixture[str]
) -> None:
    official()
    with serve(FILES) as server:
        assert download.run(arguments(tmp_path, server.url)) == 0

    assert archives(tmp_path) == FILES
    assert "NOT" not in capsys.readouterr().out


def test_existing_archives_are_verified_without_a_server(
    tmp_path: Path, official: Official, capsys: pytest.CaptureFixture[str], limits: Limits
) -> None:
    official()
    limits(progress_line_s=0)
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    flags = arguments(tmp_path, "http://127.0.0.1:9")
    assert download.run(flags) == 0
    told = capsys.readouterr()
    assert says("nothing-left-download").search(told.out)
    assert "md5: 3 of 3 tasks" in told.err
    proven = (tmp_path / ".work" / "proven.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["name"] for line in proven) == sorted(FILES)
    stamp = everything(tmp_path)
    assert download.run(flags) == 0
    assert everything(tmp_path) == stamp

    touched = bytearray(FILES[VALIDATION])
    touched[0] ^= 1
    (tmp_path / VALIDATION).write_bytes(bytes(touched))
    with pytest.raises(
        SourceError,
        match=says("md5-official-archive-file-damaged", VALIDATION, ..., ..., "remove it"),
    ):
        download.run(flags)


def test_archive_missing_in_a_folder_is_named(tmp_path: Path) -> None:
    result = command.run("download", *arguments(tmp_path / "into", tmp_path / "nowhere"))

    assert (result.code, result.out) == (1, "")
    assert f"{tmp_path}/nowhere/{TRAIN}: No such file or directory" in result.err


def test_dry_run_sends_requests_but_writes_nothing(tmp_path: Path) -> None:
    into = tmp_path / "into"
    with serve(FILES) as server:
        flags = arguments(into, server.url, "--allow-other", "--dry-run")
        result = command.run("download", *flags)
        machine = command.run("download", *flags, "--json")

    assert result.code == machine.code == 0
    for name in FILES:
        assert f"{name}: " in result.out
        assert server.reads(f"/{name}") == []
    assert says("disk-download-free-dry-run", ..., ..., into).search(result.out)
    assert [archive["bytes"] for archive in machine.json["archives"]] == [
        len(data) for data in FILES.values()
    ]
    assert machine.json["free_bytes"] > 0
    assert not into.exists()

    into.mkdir()
    (into / TRAIN).write_bytes(FILES[TRAIN])
    with serve(FILES) as server:
        flags = arguments(into, server.url, "--allow-other", "--dry-run")
        archives = command.run("download", *flags, "--json").json["archives"]
        result = command.run("download", *flags)
    assert [archive["name"] for archive in archives if archive["there"]] == [TRAIN]
    missing = human_bytes(sum(len(data) for name, data in FILES.items() if name != TRAIN))
    assert says("disk-download-free-dry-run", missing, ..., into).search(result.out)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--what", "train,tests"],
            exactly("train, validation, test, devkit, bbox, cifar10, mnist"),
        ),
        (["--what", ""], exactly("train, validation, test, devkit, bbox, cifar10, mnist")),
        (
            ["--what", "devkit,cifar10"],
            says("what-archives-different-datasets-download", "devkit,cifar10"),
        ),
        (
            ["--what", "mnist,cifar10"],
            says("what-archives-different-datasets-download", "mnist,cifar10"),
        ),
        (["--connections", "0"], exactly("--connections 0: expected at least 1")),
        (["--part-size", "0"], exactly("--part-size 0: expected at least 1")),
        (["--retries", "-1"], exactly("--retries -1: expected at least 0")),
        (["--timeout", "0"], exactly("--timeout 0: expected at least 1")),
        (["--base-url", "ftp://example.org/x"], says("not-supported-use-http-s", "ftp")),
        (["--base-url", "s3://"], says("address-no-host-bucket")),
    ],
)
def test_impossible_settings_are_usage_errors(
    tmp_path: Path, flags: list[str], said: re.Pattern[str]
) -> None:
    with pytest.raises(UsageError, match=said):
        download.run(["--into", str(tmp_path), *flags])


@pytest.mark.parametrize(
    ("timeout", "retries", "stall_s", "problem"),
    [
        ("1", "0", command.PATIENCE_S, says("no-data-arrived-time")),
        ("1", "1", command.PATIENCE_S, says("no-data-arrived-time")),
        ("60", "0", 0.5, says("connection-cut")),
    ],
)
def test_silent_server_is_given_up(
    tmp_path: Path, timeout: str, retries: str, stall_s: float, problem: re.Pattern[str]
) -> None:
    """This server sends half of each answer, and closes the connection some time later."""
    flags = ["--allow-other", "--what", "devkit", "--timeout", timeout, "--retries", retries]
    with serve(FILES, plan=lambda *_: "stall", stall_s=stall_s) as server:
        result = command.run("download", *arguments(tmp_path, server.url, *flags))

    attempts = 1 + int(retries)
    assert result.code == 4, result
    assert says("given-up-after", f"{attempts} failed attempt").search(result.err)
    assert problem.search(result.err)
    assert len(server.requests) == attempts


@pytest.mark.parametrize(
    "flags",
    [
        ["--imagenet_username=ann", "--imagenet_access_key=sesame"],
        ["--imagenet_access_key", "sesame"],
        ["--imagenet-username", "ann"],
    ],
)
def test_flags_of_the_tutorial_are_explained(tmp_path: Path, flags: list[str]) -> None:
    result = command.run("download", "--into", tmp_path, *flags)

    assert (result.code, result.out) == (2, "")
    assert "2019" in result.err
    assert "IMAGENET_PREP_COOKIES" in result.err
    assert "sesame" not in result.err


def test_receipts_contain_no_address(tmp_path: Path) -> None:
    with serve(FILES, plan=lambda _n, _p, first, _l: "404" if first == 5 * MIB else "") as server:
        command.run("download", *arguments(tmp_path, server.url, "--allow-other"))
    receipts = [json.loads(path.read_bytes()) for path in tmp_path.glob(".work/*/receipts/*")]

    assert receipts
    assert server.url not in json.dumps(receipts)
    assert server.url not in (tmp_path / ".work" / "proven.jsonl").read_text()
