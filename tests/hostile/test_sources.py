"""Hostile sources of all kinds for `prepare`, and hostile addresses for `download`."""

from __future__ import annotations

import itertools
import os
import re
import time
from pathlib import Path

import pytest

from tests.hostile import sources
from tests.hostile.sources import Write
from tests.kit import command
from tests.kit.arena import Arena
from tests.kit.codec import mutations
from tests.kit.hostile import bombs, images
from tests.kit.lengths import long_except
from tests.kit.miniature import Miniature
from tests.kit.runners import children_of

FLAGS = (
    "--train-shards",
    "2",
    "--validation-shards",
    "1",
    "--short-side",
    "24",
    "--allow-subset",
    "--workers",
    "1",
)


SOUND = mutations.sources()["420"]

# In `make test` each kind of source gets an eighth of its hostile cases.
PARTS = 8


@pytest.mark.parametrize(
    ("kind", "part"),
    long_except(
        [(kind, number % PARTS) for number, kind in enumerate(sources.KINDS)],
        [*itertools.product(sources.KINDS, range(PARTS))],
    ),
)
def test_hostile_source_ends_in_a_sentence(
    arena: Arena, tiny: Miniature, kind: str, part: int
) -> None:
    def attempt(write: Write) -> None:
        source = arena.given / "source"
        source.mkdir()
        write(source)
        arena.run("prepare", "--source", "source", "--out", "out", *FLAGS)

    arena.each(list(sources.KINDS[kind](tiny))[part::PARTS], attempt)


@pytest.mark.slow  # four seconds of decoding
def test_two_workers_prepare_the_heaviest_images(arena: Arena) -> None:
    folder = arena.given / "source" / "train" / "n01440764"
    folder.mkdir(parents=True)
    webp = images.heavy_webp()
    for number in range(2):
        (folder / f"{number}.webp").write_bytes(webp)
    flags = ("--train-shards", "2", "--splits", "train", "--short-side", "24", "--no-boxes")

    ended = arena.run(
        "prepare",
        "--source",
        "source",
        "--out",
        "out",
        "--allow-subset",
        "--workers",
        "2",
        *flags,
    )

    assert ended.code == 0, ended.err[-500:]


def memory_of(pid: int) -> int:
    """Returns the memory of a process and its descendants in bytes; shared pages count once."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # the process has ended
        return 0
    found = re.search(r"^Pss: +(\d+) kB", text, re.MULTILINE)
    own = int(found[1]) << 10 if found else 0
    return own + sum(map(memory_of, children_of(pid)))


@pytest.mark.long
@pytest.mark.slow  # eight seconds of decoding
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_processes_of_two_workers_use_little_memory(tmp_path: Path, kind: str) -> None:
    """Two of these images at the same time would need 1.7 GB."""
    folder = tmp_path / "source" / "train" / "n01440764"
    folder.mkdir(parents=True)
    webp = images.heavy_webp()
    for number in range(3):
        (folder / f"{number}.webp").write_bytes(webp)
    words = ("--source", tmp_path / "source", "--out", tmp_path / "out", "--allow-subset")
    workers = ("--workers", "2", "--worker-kind", kind)
    flags = ("--train-shards", "3", "--splits", "train", "--short-side", "24", "--no-boxes")

    peak = 0
    with command.started("prepare", *words, *workers, *flags) as running:
        while running.process.poll() is None:
            peak = max(peak, memory_of(running.process.pid))
            time.sleep(0.01)
        ended = running.finish()

    assert ended.code == 0, ended
    assert 700_000_000 < peak < 1_300_000_000


@pytest.mark.slow
def test_verbs_that_decode_sources_withstand_hostile_images(arena: Arena, tmp_path: Path) -> None:
    """Each small bomb is stored or quarantined, and no other program is started for the EPS."""
    started = tmp_path / "started"
    folder = arena.given / "source" / "train" / "n01440764"
    (tmp_path / "gs").write_text(f"#!/bin/sh\necho >> {started}\n")
    (tmp_path / "gs").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    folder.mkdir(parents=True)
    for number, name in enumerate(bombs.SMALLEST):
        (folder / f"{number}.jpg").write_bytes(bombs.BOMBS[name]())
    for name, make in (sources.PICTURES | {"sound": lambda: SOUND}).items():
        (folder / f"{name.replace(' ', '_')}.jpg").write_bytes(make())
    num_images = len([*folder.iterdir()])
    flags = ("--train-shards", "1", "--splits", "train", "--short-side", "24", "--no-boxes")
    given = ("--source", "source")

    ends = {
        verb: arena.run(verb, *arguments, "--workers", "1", env=env)
        for verb, arguments in {
            "prepare": (*given, "--out", "out", "--allow-subset", *flags),
            "duplicates": (*given, "--splits", "train", "--out", "found"),
        }.items()
    }
    ends["report"] = arena.run("report", "out", *given, "--out", "page.html", env=env)

    assert {verb: end.code for verb, end in ends.items()} == {
        "prepare": 0,
        "duplicates": 3,
        "report": 0,
    }, [(end.code, end.err[-500:]) for end in ends.values()]
    assert not started.exists()
    said = ends["prepare"].out.decode()
    stored = re.search(r"train: (\d+) examples", said)
    quarantined = re.search(r"quarantined: (\d+) ", said)
    assert stored, said
    assert quarantined, said
    assert int(stored[1]) + int(quarantined[1]) == num_images
    assert int(stored[1]) > num_images / 4
