"""From shards to training batches: our readers, bare tf.data and DALI, Pillow, and the peers.

python -m benchmarks.read --peers-venv /tmp/peers-venv
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import random
import re
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import measure

NUM_SHARDS = 16
BATCH = 128
SIDE = 224
THREADS = 2
# One batch before the clock starts, for pools, caches and buffers.
WARM_UP = 1
MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
SETS = {"256 px": ("--short-side", "256"), "original": ("--keep-original",)}

PLAIN = "tf.data, plain"
PLAIN_ROWS = "tf.data, plain, by rows"
OURS_TF = "tf.data, ours"
BARE = "DALI, bare"
OURS_DALI = "DALI, ours"
NATIVE = "native"
TORCHCODEC = "TorchCodec"
# These read files of their own.
PEERS = ("MDS, Pillow", "WebDataset, Pillow", "LitData, Pillow", "FFCV")


class Picture(NamedTuple):
    """The location of a JPEG within a shard."""

    shard: str
    offset: int
    size: int
    class_index: int


@dataclass(frozen=True)
class Job:
    """The work of one process; travels as JSON.

    Attributes:
      tool: a key of TOOLS.
      root: folder of the prepared dataset.
      pictures: of the train split; only our reader has to find them itself.
      own: folder with the same images in the tool's own format, if it has one.
      epochs: number of measured epochs.
    """

    tool: str
    root: str
    pictures: list[Picture]
    own: str
    epochs: int


# The required speed relative to the other.
BARS = ((OURS_TF, PLAIN, 1.0), (OURS_TF, PLAIN_ROWS, 1.0), (OURS_DALI, BARE, 1.0))
# The required images per CPU second relative to the best of the others.
NATIVE_BAR = 1.25
NATIVE_OTHERS = (PLAIN, PLAIN_ROWS, OURS_TF, BARE)
# Of a native reader, without the batches that it and the trainer hold: the same number of float32
# images.
NATIVE_MB = 200
NATIVE_BATCHES = 4

# The start function of a tool returns a function that reads one epoch and yields the number of
# images in each batch.
Epoch = Callable[[], Iterable[int]]
Tool = Callable[[Job], Epoch]


@dataclass
class Result:
    """One row of one round.

    Attributes:
      images: read in the measured epochs.
      seconds: of these epochs.
      cpu_s: of the process and its children in these epochs.
      pss_mb: peak in each of them.
    """

    images: int
    seconds: float
    cpu_s: float
    pss_mb: list[float]


class Bench:
    """The rows over one prepared dataset."""

    def __init__(self, kind: str, root: Path, epochs: int, peers_venv: Path | None) -> None:
        self.kind = kind
        self.root = root
        self.epochs = epochs
        self.peers_venv = peers_venv
        self.pictures = pictures(root)

    def rows(self) -> dict[str, Callable[[], Result]]:
        """Returns the measured rows by name."""
        tools: dict[str, Path | None] = dict.fromkeys(
            (
                NATIVE,
                PLAIN,
                PLAIN_ROWS,
                OURS_TF,
                BARE,
                OURS_DALI,
                "DALI, ours, to TensorFlow",
                "Pillow",
            ),
            None,
        )
        if self.peers_venv:
            tools |= dict.fromkeys((*PEERS, TORCHCODEC), self.peers_venv)
        return {
            f"{self.kind}: {name}": partial(self._row, name, venv) for name, venv in tools.items()
        }

    def _row(self, tool: str, venv: Path | None) -> Result:
        own = self.root.with_name(f"{self.root.name}-{tool.partition(',')[0].lower()}")
        job = Job(tool, str(self.root), self.pictures, str(own), self.epochs)
        path = self.root.with_name(f"{self.root.name}.job.json")
        path.write_text(json.dumps(dataclasses.asdict(job)))
        python = venv / "bin" / "python" if venv else sys.executable
        try:
            run = measure.run([python, "-m", "benchmarks.read", "--job", path])
        finally:
            path.unlink()
        epochs = json.loads(run.stdout)
        return Result(
            images=sum(epoch["images"] for epoch in epochs),
            seconds=sum(epoch["stop_s"] - epoch["start_s"] for epoch in epochs),
            cpu_s=sum(epoch["cpu_s"] for epoch in epochs),
            pss_mb=[run.peak(epoch["start_s"], epoch["stop_s"]).pss_mb for epoch in epochs],
        )


def prepared(scratch: Path, num_images: int, size: tuple[int, int], kind: str) -> Path:
    """Returns a prepared dataset, made on the first call."""
    final = scratch / f"set-{num_images}-{size[0]}x{size[1]}-{kind.partition(' ')[0]}"
    if not final.is_dir():
        source = measure.corpus(scratch, num_images, size)
        partial_ = final.with_suffix(".partial")
        flags = (*SETS[kind], "--train-shards", NUM_SHARDS, "--allow-subset")
        measure.run(measure.prepare_argv(source, partial_, *flags))
        partial_.rename(final)
    return final


def pictures(root: Path) -> list[Picture]:
    """Returns the location of each JPEG of the train split."""
    from imagenet_prep.dataset import example, record_files

    found = []
    for path in sorted(root.glob("train-*")):
        data = path.read_bytes()
        for record in record_files.read_records(io.BytesIO(data), path.name):
            image = example.decode(record.payload)
            offset = data.index(image.encoded, record.offset)
            found.append(Picture(path.name, offset, len(image.encoded), image.stored_label - 1))
    return found


def render(results: dict[str, list[Result]]) -> str:
    """Returns the table and the results of the design's requirements."""
    rows = []
    bars = []
    for name, rounds in results.items():
        kind = name.partition(": ")[0]
        peaks = [r.pss_mb for r in rounds]
        floors = {PLAIN: results.get(f"{kind}: {PLAIN}"), BARE: results.get(f"{kind}: {BARE}")}
        rows.append(
            (
                name,
                f"{measure.median([r.images / r.seconds for r in rounds]):,.0f}",
                f"{measure.median([r.images / r.cpu_s for r in rounds]):,.0f}",
                *(f"{_ratio(rounds, floor):.2f}" if floor else "-" for floor in floors.values()),
                " ".join(f"{max(column):,.0f}" for column in zip(*peaks, strict=True)),
            )
        )
    for kind in SETS:
        for ours, floor, at_least in BARS:
            mine, theirs = (results.get(f"{kind}: {name}") for name in (ours, floor))
            if mine and theirs:
                found = _ratio(mine, theirs)
                bars.append(
                    (
                        f"{kind}: {ours}, against {floor}",
                        f">= {at_least:.2f}",
                        f"{found:.2f}",
                        _verdict(found >= at_least),
                    )
                )
        bars += _native_bars(kind, results)
        for ours in (NATIVE, OURS_TF, OURS_DALI):
            mine = results.get(f"{kind}: {ours}")
            if mine and len(mine[0].pss_mb) > 1:
                grown = measure.median([r.pss_mb[-1] - r.pss_mb[0] for r in mine])
                limit = max(32.0, mine[0].pss_mb[0] * 0.05)
                bars.append(
                    (
                        f"{kind}: {ours}, PSS MB more after {len(mine[0].pss_mb)} epochs",
                        f"<= {limit:.0f}",
                        f"{grown:.0f}",
                        _verdict(grown <= limit),
                    )
                )
    header = ("", "images/s", "a CPU second", "of plain", "of bare", "PSS MB, epoch by epoch")
    text = measure.table(header, rows)
    return f"{text}\n\n{measure.table(('bar', 'wanted', 'found', ''), bars)}" if bars else text


