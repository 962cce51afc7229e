"""Step 1 of the 2018 tutorial works unchanged, and reports later changes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from imagenet_prep import download, preprocess_imagenet
from imagenet_prep.core.errors import UsageError
from imagenet_prep.pipelines import prepare
from imagenet_prep.reporting import sample
from imagenet_prep.reporting.facts import gather
from imagenet_prep.sources import ilsvrc
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from tests.kit import command, layouts
from tests.kit.dataset import split_records
from tests.kit.messages import says
from tests.kit.miniature import Miniature

KEY = "3170eff67b6db600"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that prepare gets; it does nothing."""
    commands: list[list[str]] = []

    def run(argv: list[str]) -> int:
        commands.append(argv)
        return 0

    monkeypatch.setattr(prepare, "run", run)
    return commands


def typed(words: str) -> int:
    return preprocess_imagenet.run(words.split())


def test_missing_archives_are_downloaded(
    asked: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    brought: list[download.DownloadConfig] = []
    monkeypatch.setattr(download, "download", brought.append)
    line = f"--local_scratch_dir={tmp_path} --imagenet_username=ann --imagenet_access_key={KEY}"

    assert typed(line) == 0
    archives = str(tmp_path / ".work" / "archives")
    assert brought == [download.DownloadConfig(into=archives)]
    assert brought[0].address == "https://image-net.org/data/ILSVRC/2012"
    assert asked == [["--source", archives, "--out", str(tmp_path), "--keep-original"]]
    out, err = capsys.readouterr()
    assert (
        out,
        err.count("\n"),
        len(says("imagenet_username-imagenet_access_key-no-effect-since").findall(err)),
    ) == (
        "",
        1,
        1,
    )
    assert KEY not in err


def test_finished_dataset_without_archives_downloads_nothing(
    asked: list[list[str]], tmp_path: Path
) -> None:
    (tmp_path / "dataset.json").touch()

    with pytest.raises(UsageError, match="imagenet-prep verify"):
        typed(f"--local_scratch_dir={tmp_path}")
    assert asked == []


@pytest.mark.parametrize(
    ("line", "more"),
    [
        ("--raw_data_dir=/in --local_scratch_dir=/x", []),
        ("--raw_data_dir /in --local_scratch_dir /x --nogcs_upload", []),
        ("--raw-data-dir /in --local-scratch-dir /x --allow-subset", ["--allow-subset"]),
    ],
)
def test_archives_in_a_folder_are_never_copied(
    asked: list[list[str]], capsys: pytest.CaptureFixture[str], line: str, more: list[str]
) -> None:
    assert typed(line) == 0
    assert asked == [["--source", "/in", "--out", "/x", "--keep-original", *more]]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--local_scratch_dir=/x --project=p", "imagenet-prep replicate /x --to s3://"),
        ("--local_scratch_dir=/x --gcs_output_path=gs://b/p", "imagenet-prep replicate /x --to"),
        ("--raw_data_dir=/in", "--local-scratch-dir"),
        ("--local_scratch_dir=s3://b/x", "--local-scratch-dir"),
        ("--local_scratch_dir=/x --shards=8", "--shards"),
    ],
)
def test_invalid_flags_are_usage_errors(asked: list[list[str]], line: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        typed(line)

    assert asked == []


def test_folder_of_tutorials_script_becomes_a_dataset(mini: Miniature, tmp_path: Path) -> None:
    raw = layouts.make_folder(mini, tmp_path / "raw_data", truth="synsets", val="validation")
    (raw / ilsvrc.SYNSET_LABELS).rename(raw / "synset_labels.txt")
    words = (f"--raw_data_dir={raw}", f"--local_scratch_dir={tmp_path}/out", "--allow-subset")
    result = command.run(*words, program=("-m", "imagenet_prep.preprocess_imagenet"))

    assert result.code == 0, result
    config = json.loads((tmp_path / "out" / "dataset.json").read_bytes())["config"]
    assert (config["short_side"], config["splits"]) == (None, ["train", "validation"])
    names = layouts.published_names(mini)
    truth = {names.get(i.key, i.key).rpartition("/")[2]: i for i in mini.images}
    for split in ("train", "validation"):
        found = {record.filename: record for record in split_records(tmp_path / "out", split)}
        kept = {n for n, i in truth.items() if i.split == split and i.fate != "quarantined"}
        assert found.keys() == kept
        assert all(record.wnid == truth[name].wnid for name, record in found.items())


@pytest.mark.slow
def test_both_steps_of_tutorial_list_same_bad_images(mini: Miniature, tmp_path: Path) -> None:
    """Step 2 also lists the excluded and repaired images of step 1, for `show` and `report`."""
    one, scratch, out = (tmp_path / name for name in ("one", "scratch", "out"))
    raw = scratch / "raw_data"
    raw.parent.mkdir(parents=True, exist_ok=True)
    raw.symlink_to(mini.root)
    words = (f"--raw_data_dir={raw}", f"--local_scratch_dir={scratch}", "--allow-subset")
    steps = [command.run(*words, program=("-m", "imagenet_prep.preprocess_imagenet"))]
    for split in ("train", "validation"):
        flags = ("-d", "imagenet", "-i", scratch, "-o", out, "-r", "64", "-s", split)
        steps.append(command.run("resize", *flags))
    flags = ("--out", one, "--short-side", "64", "--allow-subset")
    steps.append(command.run("prepare", "--source", mini.root, *flags))
    steps.append(command.run("verify", out))
    assert [step.code for step in steps] == [0] * len(steps), steps

    shown = [json.loads(command.run("show", root, "--json").out) for root in (one, out)]
    assert shown[0]["quarantined"] == shown[1]["quarantined"] != {}
    assert shown[0]["repaired"] == shown[1]["repaired"] != {}
    of_one, of_two = (
        {(line["key"], line["action"].removeprefix("input_")) for line in lines}
        for lines in map(incidents, (one, out))
    )
    assert of_one == of_two
    lost = {image.key for image in mini.images if image.fate == "quarantined"}
    assert {line["key"] for line in incidents(out) if line["action"] == "input_quarantined"} == lost

    facts = gather(open_dataset(LocalStore(out)), [])
    pictures = sample.incidents(facts)
    assert (pictures[0].line.action, pictures[0].picture) == ("input_quarantined", None)
    of_step_2 = next(shown for shown in pictures if shown.line.action == "repaired")
    assert of_step_2.picture
    # If step 1 had read shards as well, they could have the names of its own shards.
    facts.incidents[:] = [replace(of_step_2.line, action="input_repaired"), pictures[0].line]
    again = sample.incidents(facts)
    assert [shown.line.action for shown in again] == ["input_quarantined", "input_repaired"]
    assert [shown.picture for shown in again] == [None, None]


def incidents(root: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (root / "quarantine.jsonl").read_text().splitlines()]
