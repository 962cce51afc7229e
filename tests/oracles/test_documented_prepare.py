"""`prepare` against a model of its documents, for random combinations of flags."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.pipelines import prepare
from tests.kit.lengths import long_except
from tests.oracles import documented, plain_reading
from tests.oracles.documented import DONE, Album, Flags, Made

# The number of combinations per test.
AT_ONCE = 5
SEEDS = range(120)


@pytest.fixture(scope="module")
def albums(tmp_path_factory: pytest.TempPathFactory) -> list[Album]:
    """A folder with train/ and val/, and a folder of class folders."""
    root = tmp_path_factory.mktemp("albums")
    return [
        documented.write_album(root / name, seed, has_splits=not seed)
        for seed, name in enumerate(("splits", "classes"))
    ]


@pytest.mark.parametrize("seed", long_except(range(3), SEEDS))
def test_prepare_makes_the_documented_dataset(
    albums: list[Album], tmp_path: Path, seed: int
) -> None:
    for number in range(seed * AT_ONCE, (seed + 1) * AT_ONCE):
        rng = random.Random(number)
        album = rng.choice(albums)
        flags = _flags(rng, album)
        try:
            _hold(album, flags, tmp_path, again=rng.random() < 0.15)
        except Exception as error:
            error.add_note(f"combination {number}, of {album.root.name}: {flags}")
            raise


def _flags(rng: random.Random, album: Album) -> dict[str, Any]:
    """Draws flags; some contradict each other, or request too many images."""
    flags: dict[str, Any] = {}

    def maybe(chance: float, name: str, *values: Any) -> None:
        if rng.random() < chance:
            flags[name] = rng.choice(values)

    maybe(0.4, "seed", 1, -5, 2**63 - 1, -(2**63))
    maybe(0.3, "subset-classes", ("2",), ("9",), ("dog",), ("cat", "big_bird"), ("emu",), ("fox",))
    maybe(0.3, "subset-per-class", 1, 2, 4, 50)
    if rng.random() < 0.35:
        maybe(1, "holdout", "1", "4", "10%", "33.3%", "99%", "20", "26", "0%", "100%")
    elif rng.random() < 0.4:
        maybe(1, "holdout-per-class", 1, 2, 10)
    maybe(0.25, "splits", ("train",), ("validation",))
    maybe(0.5, "train-shards", 1, 2, 3, 5)
    maybe(0.3, "validation-shards", 1, 2, 3)
    maybe(0.3, "label-offset", 0, 1)
    maybe(0.2, "keep-original", True)
    maybe(0.4, "orientation", "apply", "neutral", "keep")
    maybe(0.2, "check", "header", "decode")
    maybe(0.5, "short-side", 20, 30, 45)
    maybe(0.1, "source-kind", "folder")
    maybe(0.2, "quality", 80, 100)
    maybe(0.15, "codec", "portable", "planes")
    maybe(0.3, "workers", 1, 2, 3)
    maybe(0.1, "max-bad", 0, 1, 2, 3)
    maybe(0.05, "on-bad-image", "fail", "quarantine")
    if rng.random() < 0.4:
        photographs = itertools.chain.from_iterable(album.photographs.values())
        keys = [each.key for each in photographs]
        flags["exclude"] = rng.sample(keys, rng.choice((1, 2, 5)))
        if rng.random() < 0.1:
            flags["exclude"].append("cat/no-such-image.jpg")
    return flags


def _hold(album: Album, flags: Flags, folder: Path, *, again: bool) -> None:
    out = folder / "set"
    listed = folder / "exclude.txt"
    words = ["--source", str(album.root), "--out", str(out), "--json"]
    for name, value in flags.items():
        if name == "exclude":
            listed.write_text("".join(f"{key}\n" for key in value), "utf-8")
            words.append(f"--exclude={listed}")
        elif value is True:
            words.append(f"--{name}")
        else:
            words.append(f"--{name}={','.join(value) if isinstance(value, tuple) else value}")
    made = documented.expected(album, flags)
    code, said = documented.run(prepare.run, words)
    assert code == made.code, f"exit code {code}, expected {made.code}: {said}"
    if code == DONE:
        _hold_dataset(album, flags, out, made)
    if code == DONE and again:
        before = {path: path.read_bytes() for path in out.glob("*") if path.is_file()}
        assert documented.run(prepare.run, words)[0] == DONE
        assert before == {path: path.read_bytes() for path in before}
    shutil.rmtree(out, ignore_errors=True)


def _hold_dataset(album: Album, flags: Flags, out: Path, made: Made) -> None:
    """Compares a dataset record by record with the documents."""
    manifest = json.loads((out / "dataset.json").read_bytes())
    found = plain_reading.dataset(out)
    lines = (out / "labels.txt").read_text("utf-8").splitlines()
    assert [line.partition(" ")[0] for line in lines] == album.ids
    assert manifest["label_offset"] == flags.get("label-offset", 1)
    keys = {s: [[r.key for r in shard] for shard in shards] for s, shards in found.items()}
    assert keys == {s: [[p.key for p in shard] for shard in o] for s, o in made.shards.items()}
    repaired = []
    for split, shards in made.shards.items():
        records = itertools.chain.from_iterable(found[split])
        photographs = itertools.chain.from_iterable(shards)
        for photograph, record in zip(photographs, records, strict=True):
            index = photograph.class_index
            assert record.class_index == index
            assert f"{record.wnid} {record.text}" == lines[index]
            assert record.filename == photograph.name
            documented.hold_image(photograph, record, flags)
            if documented.action(photograph, flags)[0] == "repaired":
                repaired.append(photograph)
    incidents = [(each.key, "excluded") for each in made.excluded]
    incidents += [(each.key, "quarantined") for each in made.bad]
    incidents += [(each.key, "repaired") for each in repaired]
    assert plain_reading.incidents(out) == sorted(incidents)
    assert sum(manifest["quarantined"].values()) == len(made.bad)
    assert sum(manifest["repaired"].values()) == len(repaired)
    read = made.shards.keys() & album.photographs.keys()
    if flags.get("holdout-per-class"):
        read = {"train"}
    counts = [each.get("ignored", {}) for each in manifest["sources"]]
    assert sum(sum(each.values()) for each in counts) == sum(album.ignored[s] for s in read)
    if "exclude" in flags:
        text = "".join(f"{key}\n" for key in sorted({*flags["exclude"]}, key=str.encode))
        digest = hashlib.sha256(text.encode()).hexdigest()
        said = {"images": len(flags["exclude"]), "sha256": digest}
        assert manifest["config"]["excluded"] == said
