"""Evaluation sets: images have the right class in each kind of container; ambiguity is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import class_list, schema
from imagenet_prep.dataset.keys import CORRUPTIONS
from imagenet_prep.sources import detect, shard_files
from imagenet_prep.sources.source import Packed, Source, StoredSource
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote_path import Location, RemotePath, Site
from tests.kit import evaluation_datasets
from tests.kit.evaluation_datasets import CONTAINERS, WNIDS, Made, by_wnid, counts_of, put, v2
from tests.kit.http_server import serve
from tests.kit.layouts import write
from tests.kit.limits import Limits
from tests.kit.messages import says

NAMES = (
    "imagenetv2-matched-frequency",
    "imagenetv2-threshold0.7",
    "imagenetv2-top-images",
    "imagenet-a",
    "imagenet-r",
    "imagenet-o",
    "imagenet-sketch",
    "imagenet-c",
)


def found(
    root: Location, splits: Sequence[str] = schema.SOURCE_SPLITS, kind: str = "auto"
) -> Source:
    return detect.find(root, splits, kind, encode=bytes, encoding="")[0]


def images(source: Source) -> dict[str, tuple[int, bytes]]:
    """Returns class index and bytes of each image, by key."""
    every: dict[str, tuple[int, bytes]] = {}
    for task in source.index_tasks(schema.TEST):
        if isinstance(source, Packed):
            every |= {key: (index, data) for key, index, data in source.images(task)}
            continue
        assert isinstance(source, StoredSource)
        for member in source.index(task):
            every[member.key] = member.class_index, source.images.read(member)
    return every


def problems(source: Source) -> list[str]:
    return source.count_problems(schema.TEST, [])


def published_set(name: str) -> Made:
    """Returns an evaluation set with its published counts."""
    if name.startswith("imagenetv2"):
        return v2(top=f"{name}-format-val")
    if name == "imagenet-c":
        return evaluation_datasets.corrupted([("gaussian_noise", 3)])
    top, wnids, total, image = {
        "imagenet-a": ("imagenet-a", WNIDS[6:206], 7_500, "0.0001{}_fox_0.7.jpg"),
        "imagenet-r": ("imagenet-r", WNIDS[1:201], 30_000, "art_{}.jpg"),
        "imagenet-o": ("imagenet-o", WNIDS[8:208], 2_000, "n07000195_{}.JPEG"),
        "imagenet-sketch": ("sketch", WNIDS, 50_000, "sketch_{}.JPEG"),
    }[name]
    return by_wnid(top, counts_of(wnids, total), image)


def archive_of(name: str) -> str:
    return {"imagenet-sketch": "ImageNet-Sketch", "imagenet-c": "noise"}.get(name, name)


def check_all(name: str, container: str, place: Path) -> None:
    """Makes a complete evaluation set and reads all of it."""
    made = published_set(name)
    root = put(made.files, place, archive_of(name), container)
    source = found(root)

    assert source.edition is not None
    assert (source.edition.name, problems(source)) == (name, [])
    seen = images(source)
    assert {key: index for key, (index, _) in seen.items()} == made.class_of
    # Each image contains its class.
    assert all(b"\xff\xfe\0" in data[:4] + data for _, data in seen.values())
    wrong = [key for key, (index, data) in seen.items() if stated_class(data) != index]
    assert wrong == []


def stated_class(data: bytes) -> int:
    """Returns the class index that is stored in an image of the kit."""
    size = int.from_bytes(data[4:6], "big")
    return int(data[6 : 4 + size])


@pytest.mark.long
@pytest.mark.parametrize("container", [*CONTAINERS, "plain"])
@pytest.mark.parametrize("name", NAMES)
def test_images_of_complete_sets_have_their_class(
    name: str, container: str, tmp_path: Path
) -> None:
    check_all(name, container, tmp_path)


@pytest.mark.parametrize(
    ("name", "container"),
    [("imagenetv2-matched-frequency", "plain"), ("imagenet-a", "tar")],
)
def test_images_of_selected_complete_sets_have_their_class(
    name: str, container: str, tmp_path: Path
) -> None:
    check_all(name, container, tmp_path)


@pytest.mark.parametrize("container", [*CONTAINERS, "plain"])
def test_imagenetv2_folders_are_sorted_as_numbers(container: str, tmp_path: Path) -> None:
    """Sorted as text, folder "100" would be the third one (ImageNetV2#10)."""
    made = v2(each=1)
    source = found(put(made.files, tmp_path, "imagenetv2-top-images", container))
    seen = images(source)

    assert {key: index for key, (index, _) in seen.items()} == made.class_of
    assert all(stated_class(data) == index for index, data in seen.values())
    assert source.classes.official
    assert seen[f"{WNIDS[100]}/006400.jpeg"][0] == 100


def test_imagenetv2_with_wnids_equals_imagenetv2_with_numbers(tmp_path: Path) -> None:
    numbered = found(put(v2(each=1).files, tmp_path / "numbers", "imagenetv2", "tar"))
    named = found(put(v2(each=1, wnids=True).files, tmp_path / "wnids", "imagenetv2", "tar"))

    assert images(numbered) == images(named)
    assert numbered.edition == named.edition


@pytest.mark.parametrize(
    ("top", "name", "classes", "each"),
    [
        ("imagenetv2-threshold0.7-format-val", "imagenetv2-threshold0.7", 3, 1),
        ("ImageNetV2-matched-frequency", "imagenetv2-matched-frequency", 3, 1),
        ("imagenetv2", "imagenetv2", 3, 1),
        ("mine", "imagenetv2", 1000, 10),
    ],
)
def test_name_or_counts_identify_the_imagenetv2_edition(
    top: str, name: str, classes: int, each: int, tmp_path: Path
) -> None:
    put(v2(range(classes), each=each, top=top).files, tmp_path, "", "folder")

    for root in (tmp_path, tmp_path / top):
        edition = found(root).edition
        assert edition is not None
        assert edition.name == name


@pytest.mark.parametrize(
    ("first", "classes", "each"),
    [(0, 600, 2), (0, 999, 10), (0, 1001, 10), (1, 1000, 10), (0, 1000, 9), (0, 1000, 11)],
)
def test_numbered_folders_are_user_classes(
    first: int, classes: int, each: int, tmp_path: Path
) -> None:
    """Identities, products and species have numbers; the name of a folder is its label."""
    for number in range(first, first + classes):
        for image in range(each):
            write(tmp_path / "mine" / str(number) / f"{image}.jpg", b"\xff\xd8\xff")

    assert detect.recognised(tmp_path / "mine") == [detect.FOLDER]


@pytest.mark.parametrize("container", CONTAINERS)
def test_files_next_to_class_folders_are_counted(container: str, tmp_path: Path) -> None:
    made = by_wnid("imagenet-r", {WNIDS[3]: 2, WNIDS[9]: 1})
    source = found(put(made.files, tmp_path, "imagenet-r", container))

    assert {key: index for key, (index, _) in images(source).items()} == made.class_of
    assert source.parts[0].ignored == ((".txt", 1),)


def test_renamed_set_is_recognised_by_its_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wnids = sorted(WNIDS[5:205])
    digest = hashlib.sha256("".join(f"{wnid}\n" for wnid in wnids).encode()).hexdigest()
    known = dataclasses.replace(class_list.IMAGENET_R, digest=digest)
    monkeypatch.setattr(class_list, "EVALUATION", (known,))
    root = put(by_wnid("mine", dict.fromkeys(wnids, 1)).files, tmp_path / "r", "", "folder")
    assert found(root).edition == known
    # ILSVRC2012's own images of the same classes are for training.
    made = by_wnid("mine", dict.fromkeys(wnids, 1), "n00000000_{}.JPEG")
    root = put(made.files, tmp_path / "train", "", "folder")
    assert found(root / "mine", [schema.TRAIN]).edition == class_list.ILSVRC2012
    with pytest.raises(UsageError, match=says("source-holds-no-evaluation-dataset", "mine")):
        found(root / "mine", kind="evaluation")


@pytest.mark.parametrize("container", CONTAINERS)
def test_corruption_and_severity_come_from_the_path(container: str, tmp_path: Path) -> None:
    made = evaluation_datasets.corrupted([("fog", 1), ("jpeg_compression", 5)], range(3), each=2)
    source = found(put(made.files, tmp_path, "weather", container))

    assert {key: index for key, (index, _) in images(source).items()} == made.class_of
    assert "fog/1/ILSVRC2012_val_00000293.JPEG" in made.class_of
    of_fog, of_jpeg = problems(source)[:3], problems(source)[3:]
    assert of_fog == [
        "fog/1 has 6 images, expected 50,000",
        f"fog/1 has 3 classes, expected 1,000, missing {', '.join(WNIDS[3:8])} and 992 more",
        "fog/1 expects 50 images per class, got " + ", ".join(f"{n} with 2" for n in WNIDS[:3]),
    ]
    assert of_jpeg == [each.replace("fog/1", "jpeg_compression/5") for each in of_fog]


@pytest.mark.parametrize("below", ["", "fog", "fog/2"])
def test_one_corruption_or_severity_may_be_the_source(below: str, tmp_path: Path) -> None:
    made = evaluation_datasets.corrupted([("fog", 2)], range(2), each=1)
    put(made.files, tmp_path, "", "folder")

    assert {k: index for k, (index, _) in images(found(tmp_path / below)).items()} == made.class_of


def test_all_imagenet_c_archives_are_one_source(tmp_path: Path) -> None:
    groups = {"blur": "zoom_blur", "digital": "contrast", "extra": "spatter", "noise": "shot_noise"}
    every: dict[str, int] = {}
    for name, corruption in (groups | {"weather": "fog"}).items():
        made = evaluation_datasets.corrupted([(corruption, 1)], range(2), each=1)
        put(made.files, tmp_path, name, "tar")
        every |= made.class_of
    source = found(tmp_path)

    assert {key: index for key, (index, _) in images(source).items()} == every
    assert len(source.parts) == 5


def test_imagenet_c_has_nineteen_corruptions() -> None:
    assert len({*CORRUPTIONS}) == 19


@pytest.mark.parametrize("container", CONTAINERS)
def test_objectnet_is_read_by_its_mapping(container: str, tmp_path: Path) -> None:
    made = evaluation_datasets.objectnet()
    source = found(put(made.files, tmp_path, "objectnet-1.0", container))

    assert {key: index for key, (index, _) in images(source).items()} == made.class_of
    assert source.evaluation is not None
    assert source.evaluation.answers == {WNIDS[409]: [WNIDS[409], WNIDS[530]]}
    assert dict(source.parts[0].ignored)["of other objects"] == 2
    if container == "folder":
        # After the run, `prepare` compares this number with that of the stored images.
        assert source.parts[0].images == len(made.class_of)


def test_objectnet_folder_that_no_file_maps_is_refused(tmp_path: Path) -> None:
    made = evaluation_datasets.objectnet()
    picture = next(data for path, data in made.files.items() if path.endswith(".png"))
    made.files["objectnet-1.0/images/unknown/1.png"] = picture

    with pytest.raises(SourceError, match=says("folder-s-folders-move-folder", ..., "'unknown'")):
        images(found(put(made.files, tmp_path, "objectnet-1.0", "zip")))


def test_objectnet_label_is_a_class_of_one_object(tmp_path: Path) -> None:
    words = evaluation_datasets.official_classes().words
    made = evaluation_datasets.objectnet()
    path = "objectnet-1.0/mappings/objectnet_to_imagenet_1k.json"
    of_two = {"Alarm clock": f"{words[954]}; {words[530]}", "Air freshener": words[954]}
    made.files[path] = json.dumps(of_two).encode()
    with pytest.raises(SourceError, match=says("two-objects-same-class-class")):
        found(put(made.files, tmp_path / "wrong", "objectnet-1.0", "zip"))

    made.files[path] = json.dumps(of_two | {"Air freshener": f"{words[954]}; {words[3]}"}).encode()
    source = found(put(made.files, tmp_path / "right", "objectnet-1.0", "zip"))
    assert {index for index, _ in images(source).values()} == {530, 3}


def test_objectnet_words_default_to_our_class_list(tmp_path: Path) -> None:
    made = evaluation_datasets.objectnet()
    kept = {path: data for path, data in made.files.items() if not path.endswith("label_2012_v2")}

    assert images(found(put(kept, tmp_path, "objectnet-1.0", "zip"))).keys() == made.class_of.keys()


def test_objectnet_archive_opens_with_its_published_password(tmp_path: Path) -> None:
    made = evaluation_datasets.objectnet()
    root = put(made.files, tmp_path / "plain", "", "folder")
    command = ["zip", "-q", "-r", "-P", "objectnetisatestset", tmp_path / "objectnet-1.0.zip", "."]
    try:
        subprocess.run(command, cwd=root, check=True)
    except FileNotFoundError:
        pytest.skip("there is no zip, which encrypts")

    assert images(found(tmp_path / "objectnet-1.0.zip")).keys() == made.class_of.keys()


def test_contradictory_mapping_is_refused(tmp_path: Path) -> None:
    made = evaluation_datasets.objectnet()
    path = "objectnet-1.0/mappings/objectnet_to_imagenet_1k.json"
    made.files[path] = json.dumps({"Alarm clock": "no such words"}).encode()

    with pytest.raises(
        SourceError, match=says("objectnet-s-mapping-cannot-read", ..., "its files")
    ):
        found(put(made.files, tmp_path, "objectnet-1.0", "zip"))


@pytest.mark.parametrize("container", ["folder", "zip"])
@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("objectnet_to_imagenet_1k.json", b"[" * 100_000, says("nested-too-deeply")),
        ("folder_to_objectnet_label.json", b'{"a":' * 100_000, says("nested-too-deeply")),
        ("pytorch_to_imagenet_2012_id.json", b'{"0": 1e999}', says("number-not-fit-64-bits")),
        ("pytorch_to_imagenet_2012_id.json", b'{"0": -1}', says("files-not-match-each-other")),
        ("objectnet_to_imagenet_1k.json", b'{"Alarm clock": 5}', says("expected-got", "text")),
        (
            "objectnet_to_imagenet_1k.json",
            b'{"X": "%b"}' % (b"a;" * 1001),
            says("folders-classes-expected-most", "1,001"),
        ),
        (
            "objectnet_to_imagenet_1k.json",
            b'{"Alarm clock": "%b"}' % (b"a" * 9000),
            says("files-not-match-each-other"),
        ),
        (
            "folder_to_objectnet_label.json",
            json.dumps({str(number): "X" for number in range(1001)}).encode(),
            says("folders-classes-expected-most", "1,001"),
        ),
    ],
)
def test_hostile_mapping_is_bounded(
    name: str, content: bytes, problem: str, container: str, tmp_path: Path
) -> None:
    made = evaluation_datasets.objectnet()
    made.files[f"objectnet-1.0/mappings/{name}"] = content

    with pytest.raises(SourceError, match=problem):
        found(put(made.files, tmp_path, "objectnet-1.0", container))


