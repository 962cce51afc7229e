"""1,000 random chains of prepare, amend, resize, adopt, export and columns, with no violation."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.kit.lengths import long_except
from tests.oracles.chains.steps import Chain, run_chain

# Chains per test, so that all tests take similar times.
AT_ONCE = 10


@pytest.mark.parametrize("first", long_except(range(0, 10, AT_ONCE), range(0, 1_000, AT_ONCE)))
def test_chain_keeps_all_images_and_names(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        chain = Chain(random.Random(seed), tmp_path / str(seed))
        chain.folder.mkdir()
        try:
            run_chain(chain)
        except Exception as error:
            error.add_note("\n".join([f"chain {seed}:", *chain.history]))
            raise
