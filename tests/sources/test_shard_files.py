"""TFRecords as a source: recognition by name, records of every writer, meaning of labels."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core.errors import DataDamagedError, SourceError, UsageError
from imagenet_prep.dataset import example, record_files, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.example import ShardProblems
from imagenet_prep.dataset.samples import HEADER, Sample
from imagenet_prep.sources import shard_files
from imagenet_prep.sources.labels import official_classes
from imagenet_prep.sources.shard_files import Labelling, LabelUse, labelling_of
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.folder import LocalStore
from tests.kit import foreign
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.tfrecords import framed, picture, plain, write_dataset

OFFICIAL = official_classes()
IMAGES = [
    foreign.Image("train", f"{wnid}/{wnid}_{i}.JPEG", wnid, words, b"%d" % i * (i + 1), 4, 3)
    for i, (wnid, words) in enumerate(
        list(zip(OFFICIAL.wnids, OFFICIAL.words, strict=True))[5:900:100]
    )
]


def entries(
    store: LocalStore, shard: shard_files.ShardFile, on_damage: shard_files.OnDamage | None = None
) -> Iterator[tuple[record_files.Record, shard_files.RecordContent]]:
    return shard_files.check(store, shard, lambda r: shard_files.parse(r.payload), on_damage)


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return root


@pytest.mark.parametrize(
    "pattern",
    [
        "train-{:05d}-of-00003",
        "train/train-{:05d}-of-00003",
        "imagenet2012-train.tfrecord-{:05d}-of-00003",
        "train/my_data2-train.tfrecord-{:05d}-of-00003",
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_shards_are_numbered_from_0_whatever_their_names(
    tmp_path: Path, pattern: str, first: int
) -> None:
    make(tmp_path, *(pattern.format(number + first) for number in (2, 0, 1)), "README", "train.txt")
    found = shard_files.find(LocalStore(tmp_path))

    assert list(found.splits) == ["train"]
    assert found.manifest is None
    assert [(s.number, s.name) for s in found.splits["train"]] == [
        (number, f"train-{number:05d}-of-00003") for number in range(3)
    ]
    assert [s.path for s in found.splits["train"]] == [
        pattern.format(number + first) for number in range(3)
    ]


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ([0, 2], "missing: 1 of 3 shards (00001)"),
        ([1, 2], "missing: 1 of 3 shards (00000)"),
        ([2, 3], "missing: 1 of 3 shards (00001)"),
        (
            [0, 1, 2, 3],
            "surplus (different dataset or number of shards): 1 file (train-00003-of-00003)",
        ),
        ([1, 2, 3, 4], "train-00004-of-00003"),
        ([0], "missing: 2 of 3 shards (00001, 00002)"),
    ],
    ids=str,
)
def test_missing_and_extra_numbers_are_named(
    tmp_path: Path, numbers: list[int], sentence: str
) -> None:
    make(tmp_path, *(f"train-{number:05d}-of-00003" for number in numbers))

    with pytest.raises(SourceError, match=re.escape(sentence)):
        shard_files.find(LocalStore(tmp_path))


@given(st.integers(1, 12), st.sampled_from([0, 1]), st.data())
def test_missing_shards_are_named_by_number(total: int, first: int, data: st.DataObject) -> None:
    """With one shard, either numbering may match."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        whole = [f"validation-{i + first:05d}-of-{total:05d}" for i in range(total)]
        lost = data.draw(st.sets(st.sampled_from(whole), max_size=total - 1))
        make(root, *(name for name in whole if name not in lost))
        if not lost:
            assert len(shard_files.find(LocalStore(root)).splits["validation"]) == total
            return
        with pytest.raises(SourceError, match=says("missing", len(lost), f"{total} shards")):
            shard_files.find(LocalStore(root))


def test_shards_in_two_folders_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "train-00000-of-00001", "train/train-00000-of-00001")

    with pytest.raises(SourceError, match=says("surplus-different-dataset-number-shards")):
        shard_files.find(LocalStore(tmp_path))


def test_folder_next_to_its_shards_is_refused(tmp_path: Path) -> None:
    """The tutorial's first step writes to scratch, and its second step reads scratch/train."""
    (tmp_path / "train-00000-of-00004").touch()
    expected = f"The shards of train are in {tmp_path}: give that folder, and --splits train."
    with pytest.raises(UsageError) as refused:
        shard_files.find(LocalStore(tmp_path / "train"))
    assert expected in str(refused.value)

    with pytest.raises(UsageError, match=says("check-path-2", "no such folder.")):
        shard_files.find(LocalStore(tmp_path / "validation"))


