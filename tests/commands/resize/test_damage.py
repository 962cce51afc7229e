"""Damaged input: the right exit code, and shard, record and byte named."""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.resize.conftest import BOTH
from tests.kit import command, foreign
from tests.kit.dataset import contents, shard_names
from tests.kit.faults import cut, flip_bit
from tests.kit.foreign_sets import NUM_SHARDS, ForeignSet

VERBS = ("resize", "adopt")


@pytest.fixture
def source(foreign_set: Callable[[str], ForeignSet], tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(foreign_set("slim").root, tmp_path / "in"))


def run(verb: str, source: Path, out: Path) -> command.Finished:
    if verb == "resize":
        return command.run("resize", "-i", source, "-o", out, *BOTH)
    return command.run("adopt", source, "--out", out, "--allow-subset")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("shard", ["train-00000-of-00006", "train-00003-of-00006"])
def test_a_flipped_bit_is_found(verb: str, shard: str, source: Path, tmp_path: Path) -> None:
    path = source / shard
    first = int.from_bytes(path.read_bytes()[:8], "little") + 16
    flip_bit(path, first + 500)
    result = run(verb, source, tmp_path / "out")

    assert result.code == 3, result
    assert f"{shard}: record 1 at byte {first:,}: data CRC" in result.err
    assert "Traceback" not in result.err
    assert not (tmp_path / "out" / "dataset.json").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_a_cut_shard_is_found(verb: str, source: Path, tmp_path: Path) -> None:
    path = source / "train-00002-of-00006"
    cut(path, path.stat().st_size - 100)
    result = run(verb, source, tmp_path / "out")

    assert result.code == 3, result
    assert re.search(r"train-00002-of-00006: record 19 at byte [\d,]+: the file ends", result.err)


@pytest.mark.parametrize("verb", VERBS)
def test_an_empty_shard_is_found(verb: str, source: Path, tmp_path: Path) -> None:
    (source / "train-00002-of-00006").write_bytes(b"")
    result = run(verb, source, tmp_path / "out")

    assert result.code == 3, result
    assert "train-00002-of-00006: holds no record" in result.err


@pytest.mark.parametrize("verb", VERBS)
def test_missing_and_strange_shards_are_named(verb: str, source: Path, tmp_path: Path) -> None:
    (source / "train-00003-of-00006").unlink()
    shutil.copy(source / "train-00001-of-00006", source / "train-00008-of-00006")
    shutil.copy(source / "train-00001-of-00006", source / "train-00001-of-00007")
    result = run(verb, source, tmp_path / "out")

    assert result.code == 3, result
    assert "missing: 1 of 6 shards (00003)" in result.err
    assert "train-00001-of-00007, train-00008-of-00006" in result.err


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_no_tfrecord_is_said_so(verb: str, source: Path, tmp_path: Path) -> None:
    path = source / "validation-00000-of-00002"
    path.write_bytes(b"<html>please log in</html>" * 50)
    result = run(verb, source, tmp_path / "out")

    assert result.code == 3, result
    assert "validation-00000-of-00002: record 0 at byte 0: length CRC" in result.err


@pytest.mark.parametrize("verb", VERBS)
def test_compressed_shards_are_called_so(verb: str, source: Path, tmp_path: Path) -> None:
    for path in source.iterdir():
        path.write_bytes(gzip.compress(path.read_bytes(), 1))
    result = run(verb, source, tmp_path / "out")

    assert result.code == 3, result
    assert "compressed with gzip" in result.err


