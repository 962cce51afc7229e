"""ImageNet-21K's archives: a tar of class tars, or a folder of them."""

from __future__ import annotations

import errno
import io
import os
import resource
import tarfile
from pathlib import Path

import pytest

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import detect, ilsvrc, labels
from imagenet_prep.sources.ilsvrc import ClassTars
from tests.kit.layouts import make_class_tars, write
from tests.kit.system import System

# The last is no class of ILSVRC2012; members lie in no order.
CLASSES = {
    wnid: [f"{wnid}_{number}.JPEG" for number in (7, 10, 3)]
    for wnid in ("n02084071", "n01440764", "n00015388")
}


def members(source: ClassTars) -> list[Member]:
    return [member for task in source.index_tasks("train") for member in source.index(task)]


def test_both_layouts_have_the_same_classes_keys_and_bytes(tmp_path: Path) -> None:
    read = []
    for whole in (True, False):
        root = make_class_tars(CLASSES, tmp_path / str(whole), whole=whole)
        source = ilsvrc.find_class_tars(root, ["train"])
        assert source.classes.wnids == tuple(sorted(CLASSES))
        found = members(source)
        data = [source.reader.read(m.archive, m.offset, m.size) for m in found]
        read.append([(m.key, m.class_index, d) for m, d in zip(found, data, strict=True)])

    assert read[0] == read[1]
    assert [row[0] for row in read[0]] == [
        f"{wnid}/{name}" for wnid in sorted(CLASSES) for name in sorted(CLASSES[wnid])
    ]
    assert all(row[2].startswith(b"\xff\xd8") for row in read[0])


def test_the_archive_or_the_folder_may_be_named_itself(tmp_path: Path) -> None:
    make_class_tars(CLASSES, tmp_path, whole=True)
    make_class_tars(CLASSES, tmp_path / "b", whole=False)
    whole = tmp_path / "fall11_whole.tar"
    folder = tmp_path / "b" / "winter21_whole"

    assert [*ilsvrc.locate(whole)] == [*ilsvrc.locate(tmp_path)] == [whole]
    assert [*ilsvrc.locate(folder)] == [*ilsvrc.locate(tmp_path / "b")] == [folder]
    archives = {
        root: {m.archive for m in members(ilsvrc.find_class_tars(root, ["train"]))}
        for root in (folder, tmp_path / "b")
    }
    assert all((root / name).is_file() for root, names in archives.items() for name in names)
    assert detect.recognised(whole) == detect.recognised(folder) == ["imagenet21k"]


@pytest.mark.parametrize(
    "lists",
    [
        {"words.txt": "n00015388\tanimal, fauna\nn01440764\ttench\nno line\nn02084071\tdog\n"},
        {"imagenet_synset_to_lemma.txt": "n00015388\tanimal, fauna\nn02084071\tdog\n"},
        {
            "imagenet21k_wordnet_ids.txt": "n00015388\nn02084071\n",
            "imagenet21k_wordnet_lemmas.txt": "animal,_fauna\ndog\n",
        },
    ],
)
def test_words_come_from_the_list_beside_the_tars(tmp_path: Path, lists: dict[str, str]) -> None:
    root = make_class_tars(CLASSES, tmp_path, whole=False)
    for name, text in lists.items():
        write(root / name, text.encode())
    classes = ilsvrc.find_class_tars(root, ["train"]).classes
    words = dict(zip(classes.wnids, classes.words, strict=True))

    assert (words["n00015388"], words["n02084071"]) == ("animal, fauna", "dog")
    assert words["n01440764"].startswith("tench")


def test_classes_of_ilsvrc2012_keep_their_labels(tmp_path: Path) -> None:
    root = make_class_tars({"n01443537": ["n01443537_1.JPEG"]}, tmp_path, whole=False)
    source = ilsvrc.find_class_tars(root, ["train"])

    assert source.classes == labels.official_classes()
    assert [member.class_index for member in members(source)] == [1]


def test_validation_is_not_there_and_the_message_says_how_to_make_it(tmp_path: Path) -> None:
    root = make_class_tars(CLASSES, tmp_path, whole=True)
    with pytest.raises(UsageError, match=r"no validation split.*--holdout-per-class N"):
        ilsvrc.find_class_tars(root, ["train", "validation"])


def test_counts_are_those_of_the_edition_that_the_name_says(tmp_path: Path) -> None:
    whole = ilsvrc.find_class_tars(make_class_tars(CLASSES, tmp_path / "a", whole=True), ["train"])
    folder = ilsvrc.find_class_tars(
        make_class_tars(CLASSES, tmp_path / "b", whole=False), ["train"]
    )

    assert whole.count_problems("train", [3, 3, 3]) == [
        "the class list has 3 classes, but ImageNet-21K fall11 has 21,841"
    ]
    assert folder.count_problems("train", [3, 3, 3]) == [
        "the class list has 3 classes, but ImageNet-21K winter21 has 19,167"
    ]