def test_missing_shards_are_refused_with_the_files_found(tmp_path: Path) -> None:
    make(tmp_path, "a.tar", "train-1-of-2")

    with pytest.raises(UsageError, match=r"found a\.tar, train-1-of-2"):
        shard_files.find(LocalStore(tmp_path))
    with pytest.raises(UsageError, match=says("no-such-folder")):
        shard_files.find(LocalStore(tmp_path / "absent"))


def written(tmp_path: Path, writer: foreign.Writer, **how: object) -> shard_files.ShardFile:
    foreign.write(tmp_path, IMAGES, writer, num_shards={"train": 1}, **how)
    (shard,) = shard_files.find(LocalStore(tmp_path)).splits["train"]
    return shard


@pytest.mark.parametrize("writer", [foreign.slim, foreign.tpu, foreign.tfds])
@pytest.mark.parametrize("offset", [0, 1])
def test_members_are_at_the_offsets_in_the_shard(
    tmp_path: Path, writer: foreign.Writer, offset: int
) -> None:
    shard = written(tmp_path, writer, offset=offset)
    data = (tmp_path / shard.path).read_bytes()
    found = list(shard_files.read(LocalStore(tmp_path), shard, Labelling(OFFICIAL, offset)))

    assert {member.key for member, _ in found} == {image.key for image in IMAGES}
    by_key = {image.key: image for image in IMAGES}
    for member, encoded in found:
        image = by_key[member.key]
        assert encoded == image.data == data[member.offset :][: member.size]
        assert member.class_index == OFFICIAL.index[image.wnid]
        assert member.archive == shard.file
        boxes = image.boxes if writer is foreign.slim else []
        assert list(member.boxes.ymin) == [box[1] for box in boxes]


class Counting(bytes):
    """Bytes that count searches and comparisons."""

    looks = 0

    def find(self, *arguments: Any) -> int:
        type(self).looks += 1
        return super().find(*arguments)

    def startswith(self, *arguments: Any) -> bool:
        type(self).looks += 1
        return super().startswith(*arguments)


def test_image_search_is_linear_after_similar_text() -> None:
    encoded = b"a" * 20_000 + b"b"
    payload = Counting(b"a" * 40_000 + encoded)
    Counting.looks = 0

    assert shard_files.find_image(payload, encoded) == 40_000
    assert Counting.looks <= 3


@given(before=st.binary(max_size=200), more=st.binary(max_size=200), times=st.integers(0, 3))
def test_image_is_found_after_bytes_that_start_alike(
    before: bytes, more: bytes, times: int
) -> None:
    first = b"\xff\xd8" * 40
    encoded = first + b"image" + more
    payload = before + first * times + encoded + b"more keys"

    assert shard_files.find_image(payload, encoded) == payload.find(encoded)
    assert shard_files.find_image(b"", b"") == 0


@pytest.mark.parametrize("offset", [0, 1])
def test_few_shards_of_ilsvrc2012_determine_the_labels(tmp_path: Path, offset: int) -> None:
    written(tmp_path, foreign.slim, offset=offset)

    labelling = shard_files.known_labelling(shard_files.find(LocalStore(tmp_path)))

    assert labelling == Labelling(OFFICIAL, offset)


@pytest.mark.parametrize("offset", [2, 5])
def test_shifted_labels_are_not_ilsvrc2012(tmp_path: Path, offset: int) -> None:
    written(tmp_path, foreign.slim, offset=offset)

    assert shard_files.known_labelling(shard_files.find(LocalStore(tmp_path))) is None


def test_user_labels_need_the_complete_dataset(tmp_path: Path) -> None:
    written(tmp_path, foreign.slim, own_classes=True)

    assert shard_files.known_labelling(shard_files.find(LocalStore(tmp_path))) is None


def test_sorted_dataset_starting_like_ilsvrc2012_is_not_ilsvrc2012(
    tmp_path: Path,
) -> None:
    """Imagenette starts with tench, class 0 of both lists; its last class distinguishes them."""
    wnids = [OFFICIAL.wnids[i] for i in (0, 217, 482, 701)]
    for number, wnid in enumerate(wnids):
        image = IMAGES[0]._replace(key=f"{wnid}/{wnid}_1.JPEG", wnid=wnid)
        record = foreign.frame(foreign.encode(foreign.tpu(image, number)))
        (tmp_path / f"train-{number:05d}-of-00004").write_bytes(record)
    found = shard_files.find(LocalStore(tmp_path))
    damage = ShardProblems()
    uses: list[LabelUse] = []
    for shard in found.splits["train"]:
        uses += shard_files.label_uses(found.store, shard, damage)

    assert not damage
    assert shard_files.known_labelling(found) is None
    assert labelling_of(uses).classes.wnids == tuple(wnids)
    assert labelling_of(uses).offset == 0


def use(name: str, label: int, examples: int = 1, where: str = "here", text: str = "") -> LabelUse:
    return LabelUse(name, text, label, examples, where)


