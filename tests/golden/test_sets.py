"""The same commands make the same bytes as before; what was made or begun before is still good."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.dataset import settings
from tests.golden import sets
from tests.kit import command
from tests.kit.dataset import contents, shard_names, stamps

LAST = "train-00001-of-00002"


def test_the_same_commands_make_the_same_bytes(shared_cache: Path, tmp_path: Path) -> None:
    golden = json.loads(sets.DIGESTS.read_text())
    mini = sets.miniature(shared_cache)
    shards = sets.shards(tmp_path / "shards", mini)

    made = sets.make(sets.SETS, tmp_path, mini.root, shards)

    assert {name: result.code for name, result in made.items()} == dict.fromkeys(golden, 0), made
    for name, expected in golden.items():
        # Other versions of the libraries are no other data set until its bytes differ.
        told = sets.told(tmp_path / name, producer=expected["producer"])
        assert told["files"] == expected["files"], name
        assert told == expected, name


def test_old_sets_verify(tmp_path: Path) -> None:
    old = {name: shutil.copytree(sets.OLD / name, tmp_path / name) for name in sets.OLD_SETS}

    verified = [command.run("verify", folder) for folder in old.values()]

    assert [result.code for result in verified] == [0] * len(old), verified


@pytest.fixture
def unfinished(tmp_path: Path) -> dict[str, Path]:
    """The old sets as runs left them that were killed while they wrote a shard of train."""
    return {name: _unfinished(name, tmp_path / name) for name in sets.OLD_SETS}


def _unfinished(name: str, folder: Path) -> Path:
    shutil.copytree(sets.OLD / name, folder)
    shutil.copytree(sets.OLD / f"{name}.work", folder / ".work")
    for file in ("dataset.json", "labels.txt", "features.json", "dataset_info.json"):
        (folder / file).unlink()
    for file in ("quarantine.jsonl", LAST, f"index/{LAST}"):
        (folder / file).unlink()
    for receipt in (folder / ".work").glob(f"*/receipts/{LAST}.json"):
        receipt.unlink()
    return folder


def test_work_that_was_begun_before_is_finished_or_refused_in_one_sentence(
    unfinished: dict[str, Path], tmp_path: Path
) -> None:
    mini, shards = sets.small(tmp_path / "source")
    # A shard of an adopted set is a link to the source's.
    for path in unfinished["adopted"].glob("[tv]*-of-*"):
        path.unlink()
        path.hardlink_to(shards / path.name)
    before = {name: stamps(folder) for name, folder in unfinished.items()}

    finished = sets.make(sets.OLD_SETS, tmp_path, mini.root, shards)

    refused = []
    for name, result in finished.items():
        if _by_a_codec_without_name(unfinished[name]):
            assert result.code == 2, result
            assert len(result.complaints.splitlines()) == 1, result
            assert "images depend on the processor" in result.complaints
            refused.append(name)
            continue
        assert result.code == 0, result
        expected = contents(sets.OLD / name)
        there = contents(unfinished[name])
        # There were no tables of samples then.
        tables = {f"samples/{shard}.csv" for shard in shard_names(there)}
        assert there.keys() == expected.keys() | tables
        assert _proven(there["dataset.json"]) == _proven(expected["dataset.json"]), name
        others = there.keys() - tables - {"dataset.json"}
        assert [file for file in others if there[file] != expected[file]] == [], name
        if name == "rewritten":
            continue  # it was a stage of its own: its shards are written again, with the same bytes
        # What was written before the kill is kept, not written again.
        after = stamps(unfinished[name])
        kept = [file for file in before[name] if not file.startswith("index/")]
        assert [file for file in kept if after[file] != before[name][file]] == [], name
    assert refused == ["prepared", "resized"]


def _proven(manifest: bytes) -> dict[str, Any]:
    """Returns what a manifest says of its shards, whichever shape its settings have."""
    content = json.loads(manifest)
    del content["digest"], content["config_digest"]
    for split in content["splits"].values():
        for each in (split, *split["shards"]):
            for name in [name for name in each if name.startswith("samples_")]:
                del each[name]
    return {**content, "config": settings.parse(content["config"])}


def test_old_sets_are_finished_for_the_command_that_made_them(tmp_path: Path) -> None:
    old = {name: shutil.copytree(sets.OLD / name, tmp_path / name) for name in sets.OLD_SETS}
    before = {name: stamps(folder) for name, folder in old.items()}
    mini, shards = sets.small(tmp_path / "source")
    again = {name: how for name, how in sets.OLD_SETS.items() if name != "adopted"}

    finished = sets.make(again, tmp_path, mini.root, shards)

    assert {name: result.code for name, result in finished.items()} == dict.fromkeys(again, 0)
    assert {name: stamps(old[name]) for name in again} == {name: before[name] for name in again}


def _by_a_codec_without_name(folder: Path) -> bool:
    """Returns whether a run was begun by a program whose images depended on the processor."""
    begun = json.loads((folder / ".work" / "run.json").read_bytes()) if _has_begun(folder) else {}
    return "opencv-python-headless" in begun.get("libraries", {})


def _has_begun(folder: Path) -> bool:
    return (folder / ".work" / "run.json").exists()