def _native_bars(kind: str, results: dict[str, list[Result]]) -> list[tuple[str, ...]]:
    """Returns the results of the native reader's requirements: its speed and its memory."""
    mine = results.get(f"{kind}: {NATIVE}")
    if not mine:
        return []
    batches = NATIVE_BATCHES * BATCH * SIDE * SIDE * 3 * 4 / 1e6
    beyond = max(max(r.pss_mb) for r in mine) - batches
    bars = [
        (
            f"{kind}: {NATIVE}, PSS MB beyond {NATIVE_BATCHES} batches",
            f"<= {NATIVE_MB}",
            f"{beyond:.0f}",
            _verdict(beyond <= NATIVE_MB),
        )
    ]
    names = [f"{kind}: {other}" for other in NATIVE_OTHERS]
    others = [results[name] for name in names if name in results]
    if others:
        found = min(
            measure.median(
                [
                    (r.images / r.cpu_s) / (o.images / o.cpu_s)
                    for r, o in zip(mine, other, strict=True)
                ]
            )
            for other in others
        )
        bars.append(
            (
                f"{kind}: {NATIVE}, images a CPU second against the best of the others",
                f">= {NATIVE_BAR:.2f}",
                f"{found:.2f}",
                _verdict(found >= NATIVE_BAR),
            )
        )
    return bars


def _ratio(rounds: Sequence[Result], others: Sequence[Result]) -> float:
    """Returns the median over rounds of the first row's speed relative to the second."""
    return measure.median(
        [
            (r.images / r.seconds) / (o.images / o.seconds)
            for r, o in zip(rounds, others, strict=True)
        ]
    )


