"""Campaigns in two lengths: a few cases in `make test`, the others in `make test-long`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def long_but(short: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Returns cases for `parametrize`, all but those of `short` marked as `long`.

    Args:
      short: the cases that `make test` runs, each one of `cases`.
      cases: values, or tuples of values where there is more than one parameter.
    """
    run = list(short)
    return [case if case in run else _long(case) for case in cases]


def _long(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.long)
