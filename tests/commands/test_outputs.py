"""A command never replaces a file of a different kind, for any flag."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import diff, report, show, verify
from imagenet_prep.core.errors import StoreError, UsageError
from imagenet_prep.pipelines import prepare
from tests.kit import command, layouts
from tests.kit.dataset import all_files, contents
from tests.kit.messages import says
from tests.kit.s3_server import BUCKET, S3Server, key_of, objects
from tests.kit.system import System
from tests.kit.tfrecords import plain


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two images; read-only."""
    folder = tmp_path_factory.mktemp("sound")
    source = folder / "source"
    out = folder / "set"
    # All test processes share the notes on sources of datasets, so their images must differ.
    first = zlib.crc32(os.fsencode(folder)) % 200
    for number, name in enumerate(("cats/a", "dogs/b"), first):
        layouts.write(source / f"{name}.jpg", plain(number))
    flags = ("--splits", "train", "--train-shards", "1", "--json")
    assert prepare.run(["--source", str(source), "--out", str(out), *flags]) == 0
    return out


@pytest.mark.usefixtures("unplotted")
@pytest.mark.parametrize(
    "run",
    [
        lambda data, out: diff.run([str(data), str(data), "--out", str(out)]),
        lambda data, out: report.run([str(data), "--out", str(out)]),
        lambda data, out: show.run([str(data), "--key", "cats/a.jpg", "--out", str(out)]),
    ],
    ids=["diff", "report", "show"],
)
def test_foreign_file_is_kept_and_old_output_replaced(
    sound: Path, tmp_path: Path, run: Callable[[Path, Path], int]
) -> None:
    mine = tmp_path / ".bashrc"
    out = tmp_path / "out"
    mine.write_text("# mine\n")
    with pytest.raises(UsageError, match=says("not-not-replaced-choose-different", "bashrc")):
        run(sound, mine)
    assert mine.read_text() == "# mine\n"

    out.touch()
    assert run(sound, out) == 0
    first = out.read_bytes()
    out.write_bytes(first + b"more")
    assert run(sound, out) == 0
    assert out.stat().st_size == len(first)


def test_folder_without_permission_is_refused_at_once(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: System
) -> None:
    # Root may write everywhere.
    def access(real: Callable[..., bool], path: Any, mode: int, **more: Any) -> bool:
        return str(path) != str(tmp_path) and real(path, mode, **more)

    system.instead("access", access)
    monkeypatch.setattr(verify, "verify", lambda _: pytest.fail("the dataset was read first"))
    for name in ("page.html", "new/page.html"):
        with pytest.raises(StoreError, match=says("cannot-write-no-permission-write", name)):
            report.run([str(sound), "--out", str(tmp_path / name)])


def written(verb: str, data: Path, out: Path | str) -> list[str | Path]:
    """Returns a command that would write `out`."""
    keys = data.parent / "keys"
    keys.write_text("cats/a.jpg\n")
    return {
        "prepare": ["prepare", data.parent / "source", out],
        "resize": ["resize", "-i", data, "-o", out, "-r", "8"],
        "amend": ["amend", data, "--exclude", keys, "--out", out],
        "adopt": ["adopt", data, "--out", out, "--allow-subset"],
        "rewrite": ["adopt", data, "--out", out, "--allow-subset", "--rewrite"],
        "export": ["export", data, "--to", "webdataset", "--out", out],
        "replicate": ["replicate", data, out],
        "duplicates": ["duplicates", data, "--out", out],
        "download": ["download", "--into", out, "--base-url", data, "--what", "mnist"],
    }[verb]


VERBS = ("prepare", "resize", "amend", "adopt", "rewrite", "export", "replicate")


@pytest.mark.parametrize("verb", [*VERBS, "duplicates", "download"])
def test_output_that_cannot_be_a_folder_is_refused(sound: Path, tmp_path: Path, verb: str) -> None:
    file, loop, broken = (tmp_path / name for name in ("file", "loop", "broken"))
    file.write_text("mine")
    loop.symlink_to(loop)
    broken.symlink_to(tmp_path / "nothing")
    for out, named in (
        (file, file),
        (file / "x/y", file),
        (loop, loop),
        (loop / "x", loop),
        (broken, broken),
        (Path("/dev/full"), "/dev/full"),
    ):
        result = command.run(*written(verb, sound, out))
        assert result.code == 2, result
        assert says("file-broken-link-expected-folder", ..., ..., named).search(result.err)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "loop", "broken"}
    assert file.read_text() == "mine"


@pytest.mark.parametrize("verb", VERBS[1:])
def test_output_inside_the_input_is_refused(sound: Path, tmp_path: Path, verb: str) -> None:
    """A folder `new` in the source would become a class."""
    source = sound.parent / "source"
    before = all_files(sound), all_files(source)
    (tmp_path / "link").symlink_to(sound)
    for out in (
        sound,
        sound / "new",
        sound / "index" / "new",
        tmp_path / "link" / "new",
        source,
        source / "cats",
        source / "cats/new",
        source / "new",
    ):
        result = command.run(*written(verb, sound, out))
        assert result.code == 2, result
        assert "Choose" in result.err or says("out-source-adopt-place-remove").search(result.err)
    assert (all_files(sound), all_files(source)) == before
    assert command.run(*written(verb, sound, sound.parent / f"next-{verb}")).code == 0


@pytest.mark.parametrize("name", ["photographs/cat/1.jpg", "ILSVRC2012_img_val.tar"])
@pytest.mark.parametrize("verb", ["prepare", "resize", "amend", "adopt", "rewrite", "replicate"])
def test_dataset_is_not_mixed_with_sources(
    sound: Path, tmp_path: Path, verb: str, name: str
) -> None:
    layouts.write(tmp_path / "out" / name, b"mine")
    result = command.run(*written(verb, sound, tmp_path / "out"))
    assert result.code == 2, result
    assert name.partition("/")[0] in result.err
    assert [*contents(tmp_path / "out")] == [name]


@pytest.mark.parametrize("verb", ["prepare", "resize", "adopt", "replicate"])
def test_dataset_in_a_bucket_is_not_mixed(
    sound: Path, s3: S3Server, prefix: str, verb: str
) -> None:
    s3.client().put_object(Bucket=BUCKET, Key=f"{key_of(prefix)}/cat/1.jpg", Body=b"mine")
    result = command.run(*written(verb, sound, prefix), env=s3.environment)

    assert result.code == 2, result
    assert f"{prefix} contains cat, and no dataset" in result.err or "the way: cat" in result.err
    left = objects(s3.client(), prefix)
    assert {name for name in left if not name.startswith(".work/")} == {"cat/1.jpg"}


def test_dataset_may_be_next_to_a_log(sound: Path, tmp_path: Path) -> None:
    for other in ("prepare.log", "lost+found/x", ".hidden/x.jpg"):
        layouts.write(tmp_path / "out" / other, b"mine")
    for verb in ("prepare", "prepare"):
        assert command.run(*written(verb, sound, tmp_path / "out")).code == 0
