"""Checks of a shard: damage is named, and a record is identified if possible."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import example, record_files, schema
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.dataset.samples import HEADER, Sample
from imagenet_prep.dataset.schema import LEVELS
from imagenet_prep.shards import check
from imagenet_prep.shards.check import Expectation, Report
from imagenet_prep.storage.folder import LocalStore
from tests.kit.bounds import peak_bytes
from tests.kit.messages import says, wording
from tests.kit.system import System
from tests.kit.tfrecords import framed, plain

WNIDS = ("n01440764", "n01443537", "n01484850")
FIRST = "train-00000-of-00002"
SECOND = "train-00001-of-00002"
PROVING = ("crc", "decode")


def image(place: int, **changes: object) -> example.ImageExample:
    class_index = place % len(WNIDS)
    return example.ImageExample(
        encoded=b"\xff\xd8" + random.Random(place).randbytes(200),
        height=3,
        width=4,
        filename=f"{WNIDS[class_index]}_{place}.JPEG",
        stored_label=class_index + 1,
        wnid=WNIDS[class_index],
        text="a fish",
    )._replace(**changes)


class Dataset:
    """Two shards of five records of equal size, with their entries in the manifest."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "index").mkdir()
        self.shards = {
            name: self.write(name, [example.encode(image(5 * shard + i)) for i in range(5)])
            for shard, name in enumerate((FIRST, SECOND))
        }

    def write(self, name: str, payloads: list[bytes]) -> Shard:
        frames = [framed(payload) for payload in payloads]
        offsets = [sum(map(len, frames[:i])) for i in range(len(frames))]
        index = "".join(map(record_files.index_line, offsets, map(len, frames))).encode()
        data = b"".join(frames)
        (self.root / name).write_bytes(data)
        (self.root / "index" / name).write_bytes(index)
        return Shard(
            name,
            len(frames),
            len(data),
            hashlib.sha256(data).hexdigest(),
            len(index),
            hashlib.sha256(index).hexdigest(),
        )

    def check(
        self,
        name: str = FIRST,
        level: str = "crc",
        prove: Callable[..., bool] = lambda *_: False,
        **more: Any,
    ) -> Report:
        shard = self.shards[name]
        if level == "manifest":
            sizes = LocalStore(self.root).sizes(file.name for file in shard.files)
            return Report(name, shard.examples, check.size_problems(shard, sizes))
        return check.check_shard(
            shard,
            Expectation(
                store=LocalStore(self.root),
                level=level,
                wnids=WNIDS,
                label_offset=1,
                name_of_sha256={shard.sha256: shard.name for shard in self.shards.values()},
                most_bytes=max(shard.num_bytes for shard in self.shards.values()),
                prove_image=prove,
                **more,
            ),
        )

    def change(self, name: str, edit: Callable[[bytearray], object]) -> None:
        data = bytearray((self.root / name).read_bytes())
        edit(data)
        (self.root / name).write_bytes(data)

    def record(self, number: int) -> int:
        """Returns the byte offset of a record of the first shard."""
        return int((self.root / "index" / FIRST).read_text().splitlines()[number].split()[0])


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset(tmp_path)


def flip(place: int, bit: int = 0) -> Callable[[bytearray], None]:
    def edit(data: bytearray) -> None:
        data[place] ^= 1 << bit

    return edit


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_sound_shard_has_no_problem(dataset: Dataset, name: str, level: str) -> None:
    assert dataset.check(name, level).problems == []


def test_classes_are_counted_only_if_images_are_decoded(dataset: Dataset) -> None:
    assert dataset.check(level="decode").examples_per_class == {0: 2, 1: 2, 2: 1}
    assert dataset.check(level="crc").examples_per_class == {}


def test_every_stored_image_is_verified(dataset: Dataset) -> None:
    seen = []
    dataset.check(level="decode", prove=lambda *args: seen.append(args) is not None)

    assert seen == [(image(i).encoded, 3, 4) for i in range(5)]


