"""ImageNet-21K's archives: a tar of class tars, or a folder of class tars."""

from __future__ import annotations

import errno
import io
import itertools
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
from tests.kit.messages import says
from tests.kit.system import System

# The last is no class of ILSVRC2012; members are in no order.
CLASSES = {
    wnid: [f"{wnid}_{number}.JPEG" for number in (7, 10, 3)]
    for wnid in ("n02084071", "n01440764", "n00015388")
}


def members(source: ClassTars) -> list[Member]:
    return [*itertools.chain.from_iterable(map(source.index, source.index_tasks("train")))]


def test_both_layouts_give_equal_classes_keys_and_bytes(tmp_path: Path) -> None:
    read = []
    for whole in (True, False):
        root = make_class_tars(CLASSES, tmp_path / str(whole), whole=whole)
        source = ilsvrc.find_class_tars(root, ["train"])
        assert source.classes.wnids == tuple(sorted(CLASSES))
        found = members(source)
        data = [source.reader.read(m.archive, m.offset, m.size) for m in found]
        read.append([(m.key, m.class_index, d) for m, d in zip(found, data, strict=True)])

    assert read[0] == read[1]
    expected = []
    for wnid in sorted(CLASSES):
        expected += [f"{wnid}/{name}" for name in sorted(CLASSES[wnid])]
    assert [row[0] for row in read[0]] == expected
    assert all(row[2].startswith(b"\xff\xd8") for row in read[0])


def test_archive_or_folder_may_be_the_source(tmp_path: Path) -> None:
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
    for root, names in archives.items():
        assert all((root / name).is_file() for name in names)
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
def test_words_come_from_the_list_among_the_tars(tmp_path: Path, lists: dict[str, str]) -> None:
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


def test_missing_validation_split_is_refused_with_its_remedy(tmp_path: Path) -> None:
    root = make_class_tars(CLASSES, tmp_path, whole=True)
    with pytest.raises(UsageError, match=says("source-imagenet-21k-no-validation-split")):
        ilsvrc.find_class_tars(root, ["train", "validation"])


def test_counts_are_checked_for_the_named_edition(tmp_path: Path) -> None:
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
        ((), says("byte-holds-no-image-archive", ..., ..., "train-n02084071")),
        ((("/etc/n02084071_1.JPEG", b"1", b"0"),), says("member-points-outside-folder")),
        ((("../n02084071_1.JPEG", b"1", b"0"),), says("member-points-outside-folder")),
        (
            (("n02084071_1.JPEG", b"", b"2"),),
            says("member", ..., "n02084071_1.JPEG", says("symbolic-link")),
        ),
        ((("a.JPEG", b"1", b"0"), ("b/a.JPEG", b"2", b"0")), says("appears-twice-remove-one")),
        (
            (("n00015388_1.JPEG", b"1", b"0"),),
            says("class-name-one-them-wrong", ..., ..., "starts", "n00015388"),
        ),
        ((("é" * 128, b"1", b"0"),), says("name-bytes-file-names-most", ..., "256", "255")),
    ],
)
def test_tampered_class_tar_is_refused(
    tmp_path: Path, inner: tuple[tuple[str, bytes, bytes], ...], said: str
) -> None:
    root = make_class_tars(CLASSES, tmp_path, whole=False)
    (root / "winter21_whole" / "n02084071.tar").write_bytes(_tar(*inner))
    with pytest.raises(SourceError, match=said):
        members(ilsvrc.find_class_tars(root, ["train"]))


@pytest.mark.parametrize(
    ("outer", "said"),
    [
        (_tar(), says("holds-no-class-tar-download")),
        (
            _tar(("notes.txt", b"1", b"0")),
            says("byte-member-expected-wnid-tar", ..., ..., "'notes"),
        ),
        (_tar(("n00015388.tar", b"", b"1")), "is a hard link"),
        (
            _tar(*[("n00015388.tar", _tar(), b"0")] * 2),
            says("holds-twice-download-again", ..., "n00015388"),
        ),
        (_tar(("n00015388.tar", _tar(), b"0"))[:512], "truncated"),
    ],
)
def test_outer_tar_without_class_tars_is_refused(tmp_path: Path, outer: bytes, said: str) -> None:
    (tmp_path / "fall11_whole.tar").write_bytes(outer)
    with pytest.raises(SourceError, match=said):
        ilsvrc.find_class_tars(tmp_path, ["train"])


def test_two_editions_in_one_folder_are_refused(tmp_path: Path) -> None:
    winter = make_class_tars(CLASSES, tmp_path, whole=False) / "winter21_whole"
    whole = make_class_tars(CLASSES, tmp_path, whole=True) / "fall11_whole.tar"
    assert detect.recognised(tmp_path) == ["imagenet21k"]
    with pytest.raises(
        UsageError,
        match=says("source-holds-set-source-one-2", ..., "fall11_whole.tar and winter21_whole"),
    ):
        ilsvrc.find_class_tars(tmp_path, ["train"])
    found = [ilsvrc.find_class_tars(place, ["train"]).parts[0].name for place in (winter, whole)]
    assert found == ["winter21_whole", "fall11_whole.tar"]


def test_ilsvrc2012_archive_is_not_taken_for_imagenet_21k(tmp_path: Path) -> None:
    # Its md5 is published, and is checked if the source is the folder that contains it.
    archive = tmp_path / "ILSVRC2012_img_train.tar"
    archive.write_bytes(_tar(("n01440764.tar", _tar(("n01440764_1.JPEG", b"1", b"0")), b"0")))
    with pytest.raises(
        UsageError,
        match=says(
            "source-file-cannot-read-directly", ..., says("set-source-folder-contains-unpack")
        ),
    ):
        detect.find(archive, ["train"], "auto", encode=bytes, encoding="none")


def test_other_files_next_to_class_tars_are_refused(tmp_path: Path) -> None:
    root = make_class_tars(CLASSES, tmp_path, whole=False)
    folder = root / "winter21_whole"
    os.mkfifo(folder / "n03000000.tar")
    with pytest.raises(SourceError, match=says("not-regular-file-remove", "n03000000.tar")):
        ilsvrc.find_class_tars(root, ["train"])
    (folder / "n03000000.tar").rename(folder / "n3.tar")
    with pytest.raises(SourceError, match=says("next-class-tars-not-named", "n3.tar")):
        ilsvrc.find_class_tars(root, ["train"])


def test_hidden_files_next_to_class_tars_are_ignored(tmp_path: Path) -> None:
    """macOS writes a file of attributes for each copied file on other file systems."""
    root = make_class_tars(CLASSES, tmp_path, whole=False)
    (root / "winter21_whole" / "._n01440764.tar").write_bytes(b"Mac OS X")
    assert ilsvrc.find_class_tars(root, ["train"]).classes.wnids == tuple(sorted(CLASSES))


def test_more_tars_than_open_file_limit_are_read(
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
            # Acts as if the hard limit were no higher; a real hard limit could not be raised again.
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


def test_packed_tars_must_be_unpacked_first(tmp_path: Path) -> None:
    packed = tmp_path / "winter21_whole.tar.gz"
    packed.write_bytes(b"\x1f\x8b")
    for root in (packed, tmp_path):
        with pytest.raises(UsageError) as caught:
            detect.find(root, ["train"], "auto", encode=bytes, encoding="none")
        assert says("run-set-source-new-folder", f"tar -xzf {packed} -C {tmp_path}").search(
            str(caught.value)
        )
