"""Parquet files as a source: classes, labels and damage."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.sources import labels, parquet
from imagenet_prep.sources.source import PackedImage
from tests.kit.layouts import PARQUET_NAME as NAME
from tests.kit.layouts import parquet_row as row
from tests.kit.layouts import write_parquet
from tests.kit.messages import says

OFFICIAL = labels.official_classes()


def images(root: Path, split: str = "train") -> list[PackedImage]:
    source = parquet.find(root, [split])
    return [*itertools.chain.from_iterable(map(source.images, source.index_tasks(split)))]


@pytest.mark.parametrize("names", [OFFICIAL.words, ()], ids=["words", "no metadata"])
def test_wnids_in_paths_identify_the_official_list(tmp_path: Path, names: tuple[str, ...]) -> None:
    write_parquet(tmp_path / "data" / NAME, [row(999, 1), row(0, 2)], names)

    assert parquet.find(tmp_path, ["train"]).classes == OFFICIAL
    assert images(tmp_path) == [
        PackedImage("n15075141/n15075141_1.JPEG", 999, b"JPEG"),
        PackedImage("n01440764/n01440764_2.JPEG", 0, b"JPEG"),
    ]


def test_classes_have_the_names_of_the_schema(tmp_path: Path) -> None:
    rows = [
        {"image": {"bytes": b"a", "path": "x/1.png"}, "label": 1},
        {"image": {"bytes": b"b", "path": None}, "label": 0},
    ]
    write_parquet(tmp_path / NAME, rows, ["hot dog", "bun"])

    source = parquet.find(tmp_path, ["train"])
    assert (source.classes.wnids, source.classes.words) == (("hot_dog", "bun"), ("hot dog", "bun"))
    assert images(tmp_path) == [
        PackedImage("bun/1.png", 1, b"a"),
        PackedImage("hot_dog/train-00000-of-00001_00000001", 0, b"b"),
    ]
    assert source.count_problems("train", [1, 1]) == []


def test_missing_class_names_are_a_usage_error(tmp_path: Path) -> None:
    write_parquet(tmp_path / NAME, [{"image": {"bytes": b"a", "path": "1.png"}, "label": 1}], [])
    with pytest.raises(UsageError, match=says("no-class-names-schema-s")):
        parquet.find(tmp_path, ["train"])


@pytest.mark.parametrize("names", [(), ("cat", "dog", "owl", "bat")])
def test_paths_that_contradict_labels_identify_nothing(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    rows = [row(0, 0), *({**row(number, number), "label": number - 1} for number in (1, 2, 3))]
    write_parquet(tmp_path / NAME, rows, names)
    if names:
        assert parquet.find(tmp_path, ["train"]).classes.wnids == names
    else:
        with pytest.raises(UsageError, match=says("no-class-names-schema-s")):
            parquet.find(tmp_path, ["train"])


def test_label_that_contradicts_the_path_is_named(tmp_path: Path) -> None:
    rows = [row(1, 1), row(2, 2), {**row(3, 3), "label": 4}]
    write_parquet(tmp_path / NAME, rows, OFFICIAL.words)
    third, fourth = OFFICIAL.wnids[3:5]
    with pytest.raises(
        SourceError, match=says("label-path-names-file-damaged", "row 2", "4", fourth, ..., third)
    ):
        images(tmp_path)


@pytest.mark.parametrize("label", [-1, 1000, None])
def test_label_without_a_class_is_named(tmp_path: Path, label: int | None) -> None:
    rows = [row(1, 1), row(2, 2), {**row(3, 3), "label": label}]
    write_parquet(tmp_path / NAME, rows, OFFICIAL.words)
    with pytest.raises(SourceError, match=says("label-expected-0", "row 2", label, "999")):
        images(tmp_path)


@pytest.mark.parametrize("image", [None, {"bytes": None, "path": "/home/me/n1.JPEG"}])
def test_row_without_image_bytes_is_named(tmp_path: Path, image: Any) -> None:
    write_parquet(tmp_path / NAME, [row(1, 1), row(2, 2), {"image": image, "label": 3}], ())
    with pytest.raises(SourceError, match=says("holds-no-image-bytes-only", "row 2")):
        images(tmp_path)


def test_truncated_file_is_refused_before_unpacking(tmp_path: Path) -> None:
    path = tmp_path / NAME
    write_parquet(path, [row(1, 1)], ())
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(SourceError, match=says("cannot-read-parquet-damaged-download", NAME)):
        parquet.find(tmp_path, ["train"])


def test_damage_in_a_page_is_refused(tmp_path: Path) -> None:
    path = tmp_path / NAME
    write_parquet(path, [row(1, n, bytes(range(256)) * 9) for n in range(20)], ())
    source = parquet.find(tmp_path, ["train"])
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)
    with pytest.raises(SourceError, match=rf"{NAME}: "):
        list(source.images(source.index_tasks("train")[0]))


def test_unexpected_columns_are_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"image": ["x"], "text": ["y"]}), tmp_path / NAME)
    with pytest.raises(SourceError, match=r"has the columns image, text; expected image \{bytes"):
        parquet.find(tmp_path, ["train"])


def test_damaged_metadata_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_parquet(tmp_path / NAME, [row(1, 1)], ())
    table = pq.read_table(tmp_path / NAME).replace_schema_metadata({"huggingface": "{"})
    assert isinstance(table, pa.Table)
    pq.write_table(table, tmp_path / NAME)
    with pytest.raises(SourceError, match=says("schema-s-metadata-huggingface-invalid")):
        parquet.find(tmp_path, ["train"])


def test_missing_files_of_a_split_are_a_problem(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-00001-of-00003.parquet", [row(1, 1)], ())
    source = parquet.find(tmp_path, ["train"])

    assert source.count_problems("train", [0, 1] + [0] * 998)[0] == "train has 1 of 3 files"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("train-00000-of-00001.parquet", "train-00000-of-00002.parquet"),
        ("train-00000-of-00002.parquet", "training-00000-of-00002.parquet"),
        ("train-0.parquet", "train_0.parquet"),
        ("train.parquet", "training.parquet"),
    ],
)
def test_files_of_two_datasets_are_not_mixed(tmp_path: Path, first: str, second: str) -> None:
    for name in (first, second):
        write_parquet(tmp_path / name, [row(1, 1)], ())
    with pytest.raises(
        SourceError, match=says("files-belong-datasets-different-numbers", ..., "train", first)
    ):
        parquet.find(tmp_path, ["train"])


def test_missing_split_is_refused_with_the_files_found(tmp_path: Path) -> None:
    write_parquet(tmp_path / NAME, [row(1, 1)], ())
    with pytest.raises(
        UsageError,
        match=says("source-no-holds-choose-different", ..., "validation-*.parquet", NAME),
    ):
        parquet.find(tmp_path, ["train", "validation"])


def test_split_is_not_read(tmp_path: Path) -> None:
    write_parquet(tmp_path / NAME, [row(1, 1)], ())
    (tmp_path / "test-00000-of-00001.parquet").write_bytes(b"not read")

    assert len(images(tmp_path)) == 1


@pytest.mark.slow
def test_memory_does_not_grow_with_the_row_groups(tmp_path: Path) -> None:
    """700 images of 100 kB are 70 MB; Arrow itself takes 60 MB in the process that reads them."""
    import random

    rng = random.Random(1)
    rows = [row(n % 1000, n, rng.randbytes(100_000)) for n in range(700)]
    write_parquet(tmp_path / NAME, rows, (), group=35)
    # getrusage would include the parent's memory before the exec.
    code = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from imagenet_prep.sources import parquet\n"
        "def peak_kb():\n"
        "    return int(re.search('VmHWM:\\s*(.*) kB', Path('/proc/self/status').read_text())[1])\n"
        "source = parquet.find(Path(sys.argv[1]), ['train'])\n"
        "before = peak_kb()\n"
        "total = sum(len(i.data) for t in source.index_tasks('train') for i in source.images(t))\n"
        "print(total, peak_kb() - before)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    total, grown_kb = map(int, out.split())

    print(f"{grown_kb} kB")
    assert total == 70_000_000
    assert grown_kb < 100_000


@pytest.mark.parametrize(
    "how",
    [
        {"packed_by": "none"},
        {"packed_by": "zstd", "data_page_size": 1},
        {"packed_by": "gzip", "data_page_version": "2.0"},
        {"use_dictionary": False, "write_statistics": False},
        {"write_page_checksum": True},
    ],
)
def test_pages_of_all_writers_are_read(tmp_path: Path, how: dict[str, Any]) -> None:
    pictures = [bytes([number]) * 20_000 for number in range(25)]
    rows = [
        {"image": {"bytes": data, "path": f"{number}.jpg"}, "label": number % 2}
        for number, data in enumerate(pictures)
    ]
    write_parquet(tmp_path / "train-00000-of-00001.parquet", rows, ["a", "b"], **how)
    source = parquet.find(tmp_path, ["train"])

    assert [image.data for image in source.images(source.tasks[0])] == pictures


def test_missing_pyarrow_is_named_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(tmp_path / "data" / NAME, [row(999, 1)], OFFICIAL.words)
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(UsageError, match=r"data/.*pip install 'imagenet-prep\[parquet\]'"):
        parquet.find(tmp_path, ["train"])


@pytest.mark.parametrize(("right", "wrong", "official"), [(2, 1, True), (1, 1, False)])
def test_most_paths_must_match_the_official_list(
    tmp_path: Path, right: int, wrong: int, *, official: bool
) -> None:
    rows = [row(number, number) for number in range(right)]
    rows += [{**row(5, number), "label": 6} for number in range(wrong)]
    write_parquet(tmp_path / NAME, rows, ["a", "b", "c", "d", "e", "f", "g"])
    assert (parquet.find(tmp_path, ["train"]).classes == OFFICIAL) == official


def test_wnids_in_paths_may_differ_from_own_classes(tmp_path: Path) -> None:
    """They only contradict a label if the classes are WNIDs, too."""
    rows = [{**row(3, number), "label": number} for number in range(2)]
    write_parquet(tmp_path / NAME, rows, ["cat", "dog"])
    assert [image.key.partition("/")[0] for image in images(tmp_path)] == ["cat", "dog"]
    write_parquet(tmp_path / NAME, rows, OFFICIAL.wnids[1:3])
    with pytest.raises(SourceError, match=says("label-path-names-file-damaged")):
        images(tmp_path)


def test_test_split_only_replaces_validation(tmp_path: Path) -> None:
    """Its labels are not those of train."""
    write_parquet(tmp_path / "test-00000-of-00001.parquet", [row(1, 1)], ())
    assert len(images(tmp_path, "validation")) == 1
    with pytest.raises(UsageError, match=says("source-no-holds-choose-different")):
        parquet.find(tmp_path, ["train"])
    write_parquet(tmp_path / "validation-00000-of-00001.parquet", [row(1, 1), row(2, 2)], ())
    assert len(images(tmp_path, "validation")) == 2


@pytest.mark.parametrize(
    ("path", "key"), [("dog/7.png", "dog/7.png"), ("../7.png", "cat/7.png"), ("", "cat/7.png")]
)
def test_paths_of_exports_are_keys_if_valid(tmp_path: Path, path: str, key: str) -> None:
    """Another program may have changed the paths of a file that `export` wrote."""
    import pyarrow.parquet as pq

    write_parquet(
        tmp_path / NAME, [{"image": {"bytes": b"a", "path": path}, "label": 0}], ["cat", "dog"]
    )
    table = pq.read_table(tmp_path / NAME)
    marks = {**table.schema.metadata, schema.PARQUET_KEYS.encode(): b"1"}
    pq.write_table(table.replace_schema_metadata(marks), tmp_path / NAME)
    [image] = images(tmp_path)
    expected = key if path else f"cat/{NAME.removesuffix('.parquet')}_00000000"
    assert image.key == expected