def _verdict(good: bool) -> str:
    return "met" if good else "MISSED"


# The rest runs in separate processes, for the peers in a separate environment.


def work(job: Job) -> list[dict[str, float]]:
    """Returns images, CPU time, start and stop of each measured epoch."""
    epoch = TOOLS[job.tool](job)
    done = []
    for _ in range(WARM_UP + job.epochs):
        start = time.time()
        cpu = _cpu()
        images = sum(epoch())
        done.append(
            {"images": images, "cpu_s": _cpu() - cpu, "start_s": start, "stop_s": time.time()}
        )
    return done[WARM_UP:]


def _cpu() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _ours(job: Job, backend: str, framework: str) -> Epoch:
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
        num_threads=THREADS,
    )
    return lambda: (BATCH for _ in reader)


def _plain(job: Job, *, by_rows: bool) -> Epoch:
    """A carefully written tf.data pipeline with its own random shuffle and crops.

    by_rows: normalise one row of pixels at a time, as ours does. The usual broadcasting over three
    channels costs more than decoding.
    """
    import tensorflow as tf

    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
    times = SIDE if by_rows else 1
    scale = tf.constant([1 / std for std in STD] * times)
    shift = tf.constant([-mean / std for mean, std in zip(MEAN, STD, strict=True)] * times)

    def show(record: Any) -> Any:
        parsed = tf.io.parse_single_example(record, features)
        encoded = parsed["image/encoded"]
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(encoded),
            whole,
            min_object_covered=0.0,
            area_range=AREA,
            aspect_ratio_range=ASPECT,
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        box = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.image.decode_and_crop_jpeg(encoded, box, channels=3)
        image = tf.image.resize(tf.image.random_flip_left_right(image), [SIDE, SIDE])
        rows = tf.reshape(image, [SIDE, SIDE * 3] if by_rows else [SIDE, SIDE, 3])
        image = tf.reshape(rows * scale + shift, [SIDE, SIDE, 3])
        return image, tf.cast(parsed["image/class/label"], tf.int32) - 1

    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = THREADS
    shards = sorted(str(path) for path in Path(job.root).glob("train-*"))
    dataset = (
        tf.data.Dataset.from_tensor_slices(shards)
        .shuffle(len(shards))
        .interleave(
            partial(tf.data.TFRecordDataset, buffer_size=1 << 20),
            cycle_length=8,
            num_parallel_calls=THREADS,
        )
        .shuffle(2048)
        .map(show, num_parallel_calls=THREADS)
        .batch(BATCH, drop_remainder=True)
        .prefetch(2)
        .with_options(options)
    )
    return lambda: (images.shape[0] for images, _ in dataset)


