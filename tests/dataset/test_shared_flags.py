"""The dataset argument: positional or as --data-dir in every verb, or by its manifest."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from imagenet_prep import __main__, diff
from imagenet_prep.completion import config_of
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.flags import parse
from imagenet_prep.dataset.shared_flags import without_manifest

# Further required arguments of a verb; "resize" also has a name of the tutorial.
VERBS: dict[str, tuple[str, list[str]]] = {
    "verify": ("dataset", []),
    "show": ("dataset", []),
    "report": ("dataset", []),
    "export": ("dataset", ["--out", "o"]),
    "remove-column": ("dataset", ["--name", "c"]),
    "replicate": ("dataset", ["--to", "o"]),
    "adopt": ("folder", []),
    "resize": ("input_dir", ["-o", "o"]),
    "score": ("dataset", ["said.csv"]),
    "bench-read": ("dataset", []),
    "train": ("data_dir", []),
    "sagemaker": (
        "data",
        ["--image", "i", "--role", "r", "--output", "s3://b/o", "--instance-type", "t"],
    ),
}


def given(verb: str, *words: str) -> Any:
    field, more = VERBS[verb]
    made = parse(config_of(verb), [*more, *words], verb=verb)
    value = getattr(made, field)
    return value[0] if isinstance(value, tuple) else value


def test_all_verbs_use_the_same_dataset_argument() -> None:
    """A word without a flag is the dataset, unless it is one of these; diff compares two."""
    others = {("demo", "folder"), ("run-on-hosts", "hosts"), ("diff", "a"), ("diff", "b")}
    others |= {("score", "predictions"), ("prepare", "source"), ("prepare", "out")}
    others |= {("replicate", "to"), ("export", "out"), ("completion", "shell")}
    others |= {("remove-column", "name")}
    found = set()
    for verb in __main__.VERBS:
        fields = dataclasses.fields(config_of(verb))
        flags = {each.name: each.metadata["flag"] for each in fields if "flag" in each.metadata}
        placed = {name for name, flag in flags.items() if flag.positional}
        found |= {(verb, name) for name in placed if "--data-dir" not in flags[name].aliases}

    # The second dataset of a verb with two.
    assert {(verb, name) for verb, name in found if name != "other"} <= others


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("words", [["{}"], ["--data-dir", "{}"], ["--data_dir={}"]], ids=" ".join)
def test_every_verb_accepts_the_dataset_by_both_forms(verb: str, words: list[str]) -> None:
    where = "s3://b/set" if verb == "sagemaker" else "the set"

    assert given(verb, *(word.format(where) for word in words)) == where


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"sagemaker"}))
def test_path_of_the_manifest_gives_the_dataset(verb: str) -> None:
    assert given(verb, "/data/set/dataset.json") == "/data/set"
    assert given(verb, "--data-dir", "/data/set/dataset.json") == "/data/set"


def test_manifest_paths_give_both_datasets_of_diff() -> None:
    config = diff.DiffConfig
    made = parse(config, ["s/dataset.json", "dataset.json"], verb="diff")

    assert (made.a, made.b) == ("s", ".")


@pytest.mark.parametrize("verb", VERBS)
def test_dataset_is_given_once(verb: str) -> None:
    where = "s3://b/set" if verb == "sagemaker" else "set"
    with pytest.raises(UsageError, match="remove one|two datasets"):
        given(verb, where, "--data-dir", where)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("dataset.json", "."),
        ("/dataset.json", "/"),
        ("s3://bucket/set/dataset.json", "s3://bucket/set"),
        ("set", "set"),
        ("set/", "set/"),
        ("set/my-dataset.json", "set/my-dataset.json"),
    ],
)
def test_only_the_exact_name_dataset_json_is_removed(typed: str, meant: str) -> None:
    assert without_manifest(typed) == meant


def test_tutorial_names_of_the_dataset_argument_stay() -> None:
    assert given("resize", "-i", "in") == given("resize", "--input_dir", "in") == "in"
    assert given("sagemaker", "--data", "s3://b/set") == "s3://b/set"