@pytest.mark.parametrize("level", PROVING)
@pytest.mark.parametrize(("record", "place", "crc"), [(3, 112, "data CRC"), (2, 1, "length CRC")])
def test_first_flipped_bit_names_its_record(
    dataset: Dataset, level: str, record: int, place: int, crc: str
) -> None:
    start = dataset.record(record)
    dataset.change(FIRST, flip(start + place))
    dataset.change(FIRST, flip(dataset.record(4) + 12 + 100))

    (problem,) = dataset.check(level=level).problems
    assert says("record-byte-3", FIRST, str(record), f"{start:,}", crc).match(problem)


def test_flipped_bit_anywhere_is_found(dataset: Dataset) -> None:
    size = dataset.shards[FIRST].num_bytes

    for place in range(0, size, 7):
        dataset.change(FIRST, flip(place, place % 8))
        assert len(dataset.check().problems) == 1, place
        dataset.change(FIRST, flip(place, place % 8))
    assert dataset.check().problems == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("target", [FIRST, f"index/{FIRST}"], ids=["shard", "index"])
def test_missing_file_is_named(dataset: Dataset, target: str, level: str) -> None:
    (dataset.root / target).unlink()
    assert dataset.check(level=level).problems == [f"{target}: missing"]

    (dataset.root / target).mkdir()
    assert dataset.check(level=level).problems == [f"{target}: missing"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("end", "said"),
    [
        (-1, says("file-ends-inside-record-bytes", f"{FIRST}: record 4 at byte 2,644")),
        (-661, ""),  # a boundary of records
        (4, says("file-ends-inside-header", f"{FIRST}: record 5 at byte 3,305")),
        (661, ""),
    ],
)
def test_wrong_size_of_a_shard_is_found(dataset: Dataset, level: str, end: int, said: str) -> None:
    size = dataset.shards[FIRST].num_bytes
    data = (dataset.root / FIRST).read_bytes()
    (dataset.root / FIRST).write_bytes((data + framed(b"x" * 645))[: size + end])

    problems = dataset.check(level=level).problems
    assert problems[0] == f"{FIRST}: {size + end:,} bytes, expected {size:,}"
    if level != "manifest":
        assert re.match(said, problems[1])


@pytest.mark.parametrize("level", PROVING)
@pytest.mark.parametrize(
    ("examples", "complaint"), [(4, "more than 4 records"), (6, "5 records, expected 6")]
)
def test_wrong_number_of_examples_is_found(
    dataset: Dataset, level: str, examples: int, complaint: str
) -> None:
    """Its sha256 is right, and no table gives their number."""
    dataset.shards[FIRST] = dataclasses.replace(dataset.shards[FIRST], examples=examples)

    assert dataset.check(level=level).problems == [f"{FIRST}: {complaint}"]


@pytest.mark.parametrize("level", PROVING)
def test_swapped_shard_is_distinguished_from_a_damaged_one(dataset: Dataset, level: str) -> None:
    shutil.copy(dataset.root / SECOND, dataset.root / FIRST)
    shutil.copy(dataset.root / "index" / SECOND, dataset.root / "index" / FIRST)

    problems = dataset.check(level=level).problems
    assert wording("contains-bytes", FIRST, SECOND) in problems


@pytest.mark.parametrize("level", PROVING)
def test_foreign_shard_is_distinguished_from_a_damaged_one(dataset: Dataset, level: str) -> None:
    written = dataset.shards[FIRST]
    payloads = [example.encode(image(i, text="a bird")) for i in range(5)]
    dataset.write(FIRST, payloads)  # the same sizes
    dataset.shards[FIRST] = written

    (problem,) = dataset.check(level=level).problems
    assert says("sha256-expected-although-crc-every").search(problem)


@pytest.mark.parametrize("level", PROVING)
def test_edited_index_names_the_record(dataset: Dataset, level: str) -> None:
    name = f"index/{FIRST}"
    lines = (dataset.root / name).read_text().splitlines()
    offset, size = map(int, lines[2].split())
    edited = f"{offset + 1} {size}"
    (dataset.root / name).write_text("\n".join([*lines[:2], edited, *lines[3:], ""]))

    differs = wording("record-shard", 2, f"line {edited!r}", repr(lines[2]))
    assert dataset.check(level=level).problems == [f"{name}: {differs}"]


