"""Folders of images as a source: splits, classes, links and changed files."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.core.errors import SourceError, StoreError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import folder, ilsvrc, labels
from imagenet_prep.sources.folder import FolderSource
from tests.kit.layouts import write
from tests.kit.messages import says
from tests.kit.system import System
from tests.kit.ticks import overwrite
from tests.kit.trees import made

OFFICIAL = labels.official_classes()
FIRST, SECOND = OFFICIAL.wnids[:2]
VALIDATION = "ILSVRC2012_val_00000001.JPEG"
# The published labels of the first three validation images.
TRUTH = ("n01751748", "n09193705", "n02105855")


def members(source: FolderSource, split: str) -> list[Member]:
    return [*itertools.chain.from_iterable(map(source.index, source.index_tasks(split)))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two official classes with two train images each, and a flat validation folder."""
    for wnid in (FIRST, SECOND):
        for number in (7, 10):
            write(tmp_path / "train" / wnid / f"{wnid}_{number}.JPEG", b"%d" % number)
    for number in (1, 2, 3):
        write(tmp_path / "val" / f"ILSVRC2012_val_{number:08d}.JPEG", b"val")
    write(tmp_path / ilsvrc.SYNSET_LABELS, "".join(f"{wnid}\n" for wnid in TRUTH).encode())
    return tmp_path


def test_subset_of_official_classes_keeps_official_labels(root: Path) -> None:
    (root / "train" / FIRST).rename(root / "train" / "n15075141")
    for path in (root / "train" / "n15075141").iterdir():
        path.rename(path.with_name(path.name.replace(FIRST, "n15075141")))
    source = folder.find(root, ["train"])

    assert source.classes == OFFICIAL
    assert {m.key.partition("/")[0]: m.class_index for m in members(source, "train")} == {
        SECOND: 1,
        "n15075141": 999,
    }


def test_members_are_sorted_and_read_back(root: Path) -> None:
    source = folder.find(root, ["train", "validation"])
    train = members(source, "train")

    assert [m.key for m in train] == [
        f"{FIRST}/{FIRST}_10.JPEG",
        f"{FIRST}/{FIRST}_7.JPEG",
        f"{SECOND}/{SECOND}_10.JPEG",
        f"{SECOND}/{SECOND}_7.JPEG",
    ]
    assert train[0].archive == f"train/{FIRST}/{FIRST}_10.JPEG"
    assert [source.reader.read(m.archive, m.offset, m.size) for m in train[:2]] == [b"10", b"7"]
    assert [(m.key, m.class_index) for m in members(source, "validation")] == [
        (f"ILSVRC2012_val_{number:08d}.JPEG", OFFICIAL.index[wnid])
        for number, wnid in enumerate(TRUTH, start=1)
    ]


def test_identity_depends_on_names_sizes_and_times(root: Path) -> None:
    before = folder.find(root, ["train"]).identity
    assert folder.find(root, ["train"]).identity == before

    image = root / "train" / FIRST / f"{FIRST}_7.JPEG"
    os.utime(image, ns=(1, 1))
    assert folder.find(root, ["train"]).identity != before


def test_identity_changes_if_the_old_time_is_restored(root: Path) -> None:
    image = root / "train" / FIRST / f"{FIRST}_7.JPEG"
    before = folder.find(root, ["train"]).identity
    overwrite(image, bytes(image.stat().st_size))
    assert folder.find(root, ["train"]).identity != before


def test_missing_split_folder_is_refused_with_expected_names(root: Path) -> None:
    (root / "val").rename(root / "value")
    with pytest.raises(
        UsageError,
        match=says("source-no-folder-expected-one", ..., "validation", "val/, validation/"),
    ):
        folder.find(root, ["train", "validation"])


def test_empty_second_validation_folder_is_named(root: Path) -> None:
    (root / "valid").mkdir()
    source = folder.find(root, ["train", "validation"])
    with pytest.raises(SourceError, match=says("holds-no-image-add-images", "valid")):
        [source.index(task) for task in source.index_tasks("validation")]