@pytest.mark.parametrize("remote", [False, True])
def test_zip_directory_size_is_bounded(remote: bool, tmp_path: Path, limits: Limits) -> None:
    archive = put(by_wnid("imagenet-a", {WNIDS[3]: 50}).files, tmp_path, "imagenet-a", "zip")
    limits(zip_bytes=3000)
    with serve({archive.name: archive.read_bytes()}) as server:
        place = RemotePath(Site(server.url), archive.name) if remote else archive
        with pytest.raises(SourceError, match=says("list-files-bytes-expected-most", ",", "3,000")):
            found(place)


def test_total_size_of_folder_names_is_bounded(tmp_path: Path, limits: Limits) -> None:
    files = {f"imagenet-a/{number:04d}{'x' * 100}/a.jpg": b"" for number in range(50)}
    archive = put(files, tmp_path, "imagenet-a", "tar.gz")
    limits(evaluation_folder_bytes=5000)

    with pytest.raises(SourceError, match=says("folder-names-over-bytes-total", ..., "5,000")):
        found(archive)


@pytest.mark.parametrize("container", ["tar", "tar.gz", "zip"])
def test_evaluation_set_on_server_gives_the_same_images(container: str, tmp_path: Path) -> None:
    made = by_wnid("imagenet-a", {WNIDS[3]: 3, WNIDS[900]: 2})
    archive = put(made.files, tmp_path, "imagenet-a", container)
    local = images(found(archive))
    with serve({archive.name: archive.read_bytes()}) as server:
        assert images(found(RemotePath(Site(server.url), archive.name))) == local


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (["imagenetv2/0/a.jpeg", "imagenetv2/cat/b.jpeg"], r"folder is 'cat', .* 0 to 999"),
        (["imagenetv2/0/a.jpeg", "imagenetv2/1000/b.jpeg"], r"'1000', .* ILSVRC2012_IDs"),
        (["imagenetv2/0/a.jpeg", "imagenetv2/007/b.jpeg"], "folder is '007'"),
        (["imagenetv2/0/a.jpeg", "imagenetv2/n01440764/b.jpeg"], "folder is 'n01440764'"),
        (
            ["imagenetv2/one/a.jpeg", "imagenetv2/two/b.jpeg"],
            says("matches-no-known-evaluation-dataset"),
        ),
        (
            ["imagenetv2/n01440764/a.jpeg", "imagenetv2/two/b.jpeg"],
            "only class indices .0 to 999. or only.* your own classes: .* --source-kind folder",
        ),
        (["imagenet-a/n01440764/a.jpg", "imagenet-a/n99999999/b.jpg"], "folder is 'n99999999'"),
        (["imagenet-r/0/a.jpg", "imagenet-r/1/b.jpg"], says("matches-no-known-evaluation-dataset")),
        (["imagenet-a/n01440764/a.jpg", "imagenet-a/b.jpg"], "folder is 'imagenet-a'"),
        (["n01440764/a.jpg", "n01443537/b.jpg"], says("matches-no-known-evaluation-dataset")),
        (["fog/1/n01440764/a.JPEG", "fog/6/n01440764/a.JPEG"], "CORRUPTION/SEVERITY/WNID"),
        (["fog/1/n01440764/a.JPEG", "smoke/1/n01440764/a.JPEG"], "CORRUPTION/SEVERITY/WNID"),
        (["imagenet-a/README.txt"], says("holds-no-image-get-again")),
        (["objectnet-1.0/images/cat/a.png"], says("objectnet-s-mapping-cannot-read")),
    ],
)
@pytest.mark.parametrize("container", ["tar", "zip"])
def test_ambiguous_archive_is_refused(
    files: list[str], problem: str, container: str, tmp_path: Path
) -> None:
    content = {path: evaluation_datasets.image("0") for path in files}
    name = files[0].partition("/")[0]
    archive = put(content, tmp_path, "set" if name.startswith(("n0", "fog")) else name, container)

    with pytest.raises(SourceError, match=problem) as caught:
        found(archive, kind="evaluation")
    assert archive.name in str(caught.value) or files[-1] in str(caught.value)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            v2([index for index in range(1000) if index != 17], each=1),
            [
                "test has 999 images, expected 10,000",
                "test has 999 classes, expected 1,000, missing 17",
                "test expects 10 images per class, got "
                + ", ".join(f"{index} with 1" for index in range(5))
                + " and 994 more",
            ],
        ),
        (
            by_wnid("imagenet-a", counts_of(WNIDS[:199], 7_499)),
            [
                "test has 7,499 images, expected 7,500",
                "test has 199 classes, expected 200",
            ],
        ),
        (by_wnid("sketch", counts_of(WNIDS, 1_889), "sketch_{}.JPEG"), []),
        (
            by_wnid("imagenetv2", {WNIDS[0]: 9, WNIDS[1]: 10, WNIDS[2]: 11}),
            [
                "test has 30 images, expected 10,000",
                "test has 3 classes, expected 1,000, missing "
                + ", ".join(WNIDS[3:8])
                + " and 992 more",
                f"test expects 10 images per class, got {WNIDS[0]} with 9, {WNIDS[2]} with 11",
            ],
        ),
    ],
    ids=["v2", "a", "sketch", "too many in a class"],
)
def test_counts_that_differ_from_the_published_are_named(
    made: Made, expected: list[str], tmp_path: Path
) -> None:
    source = found(put(made.files, tmp_path, "archive", "tar"), kind="evaluation")

    assert problems(source) == expected


