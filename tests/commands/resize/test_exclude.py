"""resize --exclude skips the images in a list of keys, like `amend --exclude`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit import command, layouts
from tests.kit.dataset import contents, split_records
from tests.kit.messages import says
from tests.kit.s3_server import S3Server, objects


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CIFAR-10 as a dataset of `prepare`; read-only."""
    folder = tmp_path_factory.mktemp("cifar")
    source = layouts.make_cifar10(folder)
    out = folder / "set"
    flags = ("--allow-subset", "--train-shards", "4")
    result = command.run("prepare", "--source", source, "--out", out, *flags)
    assert result.code == 0, result
    return out


def resize(
    source: object, out: object, *more: object, splits: str = "train,validation", **how: Any
) -> command.Finished:
    return command.run("resize", "-i", source, "-o", out, "-s", splits, "-r", "24", *more, **how)


def first_keys(folder: Path, file: Path) -> Path:
    """Writes the key of the first image of each split into a file, and returns its path."""
    chosen = [split_records(folder, split)[0] for split in ("train", "validation")]
    file.write_text("".join(f"{each.wnid}/{each.filename}\n" for each in chosen))
    return file


def test_exclude_gives_the_same_dataset_as_amend(cifar: Path, tmp_path: Path) -> None:
    whole, amended, out = (tmp_path / name for name in ("whole", "amended", "out"))
    keys = first_keys(cifar, tmp_path / "keys")
    assert resize(cifar, whole).code == 0
    assert command.run("amend", whole, "--exclude", keys, "--out", amended).code == 0
    made = resize(cifar, out, "--exclude", keys)
    assert made.code == 0, made
    assert "\nexcluded: 2\n" in made.out

    wanted = contents(amended)
    found = contents(out)
    assert wanted.keys() == found.keys()
    own = {"dataset.json", "quarantine.jsonl"}
    assert {name for name in wanted if wanted[name] != found[name]} <= own
    before, after = (json.loads(each["dataset.json"])["splits"] for each in (wanted, found))
    assert before == after
    lines = [json.loads(line) for line in found["quarantine.jsonl"].splitlines()]
    assert {(e["key"], e["action"], e["reason"]) for e in lines} == {
        (key, "excluded", "listed") for key in keys.read_text().split()
    }
    verified = command.run("verify", out, "--level", "decode")
    assert verified.code == 0, verified
    assert says("excluded-request", "2 images").search(verified.out)

    # With the same list there is no work; without it, the request is refused.
    assert resize(cifar, out, "--exclude", keys).code == 0
    refused = resize(cifar, out)
    assert refused.code == 2, refused
    assert "excluded" in refused.complaints
    assert contents(out) == found


@pytest.mark.slow  # a server takes three seconds to start
def test_second_call_adds_a_split_in_a_bucket(
    cifar: Path, prefix: str, s3: S3Server, tmp_path: Path
) -> None:
    keys = first_keys(cifar, tmp_path / "keys")
    assert resize(cifar, tmp_path / "out", "--exclude", keys).code == 0
    there = (f"{prefix}/in", f"{prefix}/out")
    env = s3.environment
    assert command.run("replicate", cifar, "--to", there[0], env=env).code == 0
    for split, excluded in (("train", 1), ("validation", 2)):
        made = resize(*there, "--exclude", keys, splits=split, env=env)
        assert made.code == 0, made
        assert f"\nexcluded: {excluded}\n" in made.out

    found = objects(s3.client(), there[1])
    assert {name: data for name, data in found.items() if name[:5] != ".work"} == contents(
        tmp_path / "out"
    )
    other = tmp_path / "other"
    other.write_text(keys.read_text().splitlines()[0])
    refused = resize(*there, "--exclude", other, splits="train", env=env)
    assert refused.code == 2, refused
    assert "excluded" in refused.complaints


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_unknown_key_is_refused_before_writing(
    cifar: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    (tmp_path / "keys").write_text("nobody/nobody.jpg\n")
    refused = resize(cifar, tmp_path / "out", "--exclude", tmp_path / "keys", *more)

    assert (refused.code, refused.complaints.count("\n")) == (2, 1)
    assert says("no-such-key-write-one", ..., "line", 1, "train and validation of").search(
        refused.complaints
    )
    assert not (tmp_path / "out").exists()


def test_dataset_without_tables_is_referred_to_adopt(cifar: Path, tmp_path: Path) -> None:
    source = tmp_path / "foreign"
    source.mkdir()
    for shard in cifar.glob("*-of-*"):
        (source / shard.name).symlink_to(shard)
    (tmp_path / "keys").write_text("nobody/nobody.jpg\n")
    refused = resize(source, tmp_path / "out", "--exclude", tmp_path / "keys")

    assert refused.code == 2, refused
    assert says("no-tables-samples-list-images", ..., source).search(refused.complaints)
