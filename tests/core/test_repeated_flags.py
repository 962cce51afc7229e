"""Flags that are given twice: no value, such as a list of images to exclude, is lost silently."""

from __future__ import annotations

from typing import Any

import pytest

from imagenet_prep.amend import AmendConfig
from imagenet_prep.core import flags
from imagenet_prep.core.errors import UsageError
from imagenet_prep.pipelines.prepare import PrepareConfig
from imagenet_prep.trainer.config import TrainConfig
from tests.kit.messages import says

PREPARE = (PrepareConfig, "photos out")
AMEND = (AmendConfig, "set --out new")
TRAIN = (TrainConfig, "set")


def parse(verb: tuple[type[Any], str], words: str) -> Any:
    config, first = verb
    return flags.parse(config, [*first.split(), *words.split()], verb="try", text="Tries.")


@pytest.mark.parametrize(
    ("verb", "first", "second"),
    [
        (PREPARE, "--exclude a", "--exclude b"),
        (PREPARE, "--short-side 256", "--short-side 480"),
        (PREPARE, "--holdout 5", "--holdout=10%"),
        (AMEND, "--exclude a", "--exclude=b"),
        (AMEND, "--relabel a", "--relabel b"),
        (AMEND, "--add a", "--add b"),
        (TRAIN, "--exclude a", "--exclude b"),
        (TRAIN, "--keys a", "--keys b"),
    ],
)
def test_second_value_of_a_flag_is_refused(
    verb: tuple[type[Any], str], first: str, second: str
) -> None:
    assert parse(verb, f"{first} {first}") == parse(verb, first)
    with pytest.raises(UsageError, match=says("given-twice-different-values-give")):
        parse(verb, f"{first} {second}")


def test_source_is_given_once() -> None:
    with pytest.raises(UsageError, match=says("given-twice-different-values-give")):
        parse((PrepareConfig, "--out out"), "--source a --source b")


def test_flags_override_the_defaults_of_a_script() -> None:
    """As in examples/train.sh."""
    trained = parse(TRAIN, "--lr 1 --log-dir a --lr 2 --log-dir b")

    assert (trained.lr, trained.log_dir) == (2.0, "b")


def test_flags_of_several_values_extend_each_other() -> None:
    config = parse(AMEND, "--exclude a --splits train --splits holdout")

    assert config.splits == ("train", "holdout")
