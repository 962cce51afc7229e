"""Decodes, crops and resizes with tf.data on the CPU; prefetches images to a GPU."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, NamedTuple

import tensorflow as tf

from imagenet_prep.read.cache import BackgroundThreads
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import EncodedBatch
from imagenet_prep.read.recipes import BICUBIC

# Pixels of TensorFlow's default DCT differ from Pillow's and DALI's by one grey level. The accurate
# DCT is 2 % slower.
_EXACT = {"channels": 3, "dct_method": "INTEGER_ACCURATE"}


class _EpochSource(NamedTuple):
    """The input of one epoch."""

    encoded: Iterator[EncodedBatch]
    threads: BackgroundThreads  # wait for the batches
    end: Future[EncodedBatch | None]  # done if the epoch ends, maybe before its last batch


class TfDataBackend:
    """The backend that decodes with tf.data."""

    def __init__(self, config: ReadConfig) -> None:
        self._config = config
        ((self._shown,),) = config.shown
        self._source: _EpochSource | None = None

    def batches(self, encoded: Iterator[EncodedBatch], steps: int) -> Iterator[Any]:
        """Yields the images of each step."""
        # One thread waits for TensorFlow, since waiting for it would block Ctrl-C. The other one
        # waits for `encoded`.
        with BackgroundThreads(2, "tfdata") as threads:
            self._source = source = _EpochSource(encoded, threads, Future())
            images = [iter(self._dataset)]
            dropped = weakref.finalize(self, _drop, images, source.end)
            try:
                for _ in range(steps):
                    tensor = threads.submit(next, images[0]).result()
                    yield tensor.numpy() if self._config.array_framework == "numpy" else tensor
            finally:
                dropped()
                self._source = None

    def decode(self, encoded: bytes) -> None:
        """Decodes one image with TensorFlow."""
        tf.io.decode_jpeg(encoded, **_EXACT)

    @functools.cached_property
    def _dataset(self) -> Any:
        # Create the dataset only once. TensorFlow never frees the objects that a generator refers
        # to, so a dataset per epoch would leak the encoded images of every epoch.

        def arrays() -> Iterator[tuple[Any, ...]]:
            assert self._source is not None
            for batch in _until_end(self._source):
                colours = [view.colours for view in batch.views if view.colours is not None]
                yield (
                    [bytes(image) for image in batch.encoded],
                    *(view.boxes for view in batch.views),
                    *(view.mirrored for view in batch.views),
                    *colours,
                )

        size = self._config.batch_size
        views = self._shown.count
        signature: tuple[Any, ...] = (
            tf.TensorSpec([size], tf.string),
            *[tf.TensorSpec([size, 4], tf.int32)] * views,
            *[tf.TensorSpec([size], tf.bool)] * views,
        )
        if self._config.is_coloured:
            signature += (tf.TensorSpec([size, 3, 7], tf.float32),) * views
        options = tf.data.Options()
        options.deterministic = True
        # Autotuning has nothing to tune here, and an iterator would wait up to 1.5 s for its end.
        options.autotune.enabled = False
        options.experimental_optimization.map_and_batch_fusion = True
        options.threading.private_threadpool_size = self._config.decode_threads
        show = tf.autograph.experimental.do_not_convert(self._show)
        dataset = (
            tf.data.Dataset.from_generator(arrays, output_signature=signature)
            .prefetch(1)
            .unbatch()
            .map(show, num_parallel_calls=2 * self._config.decode_threads, deterministic=True)
            .batch(size, drop_remainder=True)
            .prefetch(1)
            .with_options(options)
        )
        gpus = tf.config.list_logical_devices("GPU")
        if len(gpus) != 1 or self._config.array_framework != "tensorflow":
            return dataset
        # A copy waits for all work queued on the GPU, so prefetch two batches.
        return dataset.apply(tf.data.experimental.prefetch_to_device(gpus[0].name, 2))

    def _show(self, encoded: Any, *views: Any) -> Any:
        count = self._shown.count
        images = [self._image(encoded, *views[view::count]) for view in range(count)]
        return images[0] if count == 1 else tf.stack(images)

    def _image(self, encoded: Any, box: Any, mirrored: Any, *colours: Any) -> Any:
        pixels = self._decoded(encoded, box)
        # Mirror before the resize: the pixels are then still bytes, which is cheaper.
        pixels = tf.cond(mirrored, lambda: tf.reverse(pixels, [1]), lambda: pixels)
        size = [*self._shown.size]
        if self._shown.antialias:
            image = tf.image.resize(pixels, size, self._shown.crops.filter, antialias=True)
        else:
            image = tf.raw_ops.ResizeBilinear(
                images=pixels[tf.newaxis], size=size, half_pixel_centers=True
            )[0]
        image = tf.ensure_shape(image, [*size, 3])
        if self._shown.crops.filter == BICUBIC:
            image = tf.clip_by_value(image, 0.0, 255.0)  # the filter overshoots
        if colours:
            image = _coloured(image, colours[0])
        if self._config.array_dtype == "uint8":
            image = tf.cast(tf.clip_by_value(image + 0.5, 0.0, 255.0), tf.uint8)
        else:
            image = tf.cast(self._normalised(image), self._config.array_dtype)
        return tf.transpose(image, [2, 0, 1]) if self._config.layout == "NCHW" else image

    def _decoded(self, encoded: Any, box: Any) -> Any:
        padding = self._config.crops.padding
        if padding is None:
            return tf.image.decode_and_crop_jpeg(encoded, box, **_EXACT)
        padded = tf.pad(
            tf.io.decode_jpeg(encoded, **_EXACT), [[padding, padding], [padding, padding], [0, 0]]
        )
        top, left, height, width = tf.unstack(box)
        return tf.image.crop_to_bounding_box(padded, top + padding, left + padding, height, width)

    def _normalised(self, image: Any) -> Any:
        """Returns (image - mean) / std, computed on complete rows, which is four times as fast."""
        height, width = self._shown.size
        crops = self._config.crops
        scale = [1 / std for std in crops.std] * width
        shift = [-m / std for m, std in zip(crops.mean, crops.std, strict=True)] * width
        rows = tf.reshape(image, [height, width * 3])
        return tf.reshape(rows * tf.constant(scale) + tf.constant(shift), [height, width, 3])


def _until_end(source: _EpochSource) -> Iterator[EncodedBatch]:
    """Yields the batches of a source; stops when `source.end` is done, even during a wait."""
    while True:
        given = source.threads.submit(next, source.encoded, None)
        wait((given, source.end), return_when=FIRST_COMPLETED)
        batch = None if source.end.done() else given.result()
        if batch is None:
            return
        yield batch


def _drop(images: list[Any], end: Future[EncodedBatch | None]) -> None:
    """Ends a source and drops its iterator, which would otherwise block Python's exit."""
    end.set_result(None)
    images.clear()


def _coloured(image: Any, colours: Any) -> Any:
    mean = tf.reduce_mean(image, [0, 1])
    shift = tf.linalg.matvec(colours[:, 3:6], mean) + colours[:, 6]
    pixels = tf.reshape(image, [-1, 3])
    pixels = tf.matmul(pixels, colours[:, :3], transpose_b=True) + shift
    return tf.reshape(tf.clip_by_value(pixels, 0.0, 255.0), tf.shape(image))


def from_numpy(array: Any, bits: bool) -> Any:
    """Returns an array as a tensor; if `bits`, reinterprets uint16 values as bfloat16.

    Lists of texts become a ragged tensor of strings.
    """
    if isinstance(array, list) and isinstance(array[0], list):
        texts = tf.constant([text for row in array for text in row], tf.string)
        return tf.RaggedTensor.from_row_lengths(texts, [*map(len, array)])
    tensor = tf.convert_to_tensor(array)
    return tf.bitcast(tensor, tf.bfloat16) if bits else tensor
