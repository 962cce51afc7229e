from __future__ import annotations

import pytest

from imagenet_prep.storage import local_file
from tests.kit.system import System


class Limit:
    """Stands for the limit of this process: its tests share it with others that run here."""

    def __init__(self, soft: int, hard: int, *, fixed: bool = False) -> None:
        self.now = soft, hard
        self.fixed = fixed

    def get(self, _real: object, _: int) -> tuple[int, int]:
        return self.now

    def set(self, _real: object, _: int, limits: tuple[int, int]) -> None:
        if self.fixed or limits[0] > limits[1]:
            raise ValueError("not allowed to raise maximum limit")
        self.now = limits


def limited(system: System, soft: int, hard: int, *, fixed: bool = False) -> Limit:
    limit = Limit(soft, hard, fixed=fixed)
    system.instead("getrlimit", limit.get)
    system.instead("setrlimit", limit.set)
    return limit


def test_the_soft_limit_is_raised_as_far_as_needed(system: System) -> None:
    limit = limited(system, 1024, 1 << 20)

    assert local_file.allow_open_files(21_841) == 21_841 + 256
    assert limit.now == (21_841 + 512, 1 << 20)


def test_a_limit_that_is_enough_stays(system: System) -> None:
    limit = limited(system, 1024, 1 << 20)

    assert local_file.allow_open_files(500) == 768
    assert limit.now == (1024, 1 << 20)


def test_at_the_hard_limit_some_are_left_for_all_else(system: System) -> None:
    limit = limited(system, 1024, 4096)

    assert local_file.allow_open_files(21_841) == 4096 - 256
    assert limit.now == (4096, 4096)


@pytest.mark.parametrize(("soft", "below"), [(2000, 1744), (1024, 768), (64, 32)])
def test_where_it_may_not_be_raised_the_limit_is_shared(
    system: System, soft: int, below: int
) -> None:
    limit = limited(system, soft, 1 << 20, fixed=True)

    assert local_file.allow_open_files(21_841) == below
    assert limit.now == (soft, 1 << 20)
