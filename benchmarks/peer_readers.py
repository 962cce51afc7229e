"""The readers of other projects, as their documents show them; benchmarks.read compares them.

They read exports of our dataset, and so the same JPEGs: random crops as in torchvision, mirrored,
antialiased and normalised, in float32. LitData has a format of its own, which is written from the
exported folder.
"""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.readers import AREA, ASPECT, BATCH, MEAN, SIDE, STD, WORKERS, Epoch, Job, Reader

# Batches that threads decode in advance.
AHEAD = 3
TORCH = ("torch", "torchvision")


def files(job: Job) -> list[tuple[str, int]]:
    """Returns the path and the class index of each image of the exported folder."""
    folders = sorted(
        path for path in Path(job.exports["folder"], "train").iterdir() if path.is_dir()
    )
    found = []
    for class_index, folder in enumerate(folders):
        found += [(str(path), class_index) for path in sorted(folder.iterdir())]
    return found


def read(path: str) -> bytes:
    """Returns the content of a file."""
    with open(path, "rb") as file:
        return file.read()


# Images, without a framework's loader.


def crop(width: int, height: int) -> tuple[int, int, int, int]:
    """Returns left, top, width and height of a random crop, drawn as in torchvision."""
    for _ in range(10):
        area = width * height * random.uniform(*AREA)
        aspect = ASPECT[0] * (ASPECT[1] / ASPECT[0]) ** random.random()
        wide = round((area * aspect) ** 0.5)
        tall = round((area / aspect) ** 0.5)
        if wide <= width and tall <= height:
            break
    else:
        wide = tall = min(width, height)
    return random.randint(0, width - wide), random.randint(0, height - tall), wide, tall


def _normalised(pixels: Any) -> Any:
    import numpy as np

    if random.random() < 0.5:
        pixels = pixels[:, ::-1]
    return (np.asarray(pixels, np.float32) - np.float32(MEAN)) / np.float32(STD)


def _by_pillow(data: bytes) -> Any:
    """Returns a crop in normalised float32, [SIDE, SIDE, 3]."""
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        left, top, wide, tall = crop(*image.size)
        box = (left, top, left + wide, top + tall)
        small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR, box)
    return _normalised(np.asarray(small))


def _by_simplejpeg(data: bytes) -> Any:
    """Returns the same by simplejpeg and OpenCV, whose filter does not antialias."""
    import cv2
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(data, "RGB")
    left, top, wide, tall = crop(pixels.shape[1], pixels.shape[0])
    return _normalised(cv2.resize(pixels[top : top + tall, left : left + wide], (SIDE, SIDE)))


def _threads(job: Job, load: Callable[[bytes], Any]) -> Epoch:
    """The shortest loop that a user would write; `load` releases Python's lock."""
    import numpy as np

    listed = files(job)

    def epoch() -> Iterator[int]:
        waiting: list[Any] = []
        with ThreadPoolExecutor(WORKERS) as pool:
            for path, _ in random.sample(listed, len(listed)):
                waiting.append(pool.submit(lambda path: load(read(path)), path))
                if len(waiting) == AHEAD * BATCH:
                    yield len(np.stack([future.result() for future in waiting[:BATCH]]))
                    del waiting[:BATCH]
            while len(waiting) >= BATCH:
                yield len(np.stack([future.result() for future in waiting[:BATCH]]))
                del waiting[:BATCH]

    return epoch


# PyTorch's DataLoader.


def _sizes(batches: Iterable[Sequence[Any]]) -> Iterator[int]:
    """Yields the sizes of batches of (images, labels), and checks the images."""
    for images, labels in batches:
        assert images.shape == (BATCH, 3, SIDE, SIDE), images.shape
        assert str(images.dtype) == "torch.float32", images.dtype
        yield len(labels)


def _dataloader(dataset: Any, **options: Any) -> Epoch:
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, BATCH, num_workers=WORKERS, drop_last=True, **options)
    return lambda: _sizes(loader)