def test_names_without_wnids_are_ordered_by_label() -> None:
    uses = [use("tulips", 1, text="tulips"), use("black_rose", 2, text="black rose")]
    labelling = labelling_of(uses)

    assert labelling.classes == ClassList(("tulips", "black_rose"), ("tulips", "black rose"))
    assert labelling.offset == 1


def test_labels_without_names_index_the_official_list() -> None:
    labelling = labelling_of([use("", 3), use("", 999)])

    assert labelling == Labelling(OFFICIAL, 0)
    assert labelling.class_index("", 0) == 0
    for label in (1000, -1):
        with pytest.raises(DataDamagedError, match=says("label-expected", label, "0", "999")):
            labelling.class_index("", label)


def test_known_list_is_preferred_if_it_is_complete() -> None:
    known = ClassList(("a", "b", "c"), ("A", "B", "C"))

    assert labelling_of([use("b", 2), use("c", 3)], known) == Labelling(known, 1)
    assert labelling_of([use("b", 1), use("d", 2)], known).classes.wnids == ("b", "d")


def test_few_labels_that_contradict_the_many_are_named() -> None:
    uses = [use(wnid, i + 1, 50) for i, wnid in enumerate(OFFICIAL.wnids)]
    uses.append(use(OFFICIAL.wnids[7], 7, 2, "shard: record 3 at byte 99"))

    expected = (
        r"labels that do not match the others \(2\): shard: record 3 at byte 99: label 7, exp"
    )
    with pytest.raises(DataDamagedError, match=expected):
        labelling_of(uses)


def test_offset_is_that_of_most_examples() -> None:
    """Not that of most classes: the records of one class may be most of the dataset."""
    wnids = [f"n0000000{number}" for number in range(3)]
    uses = [use(wnids[0], 1, 100), use(wnids[1], 1), use(wnids[2], 2)]
    with pytest.raises(DataDamagedError, match=says("labels-not-match-others-labels", 2)):
        labelling_of(uses)


@pytest.mark.parametrize("order", [1, -1])
def test_words_are_those_of_most_records(order: int) -> None:
    wnid = "n00000001"
    uses = [use(wnid, 1, 5, text="fish"), use(wnid, 1, 2, text="fsih")][::order]
    assert labelling_of(uses).classes.words == ("fish",)


@pytest.mark.parametrize(
    ("path", "name", "is_renamed"),
    [
        ("train-00001-of-00002", "train-00000-of-00002", True),
        ("train-00001-of-00002", "train-00001-of-00002", True),
        ("train/train-00001-of-00002", "train-00001-of-00002", True),
        ("train-00000-of-00002", "train-00001-of-00002", False),
        ("train-00002-of-00002", "train-00002-of-00002", False),
        ("train-00002-of-00002", "train-00000-of-00002", False),
        ("train-00001-of-00002", "train-00000-of-00003", False),
        ("train-00001-of-00002", "validation-00000-of-00002", False),
        ("other/train-00001-of-00002", "train-00000-of-00002", False),
        ("README", "train-00000-of-00002", False),
        ("train-00001-of-00002", "README", False),
    ],
)
def test_shards_only_get_the_next_lower_number(path: str, name: str, *, is_renamed: bool) -> None:
    assert shard_files.becomes(path, name) == is_renamed


def test_class_outside_the_list_is_named() -> None:
    with pytest.raises(
        DataDamagedError, match=says("class-not-one-dataset-s", "'n00000000'", "1000")
    ):
        Labelling(OFFICIAL, 1).class_index("n00000000", 1)


def test_each_damaged_record_is_reported_and_others_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    shard = written(tmp_path, foreign.slim)
    whole = [record for record, _ in entries(store, shard)]
    data = bytearray((tmp_path / shard.path).read_bytes())
    for victim in (whole[2], whole[5]):
        data[victim.offset + 40] ^= 1
    (tmp_path / shard.path).write_bytes(data)
    (shard,) = shard_files.find(store).splits["train"]
    damage: list[str] = []
    left = [r.number for r, _ in entries(store, shard, lambda e: damage.append(str(e)))]

    assert left == [r.number for r in whole if r.number not in (2, 5)]
    assert [re.search(r"record (\d+) at byte", line)[1] for line in damage] == ["2", "5"]
    with pytest.raises(DataDamagedError, match=says("record-byte", ..., "2")):
        list(entries(store, shard))


def test_shard_without_records_is_damaged(tmp_path: Path) -> None:
    """A shard is empty if its download stopped before the first byte."""
    store = LocalStore(make(tmp_path, SHARD))
    [shard] = shard_files.find(store).splits["train"]
    with pytest.raises(DataDamagedError, match=says("holds-no-record", SHARD)):
        list(entries(store, shard))