@pytest.mark.parametrize("level", PROVING)
def test_target_of_a_linked_index_is_not_shown(dataset: Dataset, level: str) -> None:
    place = dataset.root / f"index/{FIRST}"
    (dataset.root.parent / "key").write_text("secret-1 secret-2\n")
    place.unlink()
    place.symlink_to(dataset.root.parent / "key")

    problems = "\n".join(dataset.check(level=level).problems)
    assert "secret" not in problems
    assert f"index/{FIRST}: " in problems


@pytest.mark.parametrize(
    "edit",
    [lambda lines: lines[:-1], lambda lines: [*lines, "1 2\n"], lambda _: [b"\xff\xfe"]],
    ids=["line-less", "line-more", "bytes"],
)
def test_index_of_a_different_length_is_found(
    dataset: Dataset, edit: Callable[[list[bytes]], list[bytes]]
) -> None:
    path = dataset.root / "index" / FIRST
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        b"".join(line if isinstance(line, bytes) else line.encode() for line in edit(lines))
    )

    problems = dataset.check().problems
    assert problems[0].startswith(f"index/{FIRST}: ")
    assert says("bytes-expected").search(problems[0])


def test_damaged_shard_does_not_hide_a_damaged_index(dataset: Dataset) -> None:
    dataset.change(FIRST, flip(dataset.record(4) + 60))
    dataset.change(f"index/{FIRST}", flip(0))

    problems = dataset.check().problems
    assert [problem.partition(":")[0] for problem in problems] == [FIRST, f"index/{FIRST}"]


UNTYPED = example.encode(image(0)).replace(b"image/height", b"image/HEIGHT")


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (example.encode(image(1, stored_label=0)), says("label-expected", "0", "1", "3")),
        (example.encode(image(1, stored_label=4)), says("label-expected", "4", "1", "3")),
        (
            example.encode(image(1, stored_label=3)),
            says("label-record-s-synset", "3", "n01484850", "n01443537"),
        ),
        (
            example.encode(image(1, wnid="n99999999")),
            says("label-record-s-synset", ..., ..., "n99999999"),
        ),
        (UNTYPED, "keys missing: image/height"),
        (b"not an example", says("not-tf.train.example")),
        (b"", "keys missing: "),
    ],
    ids=["label-0", "label-4", "label-of-another", "unknown-wnid", "key", "garbage", "empty"],
)
def test_wrong_example_in_a_sound_record_is_named(
    dataset: Dataset, payload: bytes, complaint: str
) -> None:
    payloads = [example.encode(image(i)) for i in range(5)]
    payloads[1] = payload
    dataset.shards[FIRST] = dataset.write(FIRST, payloads)

    assert dataset.check(level="crc").problems == []
    (problem,) = dataset.check(level="decode").problems
    assert says("record-byte-3", FIRST, "1", f"{dataset.record(1):,}").match(problem)
    assert re.search(complaint, problem)


@pytest.mark.parametrize("filename", ["../x.JPEG", "a/./b", "x\n.JPEG", "x" * 5000])
def test_invalid_file_name_is_named_without_a_table(dataset: Dataset, filename: str) -> None:
    payloads = [example.encode(image(i)) for i in range(5)]
    payloads[1] = example.encode(image(1, filename=filename))
    dataset.shards[FIRST] = dataset.write(FIRST, payloads)

    (problem,) = dataset.check(level="decode").problems
    assert says("record-byte-3", FIRST, "1", f"{dataset.record(1):,}", "its name").match(problem)


def with_table(dataset: Dataset, *rows: Sample) -> None:
    """Gives the first shard a table of these samples, which the manifest names."""
    table = b"".join([HEADER, *(row.line for row in rows)])
    (dataset.root / "samples").mkdir(exist_ok=True)
    (dataset.root / schema.samples_name(FIRST)).write_bytes(table)
    dataset.shards[FIRST] = dataclasses.replace(
        dataset.shards[FIRST],
        samples_bytes=len(table),
        samples_sha256=hashlib.sha256(table).hexdigest(),
    )


def sample(place: int) -> Sample:
    found = image(place)
    stored = len(found.encoded), 4, 3, hashlib.sha256(found.encoded).hexdigest()
    key = f"{found.wnid}/{found.filename}"
    return Sample(key, found.stored_label - 1, *stored, "kept", "", *stored)