def _transform() -> Any:
    """Returns torchvision's usual transforms of images of Pillow."""
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.RandomResizedCrop(SIDE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([mean / 255 for mean in MEAN], [std / 255 for std in STD]),
        ]
    )


def _rgb(data: bytes) -> Any:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


def _image_folder(job: Job) -> Epoch:
    from torchvision.datasets import ImageFolder

    folder = str(Path(job.exports["folder"], "train"))
    return _dataloader(ImageFolder(folder, _transform()), shuffle=True)


def _image_folder_v2(job: Job, decode: Callable[[str], Any]) -> Epoch:
    """ImageFolder with transforms of tensors; `decode` returns the tensor of a file."""
    import torch
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIDE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([mean / 255 for mean in MEAN], [std / 255 for std in STD]),
        ]
    )
    folder = str(Path(job.exports["folder"], "train"))
    dataset = ImageFolder(folder, transform, loader=decode)
    return _dataloader(dataset, shuffle=True)


def _by_torchvision(path: str) -> Any:
    from torchvision.io import ImageReadMode, decode_image, read_file

    return decode_image(read_file(path), ImageReadMode.RGB)


def _by_torchcodec(path: str) -> Any:
    from torchcodec.decoders import decode_jpeg

    return decode_jpeg(read(path))


def _timm(job: Job) -> Epoch:
    import torch
    from timm.data import create_dataset, create_loader

    dataset = create_dataset("", root=str(Path(job.exports["folder"], "train")), split="")
    loader = create_loader(
        dataset,
        (3, SIDE, SIDE),
        BATCH,
        is_training=True,
        use_prefetcher=False,
        num_workers=WORKERS,
        scale=AREA,
        ratio=ASPECT,
        color_jitter=0.0,
        interpolation="bilinear",
        device=torch.device("cpu"),
        persistent_workers=False,
    )
    return lambda: _sizes(loader)


def _datasets(job: Job) -> Epoch:
    import datasets

    datasets.disable_progress_bars()
    paths = sorted(str(path) for path in Path(job.exports["parquet"], "data").glob("*.parquet"))
    cache = f"{job.exports['parquet']}.cache"
    rows = datasets.load_dataset("parquet", data_files=paths, split="train", cache_dir=cache)
    transform = _transform()

    def transformed(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        images = [transform(image.convert("RGB")) for image in batch["image"]]
        return {"images": images, "labels": batch["label"]}

    def collated(examples: Sequence[dict[str, Any]]) -> tuple[Any, Any]:
        from torch.utils.data import default_collate

        batch = default_collate(examples)
        return batch["images"], batch["labels"]

    rows = rows.with_transform(transformed)
    return _dataloader(rows, shuffle=True, collate_fn=collated)


def _webdataset(job: Job) -> Epoch:
    import webdataset

    tars = sorted(str(path) for path in Path(job.exports["webdataset"]).glob("*.tar"))
    transform = _transform()
    dataset = (
        webdataset.WebDataset(tars, shardshuffle=len(tars))
        .shuffle(1024)
        .decode("pilrgb")
        .to_tuple("jpg", "cls")
        .map_tuple(transform, int)
        .batched(BATCH, partial=False)
    )
    loader = webdataset.WebLoader(dataset, batch_size=None, shuffle=False, num_workers=WORKERS)
    return lambda: _sizes(loader)


def _own(job: Job, tool: str, write: Callable[[str], None]) -> str:
    """Returns the folder of a tool's own files, which are written completely on the first call."""
    folder = Path(f"{job.root}-{tool}")
    if not folder.is_dir():
        partial_ = Path(f"{folder}.partial")
        shutil.rmtree(partial_, ignore_errors=True)
        partial_.mkdir()
        write(str(partial_))
        partial_.rename(folder)
    return str(folder)


def _litdata(job: Job) -> Epoch:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import Cache

    def write(folder: str) -> None:
        # The class that `optimize` uses in its processes, with the chunk size of its examples.
        cache = Cache(folder, chunk_bytes="64MB")
        for number, (path, label) in enumerate(files(job)):
            cache[number] = {"image": read(path), "label": label}
        cache.done()
        cache.merge()

    transform = _transform()

    class Images(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> tuple[Any, int]:
            example = super().__getitem__(index)
            return transform(_rgb(example["image"])), example["label"]

    dataset = Images(_own(job, "litdata", write), shuffle=True, drop_last=True)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, drop_last=True)
    return lambda: _sizes(loader)


# Other loaders.


def _grain(job: Job, *, has_processes: bool) -> Epoch:
    import grain

    class Files:
        def __init__(self) -> None:
            self.listed = files(job)

        def __len__(self) -> int:
            return len(self.listed)

        def __getitem__(self, index: Any) -> tuple[bytes, int]:
            path, label = self.listed[index]
            return read(path), label

    def load(example: tuple[bytes, int]) -> tuple[Any, int]:
        return _by_pillow(example[0]), example[1]

    examples = grain.MapDataset.source(Files()).seed(0).shuffle().map(load)

    def epoch() -> Iterator[int]:
        if has_processes:
            options = grain.multiprocessing.MultiprocessingOptions(
                num_workers=WORKERS, per_worker_buffer_size=2
            )
            batches = examples.batch(BATCH, drop_remainder=True)
            reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
            batches = batches.to_iter_dataset(reading).mp_prefetch(options)
        else:
            reading = grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=AHEAD * BATCH)
            batches = examples.to_iter_dataset(reading).batch(BATCH, drop_remainder=True)
        for images, _ in batches:
            yield len(images)

    return epoch


