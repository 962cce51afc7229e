"""prepare --exclude skips listed images and only changes their shards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagenet_prep import report
from tests.kit import command, layouts
from tests.kit.dataset import contents, split_records, stamps
from tests.kit.messages import says


def prepare(source: Path, out: Path, *more: object) -> command.Finished:
    settings = ("--allow-subset", "--train-shards", "4", "--splits", "train", *map(str, more))
    return command.run("prepare", "--source", source, "--out", out, *settings)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with CIFAR-10; read-only."""
    return layouts.make_cifar10(tmp_path_factory.mktemp("cifar"))


@pytest.mark.usefixtures("unplotted")
def test_exclude_skips_listed_keys(cifar: Path, tmp_path: Path) -> None:
    whole, out, keys = (tmp_path / name for name in ("whole", "out", "keys"))
    assert prepare(cifar, whole).code == 0
    first, *_ = split_records(whole, "train")
    key = f"{first.wnid}/{first.filename}"
    keys.write_text(f"{key}\n\n{key}\n")
    made = prepare(cifar, out, "--exclude", keys)
    assert made.code == 0, made
    assert "\nexcluded: 1\n" in made.out

    # Exactly one shard differs, by exactly this image.
    before = contents(whole)
    after = contents(out)
    changed = {name for name in before if before[name] != after[name]}
    shard = "train-00000-of-00004"
    assert before.keys() == after.keys()
    small = {"dataset.json", "dataset_info.json", "quarantine.jsonl"}
    assert changed == {shard, f"index/{shard}", f"samples/{shard}.csv"} | small
    (line,) = map(json.loads, after["quarantine.jsonl"].splitlines())
    assert (line["key"], line["action"], line["reason"]) == (key, "excluded", "listed")
    assert split_records(out, "train") == split_records(whole, "train")[1:]
    manifest = json.loads(after["dataset.json"])
    assert manifest["config"]["excluded"]["images"] == 1
    assert manifest["sources"][0]["members"] == len(split_records(out, "train"))
    assert manifest["subset"] is True
    verified = command.run("verify", out, "--level", "decode")
    assert verified.code == 0, verified
    assert says("excluded-request", "1 image").search(verified.out)
    assert report.run([str(out)]) == 0
    page = out / "report.html"
    assert "<dt>excluded</dt>" in page.read_text()
    page.unlink()

    # A run with the same list resumes; a different list or none is refused.
    (out / shard).unlink()
    keys.write_text(f"\n{key}")
    assert prepare(cifar, out, "--exclude", keys).code == 0
    assert contents(out) == after
    seen = stamps(out)
    keys.write_text(f"{key}\n{first.wnid}/nobody.jpg\n")
    for more, part in (((), "images is 1 there"), (("--exclude", keys), "sha256 is")):
        refused = prepare(cifar, out, *more)
        assert (refused.code, refused.complaints.count("\n")) == (2, 1)
        assert f"excluded.{part}" in refused.complaints
    assert stamps(out) == seen
    unknown = prepare(cifar, tmp_path / "new", "--exclude", keys)
    assert (unknown.code, unknown.complaints.count("\n")) == (2, 1)
    assert says("no-such-key-write-one", "keys", "line", "2", "the images selected").search(
        unknown.complaints
    )
    assert not list((tmp_path / "new").glob("train-*"))
