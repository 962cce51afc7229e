"""Records of a batch, read in one call: the result equals that of `read`, bit by bit."""

from __future__ import annotations

import gc
import io
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.core.world import World
from imagenet_prep.dataset import example, record_files
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.member import NO_BOXES, Boxes
from imagenet_prep.read import make_dataset, records
from imagenet_prep.read.batch import PooledMemory
from imagenet_prep.read.records import Records
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit.bounds import limited_memory
from tests.kit.codec import native
from tests.kit.hostile import images
from tests.kit.installed import Installed
from tests.kit.messages import says
from tests.kit.tfrecords import framed, picture, plain, write_dataset

HARNESS = Path(__file__).with_name("harness.c")
JPEG = plain(7)


def stored(number: int, encoded: bytes) -> ImageExample:
    """An example that is declared as an image, whatever its bytes are."""
    return picture(number, JPEG)._replace(encoded=encoded)


def progressive() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (40, 30)).save(stream, "JPEG", progressive=True)
    return stream.getvalue()


def claiming(height: int, width: int) -> bytes:
    """A JPEG with this size in its header."""
    at = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + JPEG[at + 4 :]


def crowded() -> bytes:
    """A JPEG with more segments before its scan than `jpeg.refuse_bombs` allows."""
    return JPEG[:2] + 10_000 * b"\xff\xfe\0\2" + JPEG[2:]


def write(path: Path, payloads: Sequence[bytes]) -> list[tuple[int, int]]:
    """Writes records; returns offset and size of each."""
    frames = [framed(payload) for payload in payloads]
    path.write_bytes(b"".join(frames))
    stops = np.cumsum([len(each) for each in frames]).tolist()
    return [(stop - len(each), len(each)) for stop, each in zip(stops, frames, strict=True)]


def found(path: Path, places: Sequence[tuple[int, int]]) -> list[ImageExample | None]:
    """Returns the examples found at these places, with copies of their bytes."""
    offsets, sizes = np.array(places, np.int64).T.copy()
    with path.open("rb") as file:
        data, where = records.gather([file.fileno()] * len(places), offsets, sizes, deque())
    images = [each and example.decode_at(data, each[0]) for each in where]
    return [each and each._replace(encoded=bytes(each.encoded)) for each in images]


def test_records_of_every_length_are_read_unchanged(tmp_path: Path) -> None:
    boxes = Boxes((0.125,), (0.5,), (0.25,), (0.75,))
    wanted = [
        stored(n, JPEG + bytes(n))._replace(boxes=boxes if n % 2 else NO_BOXES) for n in range(60)
    ]
    places = write(tmp_path / "shard", [example.encode(each) for each in wanted])

    assert found(tmp_path / "shard", places) == wanted
    assert found(tmp_path / "shard", places[::-1]) == wanted[::-1]


@pytest.mark.parametrize(
    "encoded",
    [
        progressive(),
        images.many_scans_without_interleaving(3),
        claiming(9000, 9000),
        crowded(),
        b"no JPEG",
        b"",
    ],
)
def test_unusual_images_are_left_to_read(tmp_path: Path, encoded: bytes) -> None:
    places = write(
        tmp_path / "shard", [example.encode(stored(1, each)) for each in (encoded, JPEG)]
    )

    first, second = found(tmp_path / "shard", places)

    assert first is None
    assert second is not None


def test_memory_is_reused_if_no_image_remains(tmp_path: Path) -> None:
    pictures = [picture(number, plain(number)) for number in range(6)]
    write_dataset(tmp_path / "set", {"train": [pictures]}, num_classes=6)
    records = Records(open_dataset(str(tmp_path / "set")), "train")

    def address(image: ImageExample | None) -> int:
        assert image is not None
        return int(np.frombuffer(image.encoded, np.uint8).ctypes.data)

    first = records.read_many([5, 4, 3])
    second = records.read_many([0, 1])
    alone = first[2]
    kept = address(first[0])
    del first
    assert address(records.read_many([0])[0]) != kept  # one image of the batch still exists
    assert alone == pictures[3]
    del alone
    assert address(records.read_many([5])[0]) == kept
    assert second == pictures[:2]


@pytest.mark.dali
def test_dali_keeps_the_memory_of_its_input(dali: Any) -> None:
    from nvidia.dali.tensors import TensorCPU, TensorListCPU

    free: deque[Any] = deque()
    batch = np.asarray(PooledMemory(np.arange(100, dtype=np.uint8), free))
    given = TensorListCPU(
        [TensorCPU(batch.data[:10]), TensorCPU(batch.data[10:])], contiguous=False
    )
    del batch
    gc.collect()
    assert not free
    assert np.array_equal(given.at(1), np.arange(10, 100))
    del given
    assert len(free) == 1


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    (place,) = write(tmp_path / "shard", [example.encode(stored(1, JPEG[:400]))])
    record = (tmp_path / "shard").read_bytes()
    flipped = [
        record[:at] + bytes((record[at] ^ 1 << at % 8,)) + record[at + 1 :]
        for at in range(len(record))
    ]
    (tmp_path / "shard").write_bytes(b"".join(flipped))

    many = [(n * len(record), place[1]) for n in range(len(flipped))]

    assert found(tmp_path / "shard", many) == [None] * len(flipped)


