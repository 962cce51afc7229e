"""A third split, divided from train: CIFAR-10 as in the SageMaker guide, and MNIST."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import report
from imagenet_prep.core import strict_json
from imagenet_prep.core.terminal import counted
from tests.kit import command, layouts
from tests.kit.dataset import contents, split_records, stamps
from tests.kit.messages import says, wording
from tests.kit.photographs import photograph

SPLITS = ("holdout", "train", "validation")


def prepare(source: Path, out: Path, *more: str) -> command.Finished:
    return command.run("prepare", "--source", source, "--out", out, "--allow-subset", *more)


def manifest(out: Path) -> Any:
    return json.loads((out / "dataset.json").read_bytes())


def names(out: Path, split: str) -> set[str]:
    return {record.filename for record in split_records(out, split)}


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with CIFAR-10 of 5 * 20 + 20 images; read-only."""
    return layouts.make_cifar10(tmp_path_factory.mktemp("cifar"))


@pytest.fixture(scope="module")
def held(cifar: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of it with 80 images in train, 20 in holdout and 20 in validation; read-only."""
    out = tmp_path_factory.mktemp("held") / "out"
    result = prepare(cifar, out, "--holdout", "20", "--train-shards", "3")
    assert result.code == 0, result
    assert "holdout: 20 examples in 1 shard," in result.out
    return out


def test_holdout_divides_train_and_changes_nothing_else(
    cifar: Path, held: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    assert prepare(cifar, whole, "--seed", "0").code == 0
    divided = manifest(held)

    assert {split: content["examples"] for split, content in divided["splits"].items()} == {
        "train": 80,
        "holdout": 20,
        "validation": 20,
    }
    assert not names(held, "train") & names(held, "holdout")
    assert names(held, "train") | names(held, "holdout") == names(whole, "train")
    assert names(held, "validation") == names(whole, "validation")
    for record in split_records(held, "holdout"):
        assert layouts.CIFAR_NAMES[record.stored_label - 1] == record.wnid
        assert f"_{record.wnid}_" in record.filename
    assert (divided["config"]["holdout"], divided["subset"]) == ("20 by class", True)
    assert divided["splits"]["holdout"]["examples_per_class"] == [2] * 10
    assert "holdout" not in manifest(whole)["config"]
    sources = [source["members"] for source in divided["sources"]]
    assert sources == [source["members"] for source in manifest(whole)["sources"]] == [120]
    assert command.run("verify", held, "--level", "decode").code == 0
    share = tmp_path / "share"
    assert prepare(cifar, share, "--holdout", "20.0%", "--train-shards", "3").code == 0
    assert contents(share)["holdout-00000-of-00001"] == contents(held)["holdout-00000-of-00001"]
    assert manifest(share)["config"]["holdout"] == "20% by class"
    shown = command.run("show", held / "holdout-00000-of-00001", "--json")
    assert shown.out.count("\n") == 20


def test_different_holdout_is_a_different_dataset(cifar: Path, held: Path, tmp_path: Path) -> None:
    out = shutil.copytree(held, tmp_path / "out")
    before = stamps(out)
    again = prepare(cifar, out, "--holdout", "20", "--train-shards", "3")
    assert again.code == 0, again
    assert says("run-nothing-left").search(again.out)
    for more, said in (
        (["--holdout", "21"], "holdout is '20 by class' there, '21 by class' here"),
        ([], "splits is"),
    ):
        refused = prepare(cifar, out, "--train-shards", "3", *more)
        assert (refused.code, refused.complaints.count("\n")) == (2, 1)
        assert said in refused.complaints
    assert stamps(out) == before


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "begun"])
def test_holdout_of_earlier_version_is_refused(
    cifar: Path, held: Path, tmp_path: Path, finished: bool
) -> None:
    """Earlier versions ignored classes, so the same flags now choose other images."""
    out = shutil.copytree(held, tmp_path / "out")
    content = manifest(out)
    content["config"]["holdout"] = 20
    content["config_digest"] = strict_json.digest(content["config"])
    content["digest"] = strict_json.digest({k: v for k, v in content.items() if k != "digest"})
    if finished:
        (out / "dataset.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        assert command.run("verify", out).code == 0
    else:
        (out / "dataset.json").unlink()
        begun = {"config": content["config"], "libraries": content["producer"]["libraries"]}
        (out / ".work/run.json").write_bytes(strict_json.dumps(begun))
    before = stamps(out)
    refused = prepare(cifar, out, "--holdout", "20", "--train-shards", "3")
    assert refused.code == 2, refused
    assert says("here", "holdout", 20, "'20 by class'").search(refused.complaints)
    assert stamps(out) == before


def test_classes_missing_in_the_holdout_are_named(tmp_path: Path) -> None:
    for name, count in (("birds", 3), ("motors", 12), ("one", 1), ("two", 2)):
        for number in range(count):
            image = photograph(20, 30, number)
            layouts.write(tmp_path / "in" / name / f"{number}.jpg", image)
    result = command.run(
        "prepare", "--source", tmp_path / "in", "--out", tmp_path / "out", "--holdout", "10%"
    )
    assert result.code == 0, result
    assert manifest(tmp_path / "out")["splits"]["holdout"]["examples_per_class"] == [1, 1, 0, 1]
    said = "\nholdout: no image of 1 class of train: one\n"
    assert said in result.out
    assert said in command.run("show", tmp_path / "out").out
    shown = json.loads(command.run("show", tmp_path / "out", "--json").out)
    assert shown["splits"]["holdout"]["missing_classes"] == ["one"]
    assert "missing_classes" not in shown["splits"]["train"]


@pytest.mark.usefixtures("unplotted")
def test_all_verbs_accept_the_holdout(held: Path, tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("resized", "adopted", "replica")}
    made = [
        command.run(
            "resize",
            "-i",
            held,
            "-o",
            places["resized"],
            "--keep-original",
            "-s",
            "train,holdout,validation",
        ),
        command.run("adopt", held, "--out", places["adopted"], "--allow-subset"),
        command.run("replicate", held, "--to", places["replica"]),
    ]
    assert [result.code for result in made] == [0, 0, 0], made

    for out in places.values():
        assert tuple(manifest(out)["splits"]) == SPLITS
        assert command.run("verify", out).code == 0
        assert names(out, "holdout") == names(held, "holdout")
    assert report.run([str(places["replica"])]) == 0
    assert "holdout" in (places["replica"] / "report.html").read_text()


def test_mnist_files_become_a_dataset(tmp_path: Path) -> None:
    root = layouts.make_mnist(tmp_path / "in")
    out = tmp_path / "out"
    refused = command.run("prepare", "--source", root, "--out", out)
    assert refused.code == 3
    assert wording("expected-2", "train", "40 images", "60,000") in refused.err
    result = prepare(root, out, "--holdout", "10")

    assert result.code == 0, result
    assert [line.split()[0] for line in (out / "labels.txt").read_text().splitlines()] == list(
        "0123456789"
    )
    found = Counter({split: len(split_records(out, split)) for split in SPLITS})
    assert found == {"train": 30, "holdout": 10, "validation": 10}
    for record in split_records(out, "train"):
        assert record.stored_label - 1 == int(record.filename[6:11]) % 10
        assert (record.height, record.width) == (28, 28)
    assert manifest(out)["repaired"] == manifest(out)["quarantined"] == {}
    unpacked = layouts.make_mnist(tmp_path / "unpacked", packed=False)
    assert prepare(unpacked, tmp_path / "again", "--holdout", "10").code == 0
    for split in SPLITS:
        assert names(tmp_path / "again", split) == names(out, split)


@pytest.mark.parametrize("num_copies", [0, 1, 12])
def test_copies_in_train_and_holdout_are_named(tmp_path: Path, num_copies: int) -> None:
    """A phone or browser copies `1.jpg` as `1 (1).jpg`. Copies within one split are not named."""
    for number in range(24):
        layouts.write(tmp_path / f"in/birds/{number:02}.jpg", photograph(20, 30, number))
    source = "--source", tmp_path / "in", "--holdout", "12"
    assert command.run("prepare", *source, "--out", tmp_path / "first").code == 0
    in_holdout, in_train = (
        sorted(f"birds/{name}" for name in names(tmp_path / "first", split))
        for split in ("holdout", "train")
    )
    pairs = [*zip(in_holdout, in_train, strict=True)][:num_copies]
    if num_copies < 12:
        pairs += [(in_holdout[-1], in_holdout[-2]), (in_train[-1], in_train[-2])]
    for image, copy in pairs:
        shutil.copyfile(tmp_path / "in" / image, tmp_path / "in" / copy)

    made = command.run("prepare", *source, "--out", tmp_path / "out")
    said = [line for line in made.out.splitlines() if line.startswith("holdout: ")]
    stated = command.run("prepare", *source, "--out", tmp_path / "again", "--json").json["splits"]
    assert "also_in_train" not in stated["train"]
    if num_copies:
        named = in_holdout[:num_copies]
        expected = {"images": num_copies, "keys": named[:10]}
        assert stated["holdout"]["also_in_train"] == expected
        facts = "holdout", counted(num_copies, "image"), ", ".join(named[:3])
        assert said[1] == wording("bytes-image-train-such-them", *facts)
    else:
        assert "also_in_train" not in stated["holdout"]
        assert len(said) == 1


@pytest.mark.parametrize("splits", ["train", "validation"])
def test_copies_are_only_named_if_train_exists(tmp_path: Path, splits: str) -> None:
    for folder in ("train", "val"):
        layouts.write(tmp_path / "in" / folder / "birds/1.jpg", photograph(20, 30, 1))
    source = "--source", tmp_path / "in"
    copies = says("bytes-image-train-such-them", "validation", "1 image", "birds/1.jpg")
    part = command.run("prepare", *source, "--splits", splits, "--out", tmp_path / "part")
    assert part.code == 0, part
    assert not copies.search(part.out)
    assert copies.search(command.run("prepare", *source, "--out", tmp_path / "out").out)
