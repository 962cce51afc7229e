"""Examples: encoding, decoding, damage, and the limit of problems per shard."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf import wrappers_pb2
from hypothesis import example as instance
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import example, protobuf, schema
from imagenet_prep.dataset.class_list import FALL11
from imagenet_prep.dataset.example import MOST, Boxes, GivenUpError, ImageExample, ShardProblems
from tests.kit.messages import says
from tests.kit.tfrecords import picture, plain

relative = st.floats(0, 1, width=32)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def boxes(draw: st.DrawFn) -> Boxes:
    count = draw(st.integers(0, 4))
    sides = st.lists(relative, min_size=count, max_size=count).map(tuple)
    return Boxes(draw(sides), draw(sides), draw(sides), draw(sides))


image_examples = st.builds(
    ImageExample,
    encoded=st.binary(max_size=300),
    height=st.integers(0, 2**16),
    width=st.integers(0, 2**16),
    filename=texts,
    stored_label=st.integers(-(2**63), 2**63 - 1),
    wnid=texts,
    text=texts,
    boxes=boxes(),
)
SOUND = ImageExample(b"\xff\xd8\xff", 375, 500, "n01440764_1.JPEG", 1, "n01440764", "tench")
BOXED = SOUND._replace(boxes=Boxes((0.25,), (0.5,), (0.125,), (1.0,)))


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def message(features: dict[str, bytes]) -> bytes:
    """Returns an Example of already encoded Feature messages."""
    entries = (field(1, key.encode()) + field(2, value) for key, value in features.items())
    return field(1, b"".join(field(1, entry) for entry in entries))


def parts(image: ImageExample) -> dict[str, bytes]:
    """Returns the encoded Feature of each key, only with functions of this file."""
    count = len(image.boxes.xmin)
    packed = {
        schema.HEIGHT: [image.height],
        schema.WIDTH: [image.width],
        schema.CHANNELS: [3],
        schema.LABEL: [image.stored_label],
        schema.BBOX_LABEL: [image.stored_label] * count,
    }
    strings = {
        schema.ENCODED: image.encoded,
        schema.FORMAT: b"JPEG",
        schema.COLORSPACE: b"RGB",
        schema.FILENAME: image.filename.encode(),
        schema.SYNSET: image.wnid.encode(),
        schema.TEXT: image.text.encode(),
    }
    floats = dict(
        zip(
            (schema.BBOX_XMIN, schema.BBOX_XMAX, schema.BBOX_YMIN, schema.BBOX_YMAX),
            image.boxes,
            strict=True,
        )
    )
    return (
        {key: field(1, field(1, value)) for key, value in strings.items()}
        | {key: int64s(*values) for key, values in packed.items()}
        | {key: float_list(*values) for key, values in floats.items()}
    )


def int64s(*values: int) -> bytes:
    return field(3, field(1, b"".join(map(varint, values))) if values else b"")


def float_list(*values: float) -> bytes:
    return field(2, field(1, struct.pack(f"<{len(values)}f", *values)) if values else b"")


def test_helpers_agree_with_the_encoder() -> None:
    # encode() sorts by key as protobuf's deterministic serialization does.
    assert message(dict(sorted(parts(BOXED).items()))) == example.encode(BOXED)


@pytest.mark.parametrize("bits", [7, 14, 21, 28, 35, 63])
def test_varints_are_protobufs(bits: int) -> None:
    """Each 7 bits more take one more byte."""
    for value in range((1 << bits) - 3, (1 << bits) + 3):
        number = wrappers_pb2.UInt64Value(value=value)
        assert b"\x08" + protobuf.varint(value) == number.SerializeToString()


@pytest.mark.parametrize("bits", [7, 14, 21])
def test_images_of_any_size_are_written_as_protobuf(bits: int) -> None:
    """The lengths of the image, its list, its feature, entry and example differ by a few bytes."""
    for size in range(max(0, (1 << bits) - 300), (1 << bits) + 1, 1 if bits < 21 else 3):
        image = SOUND._replace(encoded=bytes(size))
        payload = example.encode(image)
        assert example.decode(payload) == image
        data = protobuf.feature_entries(protobuf.parse(payload))
        assert payload == protobuf.FIELD_1 + varint(len(data)) + data


@given(image_examples)
@instance(ImageExample(b"", 0, 0, "", -1, "", ""))
@instance(SOUND._replace(text="ワンちゃん, Köter \U0001f436"))
def test_decoding_inverts_encoding(image: ImageExample) -> None:
    assert example.decode(example.encode(image)) == image


def test_all_fifteen_keys_are_always_present() -> None:
    features = protobuf.parse(example.encode(SOUND))

    assert sorted(features) == list(schema.ALL_KEYS)
    assert len(features) == 15
    assert [features[key] for key in schema.FLOAT_KEYS] == [(), (), (), ()]


def test_each_box_has_the_label_of_the_image() -> None:
    image = SOUND._replace(stored_label=7, boxes=Boxes((0, 0.5), (1, 1), (0, 0.5), (1, 1)))

    assert protobuf.parse(example.encode(image))[schema.BBOX_LABEL] == (7, 7)


@given(st.permutations(list(schema.ALL_KEYS)))
def test_keys_may_come_in_any_order(order: list[str]) -> None:
    there = parts(BOXED)

    assert example.decode(message({key: there[key] for key in order})) == BOXED


def test_unpacked_numbers_are_accepted() -> None:
    unpacked = parts(BOXED) | {
        schema.HEIGHT: field(3, b"\x08" + varint(BOXED.height)),
        schema.BBOX_XMIN: field(2, b"\x0d" + struct.pack("<f", 0.25)),
    }

    assert example.decode(message(unpacked)) == BOXED


def test_list_may_mix_packed_and_unpacked_numbers() -> None:
    image = SOUND._replace(boxes=Boxes((0, 0.5), (1, 1), (0, 0), (1, 1)))
    floats = b"\x0d" + struct.pack("<f", 0) + field(1, struct.pack("<f", 0.5))
    ints = b"\x08\x01" + field(1, b"\x01")
    mixed = parts(image) | {
        schema.BBOX_XMIN: field(2, floats),
        schema.BBOX_LABEL: field(3, ints),
    }

    assert example.decode(message(mixed)) == image


@pytest.mark.parametrize("key", schema.ALL_KEYS)
def test_missing_key_is_named(key: str) -> None:
    features = parts(SOUND)
    del features[key]

    with pytest.raises(DataDamagedError, match=f"keys missing: {key}$"):
        example.decode(message(features))


def test_key_outside_the_schema_is_named() -> None:
    with pytest.raises(DataDamagedError, match=says("keys-outside-schema", "image/colour")):
        example.decode(message(parts(SOUND) | {"image/colour": int64s(1)}))


WRONG_TYPE = {
    **{key: {"int64": int64s(3), "float": float_list(3.0)} for key in schema.BYTES_KEYS},
    **{
        key: {"bytes": field(1, field(1, b"3")), "float": float_list(3.0)}
        for key in schema.INT64_KEYS
    },
    **{
        key: {"bytes": field(1, field(1, b"0.5")), "text": field(1, field(1, b"half"))}
        for key in schema.FLOAT_KEYS
    },
}


def values_of_wrong_types() -> Iterator[Any]:
    for key, values in sorted(WRONG_TYPE.items()):
        for kind, value in values.items():
            yield pytest.param(key, value, id=f"{key}-{kind}")


@pytest.mark.parametrize(("key", "value"), [*values_of_wrong_types()])
def test_value_of_a_wrong_type_is_refused(key: str, value: bytes) -> None:
    with pytest.raises(DataDamagedError, match=key):
        example.decode(message(parts(BOXED) | {key: value}))


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        (schema.HEIGHT, int64s(), "image/height is not one integer: it has 0 values"),
        (schema.HEIGHT, int64s(1, 2), "image/height is not one integer: it has 2 values"),
        (schema.WIDTH, b"", "image/width is not one integer: it has 0 values"),
        (schema.FORMAT, field(1, field(1, b"PNG")), "image/format is b'PNG'"),
        (schema.COLORSPACE, field(1, field(1, b"GRAY")), "image/colorspace is b'GRAY'"),
        (schema.CHANNELS, int64s(1), "image/channels is 1, expected 3"),
        (schema.TEXT, field(1, field(1, b"\xff")), "image/class/text is not UTF-8"),
        (schema.BBOX_XMIN, float_list(0.5, 0.5), says("bounding-box-lists-differ-length")),
        (schema.BBOX_LABEL, int64s(), says("bounding-box-lists-differ-length")),
    ],
    ids=[
        "no-height",
        "two-heights",
        "width-without-a-list",
        "format",
        "colorspace",
        "channels",
        "text",
        "too-many-boxes",
        "no-label-for-a-box",
    ],
)
def test_values_that_break_the_schema_are_refused(key: str, value: bytes, complaint: str) -> None:
    with pytest.raises(DataDamagedError, match=complaint):
        example.decode(message(parts(BOXED) | {key: value}))


@pytest.mark.parametrize("payload", [b"\x28\x01", b"\x0a\x02\x28\x01"], ids=["top", "features"])
def test_unexpected_fields_are_refused(payload: bytes) -> None:
    with pytest.raises(DataDamagedError, match=says("not-tf.train.example-unexpected-fields")):
        protobuf.parse(payload)


def test_every_truncation_is_refused() -> None:
    payload = example.encode(BOXED)

    for length in range(len(payload)):
        with pytest.raises(DataDamagedError):
            example.decode(payload[:length])


@given(st.binary(max_size=200))
@instance(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
@instance(b"\x80" * 11)
def test_garbage_is_always_damage(payload: bytes) -> None:
    with pytest.raises(DataDamagedError):
        example.decode(payload)


@given(st.data())
def test_mutated_example_is_read_or_damage(data: st.DataObject) -> None:
    payload = bytearray(example.encode(BOXED))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))

    try:
        decoded = example.decode(bytes(payload))
    except DataDamagedError:
        return
    assert isinstance(decoded, ImageExample)


def outcome(read: Callable[[bytes], object], payload: bytes) -> str:
    try:
        return repr(read(payload))
    except DataDamagedError as error:
        return str(error)


def in_one_go(payload: bytes) -> ImageExample:
    """Decodes as if the entries were in a different order than that of `encode`."""
    return example.checked(protobuf.parse(payload), {})


@given(image_examples, st.data())
def test_fast_path_equals_the_general_parser(image: ImageExample, data: st.DataObject) -> None:
    payload = bytearray(example.encode(image))
    for _ in range(data.draw(st.integers(0, 2))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))

    assert outcome(example.decode, bytes(payload)) == outcome(in_one_go, bytes(payload))


@pytest.mark.parametrize("num_bytes", [0, 127, 128, 16_000, 17_000, 2_100_000])
@pytest.mark.parametrize("image", [SOUND, BOXED], ids=["without boxes", "with boxes"])
def test_recurring_entries_are_parsed_once(
    image: ImageExample, num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    example.decode(example.encode(image))
    other = image._replace(encoded=b"\xff" * num_bytes, filename="another.JPEG")
    payload = example.encode(other)
    monkeypatch.setattr(protobuf, "parse", None)

    assert example.decode(memoryview(payload)) == other


def test_records_with_thousands_of_boxes_are_not_cached() -> None:
    sides = [(0.25,) * 3000] * 4
    tracemalloc.start()
    try:
        for number in range(3):
            image = BOXED._replace(height=number + 1, boxes=Boxes(*sides))
            assert example.decode(example.encode(image)) == image
        del image
        assert tracemalloc.get_traced_memory()[0] < 1 << 16
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("key", [schema.LABEL, schema.HEIGHT, schema.ENCODED])
def test_last_of_two_equal_entries_is_used(key: str) -> None:
    other = parts(SOUND._replace(encoded=b"other", height=1, stored_label=2))
    payload = field(1, example.encode(SOUND)[3:] + message({key: other[key]})[2:])

    assert example.decode(payload) == in_one_go(payload) != SOUND


ABSENT = [schema.TEXT, schema.SYNSET, schema.HEIGHT, schema.CHANNELS, schema.COLORSPACE]
BOX_KEYS = [*schema.FLOAT_KEYS, schema.BBOX_LABEL]


@pytest.mark.parametrize("keys", [*([key] for key in ABSENT), BOX_KEYS], ids=str)
def test_declared_absence_reads_as_empty(keys: list[str]) -> None:
    payload = message({key: value for key, value in parts(BOXED).items() if key not in keys})
    found = example.decode(payload, dict.fromkeys(keys, schema.ABSENT))

    assert found.encoded == BOXED.encoded
    assert found.text == ("" if schema.TEXT in keys else BOXED.text)
    assert found.wnid == ("" if schema.SYNSET in keys else BOXED.wnid)
    assert found.height == (0 if schema.HEIGHT in keys else BOXED.height)
    assert found.boxes == (example.NO_BOXES if keys == BOX_KEYS else BOXED.boxes)
    with pytest.raises(DataDamagedError, match="keys missing"):
        example.decode(payload)


def test_box_labels_may_be_absent_with_boxes() -> None:
    payload = message({k: v for k, v in parts(BOXED).items() if k != schema.BBOX_LABEL})

    assert example.decode(payload, {schema.BBOX_LABEL: schema.ABSENT}).boxes == BOXED.boxes


def test_wrong_constant_is_accepted_only_if_declared() -> None:
    payload = message(parts(SOUND) | {schema.COLORSPACE: field(1, field(1, b"Gray"))})

    assert example.decode(payload, {schema.COLORSPACE: schema.WRONG}) == SOUND
    with pytest.raises(DataDamagedError, match=r"image/colorspace is b'Gray', expected b'RGB'"):
        example.decode(payload, {schema.CHANNELS: schema.WRONG})


@pytest.mark.parametrize("num_bytes", [10, 3500, 3990, 5000, 300_000])
def test_example_is_read_without_its_image(num_bytes: int) -> None:
    boxes = Boxes((0.25,) * 40, (0.5,) * 40, (0.25,) * 40, (0.5,) * 40)
    whole = ImageExample(bytes(num_bytes), 3, 4, "a.JPEG", 5, "n00000001", "words", boxes)
    payload = example.encode(whole)
    read = []

    def part(offset: int, size: int) -> bytes:
        read.append(size)
        return payload[offset : offset + size]

    assert example.decode_without_image(part, len(payload)) == whole._replace(encoded=b"")
    assert sum(read) < 4096 * 3
    damaged = payload[:3] + b"\xff" * 9 + payload[12:]
    with pytest.raises(DataDamagedError):
        example.decode_without_image(lambda at, size: damaged[at : at + size], len(damaged))


@pytest.mark.parametrize("entry_bytes", [4500, 10**6, 2**40])
def test_image_that_leaves_its_record_is_damage(entry_bytes: int) -> None:
    entry = b"\x0a" + varint(entry_bytes) + field(1, schema.ENCODED.encode())
    payload = field(1, entry + bytes(4200))

    def part(offset: int, size: int) -> bytes:
        assert size >= 0  # os.pread refuses it
        return payload[offset : offset + size]

    for size in (len(payload), 2, -4):
        with pytest.raises(DataDamagedError):
            example.decode_without_image(part, size)


def test_cache_has_room_for_all_imagenet_21k_classes() -> None:
    # In a shard, classes are in no order: with room for fewer, most images would miss.
    assert (example._class_entries.cache_info().maxsize or 0) >= FALL11.num_classes


@given(image_examples, st.integers(0, 2**40), texts, texts)
def test_relabelled_example_equals_one_written_so(
    before: ImageExample, label: int, wnid: str, text: str
) -> None:
    after = before._replace(stored_label=label, wnid=wnid, text=text)
    assert example.relabelled(example.encode(before), label, wnid, text) == example.encode(after)


def test_relabelling_adds_no_missing_key() -> None:
    features = protobuf.parse(example.encode(ImageExample(b"jpeg", 4, 3, "a.JPEG", 7, "n1", "one")))
    lacking = {
        key: features[key] for key in features if key not in (schema.TEXT, schema.BBOX_LABEL)
    }
    entries = protobuf.feature_entries(lacking)
    payload = b"\x0a" + bytes([len(entries) & 127 | 128, len(entries) >> 7]) + entries
    found = protobuf.parse(example.relabelled(payload, 9, "n2", "two"))
    assert found == lacking | {schema.LABEL: (9,), schema.SYNSET: (b"n2",)}


def test_shard_is_abandoned_after_its_thousandth_problem() -> None:
    problems = ShardProblems()
    for number in range(MOST - 1):
        problems.add(f"record {number}")
    assert len(problems.listed("a")) == len(problems) == MOST - 1

    with pytest.raises(GivenUpError):
        problems.add(ValueError("the last"))

    assert problems.listed("a")[-2:] == [
        "the last",
        "a: checking stopped after 1,000 problems: there may be more",
    ]


def test_size_of_a_refused_jpeg_is_not_changed() -> None:
    """It is reported with the other damage of its record."""
    sound = picture(0, plain(0))._replace(width=1, height=1)
    true = example.with_true_size(sound)
    assert (true.width, true.height) != (1, 1)
    place = sound.encoded.index(b"\xff\xc0") + 5
    bomb = sound.encoded[:place] + b"\xff\xff\xff\xff" + sound.encoded[place + 4 :]
    refused = sound._replace(encoded=bomb)
    assert example.with_true_size(refused) == refused
