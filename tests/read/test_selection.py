"""Reading a part of a split: each chosen example once, in the order of the complete split."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset import manifest, schema
from imagenet_prep.dataset.column import Placement
from imagenet_prep.read import Reader, make_dataset
from imagenet_prep.read.config import ReadConfig, WantedExamples
from imagenet_prep.read.order import Order, mix, stream
from imagenet_prep.read.records import Records
from imagenet_prep.read.selection import Choice, _compact
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit.http_server import serve
from tests.kit.messages import says
from tests.kit.samples import add_tables
from tests.kit.tfrecords import picture, plain, wnid, write_dataset

SHARDS = (31, 20, 29)
CLASSES = 8
COUNT = sum(SHARDS)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 examples of 8 classes, 10 each, in three shards; read-only."""
    root = tmp_path_factory.mktemp("choice") / "set"
    made = []
    for number in range(COUNT):
        class_index = number % CLASSES
        name = f"{wnid(class_index)}_{number}.JPEG"
        made.append(picture(class_index, plain(class_index))._replace(filename=name))
    numbers = itertools.count()
    shards = [[made[next(numbers)] for _ in range(size)] for size in SHARDS]
    write_dataset(root, {"train": shards}, num_classes=CLASSES)
    add_tables(root)
    return root


def without_tables(root: Path, out: Path) -> Path:
    shutil.copytree(root, out)
    there = manifest.loads((out / schema.MANIFEST).read_bytes(), "")
    shards = [replace(s, samples_bytes=0, samples_sha256="") for s in there.splits["train"].shards]
    splits = {"train": replace(there.splits["train"], shards=shards, samples_root="")}
    (out / schema.MANIFEST).write_bytes(replace(there, splits=splits).dumps())
    shutil.rmtree(out / schema.SAMPLES)
    return out


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache for tables of names; each test has its own."""
    monkeypatch.setenv("IMAGENET_PREP_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def reader_of(root: Path, batch: int = 1, **more: Any) -> Reader:
    settings: dict[str, Any] = {"backend": "native", "world": World(), "fields": ("number", "mask")}
    return make_dataset(root, "train", batch, 8, **settings | more)


def read(reader: Reader) -> list[int]:
    numbers: list[int] = []
    for batch in reader:
        numbers += batch["number"][batch["mask"]].tolist()
    return numbers


def chosen(root: Path, **asked: Any) -> set[int]:
    """Returns the examples of an evaluation; each appears once."""
    numbers = read(reader_of(root, 7, training=False, **asked))
    assert numbers == sorted(set(numbers))
    return set(map(int, numbers))


def listed(path: Path, numbers: Sequence[int]) -> Path:
    path.write_text("".join(f"{key(number)}\n" for number in numbers))
    return path


def key(number: int) -> str:
    class_index = number % CLASSES
    return f"{wnid(class_index)}/{wnid(class_index)}_{number}.JPEG"


def test_classes_are_chosen_by_wnid_and_by_index(pictures: Path) -> None:
    expected = {number for number in range(COUNT) if number % CLASSES in (2, 5)}

    assert chosen(pictures, classes=[wnid(2), 5]) == expected
    assert chosen(pictures, classes=np.arange(CLASSES)) == set(range(COUNT))


def test_keys_are_chosen_by_a_list(pictures: Path, tmp_path: Path) -> None:
    keys = listed(tmp_path / "keys", [7, 3, 3, 79])
    reader = reader_of(pictures, keys=keys)

    assert chosen(pictures, keys=keys) == {3, 7, 79}
    lines = subprocess.run(["sort", "-u", keys], env={"LC_ALL": "C"}, capture_output=True).stdout
    assert reader.choice["keys"] == hashlib.sha256(lines).hexdigest()
    assert reader.state()["choice"] == reader.choice
    assert reader.num_examples == len(reader) == 3


def test_smaller_fractions_are_subsets_of_larger_ones(pictures: Path) -> None:
    parts = [chosen(pictures, fraction=fraction) for fraction in (0.1, 0.2, 0.5, 0.9, 1.0)]

    assert all(less < more for less, more in itertools.pairwise(parts))
    assert parts[-1] == set(range(COUNT))
    assert 25 <= len(parts[2]) <= 55
    assert chosen(pictures, fraction=0.5, choice_seed=1) != parts[2]
    # The shuffling seed does not change the choice.
    assert chosen(pictures, fraction=0.5, seed=1) == parts[2]


def test_folds_are_disjoint_and_cover_the_split(pictures: Path) -> None:
    folds = [chosen(pictures, fold=(part, 4)) for part in range(4)]

    assert sorted(itertools.chain(*folds)) == list(range(COUNT))
    assert min(map(len, folds)) >= 8


def test_others_of_a_fold_are_its_complement(pictures: Path) -> None:
    """A part to evaluate on and the rest to train on: disjoint, and together the split."""
    for fold in ((0, 10), (9, 10), (1, 2)):
        part, rest = (chosen(pictures, fold=fold, others=others) for others in (False, True))
        assert not part & rest
        assert part | rest == set(range(COUNT))
    one, other = (reader_of(pictures, fold=(0, 2), others=others) for others in (False, True))
    with pytest.raises(UsageError, match=says("state-reader-use-same-dataset", "choice")):
        other.restore(one.state())


def test_excluded_keys_are_not_read(pictures: Path, tmp_path: Path) -> None:
    keys = listed(tmp_path / "keys", [7, 3, 3, 79])
    reader = reader_of(pictures, exclude=keys)

    assert chosen(pictures, exclude=keys) == set(range(COUNT)) - {3, 7, 79}
    assert chosen(pictures, exclude=keys, classes=[3]) == set(range(11, COUNT, 8))
    lines = subprocess.run(["sort", "-u", keys], env={"LC_ALL": "C"}, capture_output=True).stdout
    assert reader.choice["exclude"] == hashlib.sha256(lines).hexdigest()
    assert reader.choice != reader_of(pictures, keys=keys).choice
    assert reader.num_examples == COUNT - 3


def test_chosen_classes_are_renumbered_if_requested(pictures: Path) -> None:
    def labels(**asked: Any) -> dict[int, int]:
        reader = reader_of(pictures, 7, training=False, fields=("number", "class_index"), **asked)
        rows = [zip(b["number"], b["class_index"], strict=True) for b in reader]
        return {int(n): int(label) for n, label in itertools.chain(*rows) if n >= 0}

    sparse, dense = (labels(classes=[wnid(5), 2], remap=remap) for remap in (False, True))

    # In the order of the class list, whatever the order of the request.
    assert {sparse[n]: dense[n] for n in sparse} == {2: 0, 5: 1}
    assert set(dense) == {number for number in range(COUNT) if number % CLASSES in (2, 5)}
    reader = reader_of(pictures, classes=[5, 2], remap=True)
    assert (reader.num_classes, reader.classes) == (2, (wnid(2), wnid(5)))
    assert reader.choice["remap"] is True
    with pytest.raises(UsageError, match=says("state-reader-use-same-dataset", "choice")):
        reader.restore(reader_of(pictures, classes=[5, 2]).state())
    whole = reader_of(pictures, classes=[5, 2])
    assert (whole.num_classes, whole.classes) == (8, tuple(map(wnid, range(CLASSES))))


def test_choice_never_changes_between_versions(pictures: Path) -> None:
    # A saved state only resumes with the same chosen examples.
    assert sorted(chosen(pictures, fraction=0.1)) == [9, 12, 34, 37, 46, 78]
    assert sorted(chosen(pictures, fold=(0, 16), choice_seed=5)) == [9, 10, 13, 36, 37, 59]


def test_all_conditions_of_a_choice_are_combined(pictures: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "classes": [0, 1, 2, 3, 4],
        "keys": listed(tmp_path / "keys", range(0, COUNT, 3)),
        "fraction": 0.8,
        "fold": (1, 2),
    }
    each = [chosen(pictures, **{name: value}) for name, value in asked.items()]
    together = chosen(pictures, **asked)

    assert together == set.intersection(*each) != set()
    assert reader_of(pictures, **asked).choice.keys() == {*asked, "choice_seed", "numbers"}
    for name in ("fraction", "fold"):
        choices = [reader_of(pictures, **{name: asked[name]}, choice_seed=s).choice for s in (1, 2)]
        assert choices[0] != choices[1]
        assert choices[0] == {**choices[1], "choice_seed": 1, "numbers": choices[0]["numbers"]}


def test_filters_differ_for_every_argument(pictures: Path, tmp_path: Path) -> None:
    """A state also has a digest of the numbers, but an export compares only the filters."""
    usual: dict[str, Any] = {"classes": [0, 1], "fold": (0, 2)}
    changes: dict[str, Any] = {
        "classes": [0, 2],
        "remap": True,
        "keys": listed(tmp_path / "keys", range(4)),
        "exclude": listed(tmp_path / "exclude", range(4)),
        "where": "width > 3",
        "fraction": 0.5,
        "fold": (1, 2),
        "others": True,
        "choice_seed": 1,
    }
    names = {field.name for field in fields(WantedExamples)}
    assert changes.keys() == names - {"allow_unknown"}
    classes = open_dataset(str(pictures)).classes
    wanted = [usual, *(usual | {name: value} for name, value in changes.items())]
    found = {json.dumps(Choice(WantedExamples(**each), classes).filters()) for each in wanted}
    assert len(found) == len(wanted)


@pytest.mark.parametrize("window", [0, 2])
def test_ranks_read_each_chosen_example_once_in_order(pictures: Path, window: int) -> None:
    def readers(world: int, batch: int, **more: Any) -> list[Reader]:
        how = {"seed": 4, "shuffle_window": window, **more}
        return [reader_of(pictures, batch, world=World(r, world), **how) for r in range(world)]

    part: dict[str, Any] = {"fraction": 0.6}
    wanted = chosen(pictures, **part)
    (whole,) = readers(1, 1)
    (alone,) = readers(1, 1, **part)
    everything = read(whole)
    order = read(alone)
    if not window:  # a window's order depends on the number of shards with chosen examples
        assert order == [number for number in everything if number in wanted]
    assert set(order) == wanted

    ranks = readers(3, 2, **part)
    steps = [next(iter(reader))["number"].tolist() for reader in ranks]
    assert len({reader.steps_per_epoch for reader in ranks}) == 1
    assert sorted(itertools.chain(*steps)) == sorted(order[:6])
    # The rest with a different number of ranks and a different batch size.
    others = readers(2, 3, **part)
    for reader in others:
        reader.restore(ranks[0].state())
    rest = [read(reader) for reader in others]
    assert {len(numbers) for numbers in rest} == {(len(wanted) - 6) // 6 * 3}
    assert sorted(itertools.chain(*rest)) == sorted(order[6 : 6 + 2 * len(rest[0])])


def test_state_of_a_different_choice_is_refused(pictures: Path) -> None:
    states = [reader_of(pictures, **each).state() for each in ({}, {"fold": (0, 2)})]
    for state, asked in itertools.product(states, ({"fold": (1, 2)}, {"fraction": 0.5})):
        with pytest.raises(UsageError, match=says("state-reader-use-same-dataset", "choice")):
            reader_of(pictures, **asked).restore(state)
    assert "choice" not in states[0]
    reader_of(pictures, fold=(0, 2)).restore(states[1])
    # If the disk of a rank gives a file a different name, the order differs.
    states[1]["choice"]["numbers"] = "0" * 64
    with pytest.raises(UsageError, match=says("state-reader-use-same-dataset", "choice")):
        reader_of(pictures, fold=(0, 2)).restore(states[1])


def test_shards_without_a_chosen_example_are_not_opened(pictures: Path, tmp_path: Path) -> None:
    reader = reader_of(pictures, keys=listed(tmp_path / "keys", [1, 2, 75]), training=False)
    order = reader._feed.order

    assert order.windows(0) == [[0, 2]]
    assert reader.find(key(75)) == 75
    assert reader.example(40).filename in key(40)


def test_feed_follows_a_new_order_at_once(pictures: Path) -> None:
    """`ColumnWriter` chooses the records without rows after it has opened the dataset."""
    feed = reader_of(pictures, 2, training=False)._feed
    assert next(iter(feed.batches(0, 0))).numbers.tolist() == [0, 1]

    chosen_numbers = np.array([5, 40], np.int64)
    feed.use_order(Order(feed.records.examples_per_shard, None, chosen=chosen_numbers))
    assert [batch.numbers.tolist() for batch in feed.batches(0, 0)] == [[5, 40]]
    feed.close()


def test_choice_reads_tables_instead_of_records(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Records, "name", None)
        from_tables = [chosen(pictures, fraction=0.3), chosen(pictures, classes=[1, 2])]

    assert from_tables == [by_hash(0.3), {n for n in range(COUNT) if n % CLASSES in (1, 2)}]


def test_warning_is_logged_if_tables_are_missing(
    pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = without_tables(pictures, tmp_path / "set")
    assert chosen(root, fraction=0.3) == chosen(pictures, fraction=0.3)
    assert reader_of(root).find(key(17)) == 17
    assert says("no-tables-samples-key-each", "set").search(caplog.text)
    assert says("no-tables-samples-key-each").search(caplog.text)


def changed(root: Path, name: str, old: bytes, new: bytes) -> None:
    """Changes a table and its digest in the manifest: a forged dataset."""
    path = root / schema.samples_name(name)
    data = path.read_bytes().replace(old, new, 1)
    path.write_bytes(data)
    there = manifest.loads((root / schema.MANIFEST).read_bytes(), "")
    shards = [
        replace(s, samples_bytes=len(data), samples_sha256=hashlib.sha256(data).hexdigest())
        if s.name == name
        else s
        for s in there.splits["train"].shards
    ]
    splits = {"train": replace(there.splits["train"], shards=shards)}
    (root / schema.MANIFEST).write_bytes(replace(there, splits=splits).dumps())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            b"_35.JPEG",
            b"_3\n.JPEG",
            says("not-line-table-key-part", on=re.compile(r"train-00001-of-00003.*line 6\b")),
        ),
        (
            b",3,",
            b",8,",
            says("class-only-classes", 8, 8, on=re.compile(r"train-00001-of-00003.*line 6\b")),
        ),
        (
            b"_35.JPEG,3,",
            b"_35.JPEG,03,",
            says("not-line-table-key-part", on=re.compile(r"train-00001-of-00003.*line 6\b")),
        ),
        (b"key,", b"Key,", says("line-1-not-header-table", "train-00001-of-00003")),
        (b"\r\n", b"\r\na,0,1,\r\n", says("more-lines-2", "train-00001-of-00003", 20)),
    ],
)
def test_foreign_table_is_refused_with_its_line(
    pictures: Path, tmp_path: Path, old: bytes, new: bytes, said: re.Pattern[str]
) -> None:
    root = tmp_path / "set"
    shutil.copytree(pictures, root)
    changed(root, "train-00001-of-00003", old, new)
    with pytest.raises(DataDamagedError, match=said):
        reader_of(root, fraction=0.5)


def test_table_with_a_flipped_bit_is_refused(pictures: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
    shutil.copytree(pictures, root)
    path = root / "samples/train-00001-of-00003.csv"
    path.write_bytes(path.read_bytes().replace(b"_35.JPEG", b"_36.JPEG"))
    for ask in (lambda: reader_of(root, fraction=0.5), lambda: reader_of(root).find(key(1))):
        with pytest.raises(DataDamagedError, match="train-00001-of-00003.csv: sha256"):
            ask()


def by_hash(fraction: float) -> set[int]:
    """Returns the examples of a fraction, computed independently."""
    return set(map(int, np.flatnonzero([_uniform(key(n)) < fraction for n in range(COUNT)])))


def _uniform(name: str) -> float:
    hashed = np.frombuffer(hashlib.blake2b(name.encode(), digest_size=8).digest(), "<u8")
    return float((mix(hashed ^ stream(0, 1)) >> np.uint64(11))[0] * 2.0**-53)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"classes": ["n99999999", 8, 1]}, says("not-class-list-0", "n99999999, 8")),
        ({"classes": []}, says("classes-expected-list-wnids-class", "[]")),
        ({"classes": "n00001001"}, says("classes-expected-list-wnids-class", "'n00001001'")),
        ({"fraction": 0.0}, says("fraction-expected-more-0-most", "0")),
        ({"fraction": 1.5}, "fraction=1.5"),
        ({"fold": (3, 3)}, says("fold-expected-k-n-0", "(3, 3)")),
        ({"fold": 3}, says("fold-expected-k-n-0", "3")),
        ({"fold": (0.5, 3)}, says("fold-expected-k-n-0", "(0.5, 3)")),
        ({"fraction": "10%"}, says("fraction-expected-more-0-most", "'10%'")),
        ({"classes": 3}, says("classes-expected-list-wnids-class", "3")),
        ({"exclude": ["a"]}, says("expected-path-file-keys", "exclude", "['a']")),
        ({"keys": {"a": 1}}, says("expected-path-file-keys", "keys")),
        ({"choice_seed": "a"}, says("expected-8", "choice_seed", "'a'", "an integer")),
        ({"seed": None}, says("expected-8", "seed", "None", "an integer")),
        ({"num_threads": "2"}, says("expected-8", "num_threads", "'2'", "an integer")),
        ({"shuffle_window": 1.5}, says("expected-8", "shuffle_window", "1.5", "an integer")),
        ({"mirror": "yes"}, says("expected-8", "mirror", "'yes'", "a number")),
        ({"fields": 3}, says("expected-8", "fields", "3", says("list-names"))),
        ({"fields": [3]}, says("fields-expected-some-name", "[3]")),
        ({"sizes": 3}, says("expected-8", "sizes", "3", says("list-size"))),
        ({"sizes": [3], "training": True}, says("sizes-expected-list-size", "[3]")),
        (
            {"weights": {0: "a"}, "training": True},
            says("weights-expected-weight-least-0", "{0: 'a'}"),
        ),
        ({"training": "no"}, says("expected-8", "training", "'no'", says("true-false-none"))),
        ({"colour": "false"}, says("expected-8", "colour", "'false'", says("true-false-2"))),
        ({"as_tuple": None}, says("expected-8", "as_tuple", "None", says("true-false-2"))),
        ({"world": (0, 2)}, says("expected-8", "world", "(0, 2)", "World(rank, size)")),
        ({"out": 3}, says("expected-8", "out", "3", says("out-expected-function-returns-memory"))),
        ({"others": True}, says("others-true-reads-parts-except")),
        ({"remap": True}, says("remap-true-renumbers-chosen-classes")),
        ({"exclude": "absent"}, says("list-keys-cannot-read", "absent", "No such file")),
        ({"fold": (299, 300)}, says("filters-match-no-example-relax", "train of")),
        ({"keys": "absent"}, says("list-keys-cannot-read", "absent", "No such file")),
    ],
)
def test_empty_or_invalid_choice_is_refused(
    pictures: Path, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        reader_of(pictures, **asked)


@pytest.mark.parametrize("size", [8.0, "8", None])
def test_batch_size_must_be_an_integer(pictures: Path, size: Any) -> None:
    with pytest.raises(
        UsageError, match=says("expected-8", "batch_size", repr(size), "an integer")
    ):
        reader_of(pictures, size)
    assert reader_of(pictures, np.int64(8)).num_examples == COUNT  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["keys", "exclude"])
def test_unknown_keys_are_named(pictures: Path, tmp_path: Path, option: str) -> None:
    keys = listed(tmp_path / "keys", [*range(3), *range(100, 107)])
    with pytest.raises(UsageError) as refused:
        reader_of(pictures, **{option: keys})

    (sentence, *_) = str(refused.value).split(" Keys are written")
    assert says(
        "no-such-key-write-one", "keys", "lines", "4, 5, 6, 7, 8 and 2 more", "train of"
    ).search(sentence)


def test_partitioned_and_nameless_datasets_are_refused(pictures: Path) -> None:
    records = Records(open_dataset(str(pictures)), "train")
    object.__setattr__(records.dataset, "placement", Placement(0, 2))
    half = ReadConfig(str(pictures), "train", 1, fraction=0.5)
    with pytest.raises(
        UsageError, match=says("command-needs-complete-dataset-use", ..., "part 0 of 2, copies: 1")
    ):
        Choice(half, records.dataset.classes).numbers([records])
    nameless = Records(open_dataset(str(pictures)), "train")
    object.__setattr__(nameless.manifest, "lacks", {"image/filename": "empty"})
    with pytest.raises(UsageError, match=says("records-no-file-names-examples")):
        Choice(half, nameless.dataset.classes).numbers([nameless])
    one = replace(half, fraction=1.0, classes=[1])
    (of_class,) = Choice(one, nameless.dataset.classes).numbers([nameless])
    assert of_class.tolist() == list(range(1, COUNT, 8))


def test_only_remote_shards_with_chosen_examples_are_fetched(
    pictures: Path, tmp_path: Path, kept: Path
) -> None:
    paths = [path for path in pictures.rglob("*") if path.is_file()]
    files = {str(path.relative_to(pictures)): path.read_bytes() for path in paths}
    keys = listed(tmp_path / "keys", [35, 33])
    with serve(files) as server:
        reader = reader_of(server.url, keys=keys, training=False)
        assert reader.find(key(70)) == 70
        asked = {request.path.lstrip("/") for request in server.requests}
        assert {name for name in asked if name.startswith(("train", "index"))} == set()
        assert read(reader) == [33, 35]
        assert not any(request.path.startswith("/train") for request in server.requests)
        shown = reader_of(server.url, keys=keys, training=False, fields=("images", "number"))
        assert [batch["number"][0] for batch in shown] == [33, 35]
        reader.close()
        server.requests.clear()
        # The tables stay in the cache.
        reader_of(server.url, fraction=0.5).close()
        assert not any("samples" in request.path for request in server.requests)

    assert [path.name for path in kept.glob("*/train-*")] == ["train-00001-of-00003"]
    assert reader.choice == reader_of(pictures, keys=keys).choice


@pytest.mark.parametrize("change", ["label", "line"])
def test_changed_table_in_the_cache_is_fetched_again(
    pictures: Path, kept: Path, change: str
) -> None:
    files = {
        str(path.relative_to(pictures)): path.read_bytes()
        for path in pictures.rglob("*")
        if path.is_file()
    }
    with serve(files) as server:
        expected = read(reader_of(server.url, classes=[wnid(3)], training=False))
        (path,) = kept.glob(f"*/{schema.samples_name('train-00000-of-00003')}")
        sound = path.read_bytes()
        lines = sound.splitlines(keepends=True)
        path.chmod(0o600)
        if change == "label":
            at = lines[1].index(b",") + 1
            lines[1] = lines[1][:at] + b"3" + lines[1][at + 1 :]
        else:
            lines.pop()
        path.write_bytes(b"".join(lines))
        assert path.read_bytes() != sound

        assert read(reader_of(server.url, classes=[wnid(3)], training=False)) == expected
    assert path.read_bytes() == sound


def num_bytes(keys: object) -> int:
    if isinstance(keys, np.ndarray):
        return keys.nbytes
    assert isinstance(keys, list)
    return sum(8 + 33 + len(key) for key in keys)


def test_one_long_key_does_not_enlarge_the_others() -> None:
    """An array of NumPy would take 40 MB for these 340 kB."""
    keys = [f"n01440764/n01440764_{number}.JPEG".encode() for number in range(10_000)]
    keys[777] = b"k" * 4_096
    stored = _compact(keys)

    assert num_bytes(stored) < 1_000_000
    assert [bytes(key) for key in stored] == keys


@pytest.mark.parametrize("number", [1, 10_000])
def test_each_usual_key_takes_the_longest_length(number: int) -> None:
    keys = [f"n01440764/n01440764_{each}.JPEG".encode() for each in range(number)]
    stored = _compact(keys)

    assert isinstance(stored, np.ndarray)
    assert stored.nbytes == number * max(map(len, keys))
    assert [bytes(key) for key in stored] == keys
