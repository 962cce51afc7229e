"""The Merkle root of a split, computed from its tables of samples."""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core import imports
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.samples import HEADER, Sample, entry, heads, read_lines
from imagenet_prep.shards import sorted_tables
from imagenet_prep.shards.sorted_tables import samples_root, wrong_roots
from imagenet_prep.storage import dataset_store, scratch
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import PREFETCHED
from tests.kit.codec import native
from tests.kit.command import REPOSITORY
from tests.kit.installed import Installed
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.samples import add_tables, kept, samples, tree_hash, write_lines, write_tables
from tests.kit.slow_store import SlowStore
from tests.kit.tfrecords import picture, plain, write_dataset

HARNESS = (
    Path(__file__).with_name("harness.c"),
    REPOSITORY / "imagenet_prep" / "shards" / "digests.c",
)


def divided(rows: Sequence[Sample], num_shards: int) -> list[list[bytes]]:
    return [[row.line for row in rows[number::num_shards]] for number in range(num_shards)]


def root_of(root: Path, rows: Sequence[Sample], num_shards: int = 1) -> str:
    return samples_root(LocalStore(root), write_lines(root, divided(rows, num_shards)))


def expected(rows: Sequence[Sample]) -> str:
    ordered = sorted(rows, key=lambda row: (row.key.encode(), row))
    leaves = [[row.key, row.class_index, row.sha256] for row in ordered]
    dumped = [json.dumps(leaf, ensure_ascii=False, separators=(",", ":")) for leaf in leaves]
    return tree_hash([leaf.encode() for leaf in dumped]).hex()


def refuse_python(*_: object, **__: object) -> None:
    raise AssertionError("the compiled code has refused a sound table")