@pytest.mark.parametrize(
    "names", [("imagenet-a", "imagenet-r"), ("blur", "imagenet-a"), ("blur", "imagenet-a", "noise")]
)
def test_several_sets_in_one_folder_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Only the archives of ImageNet-C, such as blur.tar, are one dataset together."""
    for name in names:
        put(by_wnid(name, {WNIDS[0]: 1}).files, tmp_path, name, "tar")

    said = " and ".join(f"{name}.tar" for name in names)
    with pytest.raises(UsageError, match=says("source-holds-set-source-one", ..., said)):
        found(tmp_path)


def test_splits_other_than_test_are_refused(tmp_path: Path) -> None:
    root = put(by_wnid("imagenet-a", {WNIDS[0]: 1}).files, tmp_path, "imagenet-a", "tar")

    with pytest.raises(UsageError, match=says("source-evaluation-dataset-only-split")):
        found(root, [schema.TRAIN])
    assert found(root, [schema.TEST]).edition == class_list.IMAGENET_A


def test_other_sources_have_no_test_split(tmp_path: Path) -> None:
    put({f"{each}/a.jpg": evaluation_datasets.image("0") for each in "ab"}, tmp_path, "", "folder")

    with pytest.raises(
        UsageError, match=says("source-kind-only-evaluation-datasets", ..., ..., "test")
    ):
        found(tmp_path, [schema.TEST])


@pytest.mark.parametrize(
    "folders",
    [
        ["0", "1", "2", "9"],
        ["snow/a", "fog/b", "frost/c"],
        ["sketch/cats", "sketch/dogs"],
        ["n01440764", "n01443537"],
    ],
    ids=["digits", "weather", "sketches", "WNIDs"],
)
def test_user_photographs_are_no_evaluation_set(folders: list[str], tmp_path: Path) -> None:
    put(
        {f"{each}/a.jpg": evaluation_datasets.image("0") for each in folders},
        tmp_path,
        "",
        "folder",
    )

    assert detect.recognised(tmp_path / ("sketch" * folders[0].startswith("sketch"))) == ["folder"]


def test_only_first_entry_of_class_tars_is_read(tmp_path: Path) -> None:
    """Each class tar has some hundred megabytes."""
    files = {f"{WNIDS[0]}.tar": bytes(512), f"{WNIDS[0]}/a.jpg": evaluation_datasets.image("0")}

    assert detect.recognised(put(files, tmp_path, "mine", "tar")) == ["imagenet21k"]


@pytest.mark.parametrize("container", ["tar", "tar.gz", "zip"])
def test_damaged_archive_is_named(container: str, tmp_path: Path) -> None:
    made = by_wnid("imagenet-a", {WNIDS[0]: 20})
    archive = put(made.files, tmp_path, "imagenet-a", container)
    os.truncate(archive, archive.stat().st_size // 2)

    with pytest.raises(SourceError, match=re.escape(archive.name)):
        found(archive)


def test_damage_inside_a_zip_is_named(tmp_path: Path) -> None:
    made = by_wnid("imagenet-a", {WNIDS[0]: 2})
    archive = put(made.files, tmp_path, "imagenet-a", "zip")
    data = archive.read_bytes()
    with zipfile.ZipFile(archive) as zipped:
        start = zipped.infolist()[1].header_offset + 200
    archive.write_bytes(data[:start] + bytes([data[start] ^ 1]) + data[start + 1 :])

    with pytest.raises(SourceError, match=says("cannot-read-2", ..., "Bad CRC-32")):
        images(found(archive))


def test_archive_that_unpacks_without_end_is_refused(tmp_path: Path, limits: Limits) -> None:
    limits(zip_allowance_bytes=1 << 10)
    name = tmp_path / "imagenet-a.tar.gz"
    (tmp_path / "zeros.jpg").write_bytes(bytes(1 << 20))
    with tarfile.open(name, "w:gz") as tar:
        tar.add(tmp_path / "zeros.jpg", f"imagenet-a/{WNIDS[0]}/zeros.jpg")

    with pytest.raises(SourceError, match=says("unpacks-more-bytes")):
        found(name)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train-00000-of-00001", "test-00000-of-00001"], ["train"]),
        (["imagenet_v2-test.tfrecord-00000-of-00001"], ["test"]),
    ],
)
def test_shards_without_labels_are_ignored_next_to_others(
    names: list[str], splits: list[str], tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).touch()

    assert [*shard_files.find(LocalStore(tmp_path)).splits] == splits
