"""Tests of two lengths: a few cases in `make test`, the others in `make test-long`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

# Hypothesis's profiles, and the mark that its plugin gives to its tests.
SHORT = "short"
FULL = "full"
HYPOTHESIS = "hypothesis"
# For each of Hypothesis's tests in `make test-long`, if it does not set a different number.
FULL_EXAMPLES = 100


def examples(full: int) -> settings:
    """Returns the settings of a test with a different number of examples than `FULL_EXAMPLES`.

    `make test` runs a tenth of them, `make test-long` all.
    """
    is_full = settings.get_current_profile_name() == FULL
    return settings(max_examples=full if is_full else max(3, full // 10))


def long_except(short: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Returns cases for `parametrize`; all except those of `short` are marked as `long`.

    Args:
      short: the cases that `make test` runs, each one of `cases`.
      cases: values, or tuples of values if there are several parameters.
    """
    run = list(short)
    return [case if case in run else _long(case) for case in cases]


def _long(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.long)
