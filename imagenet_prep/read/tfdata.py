"""Decodes, crops and resizes with tf.data, on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import EncodedBatch


class TfDataBackend:
    """Turns encoded batches into tensors."""

    def __init__(self, wanted: ReadConfig) -> None:
        """Takes what is asked for; antialias and the number of threads are decided."""
        self.wanted = wanted
        self._feed: Callable[[], Iterator[EncodedBatch]] | None = None

    def batches(self, feed: Callable[[], Iterator[EncodedBatch]], steps: int) -> Iterator[Any]:
        """Yields the images of each step."""
        self._feed = feed
        try:
            shown = iter(self._dataset)
            for _ in range(steps):
                yield next(shown)
        finally:
            self._feed = None

    @functools.cached_property
    def _dataset(self) -> Any:
        """A tf.data.Dataset of batches over what `_feed` yields.

        It is made once: TensorFlow never frees what a generator refers to, which would be the
        encoded images of every epoch.
        """

        def arrays() -> Iterator[tuple[Any, ...]]:
            assert self._feed is not None
            for batch in self._feed():
                views = batch.views
                colours = [each.colours for each in views if each.colours is not None]
                yield (
                    [bytes(each) for each in batch.encoded],
                    *(each.boxes for each in views),
                    *(each.mirrored for each in views),
                    *colours,
                )

        size, views = self.wanted.batch_size, self.wanted.views
        signature: tuple[Any, ...] = (
            tf.TensorSpec([size], tf.string),
            *[tf.TensorSpec([size, 4], tf.int32)] * views,
            *[tf.TensorSpec([size], tf.bool)] * views,
        )
        if self.wanted.is_coloured:
            signature += (tf.TensorSpec([size, 3, 7], tf.float32),) * views
        options = tf.data.Options()
        options.deterministic = True
        options.experimental_optimization.map_and_batch_fusion = True
        options.threading.private_threadpool_size = self.wanted.num_threads
        return (
            tf.data.Dataset.from_generator(arrays, output_signature=signature)
            .prefetch(1)
            .unbatch()
            .map(self._show, num_parallel_calls=2 * self.wanted.num_threads, deterministic=True)
            .batch(size, drop_remainder=True)
            .prefetch(1)
            .with_options(options)
        )

    def _show(self, encoded: Any, *views: Any) -> Any:
        count = self.wanted.views
        images = [self._image(encoded, *views[view::count]) for view in range(count)]
        return images[0] if count == 1 else tf.stack(images)

    def _image(self, encoded: Any, box: Any, mirrored: Any, *colours: Any) -> Any:
        """Returns one view of an image."""
        pixels = self._decoded(encoded, box)
        # Here, before the resize, pixels are bytes and few.
        pixels = tf.cond(mirrored, lambda: tf.reverse(pixels, [1]), lambda: pixels)
        side = self.wanted.image_size
        if self.wanted.antialias:
            image = tf.image.resize(pixels, [side, side], antialias=True)
        else:
            image = tf.raw_ops.ResizeBilinear(
                images=pixels[tf.newaxis], size=[side, side], half_pixel_centers=True
            )[0]
        image = tf.ensure_shape(image, [side, side, 3])
        if colours:
            image = _coloured(image, colours[0])
        if self.wanted.dtype == "uint8":
            image = tf.cast(tf.clip_by_value(image + 0.5, 0.0, 255.0), tf.uint8)
        else:
            image = tf.cast(self._normalised(image), self.wanted.dtype)
        return tf.transpose(image, [2, 0, 1]) if self.wanted.layout == "NCHW" else image

    def _decoded(self, encoded: Any, box: Any) -> Any:
        # TensorFlow's default transform is less exact: one grey level off Pillow and DALI. This one
        # takes 2 % more time.
        exact = {"channels": 3, "dct_method": "INTEGER_ACCURATE"}
        padding = self.wanted.constants.padding
        if padding is None:
            return tf.image.decode_and_crop_jpeg(encoded, box, **exact)
        padded = tf.pad(
            tf.io.decode_jpeg(encoded, **exact), [[padding, padding], [padding, padding], [0, 0]]
        )
        top, left, height, width = tf.unstack(box)
        return tf.image.crop_to_bounding_box(padded, top + padding, left + padding, height, width)

    def _normalised(self, image: Any) -> Any:
        """Returns (image - mean) / std, a row of pixels at a time.

        Broadcast over three channels only, the same arithmetic takes four times as long.
        """
        side = self.wanted.image_size
        constants = self.wanted.constants
        scale = [1 / std for std in constants.std] * side
        shift = [-m / std for m, std in zip(constants.mean, constants.std, strict=True)] * side
        rows = tf.reshape(image, [side, side * 3])
        return tf.reshape(rows * tf.constant(scale) + tf.constant(shift), [side, side, 3])


def _coloured(image: Any, colours: Any) -> Any:
    """Returns an image with the colours of `augment.Views`."""
    mean = tf.reduce_mean(image, [0, 1])
    shift = tf.linalg.matvec(colours[:, 3:6], mean) + colours[:, 6]
    pixels = tf.reshape(image, [-1, 3])
    pixels = tf.matmul(pixels, colours[:, :3], transpose_b=True) + shift
    return tf.reshape(tf.clip_by_value(pixels, 0.0, 255.0), tf.shape(image))


def from_numpy(array: Any) -> Any:
    """Returns an array of the native backend as a tensor; its uint16 are bfloat16."""
    tensor = tf.convert_to_tensor(array)
    return tf.bitcast(tensor, tf.bfloat16) if array.dtype == "uint16" else tensor
