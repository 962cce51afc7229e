"""Sources of bad will, of every kind, before `prepare`; and addresses before `download`."""

from __future__ import annotations

import pytest

from tests.hostile import images, sources
from tests.hostile.arena import Arena
from tests.hostile.sources import Write
from tests.kit.lengths import long_but
from tests.kit.miniature import Miniature

FLAGS = (
    *("--train-shards", "2", "--validation-shards", "1", "--short-side", "24"),
    *("--allow-subset", "--workers", "1"),
)


# In `make test` each kind of source meets a quarter of what may be wrong with it.
PARTS = 4


@pytest.mark.parametrize(
    ("kind", "part"),
    long_but(
        [(kind, number % PARTS) for number, kind in enumerate(sources.KINDS)],
        [(kind, part) for kind in sources.KINDS for part in range(PARTS)],
    ),
)
def test_whatever_a_source_holds_it_ends_in_a_sentence(
    arena: Arena, tiny: Miniature, kind: str, part: int
) -> None:
    def attempt(write: Write) -> None:
        source = arena.given / "source"
        source.mkdir()
        write(source)
        arena.run("prepare", "--source", "source", "--out", "out", *FLAGS)

    arena.each(list(sources.KINDS[kind](tiny))[part::PARTS], attempt)


@pytest.mark.slow  # four seconds of decoding
def test_two_workers_with_the_heaviest_images_stay_below_a_gigabyte(arena: Arena) -> None:
    folder = arena.given / "source" / "train" / "n01440764"
    folder.mkdir(parents=True)
    webp = images.heavy_webp()
    for number in range(2):
        (folder / f"{number}.webp").write_bytes(webp)
    flags = ("--train-shards", "2", "--splits", "train", "--short-side", "24", "--no-boxes")

    ended = arena.run(
        *("prepare", "--source", "source", "--out", "out", "--allow-subset", "--workers", "2"),
        *flags,
    )

    assert ended.code == 0, ended.err[-500:]
    assert ended.peak_bytes > 700_000_000, "images as heavy as any"
