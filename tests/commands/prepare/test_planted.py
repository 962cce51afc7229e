"""A dataset from an unknown source may contain names that lead outside, links, and false notes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import preprocess_imagenet, resize
from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import schema
from imagenet_prep.pipelines.prepare import prepare
from imagenet_prep.preparation.config import PrepareConfig as Prepare
from imagenet_prep.replicate import ReplicateConfig as Replicate
from imagenet_prep.replicate import replicate
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.verify import VerifyConfig as Verify
from imagenet_prep.verify import verify
from tests.kit import command
from tests.kit.dataset import everything
from tests.kit.messages import says
from tests.kit.miniature import Miniature
from tests.kit.replicas import make_dataset

SETTINGS: dict[str, Any] = {"short_side": 64, "allow_subset": True, "json": True}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The user's own files; a planted dataset is two folders below."""
    home = tmp_path / "home"
    (home / "data").mkdir(parents=True)
    (home / ".bashrc").write_bytes(b"export PATH")
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id").write_bytes(b"secret")
    return home


@pytest.fixture
def planted(home: Path) -> Path:
    make_dataset(home / "data" / "set", shards=2, shard_bytes=100)
    return home / "data" / "set"


def sign(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes a manifest and signs it, as its author could."""
    path = root / schema.MANIFEST
    content = json.loads(path.read_bytes())
    del content["digest"]
    change(content)
    whole = {**content, "digest": strict_json.digest(content)}
    path.write_bytes(
        json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    )


def leads_outside(content: dict[str, Any]) -> None:
    content["splits"]["train"]["shards"][1]["name"] = "../../.bashrc"


def comes_twice(content: dict[str, Any]) -> None:
    shards = content["splits"]["train"]["shards"]
    shards[1]["name"] = shards[0]["name"]


def split_above(content: dict[str, Any]) -> None:
    content["splits"]["../s"] = content["splits"].pop("train")


def unchanged(home: Path, planted: Path) -> dict[str, tuple[int, int, int]]:
    """Returns the state of the user's files without the planted dataset."""
    own = str(planted.relative_to(home))
    files = everything(home)
    return {name: state for name, state in files.items() if not f"{name}/".startswith(f"{own}/")}


@pytest.mark.parametrize(
    ("verb", "change"),
    [
        ("verify", leads_outside),
        ("verify", split_above),
        ("replicate", comes_twice),
        ("resize", leads_outside),
    ],
)
def test_manifest_with_invalid_names_is_refused(
    home: Path, planted: Path, verb: str, change: Callable[[dict[str, Any]], None]
) -> None:
    sign(planted, change)
    before = unchanged(home, planted)
    arguments: dict[str, tuple[str | Path, ...]] = {
        "verify": (planted, "--workers", "2"),
        "replicate": (planted, "--to", home / "data" / "copy"),
        "resize": ("--input_dir", planted, "--output_dir", home / "data" / "out"),
    }
    found = command.run(verb, *arguments[verb])

    assert found.code == 3, found
    assert "Traceback" not in found.err
    assert "dataset.json: the s" in found.err
    assert says("program-did-not-write").search(found.err)
    assert unchanged(home, planted) == before


@pytest.mark.parametrize("name", ["", "lock", "run.json", "temporary", "plan"])
def test_prepare_follows_no_link_in_planted_work_folder(
    mini: Miniature, home: Path, name: str
) -> None:
    out = home / "data" / "out"
    link = out / schema.WORK / name
    link.parent.mkdir(parents=True)
    link.symlink_to(home / (".ssh" if name in ("", "temporary", "plan") else ".bashrc"))
    before = unchanged(home, out)

    with pytest.raises(StoreError, match=says("file-folder-above-link-wrong")):
        prepare(Prepare(str(mini.root), str(out), workers=1, **SETTINGS))
    assert unchanged(home, out) == before


def test_archives_are_not_downloaded_behind_a_link(mini: Miniature, home: Path) -> None:
    out = home / "data" / "out"
    out.mkdir()
    (out / schema.WORK).symlink_to(home / ".ssh")
    before = unchanged(home, out)

    with pytest.raises(StoreError, match=says("file-folder-above-link-wrong")):
        preprocess_imagenet.run(["--local_scratch_dir", str(out)])
    assert unchanged(home, out) == before


@pytest.mark.parametrize(
    "begun", [b"", b"[]", b"{}", b'{"config": 5, "libraries": {}}', b"[" * 100_000], ids=ascii
)
def test_invalid_notes_of_a_run_are_refused(
    mini: Miniature, home: Path, planted: Path, begun: bytes
) -> None:
    out = home / "data" / "out"
    (out / schema.WORK).mkdir(parents=True)
    (out / schema.WORK / "run.json").write_bytes(begun)
    of_resize = resize.ResizeConfig(str(planted), str(out), json=True)

    with pytest.raises(DataDamagedError, match=says("program-did-not-write-file", "run.json")):
        prepare(Prepare(str(mini.root), str(out), workers=1, **SETTINGS))
    with pytest.raises(DataDamagedError, match=says("program-did-not-write-file", "run.json")):
        resize.resize(of_resize)


def test_planted_verification_is_replaced_without_following_it(home: Path, planted: Path) -> None:
    (planted / schema.WORK).mkdir(exist_ok=True)
    (planted / schema.VERIFIED).symlink_to(home / ".bashrc")
    before = unchanged(home, planted)
    config = Verify(str(planted), level="manifest", if_changed=True, json=True)

    assert not verify(config)["problems"]
    assert not (planted / schema.VERIFIED).is_symlink()
    assert verify(config)["unchanged_since"]
    assert unchanged(home, planted) == before


def test_verify_writes_no_result_behind_a_link(home: Path, planted: Path) -> None:
    LocalStore(planted).remove_tree(schema.WORK)
    (planted / schema.WORK).symlink_to(home / ".ssh")
    before = unchanged(home, planted)
    config = Verify(str(planted), level="manifest", if_changed=True, json=True)

    assert not verify(config)["problems"]
    assert unchanged(home, planted) == before


@pytest.mark.parametrize("name", ["", "replicas.jsonl"])
def test_replicate_writes_nothing_behind_a_link(home: Path, planted: Path, name: str) -> None:
    LocalStore(planted).remove_tree(schema.WORK)
    link = planted / schema.WORK / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(home / (".bashrc" if name else ".ssh"))
    before = unchanged(home, home / "data")
    result = replicate(Replicate(str(planted), str(home / "data" / "copy"), json=True))

    assert result["replicas"][0]["problems"] == []
    assert unchanged(home, home / "data") == before