def test_compressed_shard_is_named_with_its_remedy(tmp_path: Path) -> None:
    shard = written(tmp_path, foreign.slim)
    path = tmp_path / shard.path
    store = LocalStore(tmp_path)
    path.write_bytes(gzip.compress(path.read_bytes()))
    [shard] = shard_files.find(store).splits["train"]
    remedy = says("compressed-gzip-unpack-first", SHARD)
    with pytest.raises(DataDamagedError, match=remedy):
        list(entries(store, shard))
    path.write_bytes(bytes(100))
    [shard] = shard_files.find(store).splits["train"]
    with pytest.raises(DataDamagedError) as damage:
        list(entries(store, shard))
    assert not remedy.search(str(damage.value))


@pytest.mark.parametrize("wnid", ["", "n01440764"])
@pytest.mark.parametrize("words", ["", " ", "a fish"])
def test_record_needs_a_name_of_its_class(wnid: str, words: str) -> None:
    image = foreign.Image("train", "n01440764/a.JPEG", wnid, words, b"1", 4, 3)
    payload = foreign.encode(foreign.slim(image, 1))
    if wnid or words.strip():
        assert shard_files.parse(payload).name == (wnid or "a_fish")
        return
    with pytest.raises(DataDamagedError, match=says("neither-nor-names-class")):
        shard_files.parse(payload)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_entry_or_damage(payload: bytes) -> None:
    try:
        entry = shard_files.parse(payload)
    except DataDamagedError:
        return
    assert isinstance(entry.encoded, bytes)


SHARD = "train-00000-of-00001"


def ours(root: Path, change: Callable[[list[Sample]], list[Sample]] = list) -> Path:
    """Writes a dataset of three images with a changed table, which its manifest names."""
    images = [picture(number, plain(number)) for number in range(3)]
    write_dataset(root, {"train": [images]}, num_classes=3)
    made = add_tables(root)
    [shard] = made.splits["train"].shards
    rows = change([*dataset_store.sample_rows(LocalStore(root), shard)])
    table = b"".join([HEADER, *(row.line for row in rows)])
    (root / schema.samples_name(SHARD)).write_bytes(table)
    digest = hashlib.sha256(table).hexdigest()
    shard = replace(shard, samples_bytes=len(table), samples_sha256=digest)
    split = replace(made.splits["train"], shards=[shard])
    (root / schema.MANIFEST).write_bytes(replace(made, splits={"train": split}).dumps())
    return root


def read(root: Path) -> list[str]:
    """Returns the keys of the images of the dataset."""
    found = shard_files.find(LocalStore(root))
    labelling = shard_files.known_labelling(found)
    assert labelling
    [shard] = found.splits["train"]
    return [each.key for each, _ in shard_files.read(found.store, shard, labelling)]


def test_images_of_our_dataset_have_the_table_keys(tmp_path: Path) -> None:
    def renamed(rows: list[Sample]) -> list[Sample]:
        return [row._replace(key=f"a/{number}") for number, row in enumerate(rows)]

    assert read(ours(tmp_path / "set", renamed)) == ["a/0", "a/1", "a/2"]


def test_test_split_of_our_dataset_is_read(tmp_path: Path) -> None:
    """In other datasets, test has images without labels, so it is ignored."""
    splits = {"test": [[picture(0, plain(0))]], "validation": [[picture(1, plain(1))]]}
    write_dataset(tmp_path, splits, num_classes=3)
    add_tables(tmp_path)
    assert {*shard_files.find(LocalStore(tmp_path)).splits} == {"test", "validation"}


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row._replace(class_index=0),
        lambda row: row._replace(num_bytes=row.num_bytes + 1, source_bytes=row.num_bytes + 1),
    ],
    ids=["class", "size"],
)
def test_row_that_contradicts_its_record_is_refused(tmp_path: Path, change: Any) -> None:
    """Otherwise this image would get the key of a different one."""
    root = ours(tmp_path / "set", lambda rows: [rows[0], change(rows[1]), rows[2]])
    with pytest.raises(
        DataDamagedError,
        match=says("record-byte-3", ..., 1, ..., says("differs-line-table-samples")),
    ):
        read(root)


def test_shard_that_differs_from_the_manifest_is_refused(tmp_path: Path) -> None:
    """Its records have the right CRCs, sizes and labels."""
    root = ours(tmp_path / "set")
    images = [picture(number, plain(number)) for number in range(3)]
    images[2] = images[2]._replace(encoded=images[2].encoded[:-3] + bytes(3))
    data = b"".join(framed(example.encode(image)) for image in images)
    assert len(data) == (root / SHARD).stat().st_size
    (root / SHARD).write_bytes(data)
    with pytest.raises(DataDamagedError, match=says("sha256-expected", SHARD)):
        read(root)
