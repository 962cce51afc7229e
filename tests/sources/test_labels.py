"""Labels: the devkit, the published labels, and the comparison of statements."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import DataDamagedError, ImagenetPrepError, SourceError
from imagenet_prep.dataset import class_list
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.sources import labels
from imagenet_prep.sources.labels import Claim, Statement, compare, lines
from tests.kit.messages import says
from tests.kit.miniature import Miniature, Synset, make_devkit

ORIGINAL = "md5 fa75699e90414af021442c21a62c3abf"
META = "ILSVRC2012_devkit_t12/data/meta.mat"
TRUTH = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"


@pytest.fixture(scope="module")
def official() -> ClassList:
    return labels.official_classes()


def parts(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {info.name: archive.extractfile(info).read() for info in archive}


def pack(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture(scope="module")
def devkit(miniature: Miniature) -> Path:
    return miniature.root / labels.DEVKIT_NAME


def test_official_list_is_that_of_ilsvrc2012(official: ClassList) -> None:
    text = "".join(f"{wnid}\n" for wnid in official.wnids)

    assert hashlib.sha256(text.encode()).hexdigest() == class_list.OFFICIAL_DIGEST
    assert official.official
    assert len(official.wnids) == len(official.words) == 1000
    assert list(official.wnids) == sorted(official.wnids)


@pytest.mark.parametrize(
    ("index", "wnid", "words"),
    [
        (0, "n01440764", "tench, Tinca tinca"),
        (1, "n01443537", "goldfish, Carassius auratus"),
        (65, "n01751748", "sea snake"),
        (134, "n02012849", "crane"),
        (517, "n03126707", "crane"),
        (281, "n02123045", "tabby, tabby cat"),
        (999, "n15075141", "toilet tissue, toilet paper, bathroom tissue"),
    ],
    ids=str,
)
def test_well_known_classes_have_their_index(
    official: ClassList, index: int, wnid: str, words: str
) -> None:
    assert (official.wnids[index], official.words[index]) == (wnid, words)
    assert official.index[wnid] == index


def test_labels_txt_lists_one_class_per_line(official: ClassList) -> None:
    lines = official.render().decode().splitlines()

    assert lines[65] == "n01751748 sea snake"
    assert [line.split(" ", 1)[0] for line in lines] == list(official.wnids)


@pytest.mark.parametrize("text", ["a" * 5000, "tench\nn02 not a class", "tench\rn02 not a class"])
def test_class_name_that_breaks_labels_txt_is_refused(text: str) -> None:
    """The dataset would be unreadable, or would have one class more."""
    for names, words in ((text, "tench"), ("n01", text)):
        with pytest.raises(DataDamagedError, match="the source: the class"):
            ClassList((names,), (words,))


def test_different_list_is_not_official(official: ClassList) -> None:
    assert not ClassList(official.wnids[::-1], official.words).official
    assert not ClassList(official.wnids[:-1], official.words[:-1]).official


def test_devkit_of_the_miniature_equals_its_truth(miniature: Miniature, devkit: Path) -> None:
    found = labels.read_devkit(devkit)
    truth = miniature.of("validation")

    assert tuple(zip(found.classes.wnids, found.classes.words, strict=True)) == miniature.classes
    assert list(found.validation_class_index) == [truth[key].class_index for key in sorted(truth)]
    assert not found.classes.official


def test_ids_are_mapped_through_meta_mat_not_ranks(miniature: Miniature, devkit: Path) -> None:
    ids = [int(line) for line in parts(devkit)[TRUTH].split()]

    assert [i - 1 for i in ids] != list(labels.read_devkit(devkit).validation_class_index)


@pytest.mark.parametrize("prefix", ["", "./", "any/where/"], ids=repr)
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_repacked_devkit_is_read(tmp_path: Path, devkit: Path, prefix: str, mode: str) -> None:
    files = {f"{prefix}{name.split('/', 1)[1]}": data for name, data in parts(devkit).items()}
    path = pack(tmp_path / "again.tar.gz", files, mode)

    assert labels.read_devkit(path) == labels.read_devkit(devkit)


def official_devkit(path: Path, official: ClassList, validation: list[str]) -> Path:
    """Writes a devkit of the official classes with IDs in an order unlike that of the WNIDs."""
    ids = {wnid: 1000 - index for index, wnid in enumerate(official.wnids)}
    leaves = [
        Synset(ids[wnid], wnid, words, num_train_images=1300)
        for wnid, words in zip(official.wnids, official.words, strict=True)
    ]
    inner = [Synset(1001, "n00001740", "entity", "", tuple(range(1, 1001)), 19)]
    make_devkit(path, leaves, inner, [ids[wnid] for wnid in validation])
    return path


def fifty_of_each(official: ClassList) -> list[str]:
    """Returns 50,000 labels that start like the true ones, 50 of each class."""
    true = [official.wnids[index] for index in labels.published_labels()]
    behind = true[10:]
    random.Random(0).shuffle(behind)
    return true[:10] + behind


def test_published_labels_have_the_known_digest(official: ClassList) -> None:
    """This digest of the 50,000 WNIDs was known before the package contained them."""
    wnids = [official.wnids[index] for index in labels.published_labels()]

    assert class_list.digest_of(wnids) == (
        "313fc3f23c864dde9183c9a368809065765dd1b657a6904fded44e3e46d34604"
    )
    assert set(Counter(wnids).values()) == {50}


def test_published_labels_equal_the_original_devkit(tmp_path: Path, official: ClassList) -> None:
    truth = [official.wnids[index] for index in labels.published_labels()]
    path = official_devkit(tmp_path / "devkit.tar.gz", official, truth)

    assert labels.read_devkit(path).validation_class_index == labels.published_labels()


def test_official_devkit_with_some_foreign_labels_is_refused(
    tmp_path: Path, official: ClassList
) -> None:
    path = official_devkit(tmp_path / "devkit.tar.gz", official, fifty_of_each(official))

    with pytest.raises(
        SourceError, match=rf"devkit\.tar\.gz and ILSVRC2012's published .*{ORIGINAL}"
    ):
        labels.read_devkit(path)


def test_ids_in_wnid_order_are_refused(tmp_path: Path, official: ClassList) -> None:
    # The result if ILSVRC2012_ID is taken for a rank: right files, wrong mapping. The first
    # validation image has ID 490 and would become class 489.
    wrong = [official.wnids[489], *fifty_of_each(official)[1:]]
    path = official_devkit(tmp_path / "devkit.tar.gz", official, wrong)

    with pytest.raises(
        SourceError,
        match=rf"_val_00000001 is class '{wrong[0]}' in .* class 'n01751748'.*{ORIGINAL}",
    ):
        labels.read_devkit(path)


@pytest.mark.parametrize("count", [1, 10, 49_999, 50_001])
def test_devkit_with_wrong_number_of_labels_is_refused(
    tmp_path: Path, official: ClassList, count: int
) -> None:
    true = [official.wnids[index] for index in labels.published_labels()]
    path = official_devkit(tmp_path / "devkit.tar.gz", official, [*true, true[0]][:count])

    with pytest.raises(
        SourceError, match=says("validation-labels-expected", ..., f"{count:,}", "50,000", ORIGINAL)
    ):
        labels.read_devkit(path)


def matlab(**variables: object) -> bytes:
    import scipy.io  # an import of 0.2 s, only needed by this test

    buffer = io.BytesIO()
    scipy.io.savemat(buffer, variables)
    return buffer.getvalue()


def synsets(rows: list[tuple]) -> bytes:
    fields = [(name, object) for name in ("ILSVRC2012_ID", "WNID", "words", "num_children")]
    return matlab(synsets=np.array(rows, dtype=fields)[:, None])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({META: None}, r"holds no data/meta\.mat"),
        ({TRUTH: None}, r"holds no data/ILSVRC2012_validation_ground_truth\.txt"),
        ({META: None, TRUTH: None}, r"no data/meta\.mat and no data/ILSVRC2012_validation"),
        ({META: b""}, r"holds no data/meta\.mat"),
        ({META: b"not a MATLAB file" * 50}, says("meta.mat-cannot-read")),
        ({META: matlab(other=[1, 2])}, says("meta.mat-cannot-read")),
        ({META: matlab(synsets=[1, 2])}, says("meta.mat-cannot-read")),
        ({META: matlab(synsets="text")}, says("meta.mat-cannot-read")),
        ({META: synsets([(1j, "n1", "a", 0)])}, says("meta.mat-cannot-read")),
        ({META: synsets([(np.nan, "n1", "a", 0)])}, says("meta.mat-cannot-read")),
        ({META: synsets([("one", "n1", "a", 0)])}, says("meta.mat-cannot-read")),
        (
            {META: synsets([(1, "n1", "a", 1), (2, "n2", "b", 1)])},
            says("meta.mat-lists-no-leaf-synset"),
        ),
        (
            {META: synsets([(1, "n1", "a", 0), (2, "n1", "b", 0)])},
            says("meta.mat-lists-wnid-ilsvrc2012_id-twice"),
        ),
        (
            {META: synsets([(1, "n1", "a", 0), (1, "n2", "b", 0)])},
            says("meta.mat-lists-wnid-ilsvrc2012_id-twice"),
        ),
        ({TRUTH: b"1\n2\n9999\n"}, says("ground-truth-line-expected-ilsvrc2012_id", ..., "3")),
        ({TRUTH: b"1\n0\n"}, says("ground-truth-line-expected-ilsvrc2012_id", ..., "2")),
        ({TRUTH: b"1\n-1\n"}, says("ground-truth-line-expected-ilsvrc2012_id", ..., "2")),
        ({TRUTH: b"n01440764\n"}, says("ground-truth-line-expected-ilsvrc2012_id", ..., "1")),
        ({TRUTH: b"1\n\xff\n"}, says("ground-truth-line-expected-ilsvrc2012_id", ..., "2")),
    ],
    ids=[
        "no-meta",
        "no-truth",
        "neither",
        "empty-meta",
        "text-as-meta",
        "foreign-meta",
        "numbers-as-synsets",
        "text-as-synsets",
        "complex-id",
        "nan-as-id",
        "text-as-id",
        "no-leaves",
        "wnid-twice",
        "id-twice",
        "unknown-id",
        "zero",
        "negative",
        "wnids",
        "bytes",
    ],
)
def test_devkit_with_wrong_parts_is_refused(
    tmp_path: Path, devkit: Path, changes: dict[str, bytes | None], complaint: str
) -> None:
    files = {name: data for name, data in (parts(devkit) | changes).items() if data is not None}
    path = pack(tmp_path / "devkit.tar.gz", files)

    with pytest.raises(SourceError, match=complaint) as caught:
        labels.read_devkit(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert ORIGINAL in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>Please log in</html>",
        b"\x1f\x8b\x08\x00garbage",
        gzip.compress(b"a text, no tar" * 100),
        random.Random(0).randbytes(3000),
        b"\xfd7zXZ\x00" + random.Random(1).randbytes(500),
        b"BZh9" + random.Random(2).randbytes(500),
    ],
    ids=["empty", "login-page", "cut-gzip", "gzipped-text", "noise", "xz-noise", "bz2-noise"],
)
def test_file_that_is_no_devkit_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / labels.DEVKIT_NAME
    path.write_bytes(data)

    with pytest.raises(SourceError, match=ORIGINAL) as caught:
        labels.read_devkit(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_truncated_devkit_is_refused(tmp_path: Path, devkit: Path) -> None:
    sound = devkit.read_bytes()
    path = tmp_path / "devkit.tar.gz"

    # The last bytes are gzip's own checksum and length.
    for length in [*range(0, len(sound) - 64, 97), len(sound) - 64, len(sound) - 9, len(sound) - 1]:
        path.write_bytes(sound[:length])
        with pytest.raises(SourceError, match=ORIGINAL):
            labels.read_devkit(path)


def test_damaged_devkit_is_refused_or_read_right(tmp_path: Path, devkit: Path) -> None:
    sound = devkit.read_bytes()
    expected = labels.read_devkit(devkit)
    path = tmp_path / "devkit.tar.gz"
    rng = random.Random(0)
    refused = 0

    for _ in range(400):
        damaged = bytearray(sound)
        damaged[rng.randrange(10, len(sound))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            assert labels.read_devkit(path) == expected
        except SourceError as error:
            assert ORIGINAL in str(error)
            refused += 1
    assert refused > 200


def test_missing_devkit_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=says("cannot-read-2", "devkit.tar.gz", "No such file")):
        labels.read_devkit(tmp_path / "devkit.tar.gz")


def image(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"


@pytest.mark.parametrize("number", [1, 2, 777, 25_000, 49_999, 50_000])
@pytest.mark.parametrize("prefix", ["", "n01440764/", "fog/3/"])
def test_label_that_contradicts_the_published_one_is_named(number: int, prefix: str) -> None:
    official = labels.official_classes()
    right = labels.published_labels()[number - 1]
    labels.check_validation(official, {prefix + image(number): right}, "here")

    wrong = (right + 1) % 1000
    with pytest.raises(SourceError) as caught:
        labels.check_validation(official, {prefix + image(number): wrong}, "here")
    assert says(
        "disagree-first-second-differ",
        "here",
        "ILSVRC2012's published labels",
        "image",
        f"{prefix}{image(number)}",
        f"class '{official.wnids[wrong]}'",
        f"class '{official.wnids[right]}'",
    ).match(str(caught.value))


def test_names_and_numbers_of_other_images_are_ignored() -> None:
    official = labels.official_classes()
    others = (image(0), image(50_001), "ILSVRC2012_val_1.JPEG", "ILSVRC2010_val_00000001.JPEG")

    labels.check_validation(official, dict.fromkeys(others, 0), "here")
    assert labels.published_labels_of(others, official.index) == {}


def test_class_list_with_few_published_classes_is_unchecked() -> None:
    """Less than half of the published classes are in the list: these are different images."""
    wnids = [labels.official_classes().wnids[index] for index in labels.published_labels()[:8]]
    few = ClassList(tuple(sorted(wnids[:3])), tuple(sorted(wnids[:3])))
    most = ClassList(tuple(sorted(wnids[:5])), tuple(sorted(wnids[:5])))
    wrong = {image(number): 0 for number in range(1, 9)}
    animals = labels.classes_called(["cat", "dog"], "here")

    labels.check_validation(few, wrong, "here")
    labels.check_validation(animals, wrong, "here")
    with pytest.raises(SourceError, match="disagree"):
        labels.check_validation(most, wrong, "here")
    with pytest.raises(SourceError, match="disagree"):
        labels.check_validation(labels.official_classes(), wrong, "here")
    labels.check_validation(labels.official_classes(), wrong, "here", wnids=set(wnids[:3]))


def test_claims_are_compared_by_their_shared_keys() -> None:
    first = Claim("a", {0: "cat", 1: "dog"})
    second = Claim("b", {1: "dog", 2: "eel"})

    compare("label", [first, second, Claim("c", {0: "cat", 2: "eel"})], "Advice.")
    compare("label", [first], "Advice.", complete=True)
    compare("label", [first, first], "Advice.", complete=True)
    with pytest.raises(ImagenetPrepError) as caught:
        compare("label", [first, second, Claim("c", {0: "cat", 2: "owl", 3: "ox"})], "Advice.")
    assert str(caught.value) == (
        "b and c disagree: label 2 is class 'eel' in the first and class 'owl' in the second; "
        "1 of 2 differ. Advice."
    )
    with pytest.raises(
        ImagenetPrepError, match=r"label 0 is class 'cat' .* no class .* 2 of 3 diff"
    ):
        compare("label", [first, second], "Advice.", complete=True)


def test_statements_about_one_subject_share_a_line() -> None:
    said = [
        Statement("classes", "synset.txt", "3 classes"),
        Statement("classes", "train.lst", "3 classes"),
        Statement("classes", "val.lst", "2 classes"),
        Statement("edition", "", "none"),
    ]
    assert lines(said) == [
        "classes: 3 classes from synset.txt, the same as train.lst, val.lst (2 classes)",
        "edition: none",
    ]


def test_ilsvrc2012_class_list_is_recognised_by_its_words(official: ClassList) -> None:
    words = list(official.words)
    assert labels.classes_called(words, "here") == official
    assert labels.classes_called(words[::-1], "here") != official
    assert labels.classes_called(words[:-1], "here") != official
    others = [f"other {i}" for i in range(21)]
    assert labels.classes_called([*others[:20], *words[20:]], "here") == official
    assert labels.classes_called([*others, *words[21:]], "here") != official
    assert isinstance(labels.classes_called(["a", "b"], "here"), ClassList)


def first_words(official: ClassList) -> list[str]:
    return [words.partition(",")[0] for words in official.words]


@pytest.mark.parametrize("form", [str, str.upper, lambda name: name.replace(" ", "_"), "all"])
def test_words_in_the_official_order_are_ilsvrc2012(official: ClassList, form: Any) -> None:
    names = [*official.words] if form == "all" else [*map(form, first_words(official))]
    assert labels.are_official_words(names)
    assert labels.classes_called(names, "here") == official


def test_words_in_a_different_order_are_custom_classes(official: ClassList) -> None:
    names = first_words(official)
    swapped = [names[1], names[0], *names[2:]]
    for other in (swapped, names[:-1], [*names, "more"]):
        assert not labels.are_official_words(other)
        assert not labels.classes_called(other, "here").official


def test_a_few_words_may_be_written_otherwise(official: ClassList) -> None:
    names = first_words(official)
    assert names.count("crane") == 2
    for number, name in enumerate(names):
        if name == "crane":
            names[number] = f"crane {number}"
    assert labels.are_official_words(names)
    other = [f"x{number}" if number < 100 else name for number, name in enumerate(names)]
    assert not labels.are_official_words(other)


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        (["b", "a"], ["b", "a"]),
        (["two words", "a"], ["two_words", "a"]),
        (["crane", "a", "crane", "crane"], ["crane", "a", "crane_2", "crane_3"]),
    ],
)
def test_names_of_classes_become_ids(names: list[str], ids: list[str]) -> None:
    made = labels.classes_called(names, "here")
    assert [*made.wnids] == ids
    assert [*made.words] == [" ".join(name.split()) for name in names]


@pytest.mark.parametrize(
    "names",
    [
        ["a", ""],
        ["a", " "],
        ["", ""],
        ["a", " ", " "],
        ["crane", "crane", "crane_2"],
        ["a b", "a_b"],
        ["\xe9", "e\u0301"],
    ],
)
def test_ids_of_classes_are_unique(names: list[str]) -> None:
    with pytest.raises(SourceError) as refused:
        labels.classes_called(names, "here")
    assert "here" in str(refused.value)


def test_wnids_and_lemmas_have_words(official: ClassList) -> None:
    made = labels.classes_called([official.wnids[3], "n99999999", "x"], "here", {"n99999999": "y"})
    assert [*made.words] == [official.words[3], "y", "x"]


@pytest.mark.parametrize(("known", "is_published"), [(3, True), (2, False), (1, False)])
def test_most_published_classes_must_be_in_the_source(
    official: ClassList, known: int, is_published: bool
) -> None:
    numbers = range(1, 5)
    stems = [f"ILSVRC2012_val_{number:08}" for number in numbers]
    wnids = [official.wnids[labels.published_labels()[number - 1]] for number in numbers]
    assert len({*wnids}) == 4
    found = labels.published_labels_of([*stems, "other"], wnids[:known])
    assert found == (dict(zip(stems, wnids, strict=True)) if is_published else {})
    assert labels.published_labels_of(["ILSVRC2012_val_00050001"], wnids) == {}
    assert labels.published_labels_of(["ILSVRC2012_val_00000000"], wnids) == {}


def test_statements_are_listed_by_subject() -> None:
    there = [
        Statement("classes", "a.csv", "2 classes"),
        Statement("labels", "", "3 images"),
        Statement("classes", "b.csv", "2 classes"),
        Statement("classes", "c.csv", "two"),
    ]
    lines = labels.lines(there)
    assert len(lines) == 2
    assert lines[0].startswith("classes: 2 classes from a.csv")
    assert lines[0].endswith(" b.csv, c.csv (two)")
    assert lines[1] == "labels: 3 images"
