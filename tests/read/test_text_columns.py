"""Columns of text: written as JSON lines, joined to their records, refused if damaged."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import DataDamagedError, IncompleteError, StoreError, UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset import column
from imagenet_prep.read import ColumnWriter, make_dataset, make_mix
from imagenet_prep.read.column_rows import ColumnRows
from imagenet_prep.read.reader import open_records
from imagenet_prep.storage import columns
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit.columns import NATIVE
from tests.kit.faults import flip_bit
from tests.kit.messages import says
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION, TRAIN, reader_of
from tests.kit.text_columns import CAPTIONS, begin, file_of, record_of, rows_of, texts_of, write

FIELD = f"column:{CAPTIONS}"
SHARD = "train-00001-of-00005"


@pytest.fixture(scope="session")
def captioned(colours: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`colours` with a column of texts for both splits; read-only."""
    root = Path(shutil.copytree(colours, tmp_path_factory.mktemp("captioned") / "set"))
    write(root)
    write(root, "validation")
    return root


@pytest.fixture
def copy(captioned: Path, tmp_path: Path) -> Path:
    """A copy of `captioned` that a test may change."""
    return Path(shutil.copytree(captioned, tmp_path / "set"))


def read(root: Path, split: str = "train", **more: Any) -> list[Any]:
    fields = ("number", FIELD)
    return list(reader_of(root, split, 8, "native", **{"fields": fields} | more))


def change(root: Path, shard: str, data: bytes) -> None:
    """Replaces the file of a shard, and its size and sha256 in column.json."""
    file_of(root, shard).write_bytes(data)
    made = record_of(root)
    sha256 = hashlib.sha256(data).hexdigest()
    files = [
        replace(rows, num_bytes=len(data), sha256=sha256) if rows.shard == shard else rows
        for rows in made.splits["train"]
    ]
    path = root / column.record_name(CAPTIONS)
    path.write_bytes(made.with_files("train", files).dumps())


@pytest.mark.parametrize("images", [False, True])
def test_texts_belong_to_their_records(captioned: Path, backend: Any, images: bool) -> None:
    fields = ("images", "number", FIELD) if images else ("number", FIELD)
    settings: dict[str, Any] = {"framework": "numpy", "dtype": "uint8", "seed": 3, "fields": fields}
    for split, count in (("train", NUM_TRAIN), ("validation", NUM_VALIDATION)):
        seen = []
        batch: Any
        for batch in make_dataset(
            captioned, split, 8, image_size=16, backend=backend, world=World(), **settings
        ):
            numbers = batch["number"].tolist()
            assert batch[FIELD] == [texts_of(n) if n >= 0 else [] for n in numbers]
            seen += [n for n in numbers if n >= 0]
        assert len(set(seen)) == len(seen) == count - count % 8 * (split == "train")


def test_every_line_is_json_of_one_record(captioned: Path) -> None:
    lines = file_of(captioned, SHARD).read_bytes().split(b"\n")
    first = TRAIN[0]
    expected = [{CAPTIONS: texts_of(n)} for n in range(first, first + TRAIN[1])]
    assert lines.pop() == b""
    assert [json.loads(line) for line in lines] == expected


def test_complete_column_has_only_its_files(captioned: Path) -> None:
    made = record_of(captioned)
    names = {path.name for path in (captioned / column.folder_name(CAPTIONS)).iterdir()}
    assert names == {"column.json", *(Path(file.name).name for file in made.files())}
    assert (made.dtype, made.shape, made.view) == ("str", (), "image")


def test_older_programs_refuse_texts(captioned: Path) -> None:
    path = captioned / column.record_name(CAPTIONS)
    assert json.loads(path.read_bytes())["column_version"] == 2
    with pytest.raises(ValueError, match="column_version 1, expected 2: upgrade imagenet-prep"):
        column.Column(CAPTIONS, "str", ())
    with pytest.raises(ValueError, match="column_version 2, expected 1: upgrade imagenet-prep"):
        column.Column(CAPTIONS, "int8", (), column_version=2)


def test_string_is_a_list_of_one(damaged: Path) -> None:
    with begin(damaged) as writer:
        for batch in writer:
            writer.write(["a dog"] * len(batch["number"]))
    assert {text for batch in read(damaged) for texts in batch[FIELD] for text in texts} == {
        "a dog"
    }


