"""Our readers, and tf.data and DALI pipelines written by hand, as benchmarks.read compares them.

Each reader runs in a process of its own. Imports only the standard library, because the peers of
benchmarks.peer_readers run in a separate environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

BATCH = 128
SIDE = 224
# Threads or worker processes of each reader.
WORKERS = 2
MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)

NATIVE = "native"
IN_DATALOADER = "native in a DataLoader, 2 workers"


@dataclass(frozen=True)
class Job:
    """The work of one process; travels as JSON.

    Attributes:
      reader: a name in READERS or PEERS.
      root: folder of the prepared dataset, which has only the split train.
      exports: folder of its exports, by format.
      epochs: number of measured epochs.
    """

    reader: str
    root: str
    exports: dict[str, str]
    epochs: int


# Reads one epoch, and yields the number of images in each batch.
Epoch = Callable[[], Iterable[int]]


class Reader(NamedTuple):
    """How a reader is started.

    Attributes:
      start: opens the dataset and returns the function that reads an epoch.
      packages: distributions that it needs, besides ours and their requirements.
      is_peer: whether it runs in the peers' environment.
    """

    start: Callable[[Job], Epoch]
    packages: tuple[str, ...] = ()
    is_peer: bool = False


def _ours(job: Job, backend: str, framework: str, **options: Any) -> Epoch:
    from imagenet_prep.core.world import World
    from imagenet_prep.read import make_dataset

    reader = make_dataset(
        job.root,
        "train",
        BATCH,
        SIDE,
        world=World(),
        backend=backend,
        framework=framework,
        num_threads=WORKERS,
        **options,
    )
    return lambda: (BATCH for _ in reader)


def _in_dataloader(job: Job) -> Epoch:
    """Our reader in worker processes of PyTorch, as in docs/pytorch.md."""
    from torch.utils.data import DataLoader

    from imagenet_prep.core.world import World
    from imagenet_prep.read import make_dataset

    reader = make_dataset(
        job.root,
        "train",
        BATCH,
        SIDE,
        world=World(),
        backend="native",
        num_threads=1,
        layout="NCHW",
        antialias=True,
    )

    def epoch() -> Iterator[int]:
        sampler = reader.sampler()
        for batch in DataLoader(reader, batch_size=None, sampler=sampler, num_workers=WORKERS):
            yield len(batch["class_index"])

    return epoch


def _tf_data(job: Job) -> Epoch:
    """A tf.data pipeline with its own random shuffle and crops.

    It normalises one row of pixels at a time. The usual broadcasting over three channels costs more
    than decoding.
    """
    import tensorflow as tf

    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    complete = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
    scale = tf.constant([1 / std for std in STD] * SIDE)
    shift = tf.constant([-mean / std for mean, std in zip(MEAN, STD, strict=True)] * SIDE)

    def load(record: Any) -> Any:
        parsed = tf.io.parse_single_example(record, features)
        encoded = parsed["image/encoded"]
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(encoded),
            complete,
            min_object_covered=0.0,
            area_range=AREA,
            aspect_ratio_range=ASPECT,
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        box = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.image.decode_and_crop_jpeg(encoded, box, channels=3)
        image = tf.image.resize(tf.image.random_flip_left_right(image), [SIDE, SIDE])
        rows = tf.reshape(image, [SIDE, SIDE * 3])
        image = tf.reshape(rows * scale + shift, [SIDE, SIDE, 3])
        return image, tf.cast(parsed["image/class/label"], tf.int32) - 1

    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = WORKERS
    shards = sorted(str(path) for path in Path(job.root).glob("train-*"))
    dataset = (
        tf.data.Dataset.from_tensor_slices(shards)
        .shuffle(len(shards))
        .interleave(
            partial(tf.data.TFRecordDataset, buffer_size=1 << 20),
            cycle_length=8,
            num_parallel_calls=WORKERS,
        )
        .shuffle(2048)
        .map(load, num_parallel_calls=WORKERS)
        .batch(BATCH, drop_remainder=True)
        .prefetch(2)
        .with_options(options)
    )
    return lambda: (images.shape[0] for images, _ in dataset)


def _dali(job: Job) -> Epoch:
    """A pipeline on DALI's TFRecord reader."""
    from nvidia.dali import fn, pipeline_def, tfrecord, types

    shards = sorted(str(path) for path in Path(job.root).glob("train-*"))
    indexes = sorted(str(path) for path in Path(job.root).glob("index/train-*"))

    @pipeline_def(
        batch_size=BATCH,
        num_threads=WORKERS,
        device_id=None,
        exec_dynamic=True,
        prefetch_queue_depth=2,
    )
    def load() -> Any:
        read = fn.readers.tfrecord(
            path=shards,
            index_path=indexes,
            features={
                "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
                "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
            },
            random_shuffle=True,
            initial_fill=1024,
            name="reader",
        )
        pixels = fn.decoders.image_random_crop(
            read["image/encoded"], random_area=AREA, random_aspect_ratio=ASPECT, num_attempts=10
        )
        pixels = fn.resize(pixels, size=(SIDE, SIDE), antialias=False)
        images = fn.crop_mirror_normalize(
            pixels,
            mirror=fn.random.coin_flip(),
            mean=list(MEAN),
            std=list(STD),
            dtype=types.FLOAT,
            output_layout="HWC",
        )
        return images, fn.cast(read["image/class/label"], dtype=types.INT32) - 1

    pipeline = load()
    pipeline.build()
    steps = pipeline.epoch_size("reader") // BATCH

    def epoch() -> Iterator[int]:
        for _ in range(steps):
            images, labels = pipeline.run()
            labels.as_tensor()
            yield images.as_tensor().shape()[0]

    return epoch


_NATIVE = partial(_ours, backend="native", framework="numpy")
_TF_DATA = partial(_ours, backend="tfdata", framework="tensorflow")
_DALI = partial(_ours, backend="dali", framework="dlpack")
_TENSORFLOW_PACKAGES = ("tensorflow-cpu",)
_DALI_PACKAGES = ("nvidia-dali-cuda120",)
READERS = {
    NATIVE: Reader(partial(_NATIVE, antialias=True)),
    "native, antialias=False": Reader(partial(_NATIVE, antialias=False)),
    "native, uint8": Reader(partial(_NATIVE, antialias=True, dtype="uint8")),
    IN_DATALOADER: Reader(_in_dataloader, ("torch",), is_peer=True),
    "our tf.data, antialias=False": Reader(
        partial(_TF_DATA, antialias=False), _TENSORFLOW_PACKAGES
    ),
    "our tf.data": Reader(partial(_TF_DATA, antialias=True), _TENSORFLOW_PACKAGES),
    "tf.data by hand, no antialias": Reader(_tf_data, _TENSORFLOW_PACKAGES),
    "our DALI, antialias=False": Reader(partial(_DALI, antialias=False), _DALI_PACKAGES),
    "our DALI": Reader(partial(_DALI, antialias=True), _DALI_PACKAGES),
    "DALI by hand, no antialias": Reader(_dali, _DALI_PACKAGES),
}
