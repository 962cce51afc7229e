"""Unusual folder names, terminals and environments."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from imagenet_prep.storage.ledger import find_source
from tests.kit import command
from tests.kit.dataset import SETTINGS, Reference, contents
from tests.kit.http_server import serve
from tests.kit.lengths import long_except
from tests.kit.messages import says
from tests.kit.tfrecords import plain


@pytest.mark.parametrize("kind", long_except(["processes"], ["threads", "processes"]))
def test_odd_folder_names_are_supported(
    reference: Reference, unusual_tmp_path: Path, kind: str
) -> None:
    source = unusual_tmp_path / "the \\ archives; *"
    shutil.copytree(reference.source, source)
    out = unusual_tmp_path / "-o\tut"
    flags = ("--workers", "2", "--worker-kind", kind)
    result = command.run("prepare", "--source", source, "--out", out, *SETTINGS, *flags)

    assert (result.code, result.complaints) == (0, "")
    assert contents(out) == reference.contents
    assert str(out) in result.out
    verified = command.run("verify", out, "--level", "decode")
    assert (verified.code, verified.complaints) == (0, "")


def test_folder_names_outside_utf8_are_supported(reference: Reference, tmp_path: Path) -> None:
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/latin-\xe9"))
    result = command.run("prepare", "--source", reference.source, "--out", out, *SETTINGS)

    assert result.code == 0, result
    assert contents(out) == reference.contents


@pytest.mark.parametrize("language", long_except(["C"], ["C", "POSIX", "de_DE.UTF-8"]))
def test_locale_does_not_change_bytes(
    reference: Reference, unusual_tmp_path: Path, language: str
) -> None:
    out = unusual_tmp_path / "out"
    env = {"LANG": language, "LC_ALL": language}
    arguments = ("--source", reference.source, "--out", out, *SETTINGS)
    result = command.run("prepare", *arguments, env=env)

    assert (result.code, result.complaints) == (0, "")
    assert contents(out) == reference.contents


def test_source_folder_may_have_name_outside_utf8(tmp_path: Path) -> None:
    """Notes and records of failures contain its path; the manifest would contain its own name."""
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/latin-\xe9"))
    for split in ("train", "val"):
        for number, name in enumerate(("cat/1.jpg", "dog/2.jpg")):
            path = odd / split / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(plain(number))
    out = tmp_path / "out"
    for _ in range(2):
        assert command.run("prepare", odd, out).code == 0
    (digest,) = [json.loads((out / "dataset.json").read_bytes())["digest"]]
    found = find_source(digest)
    assert found is not None
    assert found.root == str(odd)
    assert command.run("report", out, "--out", tmp_path / "page.html").code == 0

    replica = odd / "replica"
    assert command.run("replicate", out, replica).code == 0
    assert command.run("verify", replica).code == 0
    assert command.run("amend", out, "--add", odd / "val", "--out", odd / "new").code == 2

    (odd / "val/cat/1.jpg").write_bytes(plain(1)[:200])
    bad = ("--on-bad-image", "fail")
    failed = command.run("prepare", odd, tmp_path / "failed", *bad)
    assert failed.code == 3, failed
    assert "val/cat/1.jpg" in failed.err

    refused = command.run("prepare", odd / "train" / "..", tmp_path / "x", "--splits", "train")
    assert refused.code == 0, refused
    odd.rename(odd.with_name("ascii"))
    (tmp_path / "ascii/train").rename(odd)
    refused = command.run("prepare", odd, tmp_path / "y")
    assert refused.code == 3, refused
    assert says("source-name-folder-not-utf-8", "b'latin-\\xe9'").search(refused.err)
    assert not (tmp_path / "y").exists()


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_names_are_never_coded_in_the_locales_encoding(tmp_path: Path) -> None:
    """In Latin-1, the class café would be called cafÃ©; in ASCII, its name would be no text."""
    write = tmp_path / "source" / "café" / "ü.jpg"
    write.parent.mkdir(parents=True)
    write.write_bytes(plain(1))
    out = tmp_path / "out"
    new = tmp_path / "new"
    prepare = ("prepare", write.parents[1], out)
    assert command.run(*prepare, env=ASCII | {"PYTHONUTF8": "1"}).code == 0
    assert "café/ü.jpg" in (out / "samples" / "train-00000-of-00001.csv").read_text()

    keys = tmp_path / "keys"
    keys.write_text("café/ü.jpg\n")
    for words in (
        ("prepare", write.parents[1], new),
        ("resize", "-i", out, "-o", new, "-r", "8"),
        ("amend", out, "--exclude", keys, "--out", new),
        ("export", out, "--to", "folder", "--out", new),
        ("verify", out),
    ):
        result = command.run(*words, env=ASCII)
        assert (result.code, result.out) == (2, ""), result
        assert says("locale-makes-python-read-file", "ascii").search(result.err)
        assert says("locale-makes-python-read-file").search(result.err)
        assert not new.exists()
    assert command.run("prepare", "--help", env=ASCII).code == 0


def test_dataset_is_complete_if_stdout_is_closed(reference: Reference, tmp_path: Path) -> None:
    """As with `prepare | true`: no one reads the summary, but the dataset is complete."""
    out = tmp_path / "out"
    code = (
        "import os, sys\n"
        "read, write = os.pipe()\n"
        "os.close(read)\n"
        "os.dup2(write, 1)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'imagenet_prep', *sys.argv[1:]])\n"
    )
    arguments = ("--source", reference.source, "--out", out, *SETTINGS)
    result = command.run("prepare", *arguments, program=("-c", code))

    assert (result.code, result.complaints) == (0, "")
    assert contents(out) == reference.contents


def test_closed_stderr_is_supported(reference: Reference) -> None:
    code = (
        "import os, sys\n"
        "os.close(2)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'imagenet_prep', *sys.argv[1:]])\n"
    )
    result = command.run("verify", reference.out, program=("-c", code))
    assert result.code == 0, result


@pytest.mark.parametrize("verb", [("verify",), ("show", "--keys")])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_error_names_a_full_stdout(
    reference: Reference, verb: tuple[str, ...], unbuffered: str
) -> None:
    code = (
        "import os\n"
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)\n"
        "import imagenet_prep.__main__ as program\n"
        "program.main()\n"
    )
    env = {"PYTHONUNBUFFERED": unbuffered}
    result = command.run(*verb, reference.out, program=("-c", code), env=env)

    assert result.code == 1, result
    assert "Traceback" not in result.err
    assert "stdout" in result.err


@pytest.fixture
def terminal() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Both ends of a terminal of 24 lines by 100 columns: the test's, and the command's."""
    first, second = pty.openpty()
    fcntl.ioctl(second, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    # File objects, since a test may close them: the number of a closed file may be reused.
    with open(first, "rb", 0) as ours, open(second, "wb", 0) as theirs:
        yield ours, theirs


def test_terminal_gets_a_bar_and_summary_stays_clean(
    reference: Reference, tmp_path: Path, terminal: tuple[IO[bytes], IO[bytes]]
) -> None:
    ours, theirs = terminal
    seen: list[bytes] = []

    def watch() -> None:
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while chunk := ours.read(4096):
                seen.append(chunk)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out = tmp_path / "out"
    arguments = ("--source", reference.source, "--out", out, *SETTINGS)
    try:
        with command.started("prepare", *arguments, stderr=theirs.fileno()) as run:
            result = run.finish()
    finally:
        theirs.close()
        watcher.join()

    shown = b"".join(seen).decode()
    assert result.code == 0, (result, shown)
    assert "index" in shown
    assert "write" in shown
    assert "\r" in shown
    assert result.out.startswith("train: ")
    assert "\r" not in result.out
    assert contents(out) == reference.contents


def test_json_output_has_no_bar_on_a_terminal(
    reference: Reference, tmp_path: Path, terminal: tuple[IO[bytes], IO[bytes]]
) -> None:
    ours, theirs = terminal
    os.set_blocking(ours.fileno(), False)
    arguments = ("--source", reference.source, "--out", tmp_path / "out", *SETTINGS)
    with command.started("prepare", *arguments, "--json", stderr=theirs.fileno()) as run:
        result = run.finish()

    assert result.json["splits"]["train"]["shards"] == 8
    assert ours.read(1) is None


def test_user_without_name_and_home_can_prepare(reference: Reference, tmp_path: Path) -> None:
    """Some containers run with a random user ID that has neither."""
    apart = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
    tried = subprocess.run([*apart, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"this machine has no user namespaces: {tried.stderr.strip()}")
    out = tmp_path / "out"

    def ended(*words: str | Path) -> subprocess.CompletedProcess[str]:
        environment = command.environment()
        del environment["HOME"]
        environment.pop("IMAGENET_PREP_CACHE", None)
        program = (*apart, sys.executable, *command.PROGRAM, *map(str, words))
        return subprocess.run(
            program, env=environment, capture_output=True, text=True, timeout=command.PATIENCE_S
        )

    made = ended("prepare", "--source", reference.source, "--out", out, *SETTINGS)
    assert made.returncode == 0, made
    assert contents(out) == reference.contents
    again = ended("prepare", "--source", reference.source, "--out", out, *SETTINGS)
    assert again.returncode == 0, again
    with serve(contents(out)) as server:
        read = ended("bench-read", server.url)
    assert read.returncode == 2, read
    assert "Set HOME, or IMAGENET_PREP_CACHE" in read.stderr