@pytest.mark.parametrize("verb", VERBS)
def test_two_offsets_in_one_set_are_refused_with_the_place(
    verb: str, stored: list[foreign.Image], source: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    foreign.write(other, stored, foreign.slim, num_shards=NUM_SHARDS, offset=0)
    shutil.copy(other / "train-00003-of-00006", source)
    result = run(verb, source, tmp_path / "out")

    assert result.code == 3, result
    found = re.search(
        r"train-00003-of-00006: record 0 at byte 0: label (\d+), expected (\d+) for n\d+",
        result.err,
    )
    assert found, result.err
    assert int(found[2]) == int(found[1]) + 1


@pytest.mark.parametrize("verb", VERBS)
def test_labels_in_another_order_are_refused(
    verb: str, stored: list[foreign.Image], tmp_path: Path
) -> None:
    """The devkit's ILSVRC2012_IDs are no class indices; sets made with them train to 0.001."""
    wnids = sorted({image.wnid for image in stored})
    rank = {wnid: (7 * place) % len(wnids) for place, wnid in enumerate(wnids)}

    def wrong(image: foreign.Image, _: int) -> dict[str, foreign.Value]:
        return foreign.slim(image, rank[image.wnid] + 1)

    foreign.write(tmp_path / "in", stored, wrong, num_shards=NUM_SHARDS)
    result = run(verb, tmp_path / "in", tmp_path / "out")

    assert result.code == 3, result
    assert re.search(r"do not match the others \(\d+\): \S+: record \d+ at byte", result.err)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"image/classes/label": [1]}, "keys that no known program writes: image/classes/label"),
        ({"image/class/label": None}, "keys missing: image/class/label"),
        ({"image/encoded": None}, "keys missing: image/encoded"),
        ({"image/class/label": [b"1"]}, "image/class/label is not one integer"),
        ({"image/class/label": [1, 2]}, "image/class/label is not one integer"),
        ({"image/filename": [b""]}, "image/filename is empty"),
        ({"image/filename": [b"\xff.JPEG"]}, "image/filename is not UTF-8"),
        ({"image/object/bbox/xmin": [0.5] * 7}, "bounding box lists differ"),
    ],
    ids=str,
)
def test_records_of_no_known_writer_are_refused(
    verb: str,
    stored: list[foreign.Image],
    tmp_path: Path,
    change: dict[str, foreign.Value | None],
    says: str,
) -> None:
    def odd(image: foreign.Image, label: int) -> dict[str, foreign.Value]:
        features = foreign.slim(image, label) | change
        return {key: values for key, values in features.items() if values is not None}

    foreign.write(tmp_path / "in", stored, odd, num_shards=NUM_SHARDS)
    result = run(verb, tmp_path / "in", tmp_path / "out")

    assert result.code == 3, result
    assert re.search(rf"\S+-of-0000\d: record \d+ at byte [\d,]+: .*{re.escape(says)}", result.err)
    assert "Traceback" not in result.err


def test_a_bad_image_is_left_out_and_listed(stored: list[foreign.Image], tmp_path: Path) -> None:
    victim = next(image for image in stored if image.split == "train")

    def cut_short(image: foreign.Image, label: int) -> dict[str, foreign.Value]:
        data = image.data[: len(image.data) // 2] if image is victim else image.data
        return foreign.slim(image._replace(data=data), label)

    foreign.write(tmp_path / "in", stored, cut_short, num_shards=NUM_SHARDS)
    places = ("-i", tmp_path / "in", "-o", tmp_path / "out", *BOTH)
    failed = command.run("resize", *places, "--on-bad-image", "fail")
    limited = command.run("resize", *places, "--max-bad", "0")
    result = command.run("resize", *places)
    after = command.run("resize", *places, "--max-bad", "0")

    for refused in (failed, limited, after):
        assert refused.code == 3, refused
    assert victim.key in failed.err
    assert result.code == 0, result
    made = contents(tmp_path / "out")
    assert victim.key.encode() in made["quarantine.jsonl"]
    assert command.run("verify", tmp_path / "out", "--level", "decode").code == 0


def test_what_is_sound_before_the_damage_is_kept_for_the_next_run(
    source: Path, foreign_set: Callable[[str], ForeignSet], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    victim = "train-00005-of-00006"
    flip_bit(source / victim, 2000)
    assert run("resize", source, out).code == 3
    before = {name: (out / name).stat().st_ino for name in shard_names(contents(out))}
    shutil.copy2(foreign_set("slim").root / victim, source / victim)
    result = run("resize", source, out)

    assert result.code == 0, result
    assert victim not in before
    assert command.run("verify", out).code == 0
