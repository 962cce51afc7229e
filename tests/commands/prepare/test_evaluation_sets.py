"""`prepare` makes evaluation datasets such as ImageNetV2, and all other verbs accept them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from imagenet_prep import report
from imagenet_prep.core.errors import UsageError
from imagenet_prep.read import make_dataset
from tests.kit import command, evaluation_datasets
from tests.kit.dataset import contents
from tests.kit.evaluation_datasets import WNIDS, Made, by_wnid, put
from tests.kit.http_server import serve
from tests.kit.lengths import long_except
from tests.kit.messages import says, wording
from tests.kit.s3_server import BUCKET, S3Server

SOME = {WNIDS[700]: 3, WNIDS[2]: 2, WNIDS[999]: 1}
SUBSET = "--allow-subset"


@pytest.fixture(scope="module")
def made() -> Made:
    return by_wnid("imagenet-r", SOME)


@pytest.fixture
def prepared(made: Made, tmp_path: Path) -> Path:
    return prepare(put(made.files, tmp_path / "source", "imagenet-r", "tar"), tmp_path / "set")


@pytest.fixture
def objectnet(tmp_path: Path) -> Path:
    files = evaluation_datasets.objectnet().files
    return prepare(put(files, tmp_path / "source", "objectnet-1.0", "zip"), tmp_path / "set")


def prepare(source: Path | str, out: Path, *more: str) -> Path:
    done = command.run("prepare", "--source", source, "--out", out, SUBSET, *more)
    assert (done.code, done.complaints) == (0, ""), done
    return out


def manifest(root: Path) -> dict:
    return json.loads((root / "dataset.json").read_bytes())


def shards(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(root).items() if name != "dataset.json"}


def classes(root: Path) -> dict[str, int]:
    reader = make_dataset(
        root,
        "test",
        batch_size=4,
        image_size=8,
        backend="native",
        fields=("key", "class_index", "mask"),
    )
    found: dict[str, int] = {}
    for batch in reader:
        mask = batch["mask"]
        found |= zip(batch["key"][mask], map(int, batch["class_index"][mask]), strict=True)
    return found


def test_prepared_dataset_records_its_edition(made: Made, prepared: Path) -> None:
    found = manifest(prepared)

    assert (found["edition"], found["subset"]) == ("imagenet-r", True)
    assert [*found["splits"]] == found["config"]["splits"] == ["test"]
    assert found["splits"]["test"]["wnids"] == sorted(SOME)
    assert len(found["splits"]["test"]["examples_per_class"]) == 1000
    assert found["classes"]["official"]
    assert found["config"]["orientation"] == "neutral"
    info = json.loads((prepared / "dataset_info.json").read_bytes())
    assert info["name"] == "imagenet_r_prep_subset"
    assert classes(prepared) == made.class_of


@pytest.mark.parametrize("container", ["folder", "tar.gz", "zip", "plain", "http"])
def test_archives_of_all_kinds_give_the_same_dataset(
    made: Made, prepared: Path, container: str, tmp_path: Path
) -> None:
    out = tmp_path / "other"
    if container == "http":
        archive = tmp_path / "source" / "imagenet-r.tar"
        with serve({archive.name: archive.read_bytes()}) as server:
            prepare(f"{server.url}/{archive.name}", out)
    else:
        prepare(put(made.files, tmp_path / container, "imagenet-r", container), out)

    assert shards(out) == shards(prepared)


@pytest.mark.slow
@pytest.mark.parametrize("container", long_except(["zip"], ["tar", "zip"]))
def test_bucket_gives_the_same_dataset(
    made: Made, prepared: Path, container: str, s3: S3Server, tmp_path: Path
) -> None:
    archive = put(made.files, tmp_path / "up", "imagenet-r", container)
    s3.client().upload_file(str(archive), BUCKET, f"archives/{container}/{archive.name}")
    for source in ("", archive.name):
        place = f"s3://{BUCKET}/archives/{container}/{source}".rstrip("/")
        out = tmp_path / f"from {source}"
        done = command.run("prepare", "--source", place, "--out", out, SUBSET, env=s3.environment)
        assert done.code == 0, done
        assert shards(out) == shards(prepared)


def test_unexpected_counts_end_the_run(made: Made, tmp_path: Path) -> None:
    source = put(made.files, tmp_path, "imagenet-r", "tar")
    ended = command.run("prepare", "--source", source, "--out", tmp_path / "out")

    assert ended.code == 3
    images = wording("expected-2", "test", "6 images", "30,000")
    classes = wording("expected-2", "test", "3 classes", "200")
    assert f"{images}; {classes}" in ended.err
    assert "--allow-subset" in ended.err


def test_image_listed_twice_is_refused(made: Made, tmp_path: Path) -> None:
    twice = made.files | {f"again/{path}": data for path, data in made.files.items()}
    source = put(twice, tmp_path, "imagenet-r", "tar")
    ended = command.run("prepare", "--source", source, "--out", tmp_path / "out", SUBSET)

    assert ended.code == 3
    assert says("appears-twice-remove-one").search(ended.err)


def test_dry_run_describes_the_dataset(made: Made, tmp_path: Path) -> None:
    source = put(made.files, tmp_path, "imagenet-r", "zip")
    done = command.run(
        "prepare", "--source", source, "--out", tmp_path / "out", SUBSET, "--dry-run"
    )

    assert (done.code, (tmp_path / "out").exists()) == (0, False)
    assert "test: 6 images" in done.out
    assert says("images", "imagenet-r", "test").search(done.err)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--splits", "train"), says("source-evaluation-dataset-only-split")),
        (("--holdout", "10%"), says("holdout-train-shards-validation-shards-evaluation-set")),
        (("--holdout-per-class", "1"), says("source-evaluation-dataset-only-split")),
        (("--train-shards", "2"), says("holdout-train-shards-validation-shards-evaluation-set")),
    ],
)
def test_flags_of_other_splits_are_refused(
    made: Made, flags: tuple[str, ...], problem: re.Pattern[str], tmp_path: Path
) -> None:
    source = put(made.files, tmp_path, "imagenet-r", "tar")
    ended = command.run("prepare", "--source", source, "--out", tmp_path / "out", SUBSET, *flags)

    assert ended.code == 2
    assert problem.search(ended.err)


def test_subset_flags_apply_to_evaluation_datasets(
    made: Made, prepared: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source" / "imagenet-r.tar"
    few = prepare(source, tmp_path / "few", "--subset-classes", WNIDS[700])
    assert classes(few) == {key: 700 for key, index in made.class_of.items() if index == 700}
    one = prepare(source, tmp_path / "one", "--subset-per-class", "1")
    assert sorted(classes(one).values()) == [2, 700, 999]
    assert manifest(one)["edition"] == "imagenet-r"


def test_keys_of_imagenet_c_survive_all_verbs(tmp_path: Path) -> None:
    """Keys keep corruption and severity, and images keep their 224 pixels, byte for byte."""
    made = evaluation_datasets.corrupted([("fog", 5), ("snow", 5)], range(3), each=2, side=224)
    out = prepare(put(made.files, tmp_path / "c", "weather", "tar"), tmp_path / "set")

    assert manifest(out)["edition"] == "imagenet-c"
    assert classes(out) == made.class_of
    table = (out / "samples" / "test-00000-of-00001.csv").read_text()
    assert table.count(",kept,") == len(made.class_of)
    left = "fog/5/ILSVRC2012_val_00000293.JPEG"
    (tmp_path / "left").write_text(f"{left}\n")
    verbs = (
        ("verify", out, "--level", "decode"),
        ("resize", out, "-o", tmp_path / "small", "--splits", "test", "--short-side", "32"),
        ("amend", out, "--out", tmp_path / "amended", "--exclude", tmp_path / "left"),
        ("adopt", out, "--dry-run"),
        ("export", out, "--to", "folder", "--allow-empty-class", "--out", tmp_path / "files"),
        ("verify", tmp_path / "small", "--level", "decode"),
    )
    for verb in verbs:
        done = command.run(*verb)
        assert done.code == 0, done
    assert classes(tmp_path / "small") == made.class_of
    assert manifest(tmp_path / "small")["edition"] == "imagenet-c"
    assert (tmp_path / "files" / "test" / WNIDS[0] / left).is_file()
    assert {*classes(tmp_path / "amended")} == {*made.class_of} - {left}
    differs = command.run("diff", out, tmp_path / "amended")
    assert left in differs.out, differs


def test_objectnet_border_is_cut_and_mapping_kept(objectnet: Path, tmp_path: Path) -> None:
    found = manifest(objectnet)

    assert found["answers"] == {WNIDS[409]: [WNIDS[409], WNIDS[530]]}
    assert found["config"]["border"] == 1
    reader = make_dataset(objectnet, "test", batch_size=1, backend="native")
    with Image.open(io.BytesIO(reader.example(0).encoded)) as image:
        assert image.size == (10, 8)
        red, _, blue = image.getpixel((0, 0))
        assert red < 64 < 192 < blue
    small = tmp_path / "small"
    done = command.run("resize", objectnet, "-o", small, "--splits", "test", "--short-side", "4")
    assert done.code == 0, done
    assert manifest(small)["answers"] == found["answers"]


def test_training_on_objectnet_is_refused(objectnet: Path) -> None:
    with pytest.raises(
        UsageError, match=says("s-licence-allows-only-evaluation", ..., "objectnet")
    ):
        make_dataset(objectnet, "test", batch_size=1, training=True)


def test_training_on_evaluation_dataset_suggests_a_command(prepared: Path) -> None:
    with pytest.raises(
        UsageError, match=says("evaluation-set-evaluate-run-set", "imagenet-r", "/")
    ):
        make_dataset(prepared, "train", batch_size=1)


@pytest.mark.usefixtures("unplotted")
def test_duplicates_and_report_accept_evaluation_dataset(prepared: Path, tmp_path: Path) -> None:
    put(evaluation_datasets.by_wnid("imagenet-r", SOME).files, tmp_path / "unpacked", "", "folder")
    for place in (prepared,), ("--source", tmp_path / "unpacked"):
        found = command.run("duplicates", *place, "--out", tmp_path / "found", "--json")
        assert found.json["images"] == 6, found
    page = tmp_path / "page.html"
    assert report.run([str(prepared), "--out", str(page)]) == 0
    assert "imagenet-r" in page.read_text()
    assert "official" not in page.read_text()
    seen = command.run("show", prepared)
    assert "edition: imagenet-r" in seen.out
    assert "official" not in seen.out


def test_unlabelled_test_archive_becomes_a_dataset(tmp_path: Path) -> None:
    name = "ILSVRC2012_img_test_v10102019.tar"
    names = [f"ILSVRC2012_test_{number:08d}.JPEG" for number in (1, 2)]
    files = {f"test/{each}": evaluation_datasets.image(each) for each in names}
    archive = put(files, tmp_path / "source", name.removesuffix(".tar"), "tar")

    local = prepare(archive.parent, tmp_path / "local", "--splits", "test")
    with serve({name: archive.read_bytes()}) as server:
        remote = prepare(server.url, tmp_path / "remote", "--splits", "test")

    assert manifest(local)["splits"] == manifest(remote)["splits"]
    assert command.run("verify", local).code == 0
    assert classes(local) == {f"unlabelled/{each}": 0 for each in names}
    # The labels are not ILSVRC2012's, so no network can be scored with them.
    said = tmp_path / "said.csv"
    columns = "key,class_index,top1,p1,top2,p2,top3,p3,top4,p4,top5,p5"
    ranks = "0,5,0.5,4,0.2,3,0.1,2,0.1,1,0.1"
    said.write_text("\n".join([columns, *(f"unlabelled/{each},{ranks}" for each in names), ""]))
    assert says("class-index-not-one-classes").search(command.run("score", said, local).complaints)