def _bare(job: Job) -> Epoch:
    """A carefully written DALI pipeline on DALI's TFRecord reader."""
    from nvidia.dali import fn, pipeline_def, tfrecord, types

    shards = sorted(str(path) for path in Path(job.root).glob("train-*"))
    indexes = sorted(str(path) for path in Path(job.root).glob("index/train-*"))

    @pipeline_def(
        batch_size=BATCH,
        num_threads=THREADS,
        device_id=None,
        exec_dynamic=True,
        prefetch_queue_depth=2,
    )
    def show() -> Any:
        read = fn.readers.tfrecord(
            path=shards,
            index_path=indexes,
            features={
                "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
                "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
            },
            random_shuffle=True,
            initial_fill=1024,
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

    pipeline = show()
    pipeline.build()

    def epoch() -> Iterator[int]:
        for _ in range(len(job.pictures) // BATCH):
            images, labels = pipeline.run()
            labels.as_tensor()
            yield images.as_tensor().shape()[0]

    return epoch


def _crop(width: int, height: int) -> tuple[int, int, int, int]:
    """Returns left, top, right and bottom of an Inception crop."""
    for _ in range(10):
        area = width * height * random.uniform(*AREA)
        aspect = ASPECT[0] * (ASPECT[1] / ASPECT[0]) ** random.random()
        wide = round((area * aspect) ** 0.5)
        tall = round((area / aspect) ** 0.5)
        if wide <= width and tall <= height:
            break
    else:
        wide = tall = min(width, height)
    left = random.randint(0, width - wide)
    top = random.randint(0, height - tall)
    return left, top, left + wide, top + tall


def _show_with_pillow(data: bytes) -> Any:
    """Returns the result of torchvision's transforms: Inception crop, flip, normalised float32."""
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        box = _crop(*image.size)
        pixels = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR, box)
    if random.random() < 0.5:
        pixels = pixels.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return (np.asarray(pixels, np.float32) - np.float32(MEAN)) / np.float32(STD)


def _show_with_torchcodec(data: bytes) -> Any:
    """Returns the same by TorchCodec's decoder and by the resize that torchvision calls."""
    import numpy as np
    from torch.nn.functional import interpolate
    from torchcodec.decoders import decode_jpeg

    whole = decode_jpeg(data)
    left, top, right, bottom = _crop(whole.shape[2], whole.shape[1])
    cropped = whole[None, :, top:bottom, left:right]
    shrunk = interpolate(cropped, (SIDE, SIDE), mode="bilinear", antialias=True)
    if random.random() < 0.5:
        shrunk = shrunk.flip(3)
    pixels = shrunk[0].permute(1, 2, 0).numpy()
    return (np.asarray(pixels, np.float32) - np.float32(MEAN)) / np.float32(STD)


def _batches(
    encoded: Iterable[bytes], show: Callable[[bytes], Any] = _show_with_pillow
) -> Iterator[int]:
    """Decodes in threads, a few batches ahead, and stacks; `show` releases Python's lock."""
    import numpy as np

    waiting: list[Any] = []
    with ThreadPoolExecutor(THREADS) as pool:
        for data in encoded:
            waiting.append(pool.submit(show, data))
            if len(waiting) >= 3 * BATCH:
                batch = np.stack([future.result() for future in waiting[:BATCH]])
                del waiting[:BATCH]
                yield len(batch)
        while len(waiting) >= BATCH:
            batch = np.stack([future.result() for future in waiting[:BATCH]])
            del waiting[:BATCH]
            yield len(batch)


def _by_offset(job: Job, show: Callable[[bytes], Any]) -> Epoch:
    """Reads by offset in a random permutation, like ImageFolder without its files."""
    shards = {p.shard: os.open(f"{job.root}/{p.shard}", os.O_RDONLY) for p in job.pictures}

    def epoch() -> Iterator[int]:
        order = random.sample(job.pictures, len(job.pictures))
        return _batches((os.pread(shards[p.shard], p.size, p.offset) for p in order), show)

    return epoch


def _torchcodec(job: Job) -> Epoch:
    import torch

    # Each thread processes complete images, so torch must not use further threads.
    torch.set_num_threads(1)
    return _by_offset(job, _show_with_torchcodec)


def _originals(job: Job) -> Iterator[tuple[bytes, int]]:
    for picture in job.pictures:
        with open(f"{job.root}/{picture.shard}", "rb") as file:
            file.seek(picture.offset)
            yield file.read(picture.size), picture.class_index


def _own(job: Job, write: Callable[[str], None]) -> str:
    """Returns the folder of the tool's own files, written completely on the first call."""
    if not Path(job.own).is_dir():
        partial_ = f"{job.own}.partial"
        shutil.rmtree(partial_, ignore_errors=True)
        Path(partial_).mkdir()
        write(partial_)
        Path(partial_).rename(job.own)
    return job.own


def _mds(job: Job) -> Epoch:
    from streaming import MDSWriter, StreamingDataset

    def write(folder: str) -> None:
        with MDSWriter(out=folder, columns={"image": "bytes", "label": "int"}) as writer:
            for image, class_index in _originals(job):
                writer.write({"image": image, "label": class_index})

    dataset = StreamingDataset(local=_own(job, write), shuffle=True, batch_size=BATCH)
    return lambda: _batches(sample["image"] for sample in dataset)


def _webdataset(job: Job) -> Epoch:
    # Works without torch, which MDS needs, with a sixth of the memory.
    sys.modules["torch"] = None  # type: ignore[assignment]
    import webdataset

    def write(folder: str) -> None:
        limit = -(-len(job.pictures) // NUM_SHARDS)
        with webdataset.ShardWriter(f"{folder}/%05d.tar", maxcount=limit, verbose=0) as writer:
            for number, (image, class_index) in enumerate(_originals(job)):
                writer.write({"__key__": f"{number:08d}", "jpg": image, "cls": class_index})

    shards = sorted(str(path) for path in Path(_own(job, write)).glob("*.tar"))
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(1024)
    return lambda: _batches(sample["jpg"] for sample in dataset)


def _litdata(job: Job) -> Epoch:
    from litdata.streaming import Cache, StreamingDataset

    def write(folder: str) -> None:
        # The function that `optimize` calls in its processes, with the chunk size of its examples.
        cache = Cache(folder, chunk_bytes="64MB")
        for number, (image, class_index) in enumerate(_originals(job)):
            cache[number] = {"image": image, "label": class_index}
        cache.done()
        cache.merge()

    dataset = StreamingDataset(_own(job, write), shuffle=True)
    return lambda: _batches(sample["image"] for sample in dataset)


def _ffcv(job: Job) -> Epoch:
    """FFCV's decoder, in numba's threads: the complete image, by libjpeg-turbo's fast DCT."""
    import numpy as np
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import IMAGE_MODES, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor
    from ffcv.writer import DatasetWriter
    from PIL import Image

    class Kept(RGBImageField):  # type: ignore[misc]
        """An image in a JPEG that is stored unchanged; FFCV's own field encodes pixels again."""

        def encode(self, destination: Any, encoded: bytes, malloc: Callable[[int], Any]) -> None:
            with Image.open(io.BytesIO(encoded)) as image:
                destination["width"], destination["height"] = image.size
            destination["mode"] = IMAGE_MODES["jpg"]
            destination["data_ptr"], storage = malloc(len(encoded))
            storage[:] = np.frombuffer(encoded, np.uint8)

    def write(folder: str) -> None:
        fields = {"image": Kept(), "label": IntField()}
        writer = DatasetWriter(f"{folder}/train.beton", fields, num_workers=THREADS)
        writer.from_indexed_dataset(list(_originals(job)))

    loader = Loader(
        f"{_own(job, write)}/train.beton",
        batch_size=BATCH,
        num_workers=THREADS,
        os_cache=True,
        order=OrderOption.RANDOM,
        drop_last=True,
        custom_fields={"image": Kept},
        pipelines={
            "image": [
                RandomResizedCropRGBImageDecoder((SIDE, SIDE), scale=AREA, ratio=ASPECT),
                RandomHorizontalFlip(),
                NormalizeImage(np.array(MEAN), np.array(STD), np.float32),
                ToTensor(),
            ],
            "label": [IntDecoder(), ToTensor(), Squeeze()],
        },
    )
    return lambda: (images.shape[0] for images, _ in loader)


TOOLS: dict[str, Tool] = {
    PLAIN: partial(_plain, by_rows=False),
    PLAIN_ROWS: partial(_plain, by_rows=True),
    NATIVE: partial(_ours, backend="native", framework="numpy"),
    OURS_TF: partial(_ours, backend="tfdata", framework="tensorflow"),
    BARE: _bare,
    OURS_DALI: partial(_ours, backend="dali", framework="dlpack"),
    "DALI, ours, to TensorFlow": partial(_ours, backend="dali", framework="tensorflow"),
    "Pillow": partial(_by_offset, show=_show_with_pillow),
    TORCHCODEC: _torchcodec,
    "MDS, Pillow": _mds,
    "WebDataset, Pillow": _webdataset,
    "LitData, Pillow": _litdata,
    "FFCV": _ffcv,
}


def _work_from(path: Path) -> None:
    fields = json.loads(path.read_text())
    fields["pictures"] = [Picture(*picture) for picture in fields["pictures"]]
    # Frameworks print too; only the last line is the answer.
    answer = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(answer, "w") as file:
        file.write(json.dumps(work(Job(**fields))))


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints, or runs one job for a measuring run."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.read")
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--size", type=int, nargs=2, default=(500, 375), metavar=("W", "H"))
    parser.add_argument("--epochs", type=int, default=3, help="measured, after one to warm up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose name it matches")
    parser.add_argument("--peers-venv", type=Path, help="where the peers are installed")
    parser.add_argument("--scratch", type=Path, default=measure.SCRATCH)
    parser.add_argument("--json", type=Path, help="keep raw figures here")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.job:
        _work_from(args.job)
        return
    size = (args.size[0], args.size[1])
    rows: dict[str, Callable[[], Result]] = {}
    for kind in SETS:
        root = prepared(args.scratch, args.images, size, kind)
        rows |= Bench(kind, root, args.epochs, args.peers_venv).rows()
    rows = {name: row for name, row in rows.items() if re.search(args.only, name)}

    def watch(name: str, result: Result) -> None:
        measure.say(f"{name}: {result.images / result.seconds:,.0f} images/s")

    results = measure.interleave(rows, args.rounds, watch)
    title = (
        f"read: {args.images:,} images, batch {BATCH}, {SIDE} px, {THREADS} threads, "
        f"{args.epochs} epochs, {args.rounds} rounds"
    )
    raw = {name: [dataclasses.asdict(r) for r in rounds] for name, rounds in results.items()}
    measure.finish(title, render(results), raw, args.json)


if __name__ == "__main__":
    main()