def test_truncated_or_empty_record_is_not_found(tmp_path: Path) -> None:
    ((_, size),) = write(tmp_path / "shard", [example.encode(picture(1, JPEG))])

    assert found(tmp_path / "shard", [(1, size), (0, 15), (0, 0), (size + 9, 40)]) == [None] * 4


@given(data=st.data())
def test_records_refused_by_the_parser_are_not_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    payload = bytearray(example.encode(stored(1, JPEG[:180])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        much = data.draw(st.integers(0, 4))
        payload[at : at + much] = data.draw(st.binary(max_size=4))
    path = tmp_path_factory.mktemp("mutated") / "shard"

    (image,) = found(path, write(path, [bytes(payload)]))

    if image is not None:
        assert image == example.decode(bytes(payload))


def test_damage_is_left_to_read_and_named(tmp_path: Path) -> None:
    wrong = picture(2, JPEG)._replace(wnid="n00000001")
    write_dataset(tmp_path / "set", {"train": [[picture(0, JPEG), wrong]]}, num_classes=3)
    records = Records(open_dataset(str(tmp_path / "set")), "train")

    first, second = records.read_many([0, 1])

    assert first is not None
    assert second is None
    with pytest.raises(DataDamagedError, match=says("label-not-class-synset")):
        records.read(1)


def test_batch_of_huge_sizes_takes_no_memory(tmp_path: Path) -> None:
    write_dataset(
        tmp_path / "set", {"train": [[picture(n, JPEG) for n in range(9)]]}, num_classes=9
    )
    records = Records(open_dataset(str(tmp_path / "set")), "train")
    assert None not in records.read_many(range(9))

    records._places[:8, 1] = record_files.MAX_PAYLOAD_BYTES  # as an index of a sparse file
    with limited_memory(record_files.MAX_PAYLOAD_BYTES):
        *huge, last = records.read_many(range(9))
    assert huge == [None] * 8
    assert last is not None


@pytest.fixture
def not_compiled(installed: Installed, tmp_path: Path) -> None:
    """Acts as if no compiler were available."""
    installed.library("read.records")


def batches(root: Path) -> list[dict[str, Any]]:
    options: dict[str, Any] = {"backend": "native", "framework": "numpy", "world": World()}
    return list(make_dataset(root, "train", 5, 16, **options))


def test_batches_are_the_same_if_not_compiled(
    colours: Path, request: pytest.FixtureRequest
) -> None:
    expected = batches(colours)
    request.getfixturevalue("not_compiled")
    assert Records(open_dataset(str(colours)), "train").read_many([0, 1]) == [None, None]

    for one, other in zip(batches(colours), expected, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in expected[0])


def run(tmp_path: Path, shard: Path, places: Sequence[tuple[int, int]], *command: object) -> Any:
    """Returns the output of the harness."""
    index = tmp_path / "index"
    index.write_text("".join(record_files.index_line(*place) for place in places))
    lines = native.run(*command, shard, index).decode().splitlines()
    return [None if line == "-1" else [int(word) for word in line.split()] for line in lines]


@pytest.mark.slow
def test_damaged_records_never_lead_out_of_their_memory(tmp_path: Path) -> None:
    if reason := native.missing(native.SANITIZED):
        pytest.skip(reason)
    program = native.build(tmp_path, native.SANITIZED, sources=[HARNESS])
    payload = example.encode(picture(1, JPEG))
    rng = np.random.default_rng(0)
    mutated = [payload]
    for at in range(300):
        changed = bytearray(payload[: len(payload) - at % 7 * 20])
        changed[rng.integers(len(changed))] = rng.integers(256)
        changed[rng.integers(120)] = rng.integers(256)
        mutated.append(bytes(changed))
    places = write(tmp_path / "shard", mutated)
    offsets, sizes = np.array(places, np.int64).T.copy()
    with (tmp_path / "shard").open("rb") as file:
        _, found = records.gather([file.fileno()] * len(places), offsets, sizes, deque())
    expected = [each and [*each[0], *each[1]] for each in found]

    assert run(tmp_path, tmp_path / "shard", places, program) == expected


@pytest.mark.long
def test_arm_gives_the_same_result(tmp_path: Path) -> None:
    arm = native.zig("aarch64-linux-musl")
    for needed in (arm, ("qemu-aarch64-static",)):
        if reason := native.missing(needed):
            pytest.skip(reason)
    program = native.build(tmp_path, arm, "-static", sources=[HARNESS])
    payloads = [example.encode(stored(n, JPEG + bytes(n))) for n in range(60)]
    places = write(tmp_path / "shard", payloads)
    offsets, sizes = np.array(places, np.int64).T.copy()
    with (tmp_path / "shard").open("rb") as file:
        _, expected = records.gather([file.fileno()] * len(places), offsets, sizes, deque())

    assert None not in expected
    assert run(tmp_path, tmp_path / "shard", places, "qemu-aarch64-static", program) == expected
