"""--codec: its value in the manifest, refused values, and the message if the library is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.messages import says
from tests.kit.miniature import Miniature, miniature_for_tests


@pytest.fixture(scope="module")
def mini(shared_cache: Path) -> Miniature:
    return miniature_for_tests(
        shared_cache, num_classes=4, num_train=20, num_validation=8, size=(48, 36)
    )


def prepare(mini: Miniature, out: Path, *more: str, **env: str) -> command.Finished:
    flags = ("--short-side", "24", "--train-shards", "2", "--validation-shards", "1")
    words = ("prepare", "--source", mini.root, "--out", out, "--allow-subset", *flags, *more)
    return command.run(*words, env=env)


def codec_of(out: Path) -> dict[str, str]:
    libraries: dict[str, str] = json.loads((out / "dataset.json").read_text())["producer"][
        "libraries"
    ]
    return libraries


def test_manifest_names_the_codec_and_refuses_others(mini: Miniature, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert prepare(mini, out, "--codec", "portable").code == 0
    assert codec_of(out) == {"codec": "portable-1"}

    # Finished, partly removed, and started by a different run.
    for gone in (None, "train-00001-of-00002", "dataset.json"):
        if gone:
            (out / gone).unlink()
        refused = prepare(mini, out)
        assert refused.code == 2
        assert len(refused.complaints.splitlines()) == 1
        assert says("started-codec-run-uses", ..., "portable-1", "planes-1").search(
            refused.complaints
        )

    assert prepare(mini, out, "--codec", "portable").code == 0
    assert command.run("verify", out).code == 0
    for name in ("auto", "planes"):
        made = tmp_path / name
        assert prepare(mini, made, "--codec", name).code == 0
        assert codec_of(made) == {"codec": "planes-1"}
    first, second = ((tmp_path / name / "dataset.json").read_bytes() for name in ("auto", "planes"))
    assert first == second


@pytest.fixture(scope="module")
def uncompiled(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The package as on a machine without a compiler: installed, but without its libraries."""
    tree = tmp_path_factory.mktemp("uncompiled")
    for package in ("imagenet_prep", "pipelines"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(repository / package, tree / package, symlinks=True, ignore=ignored)
    return str(tree)


@pytest.mark.parametrize("codec", ["planes", "portable"])
def test_missing_library_stops_prepare_before_output(
    mini: Miniature, uncompiled: str, tmp_path: Path, codec: str
) -> None:
    out = tmp_path / "out"

    refused = prepare(mini, out, "--codec", codec, PYTHONPATH=uncompiled)

    assert refused.code == 2
    assert len(refused.complaints.splitlines()) == 1
    assert says("images-cannot-converted-checked").search(refused.complaints)
    assert says("cannot-loaded-compiled-when-imagenet-prep").search(refused.complaints)
    assert not out.exists()


def test_missing_library_makes_no_bad_images(
    mini: Miniature, uncompiled: str, tmp_path: Path
) -> None:
    """Without it, `verify` can only compare hashes: it must not call all images undecodable."""
    whole = tmp_path / "whole"
    out = tmp_path / "out"
    assert prepare(mini, whole).code == 0
    env = {"PYTHONPATH": uncompiled}
    assert command.run("verify", whole, env=env).code == 0
    shards = tmp_path / "shards"
    shards.mkdir()
    for path in [*whole.glob("train-*"), *whole.glob("validation-*")]:
        shutil.copy(path, shards)

    for words in (
        ("verify", whole, "--level", "decode"),
        ("resize", "-i", whole, "-o", out, "-r", "16", "--codec", "portable"),
        ("adopt", shards, "--allow-subset", "--out", out),
    ):
        refused = command.run(*words, env=env)
        assert refused.code == 2, words
        assert says("images-cannot-converted-checked").search(refused.complaints), words
    assert not (out / "dataset.json").exists()


def test_resize_adds_no_split_of_a_different_codec(mini: Miniature, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    out = tmp_path / "out"
    assert prepare(mini, whole).code == 0
    resize = ("resize", "-i", whole, "-o", out, "-r", "16", "--codec", "portable")
    assert command.run(*resize, "-s", "train").code == 0
    assert codec_of(out) == {"codec": "portable-1"}

    refused = command.run(*resize[:-2], "-s", "train,validation")
    assert refused.code == 2
    assert says("started-codec-run-uses", ..., "portable-1", "planes-1").search(refused.complaints)

    assert command.run(*resize, "-s", "train,validation").code == 0
    forced = command.run(*resize[:-2], "-s", "train,validation", "--force")
    assert forced.code == 0, forced
    assert codec_of(out) == {"codec": "planes-1"}
    assert command.run("verify", out).code == 0