def test_stray_folder_among_ilsvrc2012_classes_is_refused(root: Path) -> None:
    write(root / "train" / "backup" / "x.JPEG", b"?")
    with pytest.raises(
        SourceError, match=says("folders-classes-ilsvrc2012-not-move", ..., "2", "3", "backup")
    ):
        folder.find(root, ["train"])


def test_class_folder_outside_kaggle_list_is_named(root: Path) -> None:
    write(root / folder.SYNSET_MAPPING, f"{FIRST} tench\n".encode())
    with pytest.raises(
        SourceError, match=says("not-class-list-move-away", f"train/{SECOND}", "1 cl")
    ):
        folder.find(root, ["train"])


def test_empty_class_folder_is_named(root: Path) -> None:
    (root / "train" / "n15075141").mkdir()
    write(root / "train" / "n15075141" / "README.txt", b"to do")
    source = folder.find(root, ["train"])
    with pytest.raises(SourceError, match=says("holds-no-image-add-images", "train/n15075141")):
        members(source, "train")


def test_image_next_to_class_folders_is_refused(root: Path) -> None:
    write(root / "train" / "stray.jpg", b"?")
    write(root / "train" / "other.jpg", b"?")
    said = says("next-class-folders-no-class", f"{root}/train", "2 images", "other.jpg, stray.jpg")
    with pytest.raises(SourceError, match=said):
        folder.find(root, ["train"])


def test_base_name_in_two_folders_is_duplicate_key(root: Path) -> None:
    write(root / "train" / FIRST / "more" / f"{FIRST}_7.JPEG", b"again")
    source = folder.find(root, ["train"])
    with pytest.raises(
        SourceError,
        match=says("appears-twice-remove-one", ..., f"'{FIRST}/{FIRST}_7.JPEG'", "and in"),
    ):
        members(source, "train")


def test_image_named_after_a_different_class_is_refused(root: Path) -> None:
    write(root / "train" / FIRST / f"{SECOND}_99.JPEG", b"?")
    source = folder.find(root, ["train"])
    with pytest.raises(
        SourceError, match=says("class-name-one-them-wrong", ..., FIRST, "starts", SECOND)
    ):
        members(source, "train")


def test_flat_validation_folder_needs_labels(root: Path) -> None:
    (root / ilsvrc.SYNSET_LABELS).unlink()
    for path in (root / "val").iterdir():
        path.rename(path.with_name(path.name.replace("ILSVRC2012_val_", "image")))
    with pytest.raises(UsageError, match=says("source-validation-folder-no-class")):
        folder.find(root, ["validation"])


def test_validation_image_beyond_the_labels_is_named(root: Path) -> None:
    write(root / "val" / "ILSVRC2012_val_00050001.JPEG", b"?")
    source = folder.find(root, ["validation"])
    with pytest.raises(
        SourceError, match=says("no-label-get-labels-include", "ILSVRC2012_val_00050001.JPEG")
    ):
        members(source, "validation")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (ilsvrc.SYNSET_LABELS, b"n99999999\n", r"and ILSVRC2012's published labels"),
        (ilsvrc.SYNSET_LABELS, b"n0\xe9", says("not-utf-8-text-byte-save")),
        (ilsvrc.SOLUTION, b"a,b\n", says("expected-columns-imageid-predictionstring-get")),
        (ilsvrc.SOLUTION, b"", says("expected-columns-imageid-predictionstring-get")),
        (
            ilsvrc.SYNSET_LABELS,
            "n01440764\n".encode("utf-16"),
            says("utf-16-excel-saves-unicode-text"),
        ),
        (
            ilsvrc.SOLUTION,
            f"ImageId,PredictionString\nx,{FIRST} 1\nx,{FIRST} 1\n".encode(),
            says("entry-expected-one-entry-per", ..., "2"),
        ),
        (
            ilsvrc.SOLUTION,
            b"ImageId,PredictionString\nx\n",
            says("not-class-list-get-file", ..., "x", "''"),
        ),
        (
            folder.SYNSET_MAPPING,
            b"tench n01440764\n",
            says("expected-one-line-wnid-words"),
        ),
        (folder.SYNSET_MAPPING, b"\n", says("expected-one-line-wnid-words")),
        (
            folder.SYNSET_MAPPING,
            f"{FIRST} a\n{FIRST} b\n".encode(),
            says("expected-one-line-wnid-words"),
        ),
    ],
    ids=str,
)
def test_damaged_list_is_refused(root: Path, name: str, content: bytes, message: str) -> None:
    (root / ilsvrc.SYNSET_LABELS).unlink()
    write(root / name, content)
    with pytest.raises(SourceError, match=message):
        folder.find(root, ["train", "validation"])