def _spdl(job: Job, load: Callable[[bytes], Any]) -> Epoch:
    import numpy as np
    from spdl.pipeline import PipelineBuilder

    listed = files(job)

    def epoch() -> Iterator[int]:
        paths = [path for path, _ in random.sample(listed, len(listed))]
        pipeline = (
            PipelineBuilder()
            .add_source(iter(paths))
            .pipe(lambda path: load(read(path)), concurrency=WORKERS)
            .aggregate(BATCH, drop_last=True)
            .pipe(np.stack, concurrency=1)
            .add_sink(2)
            .build(num_threads=WORKERS)
        )
        with pipeline.auto_stop():
            for images in pipeline:
                yield len(images)

    return epoch


def _peer(start: Callable[[Job], Epoch], *packages: str) -> Reader:
    return Reader(start, packages, is_peer=True)


_FAST = ("simplejpeg", "opencv-python-headless")
_THREADS_FAST = partial(_threads, load=_by_simplejpeg)
_TORCHCODEC = partial(_image_folder_v2, decode=_by_torchcodec)
PEERS = {
    "torchvision ImageFolder, 2 workers": _peer(_image_folder, *TORCH),
    "torchvision v2, decode_image": _peer(
        partial(_image_folder_v2, decode=_by_torchvision), *TORCH
    ),
    "torchvision v2, TorchCodec": _peer(_TORCHCODEC, *TORCH, "torchcodec"),
    "timm create_loader, 2 workers": _peer(_timm, *TORCH, "timm"),
    "Grain, 2 threads": _peer(partial(_grain, has_processes=False), "grain"),
    "Grain, 2 processes": _peer(partial(_grain, has_processes=True), "grain"),
    "LitData, 2 workers": _peer(_litdata, *TORCH, "litdata"),
    "WebDataset, 2 workers": _peer(_webdataset, *TORCH, "webdataset"),
    "HF datasets (Parquet), 2 workers": _peer(_datasets, *TORCH, "datasets"),
    "SPDL, 2 threads, Pillow": _peer(partial(_spdl, load=_by_pillow), "spdl"),
    "SPDL, 2 threads, simplejpeg + OpenCV": _peer(
        partial(_spdl, load=_by_simplejpeg), "spdl", *_FAST
    ),
    "2 threads, Pillow": _peer(partial(_threads, load=_by_pillow)),
    "2 threads, simplejpeg + OpenCV": _peer(_THREADS_FAST, *_FAST),
}
