"""TensorFlow decodes all images of the codec, even if the source was damaged."""

from __future__ import annotations

from types import ModuleType

import pytest

from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import transform
from imagenet_prep.core.errors import BadImageError
from tests.kit.codec import mutations

pytestmark = [pytest.mark.tf, pytest.mark.slow]


@pytest.mark.parametrize("policy", [Policy(None), Policy(64)], ids=["keep", "shrink"])
def test_tensorflow_decodes_images_from_damaged_sources(tf: ModuleType, policy: Policy) -> None:
    decoded = 0
    for how, data in mutations.mutated(99, 600):
        try:
            image = transform(data, policy)
        except BadImageError:
            continue
        assert tuple(tf.io.decode_jpeg(image.encoded).shape) == (image.height, image.width, 3), how
        decoded += 1
    assert decoded > 150


@pytest.mark.parametrize("kind", sorted(mutations.sources()))
def test_tensorflow_decodes_images_of_all_source_kinds(tf: ModuleType, kind: str) -> None:
    image = transform(mutations.sources()[kind], Policy(None))

    assert tuple(tf.io.decode_jpeg(image.encoded).shape) == (120, 160, 3)
