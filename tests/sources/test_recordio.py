"""RecordIO files as a source: classes from lists, keys and damage."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path

import pytest

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import labels, recordio
from imagenet_prep.sources.source import Source
from tests.kit.bounds import limited_memory
from tests.kit.layouts import write, write_recordio
from tests.kit.limits import Limits
from tests.kit.messages import says

OFFICIAL = labels.official_classes()
FISH, SHARK = OFFICIAL.wnids[0], OFFICIAL.wnids[2]
ROWS = [(2, f"{SHARK}/{SHARK}_1.JPEG", b"shark"), (0, f"{FISH}/{FISH}_2.JPEG", b"fish" * 9)]
TWO = [(0, "cat/1.jpg", b"cat"), (1, "dog/2.jpg", b"dog")]
MAGIC = bytes.fromhex("0a23d7ce")


def members(source: recordio.RecordIOSource, split: str = "train") -> list[Member]:
    return [*itertools.chain.from_iterable(map(source.index, source.index_tasks(split)))]


def test_paths_that_match_the_labels_identify_ilsvrc2012(tmp_path: Path) -> None:
    write_recordio(tmp_path / "train.rec", ROWS)

    source = pickle.loads(pickle.dumps(recordio.find(tmp_path, ["train"])))

    assert source.classes == OFFICIAL
    found = {m.key: (m.class_index, source.reader.read(*m[1:4])) for m in members(source)}
    assert found == {path: (label, data) for label, path, data in ROWS}
    assert [part.name for part in source.parts] == ["train.rec", "train.lst"]


def test_pieces_of_a_file_contain_every_image_once(tmp_path: Path, limits: Limits) -> None:
    limits(recordio_piece_bytes=100)
    rows = [(n % 2 * 2, f"{(FISH, SHARK)[n % 2]}/{n}.JPEG", bytes([n]) * n) for n in range(30)]
    write_recordio(tmp_path / "train.rec", rows)

    source = recordio.find(tmp_path, ["train"])

    assert len(source.index_tasks("train")) > 10
    assert sorted(m.key for m in members(source)) == sorted(path for _, path, _ in rows)


@pytest.mark.parametrize("name", ["synset.txt", "train.lst"])
def test_linked_list_outside_the_source_is_refused(tmp_path: Path, name: str) -> None:
    write_recordio(tmp_path / "source" / "train.rec", ROWS, lists=name == "train.lst")
    (tmp_path / "source" / name).unlink(missing_ok=True)
    write(tmp_path / "id_rsa", b"-----BEGIN private\nkey\n")
    (tmp_path / "source" / name).symlink_to(tmp_path / "id_rsa")

    with pytest.raises(SourceError, match=says("link-leads-out-source", name)):
        recordio.find(tmp_path / "source", ["train"])


def test_image_containing_the_magic_number_is_read_completely(tmp_path: Path) -> None:
    image = b"abcd" + MAGIC * 2 + b"efgh" + MAGIC + b"i"
    write_recordio(tmp_path / "train.rec", [(0, f"{FISH}/1.JPEG", image)])

    source = recordio.find(tmp_path, ["train"])
    (member,) = members(source)

    assert source.reader.read(*member[1:4]) == image
    # As in a worker process.
    assert pickle.loads(pickle.dumps(source.reader)).read(*member[1:4]) == image


def test_user_classes_keep_labels_and_folder_names(tmp_path: Path) -> None:
    write_recordio(tmp_path / "train.rec", [(1, "cat/1.jpg", b"a"), (0, "a dog/2.jpg", b"b")])

    source = recordio.find(tmp_path, ["train"])

    assert (source.classes.wnids, source.classes.words) == (("a_dog", "cat"), ("a dog", "cat"))
    assert {m.key: m.class_index for m in members(source)} == {"cat/1.jpg": 1, "a_dog/2.jpg": 0}


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["cat/1.jpg", "dog/deep/2.jpg", "dog/1.jpg"], ["cat", "dog"]),
        (["cat/x/1.jpg", "dog/y/2.jpg", "dog/y/1.jpg"], ["cat", "dog"]),
        (["train/cat/1.jpg", "train/dog/2.jpg", "train/dog/1.jpg"], ["cat", "dog"]),
    ],
)
def test_folders_below_the_class_are_part_of_keys(
    tmp_path: Path, paths: list[str], names: list[str]
) -> None:
    write_recordio(
        tmp_path / "train.rec",
        [(names.index("cat" if "cat" in path else "dog"), path, b"a") for path in paths],
    )

    source = recordio.find(tmp_path, ["train"])

    assert [*source.classes.wnids] == names
    assert {m.key for m in members(source)} == {path.removeprefix("train/") for path in paths}


def test_image_number_is_the_key_if_unlisted(tmp_path: Path) -> None:
    write(tmp_path / "synset.txt", b"n1 a fish\nn2 a shark, a large one\n")
    write_recordio(tmp_path / "train_480.rec", [(1, "", b"a")], lists=False)

    source = recordio.find(tmp_path, ["train"])

    assert source.classes.words == ("a fish", "a shark, a large one")
    assert [m.key for m in members(source)] == ["n2/train_480_00000000"]


@pytest.mark.parametrize(
    ("lists", "sentence"),
    [
        ("0\t0\tb/1.jpg\n0\t0\tb/2.jpg\n", says("image-number-appears-twice-get", ..., "0")),
        ("0\t0\ta/1.jpg\n1\t0\tb/2.jpg\n", says("earlier-line", "line 2: label 0 is 'b'", "'a'")),
        ("0\t0.5\ta/1.jpg\n", says("label-expected-integer-0", "0.5", on="line 1: ")),
        ("0\tnan\ta/1.jpg\n", "line 1: .*label nan"),
        ("0 0 a/1.jpg\n", says("expected-number-label-path-separated", "line 1")),
        ("-1\t0\ta/1.jpg\n", says("not-image-number", "'-1'")),
        ("7\t0\ta/1.jpg\n", says("lst-file-no-such-image", "image 0")),
    ],
)
def test_damaged_list_is_named(tmp_path: Path, lists: str, sentence: str) -> None:
    write_recordio(tmp_path / "train.rec", [(0, "", b"a")], lists=False)
    write(tmp_path / "train.lst", lists.encode())

    with pytest.raises(SourceError, match=sentence):
        members(recordio.find(tmp_path, ["train"]))


def test_bad_label_and_damaged_record_name_their_byte(
    tmp_path: Path,
) -> None:
    write(tmp_path / "synset.txt", b"n1 fish\n")
    write_recordio(tmp_path / "train.rec", [(0, "", b"a"), (1, "", b"b")], lists=False)
    with pytest.raises(
        SourceError, match=says("label-expected-0", "train.rec: byte 72: image 1", "1", "0")
    ):
        members(recordio.find(tmp_path, ["train"]))

    data = (tmp_path / "train.rec").read_bytes()
    write(tmp_path / "train.rec", data[:36] + b"?" + data[37:])
    with pytest.raises(SourceError, match=says("get-file-again-2", "train.rec", "byte 36:")):
        members(recordio.find(tmp_path, ["train"]))


def test_missing_files_are_named(tmp_path: Path) -> None:
    write_recordio(tmp_path / "train.rec", [(0, "1.jpg", b"a")])

    with pytest.raises(UsageError, match=r"no val\*\.rec"):
        recordio.find(tmp_path, ["train", "validation"])
    with pytest.raises(UsageError, match=says("source-class-names-missing-put", ..., "synset.txt")):
        recordio.find(tmp_path, ["train"])


def test_list_of_gigabytes_is_not_read_into_memory(tmp_path: Path) -> None:
    write_recordio(tmp_path / "train.rec", ROWS)
    with open(tmp_path / "train.lst", "rb+") as file:
        file.truncate(4 << 30)

    with (
        limited_memory(64 << 20),
        pytest.raises(SourceError, match=r"train\.lst: line 3: expected"),
    ):
        recordio.find(tmp_path, ["train"])


def test_list_of_too_many_images_is_refused(tmp_path: Path, limits: Limits) -> None:
    write_recordio(tmp_path / "train.rec", ROWS)
    limits(recordio_images=1)
    with pytest.raises(SourceError, match=says("expected-most", "train.lst: line 2", "1 image")):
        recordio.find(tmp_path, ["train"])


def test_list_that_changes_after_opening_is_named(tmp_path: Path) -> None:
    write_recordio(tmp_path / "train.rec", ROWS)
    source = recordio.find(tmp_path, ["train"])
    (tmp_path / "train.lst").write_bytes(b"0\n")
    with pytest.raises(SourceError, match=r"train\.lst"):
        members(source)


def test_list_of_a_different_run_is_refused(tmp_path: Path) -> None:
    rows = [(0, "cat/1.jpg", b"a"), (1, "dog/2.jpg", b"b")]
    write_recordio(tmp_path / "train.rec", rows)
    write(tmp_path / "train.lst", b"0\t1\tdog/2.jpg\n1\t0\tcat/1.jpg\n")

    with pytest.raises(SourceError) as refused:
        members(recordio.find(tmp_path, ["train"]))
    said = str(refused.value)
    assert says("label-lst-file-says-label", "image 0", "0", "cat", "1", "'dog/2.jpg'").search(said)
    assert said.count("train.rec") == 1


@pytest.mark.parametrize("is_reversed", [False, True])
def test_list_with_one_class_is_read_like_others(tmp_path: Path, is_reversed: bool) -> None:
    train = [(0, "cat/deep/1.jpg", b"a"), (1, "dog/deep/2.jpg", b"b"), (1, "dog/3.jpg", b"c")]
    validation = [(1, "dog/deep/4.jpg", b"d"), (1, "dog/deep/5.jpg", b"e")]
    files = ("val", "train") if is_reversed else ("train", "val")
    for name, rows in zip(files, (train, validation), strict=True):
        write_recordio(tmp_path / f"{name}.rec", rows)

    source = recordio.find(tmp_path, ["train", "validation"])
    assert source.classes.wnids == ("cat", "dog")


def test_classes_are_named_after_the_last_folder(tmp_path: Path) -> None:
    write_recordio(tmp_path / "train.rec", [(0, "train/cat/1.jpg", b"a")])
    write_recordio(tmp_path / "val.rec", [(1, "val/dog/1.jpg", b"b"), (0, "val/cat/1.jpg", b"c")])

    source = recordio.find(tmp_path, ["train", "validation"])
    assert source.classes.wnids == ("cat", "dog")


def test_contradicting_lists_are_refused(tmp_path: Path) -> None:
    for name, of_label in (("train", "cat"), ("val", "dog")):
        write_recordio(tmp_path / f"{name}.rec", [(0, f"{of_label}/1.jpg", b"a")])
    with pytest.raises(
        SourceError,
        match=says("disagree-first-second-differ", "train.lst", "val.lst", "label", "0"),
    ):
        recordio.find(tmp_path, ["train", "validation"])


def test_images_of_lists_without_records_are_counted(tmp_path: Path) -> None:
    """As after a copy that was cut between two records."""
    for number in range(3):
        write_recordio(tmp_path / f"train_{number}.rec", TWO)
    (tmp_path / "train_2.lst").unlink()
    write(tmp_path / "train_0.idx", b"0\t0\n1\t80\n")
    write(tmp_path / "train_2.idx", b"0\t0\n1\t80")
    source = recordio.find(tmp_path, ["train"])
    names = [f"train_{number}.rec" for number in range(3)]
    assert source.file_problems(dict.fromkeys(names, 2)) == []
    assert source.file_problems(dict(zip(names, (1, 3, 1), strict=True))) == [
        "train_0.rec has 1 image, but its .lst file names 2",
        "train_0.rec has 1 image, but its .idx file names 2",
        "train_1.rec has 3 images, but its .lst file names 2",
        "train_2.rec has 1 image, but its .idx file names 2",
    ]


def test_lists_of_missing_record_files_are_named(tmp_path: Path) -> None:
    for number in range(3):
        write_recordio(tmp_path / f"train_{number}.rec", TWO)
    # Lists of all images, of other splits, and of an earlier run.
    for name in ("train", "train_val", "val_0", "train_full", "train-5"):
        write(tmp_path / f"{name}.lst", b"")
    assert recordio.find(tmp_path, ["train"]).count_problems("train", [3, 3]) == []

    (tmp_path / "train_1.rec").unlink()
    assert recordio.find(tmp_path, ["train"]).count_problems("train", [2, 2]) == [
        "train has no train_1.rec",
        "train has no .rec file of train_1.lst",
    ]
    (tmp_path / "train_1.lst").unlink()
    (tmp_path / "train_2.rec").unlink()
    assert recordio.find(tmp_path, ["train"]).count_problems("train", [1, 1]) == [
        "train has no .rec file of train_2.lst"
    ]


def test_published_counts_are_compared_besides_missing_files(tmp_path: Path) -> None:
    for number in (0, 2):
        write_recordio(tmp_path / f"train_{number}.rec", ROWS)
    source = recordio.find(tmp_path, ["train"])
    counts = [2] * len(OFFICIAL.wnids)
    published = Source.count_problems(source, "train", counts)
    assert published
    assert source.count_problems("train", counts) == [*published, "train has no train_1.rec"]


@pytest.mark.parametrize("lines", [b"", b"\n \n"])
def test_list_of_no_class_is_refused(tmp_path: Path, lines: bytes) -> None:
    write_recordio(tmp_path / "train.rec", [(0, "", b"a")], lists=False)
    write(tmp_path / "synset.txt", lines)
    with pytest.raises(SourceError, match=says("classes-expected-1", "synset.txt", 0)):
        recordio.find(tmp_path, ["train"])