@pytest.mark.parametrize("num_empty", [0, 1, 8])
def test_images_without_a_text_are_counted(
    damaged: Path, caplog: pytest.LogCaptureFixture, num_empty: int
) -> None:
    """A script that looks up texts by file names finds some of them, or none."""
    rows = 0
    with begin(damaged) as writer:
        for batch in writer:
            texts: list[list[str]] = [["a dog"]] * len(batch["number"])
            for place in range(len(texts)):
                rows += 1
                if rows <= num_empty:
                    texts[place] = []
            writer.write(texts)
    key = "rows-no-text-script-looks"
    said = [re.search(says(key, ..., num_empty, ...), line) for line in caplog.messages]
    assert [*map(bool, said)] == [True] * bool(num_empty)


def test_array_of_strings_is_accepted(damaged: Path) -> None:
    with begin(damaged) as writer:
        for batch in writer:
            writer.write(np.array([["a", "b"]] * len(batch["number"])))
    assert read(damaged)[0][FIELD] == [["a", "b"]] * 8


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["a"] * 7, r"expected a list of 8 lists of strings, one per image, got 7"),
        (["a"] * 9, r"expected a list of 8 lists of strings, one per image, got 9"),
        ("a dog", "one per image, got str"),
        (None, "got NoneType"),
        ([None] * 8, says("row-example-contains-other-values", "0", "NoneType")),
        ([["a", None]] * 8, says("row-example-contains-other-values", "0", "NoneType")),
        ([[b"a"]] * 8, says("row-example-contains-other-values", "0", "bytes")),
        ([["\ud800"]] * 8, says("text-lone-surrogate-utf-8-cannot")),
        (["x" * (64 << 20)] + ["a"] * 7, says("write-texts-example-bytes-row")),
    ],
)
def test_rows_that_are_no_texts_are_refused(damaged: Path, rows: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said), begin(damaged) as writer:
        for _ in writer:
            writer.write(rows)
    assert not [*(damaged / column.folder_name(CAPTIONS)).glob("*.jsonl")]


def test_texts_have_no_shape(damaged: Path) -> None:
    with pytest.raises(UsageError, match=says("shape-expected-since-row-any")):
        ColumnWriter(damaged, "train", CAPTIONS, (5,), "str", batch_size=8, reader=NATIVE)


def test_text_of_a_megabyte_is_read_back(damaged: Path) -> None:
    long = "🐕" * (1 << 18)
    with begin(damaged) as writer:
        for batch in writer:
            writer.write([[long, "short"]] * len(batch["number"]))
    assert read(damaged)[0][FIELD][0] == [long, "short"]


def test_interrupted_writer_continues(captioned: Path, damaged: Path) -> None:
    with begin(damaged) as writer:
        for batch in writer:
            writer.write(rows_of(batch))
            if batch["number"][0] >= TRAIN[0]:
                break
    with pytest.raises(IncompleteError, match=says("column-not-complete-yet-rerun")):
        read(damaged)
    assert write(damaged) == NUM_TRAIN - sum(TRAIN[:2])
    assert write(damaged) == 0
    write(damaged, "validation")
    assert record_of(damaged) == record_of(captioned)


def test_ranks_write_the_same_files(captioned: Path, damaged: Path) -> None:
    computed = [write(damaged, world=World(rank, 3)) for rank in (2, 0, 1)]
    assert computed == [TRAIN[2], TRAIN[0] + TRAIN[3], TRAIN[1] + TRAIN[4]]
    write(damaged, "validation")
    assert record_of(damaged) == record_of(captioned)


def test_every_truncation_is_found(copy: Path) -> None:
    path = file_of(copy, SHARD)
    complete = path.read_bytes()
    survey = columns.Survey(open_dataset(str(copy)))
    (file,) = (file for file in survey.files if file[1].shard == SHARD)
    for size in [*range(0, len(complete), 97), len(complete) - 1]:
        path.write_bytes(complete[:size])
        assert survey.read(file), size
        with pytest.raises(DataDamagedError):
            read(copy)


def test_every_changed_byte_is_found(copy: Path) -> None:
    path = file_of(copy, SHARD)
    complete = path.read_bytes()
    survey = columns.Survey(open_dataset(str(copy)))
    (file,) = (file for file in survey.files if file[1].shard == SHARD)
    for place in range(0, len(complete), 61):
        changed = bytearray(complete)
        changed[place] ^= 1
        path.write_bytes(changed)
        assert "sha256" in str(survey.read(file))
    with pytest.raises(DataDamagedError, match=says("sha256-column.json-says", "jsonl")):
        read(copy)


