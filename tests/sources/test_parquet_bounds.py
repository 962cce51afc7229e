"""Parquet files that unpack to much more than their size are read with bounded memory."""

from __future__ import annotations

import contextlib
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imagenet_prep.core import limits
from imagenet_prep.core.errors import IncompleteError, SourceError
from imagenet_prep.engine import Result
from imagenet_prep.preparation.tasks import IndexWork, ListedCounts
from imagenet_prep.sources import containers, parquet
from imagenet_prep.storage.folder import LocalStore
from tests.kit.hostile import parquet as hostile
from tests.kit.layouts import PARQUET_NAME as NAME
from tests.kit.layouts import write_parquet
from tests.kit.limits import Limits
from tests.kit.messages import says

# glibc returns blocks of more than 32 MB at once.
VALUE_BYTES = 36 << 20
# Four copies of a value, and smaller blocks that glibc keeps; not five copies.
PEAK_BYTES = 4 * VALUE_BYTES + (28 << 20)
# Reads each folder below argv[1]; prints the rows, the error and the growth of memory as JSON.
READ_ALL = f"""
import json, resource, sys
from pathlib import Path
import pyarrow.parquet
from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.sources import parquet

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

limit = memory("VmSize") + {PEAK_BYTES} + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
found, before = {{}}, memory("VmRSS")
for folder in sorted(Path(sys.argv[1]).iterdir()):
    Path("/proc/self/clear_refs").write_text("5")
    rows, error, text = 0, "", ""
    try:
        source = parquet.find(folder, ["train"])
        for task in source.tasks:
            for image in source.images(task):
                rows += 1
                del image
                if rows == 100_000:  # a file that should be refused
                    break
    except ImagenetPrepError as problem:
        error, text = type(problem).__name__, str(problem)
    found[folder.name] = [rows, error, text, memory("VmHWM") - before]
print(json.dumps(found))
"""


class Outcome(NamedTuple):
    """The rows of a file, its error, and the peak of memory while it was read."""

    rows: int
    error: str
    text: str
    peak: int


def outcomes(root: Path) -> dict[str, Outcome]:
    """Returns the outcome of each hostile file, read in one process with little address space."""
    for name, columns, rows, footer in hostile.files(VALUE_BYTES):
        hostile.write(root / name / hostile.NAME, columns, rows, footer)
    command = [sys.executable, "-c", READ_ALL, str(root)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: Outcome(*values) for name, values in json.loads(out).items()}


# The reasons by name of the file; files without one are read completely.
REASONS = {
    "a million rows": says(
        "reading-takes-bytes-memory-expected",
        ...,
        re.compile(r"(?<!,)\b671,\d+,\d+"),
        ...,
        ...,
        "1,048,576 rows",
    ),
    "billions of rows": says(
        "reading-takes-bytes-memory-expected", ..., ..., ..., ..., "2,147,483,647 rows"
    ),
    "chunks below the limit": says("columns", ..., re.compile(r"(?<=the columns )none\b")),
    "claimed dictionary": says(
        "dictionary-values-expected-most-save", ..., 2_147_483_647, 1_048_576
    ),
    "claimed label dictionary": says("dictionary-values-expected-most-save", ..., 2_147_483_647),
    "claimed labels": says("cannot-read-parquet-damaged-download", hostile.NAME),
    "claimed lengths": says("encoding-number-not-read-because", ..., 6),
    "claimed values": says("cannot-read-parquet-damaged-download", hostile.NAME),
    "deep lists": says(
        "footer-bytes-too-large-damaged", ..., ..., says("values-nested-too-deeply")
    ),
    "field beyond 16 bits": says("number-field-repeated-out-bounds", 65538),
    "repeated field": says("number-field-repeated-out-bounds", 2),
    "empty values": says("dictionary-values-expected-most-save", ..., 9_437_184),
    "long path": says("row-path-bytes-expected-most", ..., 0, 37_748_736, 4096),
    "long path in prefixes": says("encoding-number-not-read-because", ..., 7),
    "many chunks": says(
        "footer-bytes-too-large-damaged",
        ...,
        re.compile(r"(?<!,)\b9,\d+,\d+"),
        says("too-many-values"),
    ),
    "many names": says(
        "footer-bytes-too-large-damaged",
        ...,
        re.compile(r"(?<!,)\b20,\d+,\d+"),
        says("too-many-values"),
    ),
    "many pages": says("column-row-group-more-pages", 65_536),
    "no footer": says("cannot-read-parquet-damaged-download", hostile.NAME),
    "one value": says("unpacks-more-bytes", hostile.NAME, re.compile(r"(?<!,)\b1,07\d,\d+,\d+")),
    "one value in plain pages": says(
        "reading-takes-bytes-memory-expected", ..., re.compile(r"(?<!,)\b754,\d+,\d+")
    ),
    "out of the dictionary": says("cannot-read-parquet-damaged-download", hostile.NAME),
    "path of the limit": says("row-path-bytes-expected-most", ..., 0, 4097),
    "prefixes": says("encoding-number-not-read-because", ..., 7),
    "split bytes": says("encoding-number-not-read-because", ..., 9),
}


