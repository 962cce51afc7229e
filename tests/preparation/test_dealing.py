"""How the members of a class are divided among the splits that are made of it."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.dataset.member import Member
from imagenet_prep.preparation.dealing import Division
from imagenet_prep.shards import plan

SPLITS: dict[str, list[int]] = {"train": [], "validation": []}
seeds = st.integers(-(2**63), 2**63 - 1)


def members_of(count: int) -> list[Member]:
    return [Member(f"n00000001/{i}.JPEG", "a.tar", i, 1, 0) for i in range(count)]


def held(members: list[Member], per_class: int, seed: int) -> set[Member]:
    return {*Division(SPLITS, {}, per_class).of(members, seed)["validation"]}


@given(st.integers(1, 40), st.integers(0, 20), seeds, st.randoms(use_true_random=False))
def test_as_many_are_held_out_as_asked_for_in_whatever_order_they_come(
    count: int, asked: int, seed: int, chance: random.Random
) -> None:
    members = members_of(count)
    number = min(asked, count // 2)
    left, taken = Division(SPLITS, {}, asked).of(members, seed).values()
    by_rank = sorted(members, key=lambda member: plan.entry_by_rank(member, 3, seed))
    assert set(taken) == set(by_rank[:number])
    assert set(left) == set(by_rank[number:])

    chance.shuffle(members)
    assert held(members, asked, seed) == set(taken)
    last = plan.rank(by_rank[number - 1], seed) if number else (-1, "")
    divided = Division(SPLITS, {}, last=last).of(members, seed)
    assert set(divided["validation"]) == set(taken)


def test_a_larger_holdout_holds_the_smaller_one_and_another_seed_takes_others() -> None:
    members = members_of(60)

    assert held(members, 10, 0) < held(members, 20, 0)
    assert held(members, 20, 0) != held(members, 20, 1)


def test_a_split_that_is_not_divided_keeps_all() -> None:
    members = members_of(3)
    assert Division({"train": [3]}, {}).of(members, 0) == {"train": members}
