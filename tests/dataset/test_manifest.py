"""The manifest: canonical bytes, and refusal of files if a value is invalid."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import ManifestError
from imagenet_prep.dataset import manifest, schema
from imagenet_prep.dataset.manifest import (
    Classes,
    DatasetFile,
    Manifest,
    ManifestSource,
    Producer,
    Shard,
    Split,
)
from tests.kit.bounds import peak_bytes
from tests.kit.manifests import SMALL
from tests.kit.messages import says


def signed(content: dict[str, Any]) -> bytes:
    """Returns `content` as a file with the right digest."""
    content.pop("digest", None)
    whole = {**content, "digest": strict_json.digest(content)}
    return json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def edited(**changes: Any) -> bytes:
    return signed(json.loads(SMALL.dumps()) | changes)


def test_loading_inverts_dumping() -> None:
    assert manifest.loads(SMALL.dumps(), "here") == SMALL


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
counts = st.integers(0, 2**50)
digests = st.text("0123456789abcdef", min_size=1, max_size=64)


@st.composite
def shards(draw: st.DrawFn, name: str, has_samples: bool) -> Shard:
    """A shard of any content, with a possible number of examples for its bytes."""
    examples = draw(st.integers(0, 2**20))
    num_bytes = 64 * examples + draw(st.integers(0, 2**40))
    table = (draw(counts), draw(digests)) if has_samples else ()
    return Shard(name, examples, num_bytes, draw(names), draw(counts), draw(names), *table)


@st.composite
def splits(draw: st.DrawFn) -> dict[str, Split]:
    """Splits of any content, with valid names."""
    made = {}
    for split in draw(st.sets(st.sampled_from(schema.SPLITS), min_size=1)):
        total = draw(st.integers(1, 3))
        has_samples = draw(st.booleans())
        shard_names = [schema.shard_name(split, number, total) for number in range(total)]
        made_of = [draw(shards(name, has_samples)) for name in shard_names]
        per_class = draw(st.lists(counts, max_size=3))
        made[split] = Split(*(draw(counts) for _ in range(2)), per_class, 0, 1, 1, made_of)
        if has_samples:
            made[split] = dataclasses.replace(made[split], samples_root=draw(digests))
    return made


manifests = st.builds(
    Manifest,
    schema_version=st.just(1),
    producer=st.builds(Producer, names, names, st.dictionaries(names, names, max_size=3)),
    config=st.dictionaries(
        names,
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | names | st.lists(names),
        max_size=4,
    ),
    config_digest=names,
    plan_digest=names,
    label_offset=st.integers(0, 1),
    subset=st.booleans(),
    classes=st.builds(Classes, counts, names, st.booleans()),
    sources=st.lists(
        st.builds(ManifestSource, names, counts, st.none() | names, counts), max_size=2
    ),
    splits=splits(),
    quarantined=st.dictionaries(names, counts, max_size=2),
    repaired=st.dictionaries(names, counts, max_size=2),
    files=st.builds(DatasetFile, st.just(schema.LABELS), counts, names).map(lambda file: [file]),
)


@given(manifests)
def test_any_manifest_survives_writing_and_reading(content: Manifest) -> None:
    assert manifest.loads(content.dumps(), "here") == content


def test_manifest_without_tables_does_not_mention_them() -> None:
    assert b"samples" not in SMALL.dumps()
    assert not SMALL.has_samples


@pytest.mark.parametrize(
    ("shard", "root"),
    [({}, {"samples_root": "r"}), ({"samples_sha256": "t", "samples_bytes": 1}, {})],
)
def test_tables_and_roots_are_present_together(shard: dict[str, Any], root: dict[str, Any]) -> None:
    content = json.loads(SMALL.dumps())
    content["splits"]["train"]["shards"][0] |= shard
    content["splits"]["train"] |= root
    with pytest.raises(ManifestError, match=says("only-some-shards-tables-samples")):
        manifest.loads(signed(content), "here")


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (("added-1/photos", {".cr2": 2, ".txt": 2}), {".cr2": 2, ".txt": 2}),
        (("added-1/new", {".cr2": 2, ".txt": 2}), {".cr2": 4, ".txt": 3}),
        (("added-1/photos", {".txt": 1}), {".cr2": 2, ".txt": 2}),
    ],
    ids=["grown folder", "other folder", "folder of the same name"],
)
def test_ignored_files_of_grown_folder_count_once(
    second: tuple[str, dict[str, int]], expected: dict[str, int]
) -> None:
    folders = [("photos", {".cr2": 2, ".txt": 1}), second]
    sources = [ManifestSource(name, 1, None, 1, ignored) for name, ignored in folders]
    assert dataclasses.replace(SMALL, sources=sources).ignored == expected


def test_equal_content_gives_equal_bytes_and_digest() -> None:
    again = dataclasses.replace(SMALL, config=dict(reversed(SMALL.config.items())))

    assert again.dumps() == SMALL.dumps()
    assert json.loads(SMALL.dumps())["digest"] == SMALL.digest


def test_every_flipped_bit_is_refused() -> None:
    sound = SMALL.dumps()

    for bit in range(8 * len(sound)):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ManifestError, match="^here: "):
            manifest.loads(bytes(damaged), "here")


def test_every_truncation_is_refused() -> None:
    sound = SMALL.dumps()

    for length in range(len(sound)):
        with pytest.raises(ManifestError, match="^here: "):
            manifest.loads(sound[:length], "here")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 600,
        b"null\n",
        b"[]\n",
        b"{}\n",
        b'{"digest": "x"}\n',
        b'{"schema_version": 1}\n',
        b'{"schema_version": 1, "seed": NaN}\n',
        b'{"schema_version": 1, "seed": 1e999}\n',
        b'{"schema_version": 1, "title": "\\ud800"}\n',
        b'{"schema_version": 1, "digest": {}}\n',
        b"[" * 100_000,
        b"\xff\xfe{\x00}\x00",
        SMALL.dumps() + b"\n",
        SMALL.dumps().replace(b"\n", b"\r\n"),
        json.dumps(json.loads(SMALL.dumps())).encode(),
    ],
    ids=[
        "empty",
        "zeros",
        "null",
        "list",
        "no-version",
        "digest-only",
        "version-only",
        "not-a-number",
        "infinite",
        "half-a-surrogate",
        "digest-no-text",
        "deep",
        "utf-16",
        "one-byte-more",
        "line-ends",
        "spacing",
    ],
)
def test_foreign_and_reformatted_files_are_refused(data: bytes) -> None:
    with pytest.raises(ManifestError, match="^here: "):
        manifest.loads(data, "here")


@given(st.binary(max_size=100))
def test_garbage_is_always_refused(data: bytes) -> None:
    with pytest.raises(ManifestError, match="^here: "):
        manifest.loads(data, "here")


@pytest.mark.parametrize("version", [0, 2, 999, "1", None], ids=repr)
def test_unknown_schema_version_recommends_an_upgrade(version: object) -> None:
    with pytest.raises(
        ManifestError, match=says("schema-version-expected-dataset-newer", ..., f"{version!r}", "1")
    ):
        manifest.loads(edited(schema_version=version), "here")


def test_edited_value_is_refused_with_advice() -> None:
    data = SMALL.dumps().replace(b'"label_offset": 1', b'"label_offset": 0')

    with pytest.raises(
        ManifestError, match=says("damaged-edited-digest-expected", ..., ..., ..., "Copy it again")
    ):
        manifest.loads(data, "here")


def test_unknown_field_is_named() -> None:
    with pytest.raises(ManifestError, match=r"here: 1 unknown field\. Upgrade"):
        manifest.loads(edited(colour=1), "here")


def test_nested_unknown_field_is_named_with_its_place() -> None:
    content = json.loads(SMALL.dumps())
    content["splits"]["train"]["shards"][0]["colour"] = 1

    with pytest.raises(ManifestError, match=r"here: splits: entry 1: shards\[0\]: 1 unknown field"):
        manifest.loads(signed(content), "here")


def test_missing_keys_of_records_are_stored_if_any() -> None:
    lacking = dataclasses.replace(SMALL, lacks={"image/class/text": "absent"})

    assert manifest.loads(lacking.dumps(), "here") == lacking
    assert lacking.digest != SMALL.digest
    assert b"lacks" not in SMALL.dumps()
    assert manifest.loads(SMALL.dumps(), "here").lacks == {}


def test_edition_is_stored_only_if_there_is_one() -> None:
    named = dataclasses.replace(SMALL, edition="ImageNet-21K winter21")

    assert manifest.loads(named.dumps(), "here") == named
    assert b"edition" not in SMALL.dumps()
    with pytest.raises(ManifestError, match=says("edition-unprintable-characters", "'\\x1b'")):
        manifest.loads(dataclasses.replace(SMALL, edition="\x1b").dumps(), "here")


@pytest.mark.parametrize(
    "field",
    [f.name for f in dataclasses.fields(Manifest) if f.name not in ("lacks", "edition", "answers")][
        1:
    ],
)
def test_missing_field_is_named(field: str) -> None:
    content = json.loads(SMALL.dumps())
    del content[field]

    with pytest.raises(ManifestError, match=f"here: missing fields {field}$"):
        manifest.loads(signed(content), "here")


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"label_offset": "1"}, "label_offset"),
        ({"label_offset": True}, "label_offset"),
        ({"label_offset": 1.0}, "label_offset"),
        ({"subset": 1}, "subset"),
        ({"classes": []}, "classes"),
        ({"sources": {}}, "sources"),
        ({"sources": [1]}, r"sources\[0\]"),
        ({"quarantined": {"truncated": "1"}}, "quarantined: entry 1"),
        ({"files": None}, "files"),
    ],
    ids=str,
)
def test_value_of_a_wrong_type_is_named(changes: dict[str, Any], place: str) -> None:
    with pytest.raises(ManifestError, match=f"^here: {place}: expected"):
        manifest.loads(edited(**changes), "here")


def shard(name: str) -> dict[str, Any]:
    return dataclasses.asdict(Shard(name, 1, 2, "s", 3, "i"))


def with_splits(**shards: list[str]) -> bytes:
    """Returns a manifest with shards of these names, by split."""
    split = json.loads(SMALL.dumps())["splits"]["train"]
    return edited(
        splits={s: {**split, "shards": [shard(n) for n in names]} for s, names in shards.items()}
    )


OUTSIDE = ("../x", "/etc/x", "../../.bashrc", "a/b", "a\\b", "\x1b[2J", "", ".", "..", "\u202e")


@pytest.mark.parametrize("name", ["../s", "Train", "trains", "test\n", *OUTSIDE], ids=ascii)
def test_invalid_split_name_is_refused(name: str) -> None:
    with pytest.raises(
        ManifestError, match=says("split-unknown-expected-one", ..., "train, valid", on="here: ")
    ):
        manifest.loads(with_splits(**{name: ["train-00000-of-00001"]}), "here")


@pytest.mark.parametrize(
    "names",
    [
        *([name] for name in OUTSIDE),
        ["train-00000-of-00001\n"],
        ["train-0000\u0660-of-00001"],
        ["validation-00000-of-00001"],
        ["index/train-00000-of-00001"],
        ["train-00000-of-00002"],
        ["train-00001-of-00001"],
        ["train-00000-of-00002", "train-00000-of-00002"],
        ["train-00001-of-00002", "train-00000-of-00002"],
        ["train-00000-of-00001", "train-00001-of-00002"],
    ],
    ids=ascii,
)
def test_wrong_order_or_names_of_shards_are_refused(names: list[str]) -> None:
    with pytest.raises(
        ManifestError,
        match=says(
            "split-shard-expected",
            "train",
            ...,
            re.compile("train-0000[01]-of-0000[12]"),
            on="here: ",
        ),
    ):
        manifest.loads(with_splits(train=names), "here")


def test_split_without_shards_is_refused() -> None:
    with pytest.raises(
        ManifestError, match=says("shards-expected-1", "here: 0", "train", "99,999")
    ):
        manifest.loads(with_splits(train=[]), "here")


@pytest.mark.parametrize(
    "name",
    [
        *OUTSIDE,
        "dataset.json",
        "placement.json",
        "report.html",
        "index",
        ".work",
        ".bashrc",
        "index/x",
        "train-00000-of-00001",
        "validation.txt",
        "x" * 256,
    ],
    ids=lambda name: ascii(name)[:20],
)
def test_invalid_names_of_small_files_are_refused(name: str) -> None:
    files = [dataclasses.asdict(DatasetFile(each, 20, "f0")) for each in ("labels.txt", name)]

    with pytest.raises(ManifestError, match=says("not-valid-name-small-file", "here:")):
        manifest.loads(edited(files=files), "here")


def test_duplicate_file_or_missing_class_list_is_refused() -> None:
    labels, other = (
        dataclasses.asdict(DatasetFile(n, 20, "f0")) for n in ("labels.txt", "notes.txt")
    )

    with pytest.raises(ManifestError, match=says("file-listed-twice", "'labels.txt'", on="here: ")):
        manifest.loads(edited(files=[labels, labels]), "here")
    with pytest.raises(ManifestError, match=r"here: it does not list labels\.txt"):
        manifest.loads(edited(files=[other]), "here")


def test_deeply_nested_settings_are_refused() -> None:
    config: Any = 1
    for _ in range(40):
        config = {"a": [config]}
    with pytest.raises(
        ManifestError, match=says("most-levels-nesting", 20, on="config: entry 1: ")
    ):
        manifest.loads(edited(config=config), "dataset.json")


@pytest.mark.parametrize(
    ("examples", "num_bytes"),
    [(7, 7 * 64 - 1), (2**60, 2**62), (10**10, 2**40 // 8), (10**8, 16 * 10**8)],
)
def test_impossible_number_of_examples_is_refused(examples: int, num_bytes: int) -> None:
    content = json.loads(SMALL.dumps())
    content["splits"]["train"]["shards"][0].update(examples=examples, num_bytes=num_bytes)
    with pytest.raises(ManifestError, match=says("examples-bytes", "train-")):
        manifest.loads(signed(content), "dataset.json")


def test_more_examples_than_the_memory_limit_are_refused() -> None:
    """Over http, memory for all of them was allocated before any shard was read."""
    content = json.loads(SMALL.dumps())
    content["splits"]["train"]["shards"][0].update(examples=10**9, num_bytes=10**12)
    with pytest.raises(
        ManifestError, match=says("examples-expected-most", ..., "train", "134,217,728")
    ):
        manifest.loads(signed(content), "dataset.json")


def places(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """Yields the paths of integers in a value of JSON."""
    if type(value) is int:
        yield path
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, *path, key)


@pytest.mark.parametrize("number", [-1, 2**63, 10**400], ids=["negative", "2**63", "10**400"])
def test_negative_or_overflowing_numbers_are_refused(number: int) -> None:
    """Readers of these numbers count in 64 bits, and format them for people."""
    content = json.loads(SMALL.dumps())
    found = [path for path in places(content) if path[0] not in ("config", "schema_version")]
    assert len(found) > 15
    for path in found:
        edited = copy.deepcopy(content)
        there = edited
        for part in path[:-1]:
            there = there[part]
        there[path[-1]] = number
        with pytest.raises(
            ManifestError,
            match=r"number is below 0|counts add up|64 bits",
        ):
            manifest.loads(signed(edited), "dataset.json")


def test_overflowing_sums_are_refused() -> None:
    """A reader adds up the examples of all shards, and a report the bytes of all splits."""
    content = json.loads(SMALL.dumps())
    shard = content["splits"]["train"]["shards"][0] | {"examples": 2**58, "num_bytes": 2**62}
    names = [schema.shard_name("train", number, 64) for number in range(64)]
    content["splits"]["train"]["shards"] = [shard | {"name": name} for name in names]
    with pytest.raises(ManifestError, match=says("counts-add-up-more", "9,223,372,036,854")):
        manifest.loads(signed(content), "dataset.json")


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, -(10**400)], ids=["+", "-", "--"])
def test_setting_beyond_64_bits_is_refused(number: int) -> None:
    with pytest.raises(ManifestError, match=says("setting-beyond", "9,223,372,036,854,775,807")):
        manifest.loads(edited(config={"resize": {"train": [number]}}), "dataset.json")


def test_dataset_without_a_split_is_refused() -> None:
    with pytest.raises(ManifestError, match=says("no-splits")):
        manifest.loads(edited(splits={}), "dataset.json")


@pytest.mark.parametrize("value", [b"[]", b'"a"'], ids=["lists", "texts"])
def test_json_with_excessive_values_is_refused_before_parsing(value: bytes) -> None:
    """32 MB of empty lists took 900 MB, and 4 million values took 13 seconds to write."""
    data = b"[" + (value + b",") * 3_300_000 + value + b"]"

    def refuse() -> None:
        with pytest.raises(ManifestError, match=says("more-values-lists", "3,200,000")):
            manifest.loads(data, "dataset.json")

    assert peak_bytes(refuse) < 2 * len(data)
