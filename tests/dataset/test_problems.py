from __future__ import annotations

import pytest

from imagenet_prep.dataset.example import MOST, GivenUpError, ShardProblems


def test_a_shard_is_given_up_after_its_first_thousand_problems() -> None:
    problems = ShardProblems()
    for number in range(MOST - 1):
        problems.add(f"record {number}")
    assert len(problems.listed("a")) == len(problems) == MOST - 1

    with pytest.raises(GivenUpError):
        problems.add(ValueError("the last"))

    assert problems.listed("a")[-2:] == [
        "the last",
        "a: checking stopped after 1,000 problems: there may be more",
    ]
