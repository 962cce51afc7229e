"""What `train` is given to read or to resume from, up to where it would begin to train."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagenet_prep.dataset import naming
from tests.kit.arena import Arena
from tests.kit.hostile import manifests
from tests.kit.warm import Warm

pytestmark = [pytest.mark.slow, pytest.mark.tf]

WORDS = (
    *("train", "--model", "tiny", "--image-size", "16", "--batch-size", "2", "--num-epochs", "1"),
    *("--data-dir", "set", "--log-dir", "log", "--backend", "tfdata"),
)
# Reading is held against all of them elsewhere; this is about who asks for it.
CHOSEN = ("file: parent", "shard: parents", "split: escape", "deep config", "deep lists", "null")


@pytest.fixture(scope="module")
def arena_of_trainer(memory: Path) -> Iterator[Arena]:
    # What is refused is refused before TensorFlow is imported.
    if not importlib.util.find_spec("tensorflow"):
        pytest.skip("TensorFlow is not installed")
    (memory / "trainer").mkdir()
    with Warm(("imagenet_prep.train", "imagenet_prep.trainer.loop")) as warm:
        yield Arena(memory / "trainer", warm)


def test_train_refuses_hostile_manifests_as_reading_does(
    arena_of_trainer: Arena, sound: Path
) -> None:
    content = json.loads((sound / naming.MANIFEST).read_bytes())

    def attempt(data: bytes) -> None:
        shutil.copytree(sound, arena_of_trainer.given / "set")
        (arena_of_trainer.given / "set" / naming.MANIFEST).write_bytes(data)
        arena_of_trainer.run(*WORDS)

    cases = [case for case in manifests.hostile(content) if case[0] in CHOSEN]
    assert len(cases) == len(CHOSEN)
    arena_of_trainer.each(cases, attempt)


def test_train_resumes_from_no_pickle_and_no_link(arena_of_trainer: Arena, sound: Path) -> None:
    """NumPy would load a pickle from a .npz, if it were asked to; a name may be a link."""
    pickle = b"cos\nsystem\n(S'touch ../../home/owned'\ntR."
    secret = arena_of_trainer.root / "home" / ".ssh" / "id_ed25519"

    def attempt(checkpoint: bytes | Path) -> None:
        shutil.copytree(sound, arena_of_trainer.given / "set")
        log = arena_of_trainer.given / "log"
        log.mkdir()
        place = log / "checkpoint-00000001.npz"
        if isinstance(checkpoint, Path):
            place.symlink_to(checkpoint)
        else:
            place.write_bytes(checkpoint)
        assert arena_of_trainer.run(*WORDS).code == 3

    arena_of_trainer.each(
        [
            ("a pickle", pickle),
            ("a pickled array", b"\x93NUMPY\x01\x00" + b"\x80\x02" + pickle),
            ("a zip of nothing", b"PK\x05\x06" + bytes(18)),
            ("a link", secret),
        ],
        attempt,
    )