# Without a C compiler, or without instructions for SHA-256, Python must compute the same root.
@pytest.fixture(params=["compiled", "no hashes", "python"])
def code(
    request: pytest.FixtureRequest, installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> str:
    compiled = sorted_tables._compiled

    def without_hashes(name: str, data: bytes, most: int) -> bytes | None:
        return None if name.startswith("hash_") else compiled(name, data, most)

    if request.param == "no hashes":
        monkeypatch.setattr(sorted_tables, "_compiled", without_hashes)
    if request.param == "python":
        installed.library("shards.sorted_tables")
    return str(request.param)


@given(rows=st.lists(samples(), unique_by=lambda row: row.key, max_size=9))
def test_root_follows_the_samples_sorted_by_key(
    rows: list[Sample], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("set")
    found = {root_of(root, rows)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_tables, "_LIBRARY", Path("/nowhere.so"))
        found.add(root_of(root, rows))
    assert found == {expected(rows)}


_AWKWARD_SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 256, 257, 511, 513]


@pytest.mark.parametrize("num", _AWKWARD_SIZES)
def test_root_is_independent_of_shards_runs_and_blocks(
    num: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits, code: str
) -> None:
    monkeypatch.setattr(scratch, "process_folder", lambda: tmp_path)
    rows = [kept(f"{number % 7}/{'ab!~ü'[number % 5]}{number}") for number in range(num)]
    chance = random.Random(num)
    roots = {expected(rows)}
    for num_shards in (1, 2, 13):
        chance.shuffle(rows)
        run_bytes = chance.choice([1 << 10, 1 << 12, 1 << 14])
        keys = chance.choice([1, 2, 3])
        leaves = chance.choice([1, 2, 16, 1 << 16])
        limits(sorted_run_bytes=run_bytes, sorted_run_keys=keys, leaves_of_a_block=leaves)
        limits(sorting_threads=chance.choice([1, 2, 4]))
        roots.add(root_of(tmp_path / "set", rows, num_shards))
    assert len(roots) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_digests_are_those_of_the_tables(tmp_path: Path, code: str) -> None:
    rows = [kept(f"{number % 7}/{'ab!~ü,'[number % 6]}{number}") for number in range(20)]
    rows = [row._replace(sha256=f"{number:064x}") for number, row in enumerate(rows)]
    shards = write_lines(tmp_path, divided(rows, 3))
    found = sorted_tables.digests(LocalStore(tmp_path), shards)
    assert sorted(found) == sorted((row.key, row.sha256.encode()) for row in rows)


def awkward_keys(chance: random.Random) -> list[str]:
    """Returns distinct keys: prefixes of others, long keys, and keys with special characters."""
    keys = {"a" * number for number in range(1, 40)}
    keys |= {"x" * number for number in (254, 255, 256, 257, 1000, 4095, 4096)}
    keys |= {'a,b/"', '"', '""', ",", 'n/a"', "é" * 2048, "n\\b", "\U0001f600/ü", "...", "a/..."}
    keys |= {"".join(chance.choices("ab/é,\U0001f600", k=7)).strip("/") for _ in range(200)}
    return [key for key in sorted(keys) if "//" not in key and key]


@pytest.mark.parametrize("seed", range(4))
def test_root_of_awkward_keys(seed: int, tmp_path: Path, limits: Limits, code: str) -> None:
    chance = random.Random(seed)
    rows = [kept(key, chance.choice([0, 9, 10, 10**17])) for key in awkward_keys(chance)]
    chance.shuffle(rows)
    limits(sorted_run_bytes=1 << 14, sorted_run_keys=1 + seed)
    assert root_of(tmp_path, rows, 3) == expected(rows)


def test_compiled_code_takes_all_sound_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if imports.find(sorted_tables._LIBRARY, **sorted_tables._FUNCTIONS) is None:
        pytest.skip("the C code was not compiled")
    monkeypatch.setattr(dataset_store, "each_table", refuse_python)
    rows = [kept(key) for key in awkward_keys(random.Random(0))]
    assert root_of(tmp_path, rows) == expected(rows)


_SOUND = kept("n/1").line
_DAMAGED = {
    "no comma": b"n/1\r\n",
    "empty line": b"\r\n",
    "empty key": _SOUND.replace(b"n/1", b""),
    "parent": _SOUND.replace(b"n/1", b"n/../1"),
    "here": _SOUND.replace(b"n/1", b"./1"),
    "end": _SOUND.replace(b"n/1", b"n/"),
    "backslash": _SOUND.replace(b"n/1", b"n\\..\\1"),
    "control": _SOUND.replace(b"n/1", b"n\t1"),
    "zero": _SOUND.replace(b"n/1", b"n\x001"),
    "delete": _SOUND.replace(b"n/1", b"n\x7f1"),
    "not UTF-8": _SOUND.replace(b"n/1", b"n\xff1"),
    "quote in key": _SOUND.replace(b"n/1", b'n"1'),
    "unnecessary quotes": _SOUND.replace(b"n/1", b'"n1"'),
    "open quotes": _SOUND.replace(b"n/1", b'"n,1'),
    "quoted parent": _SOUND.replace(b"n/1", b'"n,1/.."'),
    "long key": kept("x" * 4097).line,
    "long line": _SOUND.replace(b"kept", b"k" * 9000),
    "leading zero": _SOUND.replace(b",0,", b",00,"),
    "negative": _SOUND.replace(b",0,", b",-1,"),
    "large number": _SOUND.replace(b",0,", b",1" + b"0" * 18 + b","),
    "zero bytes": _SOUND.replace(b",103,", b",0,", 1),
    "no width": _SOUND.replace(b",8,", b",,", 1),
    "short sha256": _SOUND.replace(kept("n/1").sha256.encode(), b"ab", 1),
    "long sha256": _SOUND.replace(kept("n/1").sha256.encode(), b"ab" * 33, 1),
    "upper case": _SOUND.replace(kept("n/1").sha256.encode(), b"AB" * 32, 1),
}


@pytest.mark.parametrize("damage", _DAMAGED)
def test_damaged_line_is_named(damage: str, tmp_path: Path, code: str) -> None:
    lines = [kept("n/0").line, _DAMAGED[damage], kept("n/2").line]
    assert _DAMAGED[damage] != _SOUND
    shards = write_lines(tmp_path, [[kept("m/0").line], lines])
    with pytest.raises(DataDamagedError) as refused:
        samples_root(LocalStore(tmp_path), shards)
    named = dataset_store.sample_heads(LocalStore(tmp_path), shards[1], 10**18, images=True)
    with pytest.raises(DataDamagedError) as plain_error:
        list(named)
    assert str(refused.value) == str(plain_error.value)


def test_first_of_several_damaged_tables_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits, code: str
) -> None:
    monkeypatch.setattr(scratch, "process_folder", lambda: tmp_path)
    limits(sorted_run_bytes=1 << 10, sorted_run_keys=1)
    lines = [[kept(f"{shard}/{number}").line for number in range(9)] for shard in range(20)]
    for shard in (3, 4, 11, 19):
        lines[shard][-1] = _DAMAGED["parent"]
    shards = write_lines(tmp_path / "set", lines)
    with pytest.raises(DataDamagedError, match=f"{shards[3].name}.*line 10 "):
        samples_root(LocalStore(tmp_path / "set"), shards)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize("change", ["header", "line end", "more", "fewer", "bytes", "missing"])