def _tar(*members: tuple[str, bytes, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data, kind in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.type = kind
            info.linkname = "/etc/passwd"
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        ((), "train-n02084071 holds no image"),
        ((("/etc/n02084071_1.JPEG", b"1", b"0"),), "points outside its folder"),
        ((("../n02084071_1.JPEG", b"1", b"0"),), "points outside its folder"),
        ((("n02084071_1.JPEG", b"", b"2"),), "is a symbolic link"),
        ((("a.JPEG", b"1", b"0"), ("b/a.JPEG", b"2", b"0")), "appears twice"),
        ((("n00015388_1.JPEG", b"1", b"0"),), "its name starts with n00015388"),
        ((("é" * 128, b"1", b"0"),), "its name has 256 bytes; file names have at most 255"),
    ],
)
def test_a_class_tar_that_was_tampered_with(
    tmp_path: Path, inner: tuple[tuple[str, bytes, bytes], ...], said: str
) -> None:
    root = make_class_tars(CLASSES, tmp_path, whole=False)
    (root / "winter21_whole" / "n02084071.tar").write_bytes(_tar(*inner))
    with pytest.raises(SourceError, match=said):
        members(ilsvrc.find_class_tars(root, ["train"]))


@pytest.mark.parametrize(
    ("outer", "said"),
    [
        (_tar(), "holds no class tar"),
        (_tar(("notes.txt", b"1", b"0")), r"member 'notes.txt', expected <WNID>\.tar"),
        (_tar(("n00015388.tar", b"", b"1")), "is a hard link"),
        (_tar(*[("n00015388.tar", _tar(), b"0")] * 2), "holds n00015388 twice"),
        (_tar(("n00015388.tar", _tar(), b"0"))[:512], "truncated"),
    ],
)
def test_a_tar_of_tars_that_is_none(tmp_path: Path, outer: bytes, said: str) -> None:
    (tmp_path / "fall11_whole.tar").write_bytes(outer)
    with pytest.raises(SourceError, match=said):
        ilsvrc.find_class_tars(tmp_path, ["train"])


def test_of_two_editions_side_by_side_one_is_to_be_named(tmp_path: Path) -> None:
    winter = make_class_tars(CLASSES, tmp_path, whole=False) / "winter21_whole"
    whole = make_class_tars(CLASSES, tmp_path, whole=True) / "fall11_whole.tar"
    assert detect.recognised(tmp_path) == ["imagenet21k"]
    with pytest.raises(UsageError, match=r"fall11_whole\.tar and winter21_whole\. Set --source to"):
        ilsvrc.find_class_tars(tmp_path, ["train"])
    found = [ilsvrc.find_class_tars(place, ["train"]).parts[0].name for place in (winter, whole)]
    assert found == ["winter21_whole", "fall11_whole.tar"]


def test_an_archive_of_ilsvrc2012_is_not_taken_for_one_of_imagenet_21k(tmp_path: Path) -> None:
    # Its md5 is published, and is demanded where the folder is named that holds it.
    archive = tmp_path / "ILSVRC2012_img_train.tar"
    archive.write_bytes(_tar(("n01440764.tar", _tar(("n01440764_1.JPEG", b"1", b"0")), b"0")))
    with pytest.raises(UsageError, match=r"is a file that .* Set --source to the folder"):
        detect.find(archive, ["train"], "auto", encode=bytes, encoding="none")


def test_what_lies_among_the_tars_and_is_none_is_refused(tmp_path: Path) -> None:
    root = make_class_tars(CLASSES, tmp_path, whole=False)
    folder = root / "winter21_whole"
    os.mkfifo(folder / "n03000000.tar")
    with pytest.raises(SourceError, match=r"n03000000\.tar: is not a regular file"):
        ilsvrc.find_class_tars(root, ["train"])
    (folder / "n03000000.tar").rename(folder / "n3.tar")
    with pytest.raises(SourceError, match=r"n3\.tar: is next to class tars"):
        ilsvrc.find_class_tars(root, ["train"])


def test_more_tars_than_a_process_may_have_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 200
    classes = {f"n{i:08d}": [f"n{i:08d}_1.JPEG"] for i in range(number)}
    root = make_class_tars(classes, tmp_path, whole=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + number // 2, hard))
    try:
        with monkeypatch.context() as patch:
            # As where the hard limit is no higher; a real one could not be raised again.
            System(patch).fails("setrlimit", errno.EPERM)
            source = ilsvrc.find_class_tars(root, ["train"])
            found = members(source)
            reader = source.reader
            for member in found * 2:
                reader.will_need([(member.archive, member.offset, member.size)])
                assert reader.read(member.archive, member.offset, 2) == b"\xff\xd8"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert len(found) == number


def test_what_is_packed_is_unpacked_first(tmp_path: Path) -> None:
    packed = tmp_path / "winter21_whole.tar.gz"
    packed.write_bytes(b"\x1f\x8b")
    for root in (packed, tmp_path):
        with pytest.raises(UsageError) as caught:
            detect.find(root, ["train"], "auto", encode=bytes, encoding="none")
        assert f"tar -xzf {packed} -C {tmp_path}. Then set --source to" in str(caught.value)