def test_broken_link_is_named(root: Path) -> None:
    (root / "train" / FIRST / "gone.JPEG").symlink_to(root / "nowhere")
    with pytest.raises(SourceError, match=says("cannot-read-2", "gone.JPEG", "No such file")):
        folder.find(root, ["train"])


def test_linked_folder_inside_a_class_is_refused(root: Path) -> None:
    (root / "train" / FIRST / "loop").symlink_to(root / "train")
    with pytest.raises(SourceError, match=says("link-folder-replace-folder", "loop")):
        folder.find(root, ["train"])


@pytest.mark.parametrize("what", ["image", "class", "split"])
def test_link_out_of_the_source_needs_follow_links(
    root: Path, tmp_path_factory: pytest.TempPathFactory, what: str
) -> None:
    private = tmp_path_factory.mktemp("private")
    place = root / "train"
    if what == "image":
        write(private / "passport.jpg", b"private")
        (place / FIRST / "1.jpg").symlink_to(private / "passport.jpg")
    else:
        moved = place / FIRST if what == "class" else place
        moved.rename(private / moved.name)
        moved.symlink_to(private / moved.name)
    with pytest.raises(
        SourceError, match=says("link-leads-out-source", ..., private, "--follow-links")
    ):
        folder.find(root, ["train"])

    source = folder.find(root, ["train"], follow_links=True)
    assert len(members(source, "train")) == (5 if what == "image" else 4)


def test_links_within_the_source_are_followed(root: Path, tmp_path: Path) -> None:
    subset = tmp_path / "subset"
    (subset / "train" / FIRST).mkdir(parents=True)
    (subset / "train" / SECOND).symlink_to(root / "train" / SECOND)
    (subset / "train" / FIRST / "1.jpg").symlink_to(root / "train" / FIRST / f"{FIRST}_7.JPEG")
    with pytest.raises(SourceError, match=says("link-leads-out-source")):
        folder.find(subset, ["train"])
    (root / "all").mkdir()
    for name in ("train", "val"):
        (root / name).rename(root / "all" / name)
    (root / "train").symlink_to("all/train")
    (root / "train" / FIRST / "again.jpg").symlink_to(root / "all" / "val" / VALIDATION)

    source = folder.find(root, ["train"])
    assert len(members(source, "train")) == 5
    # The source itself may be behind a link.
    (tmp_path / "link").symlink_to(root)
    assert len(members(folder.find(tmp_path / "link", ["train"]), "train")) == 5


def test_link_added_after_listing_classes_is_refused(root: Path) -> None:
    source = folder.find(root, ["train"])
    (root / "train" / FIRST / "1.jpg").symlink_to("/etc/passwd")
    with pytest.raises(SourceError, match=says("link-leads-out-source")):
        members(source, "train")


def test_name_that_is_not_utf_8_is_refused(root: Path) -> None:
    write(root / "train" / FIRST / os.fsdecode(b"\xff.JPEG"), b"?")
    with pytest.raises(
        SourceError, match=says("not-utf-8-rename-convert-names", ..., "name b'\\xff.JPEG' is")
    ):
        folder.find(root, ["train"])