def test_different_table_has_the_same_error(change: str, tmp_path: Path, code: str) -> None:
    lines = [kept(f"n/{number}").line for number in range(3)]
    (shard,) = write_lines(tmp_path, [lines])
    path = tmp_path / schema.samples_name(shard.name)
    data = path.read_bytes()
    tables = {
        "header": data.replace(b"key", b"kex", 1),
        "line end": data[:-1],
        "more": data + kept("n/9").line,
        "fewer": data[: -len(lines[2])],
        "bytes": data.replace(b"n/1", b"n/7"),
        "missing": b"",
    }
    path.write_bytes(tables[change])
    # Also if the manifest has the sha256 of the wrong table.
    sha256 = hashlib.sha256(tables[change]).hexdigest()
    forged = replace(shard, samples_sha256=sha256, samples_bytes=len(tables[change]))
    if change == "missing":
        path.unlink()
    store = LocalStore(tmp_path)
    for each in (shard, forged) if change in ("header", "more", "fewer") else (shard,):
        errors = []
        for read in (
            lambda shard: samples_root(store, [shard]),
            lambda shard: list(dataset_store.sample_heads(store, shard, 99, images=True)),
        ):
            with pytest.raises(Exception, match=shard.name) as refused:
                read(each)
            errors.append((type(refused.value), str(refused.value)))
        assert errors[0] == errors[1]


def test_last_line_end_may_be_missing(tmp_path: Path, code: str) -> None:
    (shard,) = write_lines(tmp_path, [[kept("n/1").line, kept("n/2").line]])
    path = tmp_path / schema.samples_name(shard.name)
    data = path.read_bytes()[:-1]
    path.write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    shard = replace(shard, samples_sha256=sha256, samples_bytes=len(data))
    assert samples_root(LocalStore(tmp_path), [shard]) == expected([kept("n/1"), kept("n/2")])


def test_changed_image_or_label_changes_the_root(tmp_path: Path) -> None:
    rows = [kept(f"n/{number}", number % 3) for number in range(9)]
    other = hashlib.sha256(b"other").hexdigest()
    changed = [
        [*rows[:4], rows[4]._replace(**change), *rows[5:]]
        for change in ({"key": "n/x"}, {"class_index": 2}, {"sha256": other})
    ]
    changed = [[row._replace(action="shrunk") for row in each] for each in changed]
    roots = [root_of(tmp_path, each) for each in (rows, rows[1:], *changed)]
    assert len(set(roots)) == 5


def test_large_tables_are_read_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    rows = [kept(f"n/{number}") for number in range(300)]
    limits(sorted_run_bytes=1 << 14, sorted_run_keys=2)
    assert root_of(tmp_path, rows) == expected(rows)
    monkeypatch.setattr(dataset_store, "each_table", refuse_python)
    with pytest.raises(AssertionError, match="refused"):
        root_of(tmp_path, rows)


def test_tables_of_a_slow_store_are_prefetched(tmp_path: Path) -> None:
    shards = write_tables(tmp_path, PREFETCHED)
    rows = [kept(f"n/{number}") for number in range(PREFETCHED)]
    store = SlowStore(tmp_path, PREFETCHED)
    assert samples_root(store, shards) == expected(rows)
    assert len(store.asked) == PREFETCHED


def test_two_records_of_a_key_are_named(tmp_path: Path, code: str) -> None:
    shards = write_tables(tmp_path, 3)
    name = shards[0].name
    sentence = (
        f"two records have the same key 'n/0': record 0 of {name} and record 0 of {name}. Every"
    )
    with pytest.raises(DataDamagedError, match=sentence):
        samples_root(LocalStore(tmp_path), [*shards, shards[0], shards[0]])


