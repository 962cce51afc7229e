"""Invalid requests are refused with exit code 2, before anything is read or written."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.command import REPOSITORY
from tests.kit.dataset import Reference, contents, shard_names
from tests.kit.messages import says
from tests.kit.miniature import Miniature

HELP = "imagenet-prep --help"


@pytest.mark.parametrize(
    "flags",
    [
        ("--unknown",),
        ("--shortside", "64"),
        ("--short", "64"),
        ("--short-side", "0"),
        ("--short-side", "-64"),
        ("--short-side", "sixty"),
        ("--short-side",),
        ("--quality", "0"),
        ("--quality", "101"),
        ("--quality", "9.5"),
        ("--train-shards", "0"),
        ("--validation-shards", "-1"),
        ("--train-shards", "100000"),
        ("--subset-per-class", "0"),
        ("--workers", "-1"),
        ("--worker-kind", "horses"),
        ("--max-bad", "-1"),
        ("--on-bad-image", "ignore"),
        ("--check", "nothing"),
        ("--label-offset", "2"),
        ("--seed", "9223372036854775808"),
        ("--splits", "train,test"),
        ("--splits", ""),
        ("--splits", "train", "--validation-shards", "3"),
        ("--splits", "validation", "--holdout", "3"),
        ("--holdout", "-1"),
        ("--holdout", "100%"),
        ("--holdout", "ten"),
        ("--holdout", "1.5"),
        ("--holdout-per-class", "2", "--holdout", "3"),
        ("--holdout-per-class", "2", "--splits", "train"),
        ("--subset-classes", "n99999999"),
        ("--subset-classes", "0"),
        ("stray",),
    ],
    ids=" ".join,
)
def test_impossible_flags_are_refused(
    reference: Reference, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    places = ("--source", reference.source, "--out", out, "--allow-subset")
    result = command.run("prepare", *places, *flags)

    assert (result.code, result.out) == (2, "")
    assert "imagenet-prep" in result.err
    assert any(flag.removeprefix("--") in result.err for flag in flags if flag)
    assert "Traceback" not in result.err
    assert not out.exists() or shard_names(contents(out)) == set()


@pytest.mark.parametrize("split", ["train", "validation"])
def test_too_many_shards_are_refused(reference: Reference, tmp_path: Path, split: str) -> None:
    out = tmp_path / "out"
    places = ("--source", reference.source, "--out", out, "--allow-subset")
    result = command.run("prepare", *places, f"--{split}-shards", "121")

    assert (result.code, result.out) == (2, "")
    assert f"--{split}-shards 121" in result.err
    assert {"train": "120", "validation": "32"}[split] in result.err
    assert shard_names(contents(out)) == set()


def test_corrected_shard_count_works_after_a_refusal(reference: Reference, tmp_path: Path) -> None:
    """A run that wrote nothing must not reserve its output for its invalid settings."""
    out = tmp_path / "out"
    places = ("--source", reference.source, "--out", out, "--allow-subset")
    refused = command.run("prepare", *places, "--train-shards", "121")
    assert refused.code == 2

    result = command.run("prepare", *places, "--train-shards", "8", "--short-side", "64")
    assert result.code == 0, result


@pytest.mark.parametrize("missing", ["--source", "--out"])
def test_source_and_out_are_required(tmp_path: Path, missing: str) -> None:
    places = {"--source": str(tmp_path), "--out": str(tmp_path / "out")}
    del places[missing]
    result = command.run("prepare", *next(iter(places.items())))

    assert (result.code, result.out) == (2, "")
    assert f"{missing[2:].upper()} is missing" in result.err


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (
            "prepair",
            "unknown verb 'prepair'. Did you mean prepare? All verbs: imagenet-prep --help",
        ),
        ("runclust", "runclust was replaced. Run: imagenet-prep run-on-hosts HOSTS -- COMMAND"),
        ("copyclust", "copyclust was replaced. Run: imagenet-prep replicate SET hosts:HOSTS:PATH"),
    ],
)
def test_unknown_verb_is_answered_in_one_line(typed: str, answer: str) -> None:
    result = command.run(typed, "hosts", "ls")

    assert (result.code, result.out, result.err) == (2, "", f"imagenet-prep: {answer}\n")


@pytest.mark.parametrize("spelling", ["--version", "-V", "version"])
def test_version_is_printed(spelling: str) -> None:
    result = command.run(spelling)

    assert (result.code, result.complaints) == (0, "")
    assert result.out.startswith("imagenet-prep 0.")


def test_source_and_target_may_be_words(mini: Miniature, tmp_path: Path) -> None:
    source = mini.root
    out = tmp_path / "set"

    made = command.run("prepare", source, out, "--allow-subset", "--short-side", "32")
    assert made.code == 0, made
    copied = command.run("replicate", out, tmp_path / "replica")
    assert copied.code == 0, copied
    exported = command.run("export", out, tmp_path / "folders", "--to", "folder")
    assert exported.code == 0, exported
    named_twice = command.run("prepare", source, "--out", out, tmp_path / "another")
    assert named_twice.code == 2
    assert says("already-given-remove-one-two", ..., "--out").search(named_twice.err)


def test_missing_verb_prints_the_usage() -> None:
    result = command.run()

    assert result.code == 2
    assert "usage: imagenet-prep VERB" in result.out + result.err


@pytest.mark.parametrize("word", ["--help", "-h", "--help-all", "help"])
def test_help_is_printed_on_stdout(word: str) -> None:
    result = command.run(word)

    assert (result.code, result.complaints) == (0, "")
    assert result.out.startswith("usage: imagenet-prep VERB")


def test_version_is_one_line() -> None:
    result = command.run("--version")

    assert (result.code, result.complaints) == (0, "")
    assert result.out.startswith("imagenet-prep ")
    assert result.out.count("\n") == 1


def test_help_and_a_verb_are_its_help() -> None:
    asked, shown = command.run("help", "amend"), command.run("amend", "--help")

    assert (asked.code, asked.out) == (0, shown.out)
    assert command.run("help").out.startswith("usage: imagenet-prep VERB")
    unknown = command.run("help", "prepair")
    assert (unknown.code, unknown.out) == (2, "")


@pytest.mark.parametrize(
    ("verb", "typed", "flag"),
    [("amend", "--remove", "--exclude"), ("prepare", "--jobs", "--workers")],
)
def test_flags_of_other_programs_have_their_names_here(verb: str, typed: str, flag: str) -> None:
    refused = command.run(verb, typed, "x")

    assert refused.code == 2
    assert f"Did you mean {flag}?" in refused.err


@pytest.mark.parametrize("name", ["prepare", "pytorch", "replicate"])
def test_batch_file_without_arguments_prints_its_usage(name: str) -> None:
    script = REPOSITORY / "examples" / "slurm" / f"{name}.sbatch"
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(rf"usage: sbatch .*{name}\.sbatch [A-Z]", done.stderr)
