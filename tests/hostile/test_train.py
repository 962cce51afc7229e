"""`train` refuses hostile datasets and checkpoints before it imports a framework."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from imagenet_prep.dataset import schema
from tests.kit.arena import Arena
from tests.kit.hostile import manifests

pytestmark = [pytest.mark.slow, pytest.mark.tf]

WORDS = (
    "train",
    "--model",
    "tiny",
    "--image-size",
    "16",
    "--batch-size",
    "2",
    "--num-epochs",
    "1",
    "--data-dir",
    "set",
    "--log-dir",
    "log",
    "--backend",
    "tfdata",
)
# Other tests read all hostile manifests; this test is about the verb.
CHOSEN = ("file: parent", "shard: parents", "split: escape", "deep config", "deep lists", "null")


def test_train_leaves_nothing_in_tmpdir(arena: Arena, sound: Path) -> None:
    """Otherwise TensorFlow's AutoGraph would write the translated code there."""

    def attempt(_: object) -> None:
        shutil.copytree(sound, arena.given / "set")
        home = str(arena.given / "keras")  # the folder of Keras's settings
        assert arena.run(*WORDS, env={"KERAS_HOME": home}).code == 0

    arena.each([("a sound set", None)], attempt)


def test_train_refuses_hostile_manifests_like_reading(arena: Arena, sound: Path) -> None:
    content = json.loads((sound / schema.MANIFEST).read_bytes())

    def attempt(data: bytes) -> None:
        shutil.copytree(sound, arena.given / "set")
        (arena.given / "set" / schema.MANIFEST).write_bytes(data)
        arena.run(*WORDS)

    cases = [case for case in manifests.hostile(content) if case[0] in CHOSEN]
    assert len(cases) == len(CHOSEN)
    arena.each(cases, attempt)


def test_train_resumes_from_no_pickle_and_no_link(arena: Arena, sound: Path) -> None:
    """NumPy loads a pickle from a .npz if this is allowed; a name may be a link."""
    pickle = b"cos\nsystem\n(S'touch ../../home/owned'\ntR."
    secret = arena.root / "home" / ".ssh" / "id_ed25519"

    def attempt(checkpoint: bytes | Path) -> None:
        shutil.copytree(sound, arena.given / "set")
        log = arena.given / "log"
        log.mkdir()
        place = log / "checkpoint-00000001.npz"
        if isinstance(checkpoint, Path):
            place.symlink_to(checkpoint)
        else:
            place.write_bytes(checkpoint)
        assert arena.run(*WORDS).code == 3

    arena.each(
        [
            ("a pickle", pickle),
            ("a pickled array", b"\x93NUMPY\x01\x00" + b"\x80\x02" + pickle),
            ("a zip of nothing", b"PK\x05\x06" + bytes(18)),
            ("a link", secret),
        ],
        attempt,
    )
