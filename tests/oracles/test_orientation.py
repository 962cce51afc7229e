"""After apply and neutral, TensorFlow and DALI show Pillow's pixels, with and without EXIF."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.kit.photographs import shown, stored
from tests.kit.reading import dali

__all__ = ["dali"]

pytestmark = pytest.mark.slow


@pytest.mark.tf
def test_oriented_images_look_the_same_in_tensorflow(tf: ModuleType) -> None:
    for data in stored():
        pixels = tf.io.decode_jpeg(data, dct_method="INTEGER_ACCURATE").numpy()
        assert np.abs(shown(data, obeys=False) - pixels).mean() <= 1
        assert np.abs(shown(data, obeys=True) - pixels).mean() <= 1


@pytest.mark.dali
@pytest.mark.parametrize("obeys", [True, False])
def test_oriented_images_look_the_same_in_dali(dali: ModuleType, obeys: bool) -> None:
    images = stored()

    @dali.pipeline_def(batch_size=len(images), num_threads=1, device_id=None)
    def decoded() -> object:
        encoded = dali.fn.external_source(source=lambda: arrays, batch=True)
        return dali.fn.decoders.image(encoded, adjust_orientation=obeys)

    arrays = [np.frombuffer(data, np.uint8) for data in images]
    pipeline = decoded()
    pipeline.build()
    (batch,) = pipeline.run()
    for number, data in enumerate(images):
        assert np.abs(shown(data, obeys=True) - batch.at(number)).mean() <= 1