def test_hostile_files_are_refused_with_little_memory(tmp_path: Path) -> None:
    found = outcomes(tmp_path)
    for name, outcome in found.items():
        if name in REASONS:
            assert outcome.error == "SourceError", (name, outcome)
            assert REASONS[name].search(outcome.text), (name, outcome)
            assert hostile.NAME in outcome.text
        else:
            assert (outcome.error, outcome.rows) == ("", 64), (name, outcome)
        assert outcome.peak < PEAK_BYTES, (name, outcome)
    assert found.keys() > REASONS.keys()


def rows_of(images: list[bytes], label: Callable[[int], int] = lambda n: n % 2) -> list[Any]:
    return [
        {"image": {"bytes": data, "path": f"{number}.jpg"}, "label": label(number)}
        for number, data in enumerate(images)
    ]


def unpacked(tmp_path: Path) -> tuple[Result[ListedCounts], list[bytes], int]:
    """Unpacks a source as `prepare` does; returns the result, the images and the file's size."""
    source = parquet.find(tmp_path, ["train"])
    store = LocalStore(tmp_path / "out")
    work = IndexWork(
        source, store, ".work/index", ".work/unpacked", frozenset({0, 1}), 0, ranked=False
    )
    result = work(source.tasks[0])
    file, _, members = (output.temporary for output in result.outputs)
    data = file.read_bytes()
    ranges = [json.loads(line) for line in members.read_text().splitlines()]
    by_key = sorted((r[0], data[r[2] : r[2] + r[3]]) for r in ranges)
    return result, [image for _, image in by_key], len(data)


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}], ids=["dictionary", "plain"])
def test_image_of_many_rows_is_stored_once(tmp_path: Path, options: dict[str, Any]) -> None:
    images = [b"a" * 1000, b"b" * 2000, b"a" * 1000, b"a" * 1000, b"", b"b" * 2000]
    write_parquet(tmp_path / NAME, rows_of(images, lambda _: 0), ["cat", "dog"], **options)

    result, found, num_bytes = unpacked(tmp_path)
    assert found == images
    assert num_bytes == 3000
    assert result.content.num_per_class == {0: 6}


def test_unpacked_bytes_are_bounded_by_the_file_size(tmp_path: Path, limits: Limits) -> None:
    limits(zip_allowance_bytes=50_000)
    write_parquet(tmp_path / NAME, rows_of([b"a" * 20_000] * 9), ["cat", "dog"])
    (task,) = parquet.find(tmp_path, ["train"]).tasks
    size = (tmp_path / NAME).stat().st_size
    most = 50_000 + 16 * size

    source = parquet.find(tmp_path, ["train"])
    with pytest.raises(SourceError, match=says("unpacks-more-bytes", NAME, most)):
        list(source.images(task))
    allowance = containers.allowance(size)
    allowance.take(most, "a")
    with pytest.raises(SourceError):
        allowance.take(1, "a")


