"""A file that a command does not write is not replaced, whichever flag names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep import diff, report, show
from imagenet_prep.core.errors import UsageError
from imagenet_prep.pipelines import prepare
from tests.kit import layouts
from tests.kit.tfrecords import plain


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two images; read-only."""
    source, out = (tmp_path_factory.mktemp("sound") / name for name in ("source", "set"))
    for number, name in enumerate(("cats/a", "dogs/b")):
        layouts.write(source / f"{name}.jpg", plain(number))
    flags = ("--splits", "train", "--train-shards", "1", "--json")
    assert prepare.run(["--source", str(source), "--out", str(out), *flags]) == 0
    return out


@pytest.mark.usefixtures("unplotted")
@pytest.mark.parametrize(
    "run",
    [
        lambda data, out: diff.run([str(data), str(data), "--out", str(out)]),
        lambda data, out: report.run([str(data), "--out", str(out)]),
        lambda data, out: show.run([str(data), "--key", "cats/a.jpg", "--out", str(out)]),
    ],
    ids=["diff", "report", "show"],
)
def test_another_file_stays_and_its_own_is_replaced(
    sound: Path, tmp_path: Path, run: Callable[[Path, Path], int]
) -> None:
    mine, out = tmp_path / ".bashrc", tmp_path / "out"
    mine.write_text("# mine\n")
    with pytest.raises(UsageError, match=r"bashrc: is not .*, so it is not replaced"):
        run(sound, mine)
    assert mine.read_text() == "# mine\n"

    out.touch()
    assert run(sound, out) == 0
    first = out.read_bytes()
    out.write_bytes(first + b"more")
    assert run(sound, out) == 0
    assert out.stat().st_size == len(first)