@pytest.mark.parametrize(
    "line",
    [
        b'{"captions":["a"]}',
        b'["a"]',
        b'{"others":["a"]}',
        b'{"captions":"a"}',
        b'{"captions":[1]}',
        b'{"captions":[["a"]]}',
        b'{"captions":[' + b"[" * 100_000,
        b'{"captions":["a",]}',
        b'{"captions":["a"], "more":[]}',
        b'{"captions": ["a"]}',
        b'{"captions":["\\u0061"]}',
        b'{"captions":["\\ud800"]}',
        b'{"captions":["\xff"]}',
        b'{"captions":["\0"]}',
        b"",
    ],
)
def test_hostile_line_with_right_sha256_is_refused(copy: Path, line: bytes) -> None:
    lines = file_of(copy, SHARD).read_bytes().split(b"\n")
    lines[3] = line
    if line == b'{"captions":["a"]}':  # one line more than records
        lines.insert(3, line)
    change(copy, SHARD, b"\n".join(lines))
    survey = columns.Survey(open_dataset(str(copy)))
    problems = [*filter(None, map(survey.read, survey.files))]
    assert len(problems) == 1
    with pytest.raises(DataDamagedError, match="jsonl"):
        read(copy)


def test_file_without_a_last_line_end_is_refused(copy: Path) -> None:
    change(copy, SHARD, file_of(copy, SHARD).read_bytes()[:-1])
    with pytest.raises(DataDamagedError, match=says("complete-lines-expected", "8", "9")):
        read(copy)


def test_truncation_after_opening_is_found(copy: Path) -> None:
    rows = ColumnRows(open_records(open_dataset(str(copy)), "train"), CAPTIONS)
    assert rows.rows([0], 2) == [texts_of(0), []]
    file_of(copy, "train-00000-of-00005").write_bytes(b"")
    with pytest.raises(DataDamagedError, match=says("ends-before-row-truncated-after")):
        rows.rows([5], 1)


def test_condition_on_texts_is_refused(captioned: Path) -> None:
    with pytest.raises(UsageError, match=says("where-name-column-shape-expected")):
        reader_of(captioned, "train", 8, "native", where="captions == 'a'")


def test_source_gives_texts_of_an_example(captioned: Path) -> None:
    source = reader_of(captioned, "train", 8, "native").source(fields=("number", FIELD))
    assert source[5] == {"number": 5, FIELD: texts_of(5)}


@pytest.mark.parametrize("framework", ["dlpack", "torch", "jax"])
def test_frameworks_get_lists_of_texts(captioned: Path, framework: str) -> None:
    pytest.importorskip(framework if framework != "dlpack" else "numpy", reason="not installed")
    for batch in read(captioned, "validation", framework=framework, training=False):
        for number, texts in zip(np.asarray(batch["number"]).tolist(), batch[FIELD], strict=True):
            assert texts == (texts_of(number) if number >= 0 else [])


def test_mix_has_texts_of_all_parts(captioned: Path, copy: Path) -> None:
    parts = {
        name: reader_of(root, "train", 8, "native", fields=("number", FIELD))
        for name, root in (("first", captioned), ("second", copy))
    }
    for batch in make_mix(parts):
        expected = [*map(texts_of, batch["number"].tolist())]
        assert batch[FIELD] == expected  # type: ignore[typeddict-item]


def test_mix_of_texts_and_arrays_is_refused(captioned: Path, damaged: Path) -> None:
    with ColumnWriter(damaged, "train", CAPTIONS, (), "int8", batch_size=8, reader=NATIVE) as made:
        for _ in made:
            made.write(np.zeros(8, np.int8))
    parts = {
        name: reader_of(root, "train", 8, "native", fields=("number", FIELD))
        for name, root in (("texts", captioned), ("arrays", damaged))
    }
    with pytest.raises(UsageError, match="has columns="):
        make_mix(parts)


def test_skipped_record_has_no_texts(copy: Path) -> None:
    flip_bit(copy / SHARD, 100)
    found = {}
    more = {"on_bad_record": "skip", "fields": ("images", "mask", FIELD)}
    for batch in read(copy, training=False, **more):
        found |= enumerate(batch[FIELD], len(found))
    expected = {number: texts_of(number) for number in range(NUM_TRAIN)} | {TRAIN[0]: []}
    assert {number: found[number] for number in expected} == expected


@pytest.mark.tf
def test_tensorflow_gets_ragged_tensors(captioned: Path, tf: Any) -> None:
    for batch in read(captioned, framework="tensorflow"):
        texts = batch[FIELD]
        assert isinstance(texts, tf.RaggedTensor)
        expected = [[text.encode() for text in texts_of(n)] for n in batch["number"].numpy()]
        assert texts.to_list() == expected


def test_text_file_of_a_removed_column_is_named(copy: Path) -> None:
    reader = reader_of(copy, "train", 8, "native", fields=("number", FIELD))
    shutil.rmtree(copy / column.folder_name(CAPTIONS))
    with pytest.raises(StoreError, match="jsonl: No such file"):
        list(reader)