def test_two_names_for_one_class_are_refused(tmp_path: Path) -> None:
    for name in ("a b", "a_b"):
        write(tmp_path / "train" / name / "1.jpg", b"?")
    with pytest.raises(SourceError, match=says("class-names-empty-not-unique", ..., "'a_b'")):
        folder.find(tmp_path, ["train"])


def test_two_unicode_spellings_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("caf\xe9", "cafe\u0301"):
        write(tmp_path / "train" / name / "1.jpg", b"?")
    with pytest.raises(
        SourceError, match=says("class-names-empty-not-unique", ..., "'cafe\\u0301', 'caf\\xe9'")
    ):
        folder.find(tmp_path, ["train"])


def test_unreadable_class_folder_is_named_by_its_path(tmp_path: Path, system: System) -> None:
    for name in ("cat", "dog"):
        write(tmp_path / name / "1.jpg", b"?")

    def refuse(scandir: Callable[..., object], path: str | Path) -> object:
        if Path(path) == tmp_path / "cat":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    system.instead("scandir", refuse)
    with pytest.raises(
        StoreError, match=says("cannot-read-2", f"{tmp_path}/cat", "Permission denied")
    ):
        folder.find(tmp_path, ["train"])


def test_first_problems_are_listed_and_all_are_counted(root: Path) -> None:
    for number in range(60):
        (root / "train" / FIRST / f"{number}.jpg").symlink_to(f"gone-{number}")
    with pytest.raises(SourceError) as caught:
        folder.find(root, ["train"])
    *lines, last = str(caught.value).splitlines()
    assert len(lines) == 50
    assert last.startswith(f"--source {root}: 60 problems, 50 of them above. Fix them and run")


def test_class_mapping_may_be_in_any_order(tmp_path: Path) -> None:
    for wnid in (FIRST, SECOND):
        write(tmp_path / "train" / wnid / "1.jpg", b"?")
    write(tmp_path / "LOC_synset_mapping.txt", f"{SECOND} b\n{FIRST} a\n".encode())
    classes = folder.find(tmp_path, ["train"]).classes
    assert classes.wnids == (FIRST, SECOND)
    assert classes.words == ("a", "b")


@pytest.mark.parametrize("mapping", [False, True])
def test_two_validation_folders_of_one_class_are_refused(tmp_path: Path, *, mapping: bool) -> None:
    first = f"{FIRST} " if mapping else "a b"
    names = (FIRST, first) if mapping else ("a b", "a_b")
    write(tmp_path / "train" / names[0] / "1.jpg", b"?")
    write(tmp_path / "train" / SECOND / "1.jpg", b"?")
    for name in names:
        write(tmp_path / "val" / name / f"{name.strip()}.jpg", b"?")
    if mapping:
        write(tmp_path / "LOC_synset_mapping.txt", f"{FIRST} a\n{SECOND} b\n".encode())
    with pytest.raises(
        SourceError,
        match=says("same-class-spaces-become-case", ..., f"{names[0]!r}", f"{names[1]!r}"),
    ):
        folder.find(tmp_path, ["train", "validation"])


@pytest.mark.parametrize("change", ["shorter", "longer", "gone", "replaced"])
def test_file_changed_since_listing_is_named(root: Path, change: str) -> None:
    source = folder.find(root, ["train"])
    member = members(source, "train")[0]
    path = root / member.archive
    status = path.stat()
    if change == "gone":
        path.unlink()
    elif change == "replaced":
        # The clock of a file system advances in steps of milliseconds.
        while path.stat().st_ctime_ns <= source.parts[0].newest:
            path.write_bytes(b"21")
            os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    else:
        path.write_bytes(b"1" if change == "shorter" else b"123")
    sentence = r"_10\.JPEG: (was changed after it was listed(: has . bytes, had 2)?|cannot be read)"
    with pytest.raises(SourceError, match=sentence):
        source.reader.read(member.archive, member.offset, member.size)