SAMPLES = [sample(place) for place in range(5)]


@pytest.mark.parametrize("level", LEVELS)
def test_table_of_all_records_is_sound(dataset: Dataset, level: str) -> None:
    with_table(dataset, *SAMPLES)
    assert dataset.check(level=level).problems == []


@pytest.mark.parametrize(
    "change",
    [
        {"key": "n01440764/other.JPEG"},
        {"class_index": 0},
        {"num_bytes": 1, "source_bytes": 1},
        {"width": 1, "source_width": 1},
        {"height": 1, "source_height": 1},
        {"sha256": "0" * 64, "source_sha256": "0" * 64},
    ],
    ids=lambda change: next(iter(change)),
)
def test_line_that_contradicts_its_record_is_named(
    dataset: Dataset, change: dict[str, object]
) -> None:
    with_table(dataset, *SAMPLES[:2], SAMPLES[2]._replace(**change), *SAMPLES[3:])
    assert dataset.check(level="crc").problems == []
    assert dataset.check(level="decode").problems == [
        f"samples/{FIRST}.csv: record 2: the image, key or label differs from this table"
    ]


@pytest.mark.parametrize(
    ("rows", "record"), [(SAMPLES[:4], 4), ([SAMPLES[1], SAMPLES[0], *SAMPLES[2:]], 0)]
)
def test_missing_or_swapped_lines_are_named(
    dataset: Dataset, rows: list[Sample], record: int
) -> None:
    with_table(dataset, *rows)
    (problem,) = dataset.check(level="decode").problems
    assert problem.startswith(f"samples/{FIRST}.csv: record {record}: ")


def test_damaged_record_hides_no_other_line(dataset: Dataset) -> None:
    payloads = [example.encode(image(i)) for i in range(5)]
    payloads[1] = b"not an example"
    dataset.shards[FIRST] = dataset.write(FIRST, payloads)
    with_table(dataset, *SAMPLES[:4], SAMPLES[4]._replace(class_index=0))
    first, second = dataset.check(level="decode").problems
    assert first.startswith(f"{FIRST}: record 1 ")
    assert second.startswith(f"samples/{FIRST}.csv: record 4: ")


@pytest.mark.parametrize(
    ("filename", "key", "is_sound"),
    [
        ("n01440764/n01440764_0.JPEG", "n01440764/n01440764_0.JPEG", True),
        ("/data/train/n01440764/a.JPEG", "n01440764/a.JPEG", True),
        ("/data/train/n01440764/a.JPEG", "n01440764/b.JPEG", False),
        ("/data/train/n01440764/a.JPEG", "n01440764/n01440764", False),
        ("n01440764_0.JPEG", "n01443537/n01440764_0.JPEG", True),  # of its former class
        (
            "n01440764_0.JPEG",
            "n01440764/n01440764_0~2.JPEG",
            True,
        ),  # a different image has its name
        ("n01440764_0.JPEG", "n01440764/n01440764_1.JPEG", False),
    ],
)
def test_key_may_differ_from_the_file_name(
    dataset: Dataset, filename: str, key: str, is_sound: bool
) -> None:
    payloads = [example.encode(image(i)) for i in range(5)]
    payloads[0] = example.encode(image(0, filename=filename))
    dataset.shards[FIRST] = dataset.write(FIRST, payloads)
    with_table(dataset, SAMPLES[0]._replace(key=key), *SAMPLES[1:])

    assert (dataset.check(level="decode").problems == []) is is_sound


@pytest.mark.parametrize("side", ["height", "width"])
def test_absent_size_is_that_of_the_image(dataset: Dataset, side: str) -> None:
    encoded = plain(1)
    sizes = {"height": 32, "width": 28}
    payload = example.encode(image(0, encoded=encoded, **{**sizes, side: 0}))
    dataset.shards[FIRST] = dataset.write(FIRST, [payload])
    stored = len(encoded), 28, 32, hashlib.sha256(encoded).hexdigest()
    with_table(dataset, Sample(SAMPLES[0].key, 0, *stored, "kept", "", *stored))
    lacks = {f"image/{side}": schema.ABSENT}

    assert dataset.check(level="decode", lacks=lacks).problems == []
    assert dataset.check(level="decode").problems


