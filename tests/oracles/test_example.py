"""Compares the bytes of an example with protobuf's deterministic serialization in TensorFlow."""

from __future__ import annotations

import random
from types import ModuleType

import pytest
from google.protobuf.message import DecodeError

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import example, schema
from imagenet_prep.dataset.example import Boxes, ImageExample
from tests.kit.tfrecords import with_tensorflow

pytestmark = pytest.mark.tf

ALPHABETS = ("abc_/0", "éßñ", "猫犬", "\U0001f436\U0001f431", "\0\n\t \x7f")
INT64S = (0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63))


def random_image(rng: random.Random) -> ImageExample:
    def text() -> str:
        return "".join(rng.choices(rng.choice(ALPHABETS), k=rng.choice([0, 1, 5, 127, 128, 300])))

    def side(count: int) -> list[float]:
        return [rng.choice([0.0, 1.0, rng.random(), -0.0]) for _ in range(count)]

    count = rng.choice([0, 0, 1, 2, 7])
    return ImageExample(
        encoded=rng.randbytes(rng.choice([0, 1, 100, 127, 128, 16_383, 16_384, 70_000])),
        height=rng.choice([1, 127, 128, 375, 16_384, 65_500]),
        width=rng.choice([1, 127, 128, 500, 16_384, 65_500]),
        filename=text(),
        stored_label=rng.choice([*INT64S, rng.randint(0, 1000)]),
        wnid=text(),
        text=text(),
        boxes=Boxes(side(count), side(count), side(count), side(count)),
    )


def float32(tf: ModuleType, image: ImageExample) -> ImageExample:
    rounded = (tuple(tf.constant(side, tf.float32).numpy().tolist()) for side in image.boxes)
    return image._replace(boxes=Boxes(*rounded))


@pytest.mark.parametrize("seed", range(4))
def test_example_has_bytes_of_deterministic_serialization(tf: ModuleType, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        image = random_image(rng)
        expected = with_tensorflow(tf, image).SerializeToString(deterministic=True)

        assert example.encode(image) == expected
        assert example.decode(expected) == float32(tf, image)


def test_example_with_any_order_of_keys_is_decoded(tf: ModuleType) -> None:
    rng = random.Random(5)
    for _ in range(50):
        image = random_image(rng)
        parts = [
            tf.train.Example(features=tf.train.Features(feature={key: value})).SerializeToString()
            for key, value in with_tensorflow(tf, image).features.feature.items()
        ]
        rng.shuffle(parts)

        # protobuf merges messages that follow each other.
        assert example.decode(b"".join(parts)) == float32(tf, image)


def test_damaged_example_is_refused_or_read_like_tensorflow(tf: ModuleType) -> None:
    """The parser may refuse more than protobuf does, but must never return different values."""
    image = ImageExample(b"abc", 3, 4, "f", 5, "n", "t", Boxes((0.5,), (1,), (0,), (1,)))
    sound = example.encode(image)
    rng = random.Random(6)
    disagreements = []
    agreed = 0
    for place in range(len(sound)):
        for value in {*rng.sample(range(256), 16), sound[place] ^ 8, sound[place] ^ 16}:
            payload = bytearray(sound)
            payload[place] = value
            try:
                ours = example.decode(bytes(payload))
            except DataDamagedError:
                continue
            try:
                theirs = tf.train.Example.FromString(bytes(payload)).features.feature
                expected = float32(tf, ours)
                found = ImageExample(
                    encoded=theirs[schema.ENCODED].bytes_list.value[0],
                    height=theirs[schema.HEIGHT].int64_list.value[0],
                    width=theirs[schema.WIDTH].int64_list.value[0],
                    filename=theirs[schema.FILENAME].bytes_list.value[0].decode(),
                    stored_label=theirs[schema.LABEL].int64_list.value[0],
                    wnid=theirs[schema.SYNSET].bytes_list.value[0].decode(),
                    text=theirs[schema.TEXT].bytes_list.value[0].decode(),
                    boxes=Boxes(
                        *(
                            tuple(theirs[key].float_list.value)
                            for key in (
                                schema.BBOX_XMIN,
                                schema.BBOX_XMAX,
                                schema.BBOX_YMIN,
                                schema.BBOX_YMAX,
                            )
                        )
                    ),
                )
            except (DecodeError, IndexError) as error:
                found = repr(error)
                expected = ours
            if repr(found) == repr(expected):  # NaN equals NaN
                agreed += 1
            else:
                disagreements.append((place, sound[place], value, found))

    assert disagreements == []
    assert agreed > 100
