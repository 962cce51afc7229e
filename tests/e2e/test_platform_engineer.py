"""A platform engineer: mistypes, looks first, is interrupted, meets another run, loses a bit."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from imagenet_prep.core.errors import BusyError, UsageError
from imagenet_prep.storage.folder import LocalStore
from tests.kit import command, faults
from tests.kit.dataset import contents, shard_names
from tests.kit.miniature import Miniature, miniature_for_tests

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def archives(shared_cache: Path) -> Miniature:
    """Archives for 28 shards, so that an interruption lies between two; read-only."""
    return miniature_for_tests(shared_cache, num_train=300, num_validation=60, size=(160, 120))


def one_line(finished: command.Finished, code: int) -> str:
    """Returns the one line that a command must have said, on stderr, with this exit code."""
    assert (finished.code, finished.out) == (code, ""), finished
    (line,) = finished.complaints.splitlines()
    assert line.startswith("imagenet-prep: ")
    return line


def test_from_a_mistyped_flag_to_a_mended_replica(archives: Miniature, tmp_path: Path) -> None:
    places = ("--source", archives.root, "--out", tmp_path / "set")
    settings = ("--train-shards", "24", "--validation-shards", "4", "--workers", "1")
    asked = ("prepare", *places, *settings, "--allow-subset")

    # Mistypes, and is told what was meant.
    mistyped = command.run("prepare", *places, "--shortside", "64")
    assert "Did you mean --short-side?" in one_line(mistyped, UsageError.exit_code)
    forgotten = command.run("prepare", "--source", archives.root)
    assert "OUT is missing" in one_line(forgotten, UsageError.exit_code)

    # Looks first: nothing is written, and what would be refused is refused now.
    looked = command.run(*asked, "--dry-run")
    assert looked.code == 0, looked
    assert "nothing was written" in looked.out
    assert not (tmp_path / "set").exists()
    other = command.run("prepare", *places, "--dry-run")
    assert other.code != 0, "the counts are not ILSVRC2012's, and the run would say so, too"

    # Cron starts it while another run writes there; later, it is interrupted.
    with LocalStore(tmp_path / "set").lock():
        beside = command.run(*asked)
    with command.started(*asked) as first:
        command.wait_until(lambda: first.ended or shards(tmp_path / "set"), "the first shard")
        first.send(signal.SIGTERM)
        ended = first.finish()
    assert "is being written by a different run" in one_line(beside, BusyError.exit_code)
    assert ended.code in (0, 130), ended
    again = command.run(*asked)
    assert again.code == 0, again
    assert "nothing was left to do" in command.run(*asked).out

    # Proves it each week, and reads nothing that was not touched.
    proven = command.run("verify", "--data-dir", tmp_path / "set", "--if-changed")
    assert proven.code == 0, proven
    untouched = command.run("verify", tmp_path / "set" / "dataset.json", "--if-changed")
    assert "not modified since the last verification" in untouched.out

    # Copies it; a bit of the copy is lost, which is found, named, and mended.
    copied = command.run("replicate", tmp_path / "set", "--to", tmp_path / "copy")
    assert copied.code == 0, copied
    shard = sorted(shards(tmp_path / "copy"))[5]
    faults.flip_bit(tmp_path / "copy" / shard, 700)
    found = command.run("verify", tmp_path / "copy")
    assert found.code == 3
    assert f"{shard}: record " in found.out
    assert "1 problem in " in found.err
    assert "--repair" in found.err or "replicate" in found.err or "prepare" in found.err
    mended = command.run("replicate", tmp_path / "set", "--to", tmp_path / "copy", "--repair")
    assert mended.code == 0, mended
    assert command.run("verify", tmp_path / "copy", "--level", "decode").code == 0
    assert shards(tmp_path / "copy") == shards(tmp_path / "set")

    # Tells a colleague what it is.
    shown = command.run("show", tmp_path / "copy", "--json")
    manifest = json.loads((tmp_path / "set" / "dataset.json").read_bytes())
    assert json.loads(shown.out)["digest"] == manifest["digest"]


def shards(out: Path) -> set[str]:
    return shard_names(contents(out)) if out.is_dir() else set()
