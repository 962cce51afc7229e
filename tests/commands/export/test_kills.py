"""`export` killed again and again at random: what is seen is whole, and in the end all of it is."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.dataset import all_files
from tests.kit.lengths import long_but

FORMATS = ("folder", "tfds", "webdataset", "parquet", "recordio")


def seen(out: Path) -> dict[str, bytes]:
    files = all_files(out) if out.is_dir() else {}
    return {name: data for name, data in files.items() if ".work" not in Path(name).parts}


CASES = [(to, kills) for to in FORMATS for kills in (3, 50)]


@pytest.mark.parametrize(("to", "kills"), long_but([("folder", 3)], CASES))
def test_an_export_that_is_killed_again_and_again_ends_whole(
    prepared: Path, tmp_path: Path, to: str, kills: int
) -> None:
    rng = random.Random(f"{to} {kills}")
    words = ("export", prepared, "--to", to, "--workers", "2", "--out")
    began = time.monotonic()
    with command.started(*words, tmp_path / "whole") as running:
        assert running.finish().code == 0
    seconds = time.monotonic() - began
    whole = seen(tmp_path / "whole")

    for _ in range(kills):
        with command.started(*words, tmp_path / "out") as running:
            time.sleep(rng.uniform(0.3, 1) * seconds)
            running.kill()
        found = seen(tmp_path / "out")
        assert [name for name in found if found[name] != whole.get(name)] == []
        # The receipt is the last file.
        assert "export.json" not in {Path(name).name for name in found} or found == whole
    assert command.run(*words, tmp_path / "out").code == 0

    assert seen(tmp_path / "out") == whole