@pytest.mark.parametrize("level", PROVING)
def test_changed_table_is_found(dataset: Dataset, level: str) -> None:
    with_table(dataset, *SAMPLES)
    path = dataset.root / schema.samples_name(FIRST)
    for place in random.Random(0).sample(range(path.stat().st_size), 20):
        sound = path.read_bytes()
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        (problem,) = dataset.check(level=level).problems
        assert problem.startswith(f"samples/{FIRST}.csv: ")
        path.write_bytes(sound)
    path.unlink()
    assert dataset.check(level=level).problems == [f"samples/{FIRST}.csv: missing"]


def test_image_that_does_not_decode_is_named(dataset: Dataset) -> None:
    def prove(encoded: bytes, *_: int) -> bool:
        if encoded == image(3).encoded:
            raise BadImageError("undecodable", "it is noise")
        return False

    assert dataset.check(level="decode", prove=prove).problems == [
        f"{FIRST}: record 3 at byte {dataset.record(3):,}: undecodable: it is noise"
    ]


def test_unreadable_shard_is_not_called_damaged(dataset: Dataset, system: System) -> None:
    system.fails("open", errno.ESTALE)
    report = dataset.check()

    assert report.problems == []
    path = dataset.root / "index" / FIRST
    assert report.unreadable == [f"{FIRST}: cannot read {path}: {os.strerror(errno.ESTALE)}"]


def write_records_of_nothing(dataset: Dataset, number: int) -> None:
    """Replaces the first shard by one of empty records."""
    size = len(framed(b""))
    data = framed(b"") * number
    index = "".join(f"{place * size} {size}\n" for place in range(number)).encode()
    (dataset.root / FIRST).write_bytes(data)
    (dataset.root / "index" / FIRST).write_bytes(index)
    sha256, index_sha256 = (hashlib.sha256(each).hexdigest() for each in (data, index))
    dataset.shards[FIRST] = Shard(FIRST, number, len(data), sha256, len(index), index_sha256)


def test_surplus_records_are_not_read(dataset: Dataset) -> None:
    """48 MB of them kept verify busy for 13 seconds."""
    write_records_of_nothing(dataset, 50)
    dataset.shards[FIRST] = dataclasses.replace(dataset.shards[FIRST], examples=7)

    assert dataset.check().problems == [f"{FIRST}: more than 7 records"]


def test_shard_is_abandoned_after_its_thousandth_problem(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """48 MB of empty records kept verify busy for two minutes."""
    seen = []
    decode = example.decode
    monkeypatch.setattr(example, "decode", lambda *args: seen.append(args) or decode(*args))
    write_records_of_nothing(dataset, 1_500)
    problems = dataset.check(level="decode").problems

    assert says("record-byte-3", FIRST, "999", "15,984", "keys missing").match(problems[999])
    assert problems[1000:] == [f"{FIRST}: checking stopped after 1,000 problems: there may be more"]
    assert len(seen) == 1_000


def test_shard_of_many_records_needs_little_memory(dataset: Dataset) -> None:
    write_records_of_nothing(dataset, 12_000)
    problems: list[str] = []
    peak = peak_bytes(lambda: problems.extend(dataset.check().problems))

    assert problems == []
    # Buffers take 3.6 MB. The lines of the index would take 0.9 MB more.
    assert peak < 4_100_000


@pytest.mark.parametrize("name", [FIRST, f"index/{FIRST}"])
def test_excess_bytes_of_a_huge_file_are_unread(
    dataset: Dataset, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (dataset.root / name).stat().st_size
    os.truncate(dataset.root / name, 1 << 40)
    read = 0

    def counted(*arguments: object) -> Iterator[bytes]:
        nonlocal read
        for chunk in hashed(*arguments):
            read += len(chunk)
            yield chunk

    hashed = check.hashed
    monkeypatch.setattr(check, "hashed", counted)
    problems = dataset.check().problems

    assert problems[0] == f"{name}: {1 << 40:,} bytes, expected {size:,}"
    assert read < 5 << 20