def test_file_with_large_groups_takes_a_turn(tmp_path: Path) -> None:
    """Four copies of 20 MB are more than a light task may take; four of 200 kB are not."""
    for size, is_heavy in ((20 << 20, True), (200_000, False)):
        write_parquet(tmp_path / str(size) / NAME, rows_of([bytes(size)]), ["cat", "dog"])
        (task,) = parquet.find(tmp_path / str(size), ["train"]).tasks
        assert 4 * size < task.memory < 4 * size + 10_000
        assert (task.memory > 64 << 20) == is_heavy


def test_row_group_and_rows_must_fit_in_memory(tmp_path: Path, limits: Limits) -> None:
    write_parquet(tmp_path / NAME, rows_of([bytes(5000)] * 20), ["cat", "dog"], group=10)
    memory = parquet.find(tmp_path, ["train"]).tasks[0].memory
    limits(parquet_bytes=memory)
    assert parquet.find(tmp_path, ["train"]).tasks[0].num_bytes > 5000

    limits(parquet_bytes=memory - 1)
    reason = says("reading-takes-bytes-memory-expected", ..., memory, memory - 1, ..., "20 rows")
    with pytest.raises(SourceError, match=reason):
        parquet.find(tmp_path, ["train"])


@pytest.mark.parametrize(("first", "second"), [(5000, 5), (5, 5000)])
def test_memory_depends_on_the_largest_group(tmp_path: Path, first: int, second: int) -> None:
    rng = random.Random(0)
    images = [rng.randbytes(size) for size in [first] * 10 + [second] * 10]
    write_parquet(tmp_path / NAME, rows_of(images), ["cat", "dog"], group=10)
    (task,) = parquet.find(tmp_path, ["train"]).tasks
    assert 4 * 50_000 < task.memory < 4 * 55_000


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.parametrize("column", ["image.bytes", "image.path"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_encodings_that_repeat_values_are_refused(
    tmp_path: Path, encoding: str, column: str, version: str
) -> None:
    encodings = {"image.bytes": "PLAIN", "image.path": "PLAIN", "label": "DELTA_BINARY_PACKED"}
    options = {"use_dictionary": False, "data_page_version": version}
    images = [b"abc", b"abd"]
    write_parquet(
        tmp_path / "a" / NAME, rows_of(images), ["a", "b"], column_encoding=encodings, **options
    )
    source = parquet.find(tmp_path / "a", ["train"])
    assert [bytes(image.data) for image in source.images(source.tasks[0])] == images

    encodings[column] = encoding
    path = tmp_path / "b" / NAME
    write_parquet(path, rows_of(images), ["a", "b"], column_encoding=encodings, **options)
    with pytest.raises(
        SourceError, match=says("encoding-number-not-read-because", ..., re.compile(r"\b[67]\b"))
    ):
        list(parquet.find(path.parent, ["train"]).images(source.tasks[0]))


def with_type(file: Path, **types: Any) -> None:
    """Writes a file with an image that has fields of these types, and no value."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = {"bytes": pa.binary(), "path": pa.string(), **types}
    image = pa.struct(list(fields.items()))
    table = pa.table({"image": pa.array([None], image), "label": pa.array([0])})
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": {"names": ["a"]}}}})}
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(metadata), file)


def test_only_types_stored_in_their_pages_are_read(tmp_path: Path) -> None:
    import pyarrow as pa

    repeated = pa.dictionary(pa.int32(), pa.binary())
    wrong = {
        "a": {"bytes": repeated},
        "b": {"bytes": pa.list_(pa.uint8())},
        "c": {"bytes": pa.binary(8)},
        "d": {"bytes": pa.string()},
        "e": {"path": pa.dictionary(pa.int32(), pa.string())},
        "f": {"path": pa.list_(pa.string())},
    }
    for name, types in wrong.items():
        with_type(tmp_path / name / NAME, **types)
        (leaf,) = types
        with pytest.raises(
            SourceError, match=says("column-type-expected-save-dataset", ..., "image", leaf)
        ):
            parquet.find(tmp_path / name, ["train"])
    for name, types in {
        "g": {"bytes": pa.large_binary(), "path": pa.large_string()},
        "h": {"path": pa.null()},
    }.items():
        with_type(tmp_path / name / NAME, **types)
        assert parquet.find(tmp_path / name, ["train"]).tasks


def test_unused_fields_of_an_image_are_not_unpacked(tmp_path: Path) -> None:
    """The nested list has a page with an encoding that would be refused on reading."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = {"bytes": b"x", "path": "a.jpg", "more": [["y"] * 3]}
    table = pa.table({"image": [image, image], "label": [0, 1]})
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": {"names": ["a", "b"]}}}})}
    encoding = {"image.more.list.element.list.element": "DELTA_BYTE_ARRAY"}
    pq.write_table(
        table.replace_schema_metadata(metadata),
        tmp_path / NAME,
        use_dictionary=False,
        column_encoding=encoding,
    )
    source = parquet.find(tmp_path, ["train"])

    assert [bytes(image.data) for image in source.images(source.tasks[0])] == [b"x", b"x"]


@pytest.mark.parametrize("twice", ["label", "image"])
def test_duplicate_column_is_refused(tmp_path: Path, twice: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"image": pa.array([{"bytes": b"x", "path": "a"}]), "label": pa.array([0])}
    names = [*columns, twice]
    pq.write_table(pa.table([columns[name] for name in names], names=names), tmp_path / NAME)
    with pytest.raises(SourceError, match=says("expected-image-bytes-path-label")):
        parquet.find(tmp_path, ["train"])


def test_lack_of_memory_is_never_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    write_parquet(tmp_path / NAME, rows_of([b"a", b"b"]), ["cat", "dog"])
    source = parquet.find(tmp_path, ["train"])
    lacks = [
        pa.ArrowMemoryError("realloc of size 1073786880 failed"),
        MemoryError(),
        OSError("Couldn't deserialize thrift: std::bad_alloc"),
        OSError(12, "Cannot allocate memory"),
    ]
    for lack in lacks:

        def fail(*_: object, lack: Exception = lack, **__: object) -> None:
            raise lack

        monkeypatch.setattr(ParquetFile, "iter_batches", fail)
        with pytest.raises(IncompleteError, match=says("cannot-read-2", NAME, "out of memory")):
            list(source.images(source.tasks[0]))


@pytest.mark.slow
def test_memory_limit_never_damages_a_sound_file(tmp_path: Path) -> None:
    images = [bytes([number]) * (1 << 20) for number in range(8)]
    write_parquet(tmp_path / NAME, rows_of(images), ["cat", "dog"], use_dictionary=False)
    code = (
        "import resource, sys\n"
        "import pyarrow.parquet\n"
        "from pathlib import Path\n"
        "from imagenet_prep.core.errors import IncompleteError\n"
        "from imagenet_prep.sources import parquet\n"
        "root = Path(sys.argv[1])\n"
        "text = Path('/proc/self/status').read_text()\n"
        "size = int(text.partition('VmSize:')[2].split()[0]) << 10\n"
        "counts = {'read': 0, 'named': 0}\n"
        "hard = resource.getrlimit(resource.RLIMIT_AS)[1]\n"
        "for room in range(0, 48 << 20, 1 << 20):\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (size + room, hard))\n"
        "    try:\n"
        "        source = parquet.find(root, ['train'])\n"
        "        assert sum(1 for _ in source.images(source.tasks[0])) == 8\n"
        "        counts['read'] += 1\n"
        "    except IncompleteError as error:\n"
        "        assert sys.argv[2] in str(error)\n"
        "        counts['named'] += 1\n"
        "    except MemoryError:\n"
        "        counts['named'] += 1\n"
        "print(min(counts.values()))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), NAME]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


@pytest.mark.parametrize(("size", "turns_taken"), [(20 << 20, 1), (1 << 20, 0)])
def test_only_a_large_file_is_unpacked_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, turns_taken: int
) -> None:
    taken: list[None] = []

    @contextlib.contextmanager
    def turn() -> Iterator[None]:
        yield
        taken.append(None)

    monkeypatch.setattr(limits, "turn", turn)
    write_parquet(tmp_path / NAME, rows_of([bytes(size)], lambda _: 0), ["cat", "dog"])

    assert unpacked(tmp_path)[1] == [bytes(size)]
    assert len(taken) == turns_taken
