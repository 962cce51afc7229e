"""The tutorial's command line works unchanged; invalid flags are refused."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep import resize
from tests.commands.resize.conftest import Resized
from tests.kit import command
from tests.kit.dataset import contents
from tests.kit.foreign_datasets import ForeignDataset
from tests.kit.messages import exactly, says

MODULE = ("-m", "imagenet_prep.resize")


def test_two_calls_of_the_tutorial_make_one_dataset(resized: Resized, tmp_path: Path) -> None:
    out = tmp_path / "out"
    typed = f"-d imagenet -i {resized.source.root} -o {out} --size 64"
    threads = "--num_preprocess_threads 60 --num_intra_threads 2 --num_inter_threads 2"
    for split in ("train", "validation"):
        arguments = f"{typed} --subset_name {split} {threads}".split()
        result = command.run(*arguments, program=MODULE)
        assert result.code == 0, result
        assert (
            len(says("num_intra_threads-num_inter_threads-no-effect-use").findall(result.err)) == 1
        )

    assert contents(out) == resized.contents
    assert command.run("verify", out, "--level", "decode").code == 0


def test_splits_may_be_resized_in_any_order(resized: Resized, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for split in ("validation", "train"):
        result = command.run(
            "resize", "-i", resized.source.root, "-o", out, "-s", split, "-r", "64"
        )
        assert result.code == 0, result
        assert command.run("verify", out).code == 0

    assert contents(out) == resized.contents


def test_splits_may_be_in_separate_folders(
    foreign_dataset: Callable[[str], ForeignDataset], tmp_path: Path
) -> None:
    source = foreign_dataset("tpu-in-folders").root
    whole = tmp_path / "whole"
    out = tmp_path / "out"
    command.run("resize", "-i", source, "-o", whole, "-s", "train,validation", "-r", "64")
    for split in ("train", "validation"):
        result = command.run("resize", "-i", source / split, "-o", out, "-s", split, "-r", "64")
        assert result.code == 0, result

    assert contents(out) == contents(whole)


def test_summary_names_the_split_that_was_not_requested(resized: Resized, tmp_path: Path) -> None:
    result = command.run("resize", "-i", resized.source.root, "-o", tmp_path / "out", "-r", "64")

    assert result.code == 0, result
    assert says("input-not-output-add-use", ..., "validation").search(result.out)


@pytest.mark.parametrize(
    "flags",
    [
        "-r 64 -Q 85",
        "--siz 64 --qual 85",
        "--si=64 --q=85",
        "--short-side 64 --quality 85 --on-bad-image fail",
        "-r64 -Q85 --sub train --data imagenet --num_p 2 --num_intr 1 --num_inte 1",
        "--size 64 --sta 0 --workers 1",
    ],
)
def test_other_spellings_of_flags_are_equivalent(
    resized: Resized, tmp_path: Path, flags: str
) -> None:
    out = tmp_path / "out"
    places = ("--in", resized.source.root, "--o", out)
    result = command.run("resize", *places, *flags.split())

    assert result.code == 0, result
    made = contents(out)
    shards = {name for name in resized.contents if name.startswith("train-")}
    assert {name: made[name] for name in shards} == {n: resized.contents[n] for n in shards}


@pytest.mark.parametrize("word", ["--s=1", "--num_p", "--short", "--si=64", "--fo"])
def test_only_words_before_dashes_are_spelled_out(word: str) -> None:
    """The words after them are options of Apache Beam."""
    before = resize._spelled_out(["-i", "IN", word])
    both = resize._spelled_out(["-i", "IN", word, "--", word, "--", word])

    assert both == [*before, "--", word, "--", word]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--qualty 90", exactly("--qualty")),
        ("--num_int 2", exactly("--num_int")),
        ("--st 1", exactly("--st")),
        ("--start_offset 500", says("start_offset-expected-0-remove-flag", 500)),
        ("-s test", exactly("train, validation")),
        ("-r 0", exactly("--short-side 0")),
        ("-Q 101", exactly("--quality 101")),
        ("-d cifar", exactly("cifar")),
        ("--workers -1", exactly("--workers")),
        ("--num_preprocess_threads -3", exactly("--num-preprocess-threads")),
        ("-s validation,train,", None),
        ("stray", exactly("stray")),
    ],
)
def test_invalid_flags_are_usage_errors(
    resized: Resized, tmp_path: Path, flags: str, sentence: re.Pattern[str] | None
) -> None:
    out = tmp_path / "out"
    result = command.run("resize", "-i", resized.source.root, "-o", out, *flags.split())

    if sentence is None:  # a trailing comma is accepted
        assert result.code == 0, result
        return
    assert (result.code, result.out) == (2, "")
    assert sentence.search(result.err)
    assert not out.exists()


def test_input_can_never_be_the_output(resized: Resized, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(resized.source.root)
    result = command.run("resize", "-i", resized.source.root, "-o", link)

    assert result.code == 2
    assert says("input-choose-different-folder-result").search(result.err)
    assert not (link / ".work").exists()


def test_folder_without_shards_lists_the_known_names(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    result = command.run("resize", "-i", tmp_path, "-o", tmp_path / "out")

    assert result.code == 2
    assert "notes.txt" in result.err
    assert "train-00000-of-01024" in result.err


def test_absent_split_is_named_with_existing_ones(
    foreign_dataset: Callable[[str], ForeignDataset], tmp_path: Path
) -> None:
    source = foreign_dataset("tpu-in-folders").root / "train"
    result = command.run("resize", "-i", source, "-o", tmp_path / "out", "-s", "validation")

    assert result.code == 2
    assert says("no-shards-choose-splits", ..., "validation", "train").search(result.err)


def test_imagenet_flag_requires_wnids(
    foreign_dataset: Callable[[str], ForeignDataset], tmp_path: Path
) -> None:
    source = foreign_dataset("flowers").root
    refused = command.run("resize", "-d", "imagenet", "-i", source, "-o", tmp_path / "out")
    result = command.run("resize", "-d", "flowers", "-i", source, "-o", tmp_path / "out")

    assert refused.code == 2
    assert "WNID" in refused.err
    assert result.code == 0, result
    labels = (tmp_path / "out" / "labels.txt").read_text()
    assert "motor_scooter motor scooter\n" in labels


def test_dry_run_writes_nothing_and_describes_the_input(
    foreign_dataset: Callable[[str], ForeignDataset], tmp_path: Path
) -> None:
    source = foreign_dataset("aws-from-1").root
    result = command.run("resize", "-i", source, "-o", tmp_path / "out", "--dry-run")

    assert result.code == 0, result
    assert "train-00001-of-00006 ... -> train-00000-of-00006" in result.out
    assert "ILSVRC2012's classes, labels 1 ... 1000" in result.out
    assert os.listdir(tmp_path) == []


def test_dry_run_refuses_the_same_requests_as_run(resized: Resized, tmp_path: Path) -> None:
    source = resized.source.root
    out = tmp_path / "out"
    assert command.run("resize", "-i", source, "-o", out, "-r", "64").code == 0
    before = contents(out)
    dry = command.run("resize", "-i", source, "-o", out, "-r", "64", "--dry-run")
    assert (dry.code, bool(says("already-dataset-nothing", out).search(dry.out))) == (0, True)
    for flags in (("-o", out, "-r", "32"), ("-o", source)):
        refused = command.run("resize", "-i", source, *flags)
        dry = command.run("resize", "-i", source, *flags, "--dry-run")
        assert (refused.code, dry.code) == (2, 2), dry
        assert dry.err == refused.err
    assert contents(out) == before


def test_json_output_is_one_document(resized: Resized, tmp_path: Path) -> None:
    arguments = ("-i", resized.source.root, "-o", tmp_path / "out", "-r", "64", "--json")
    result = command.run("resize", *arguments)

    assert result.code == 0, result
    assert result.json["splits"]["train"]["shards"] == 6
    assert result.json["left_in_input"] == ["validation"]
    again = command.run("resize", *arguments)
    assert again.json["written_examples"] == 0
    assert again.json["digest"] == result.json["digest"]