def test_image_may_get_a_link_while_being_read(root: Path, tmp_path: Path) -> None:
    source = folder.find(root, ["train"])
    member = members(source, "train")[0]
    path = root / member.archive
    link = tmp_path / "link"
    # The clock of a file system advances in steps of milliseconds.
    while path.stat().st_ctime_ns <= source.parts[0].newest:
        link.unlink(missing_ok=True)
        link.hardlink_to(path)

    assert source.reader.read(member.archive, member.offset, member.size) == b"10"


def test_counts_of_other_datasets_are_not_checked(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        write(tmp_path / "train" / name / "1.jpg", b"?")
    source = folder.find(tmp_path, ["train"])

    assert source.classes.wnids == ("cat", "dog")
    assert source.count_problems("train", [1, 1]) == []


def test_counts_of_ilsvrc2012_are_checked(root: Path) -> None:
    source = folder.find(root, ["train"])

    assert "train has 4 images, expected 1,281,167" in source.count_problems(
        "train", [2, 2] + [0] * 998
    )


def test_pipe_among_images_is_named_and_never_opened(root: Path) -> None:
    os.mkfifo(root / "train" / FIRST / "n01440764_8.JPEG")
    with pytest.raises(SourceError, match=says("not-regular-file-remove", "n01440764_8")):
        members(folder.find(root, ["train"]), "train")


def test_only_class_folders_are_stated_as_classes(tmp_path: Path) -> None:
    root = made(tmp_path, "train/n01440764/1.JPEG val/n01440764_1.JPEG")
    found = folder.find(root, ["train", "validation"])
    assert [statement[1:] for statement in found.evidence] == [("train/", "1 class folder")]


NFC, NFD = "Bl\xfcte", "Blu\u0308te"


@pytest.mark.parametrize(
    ("listed", "file", "key"),
    [
        ({NFD: "dog/1.jpg"}, NFD, "dog/1.jpg"),
        ({NFD: "dog/1.jpg"}, NFC, "dog/1.jpg"),
        ({NFC: "dog/1.jpg"}, NFD, "dog/1.jpg"),
        ({NFC: "dog/1.jpg", NFD: "dog/2.jpg"}, NFD, "dog/2.jpg"),
        ({f"{NFC}{NFD}": "dog/1.jpg", f"{NFD}{NFC}": "dog/2.jpg"}, f"{NFC}{NFC}", None),
        ({NFC.upper(): "dog/1.jpg"}, NFC, None),
    ],
)
def test_copied_export_may_have_either_form(
    tmp_path: Path, listed: dict[str, str], file: str, key: str | None
) -> None:
    write(tmp_path / "train" / "cat" / f"{file}.jpg", b"image")
    places = {f"train/cat/{name}.jpg": key_of_place for name, key_of_place in listed.items()}
    source = folder.find(tmp_path, ["train"])
    (member,) = members(dataclasses.replace(source, keys={"train": places}), "train")
    assert member.key == (key or f"cat/{file}.jpg")


def test_unread_folders_are_counted_once(tmp_path: Path) -> None:
    """A holdout is unread, too, unless it was chosen; only the first split counts them."""
    files = "train/cat/1.jpg val/cat/2.jpg holdout/cat/{3,4}.jpg more/cat/5.jpg"
    root = made(tmp_path, files)

    def ignored(*splits: str) -> list[dict[str, int]]:
        return [dict(part.ignored) for part in folder.find(root, splits).parts]

    assert ignored("train") == [{"holdout/": 2, "more/": 1}]
    assert ignored("train", "validation") == [{"holdout/": 2, "more/": 1}, {}]
    assert ignored("train", "validation", "holdout") == [{"more/": 1}, {}, {}]


@pytest.mark.parametrize("is_export", [True, False])
def test_empty_classes_are_only_skipped_in_exports(tmp_path: Path, *, is_export: bool) -> None:
    """`export` makes a folder for each class, also for those without images in a split."""
    root = made(tmp_path, "val/cat/1.jpg train/{cat,dog}/1.jpg")
    (root / "val" / "dog").mkdir()
    if is_export:
        write(root / schema.EXPORT, b"{}")
    source = folder.find(root, ["train", "validation"])

    if is_export:
        assert [member.class_index for member in members(source, "validation")] == [0]
    else:
        with pytest.raises(SourceError, match=says("holds-no-image-add-images", "dog")):
            members(source, "validation")


@pytest.mark.parametrize(
    ("shared", "is_refused"),
    [("cat/list.txt", False), ("cat/1.jpg", True), ("cat/1.JPG", True), ("Cat/1.jpg", True)],
)
def test_parts_of_a_split_only_differ_in_images(
    tmp_path: Path, shared: str, *, is_refused: bool
) -> None:
    """Each part may have its own README or list; the same image in both makes them copies."""
    root = made(tmp_path, f"train1/cat/{{1.jpg,list.txt}} train2/{shared} train2/cat/2.jpg")
    if is_refused:
        with pytest.raises(UsageError, match=says("source-holds-keep-only-one")):
            folder.find(root, ["train"])
    else:
        keys = [member.key for member in members(folder.find(root, ["train"]), "train")]
        assert sorted(keys) == ["cat/1.jpg", "cat/2.jpg"]


@pytest.mark.parametrize(
    ("wnids", "name", "is_imagenet"),
    [
        (OFFICIAL.wnids, "train", True),
        ((FIRST, SECOND), "train", True),
        (("cat", "dog"), "train", False),
        ((FIRST, "dog"), "train", False),
        ((FIRST, "dog"), "imagenet21k_train", False),
    ],
)
def test_imagenet_is_recognised_by_its_classes(
    wnids: tuple[str, ...], name: str, *, is_imagenet: bool
) -> None:
    classes = ClassList(wnids, wnids)
    assert folder.is_imagenet(classes, [f"in/{name}"]) == is_imagenet


def test_empty_folder_of_no_class_is_skipped(tmp_path: Path) -> None:
    """Such as val/images/ of Tiny ImageNet, whose images were moved into class folders."""
    root = made(tmp_path, f"train/{{{FIRST},{SECOND}}}/1.JPEG val/{FIRST}/2.JPEG")
    (root / "val" / "images").mkdir()
    source = folder.find(root, ["train", "validation"])
    assert [member.class_index for member in members(source, "validation")] == [0]
    write(root / "val" / "images" / "3.JPEG", b"?")
    with pytest.raises(SourceError, match=says("not-class-list-move-away", "images")):
        folder.find(root, ["train", "validation"])


@pytest.mark.parametrize("place", ["", "val", "val/images"])
def test_list_of_labels_is_found_near_its_images(tmp_path: Path, place: str) -> None:
    root = made(tmp_path, f"train/{{{FIRST},{SECOND}}}/1.JPEG val/images/x1.JPEG")
    write(
        root / place / ilsvrc.SOLUTION, f"ImageId,PredictionString\nx1,{SECOND} 1 2 3 4\n".encode()
    )
    source = folder.find(root, ["train", "validation"])
    assert [member.class_index for member in members(source, "validation")] == [1]


def test_folder_of_unsupported_photographs_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "cat/a.jpg", b"cat")
    write(tmp_path / "dog/b.jxl", b"\xff\x0a")
    source = folder.find(tmp_path, ["train"])
    with pytest.raises(
        UsageError, match=says("holds-only-photographs-unsupported-formats", "dog", "1 JPEG XL")
    ):
        members(source, "train")
    write(tmp_path / "dog/c.jpg", b"dog")
    # The other photograph will be quarantined.
    assert len(members(folder.find(tmp_path, ["train"]), "train")) == 3