@pytest.mark.parametrize("num", [1, 2, 255, 256, 257, 600])
def test_equal_keys_are_refused_everywhere(
    num: int, tmp_path: Path, limits: Limits, code: str
) -> None:
    limits(sorted_run_bytes=1 << 12, sorted_run_keys=2)
    rows = [kept(f"n/{number:04d}") for number in range(num)]
    for place in {0, num // 2, num - 1}:
        twice = kept(f"n/{place:04d}", 3)
        with pytest.raises(DataDamagedError, match=f"'{twice.key}'"):
            root_of(tmp_path, [*rows, twice], 2)


def test_wrong_root_is_a_problem_of_its_split(tmp_path: Path) -> None:
    images = [picture(number % 2, plain(number)) for number in range(4)]
    write_dataset(tmp_path, {"train": [images[:2]], "validation": [images[2:]]}, num_classes=2)
    made = add_tables(tmp_path)
    assert wrong_roots(Dataset.at(LocalStore(tmp_path))) == []

    train = replace(made.splits["train"], samples_root=made.splits["validation"].samples_root)
    changed = replace(made, splits={**made.splits, "train": train})
    (tmp_path / schema.MANIFEST).write_bytes(changed.dumps())
    (problem,) = wrong_roots(Dataset.at(LocalStore(tmp_path)))
    assert made.splits["train"].samples_root in problem
    assert problem.startswith("train: ")
    assert says("root-tables-samples-expected-manifest", ..., ..., train.samples_root).search(
        problem
    )


def mutated_tables(chance: random.Random, num: int) -> list[bytes]:
    """Returns tables without headers: sound ones, and ones with changed, moved or lost bytes."""
    keys = awkward_keys(chance)
    tables = []
    for number in range(num):
        rows = [kept(key, number) for key in chance.sample(keys, chance.randrange(1, 9))]
        table = bytearray(b"".join(row.line for row in rows))
        for _ in range(chance.choice([0, 1, 1, 2])):
            place = chance.randrange(len(table))
            byte = chance.choice(b'\0\n\r,".\\/09af\x7f\xff ')
            change = chance.choice(["replace", "insert", "remove", "repeat", "end"])
            if change == "replace":
                table[place] = byte
            elif change == "insert":
                table.insert(place, byte)
            elif change == "remove":
                del table[place : place + chance.choice([1, 2, 70])]
            elif change == "repeat":
                table[place:place] = table[place : place + 90]
            else:
                del table[place + 1 :]
        tables.append(bytes(table) or b"\n")
    return tables


def root_in_python(table: bytes) -> str:
    """Returns the root of a table without its header, or "-1" if it is damaged."""
    lines = read_lines(io.BytesIO(HEADER + table))
    try:
        entries = sorted(entry(head) for head in heads(lines, "", images=True))
    except DataDamagedError:
        return "-1"
    pairs = [line.split(b"\0") for line in entries]
    if len({key for key, _ in pairs}) < len(pairs) or not table.endswith(b"\n"):
        return "-1"
    return tree_hash([leaf[:-1] for _, leaf in pairs]).hex()


@pytest.mark.slow
def test_mutated_tables_never_lead_out_of_their_memory(tmp_path: Path) -> None:
    if reason := native.missing(native.SANITIZED):
        pytest.skip(reason)
    if not sorted_tables._compiled("hash_tree", bytes(32), 32):
        pytest.skip("this processor has no instructions for SHA-256")
    tables = mutated_tables(random.Random(0), 3_000)
    content = b"".join(len(table).to_bytes(8, "little") + table for table in tables)
    (tmp_path / "tables").write_bytes(content)
    program = native.build(tmp_path, native.SANITIZED, sources=HARNESS)
    found = native.run(program, tmp_path / "tables").decode().splitlines()

    assert len(found) == len(tables)
    accepted = 0
    for table, root in zip(tables, found, strict=True):
        # Python decides whether a table is UTF-8, before it calls the compiled code.
        if table == table.decode(errors="ignore").encode():
            assert root == root_in_python(table)
            accepted += root != "-1"
    assert 500 < accepted < 2500


# The inputs and roots in the tests of Certificate Transparency's own code.
_LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657"]
_ROOTS = {
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    4: "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    6: "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
}


@pytest.mark.parametrize("num", _ROOTS)
def test_tree_equals_those_of_certificate_transparency(num: int, code: str) -> None:
    leaves = [hashlib.sha256(b"\0" + bytes.fromhex(leaf)).digest() for leaf in _LEAVES[:num]]
    assert sorted_tables._hash_tree(b"".join(leaves)).hex() == _ROOTS[num]
