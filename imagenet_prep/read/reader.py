"""The one call a trainer makes, and the object it gets: batches, with a state to go on from."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from imagenet_prep.core import schema
from imagenet_prep.core.errors import DataDamagedError, ImagenetPrepError, UsageError
from imagenet_prep.core.manifest import Manifest
from imagenet_prep.core.partition import Order
from imagenet_prep.core.placement import Placement
from imagenet_prep.core.world import World
from imagenet_prep.read.augment import RECIPES
from imagenet_prep.read.feed import EncodedBatch, Feed
from imagenet_prep.read.records import Records

BACKENDS = ("auto", "tfdata", "dali")
FRAMEWORKS = ("tensorflow", "numpy", "dlpack")
DTYPES = ("float32", "bfloat16", "float16", "uint8")
_STATE_VERSION = 1
_REMOTE_WINDOW = 16


class Backend(Protocol):
    """Decodes, crops, resizes."""

    def batches(
        self, feed: Callable[[], Iterator[EncodedBatch]], steps: int
    ) -> Iterator[dict[str, Any]]:
        """Yields `images`, `class_index` and `mask` of each step."""


class Reader:
    """The batches of one rank. Iterating yields the rest of the current epoch, then the next.

    A batch is a dict of `images` [batch, height, width, 3] (or [batch, 3, height, width]),
    `class_index` [batch] int32 and `mask` [batch] bool: False where evaluation pads its last
    step, and where a damaged record was skipped.

    Attributes:
      epoch: of the next batch, from 0.
      num_classes: class indices are smaller than this.
    """

    def __init__(self, feed: Feed, backend: Backend, convert: Callable[[Any], Any]) -> None:
        """Use make_dataset."""
        self._feed = feed
        self._backend = backend
        self._convert = convert
        self.epoch = 0
        self.num_classes = len(feed.records.wnids)
        self._examples_read = 0

    @property
    def manifest(self) -> Manifest:
        """What is proven of the data set."""
        return self._feed.records.manifest

    @property
    def num_examples(self) -> int:
        """Examples of the split, over all ranks."""
        return len(self._feed.records)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of a whole epoch, the same on every rank."""
        return self._feed.steps(0).count

    @property
    def steps_left(self) -> int:
        """Batches of what is left of this epoch."""
        return self._feed.steps(self._examples_read).count

    @property
    def dropped_per_epoch(self) -> int:
        """Examples that fill no training step, others in each epoch; 0 in evaluation."""
        return self._feed.steps(0).dropped

    @property
    def skipped(self) -> list[str]:
        """What was wrong with each record that this rank has skipped."""
        return [reason for _, reason in sorted(self._feed.skipped.items())]

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the rest of the current epoch.

        Raises:
          DataDamagedError: a record or an image is damaged; shard, record and offset are named.
        """
        left = self.steps_left
        if not left:  # restored where no step of this many ranks is left
            self._begin_epoch()
        while left:
            steps = self._feed.steps(self._examples_read)
            following = _Following(self._feed, self.epoch, self._examples_read)
            batches = self._backend.batches(following.batches, steps.count)
            step = 0
            while left:
                try:
                    batch = next(batches)
                except Exception as error:  # noqa: BLE001 - `explain` raises what it cannot mend
                    following.explain(error, step)
                    break  # a bad image is masked from here on: read this step again
                step += 1
                left -= 1
                self._examples_read = steps.after(step)
                if not left:  # now, not when asked for more: who counts steps never asks
                    self._begin_epoch()
                yield {name: self._convert(value) for name, value in batch.items()}

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self._examples_read = 0

    def encoded_batches(self) -> Iterator[EncodedBatch]:
        """Yields an epoch's batches before they are decoded; reading goes on where it was."""
        return self._feed.batches(self.epoch, 0)

    def state(self) -> dict[str, Any]:
        """Returns where reading stands, small enough for JSON; the same on every rank."""
        return {
            "version": _STATE_VERSION,
            "dataset": self._feed.records.manifest.digest,
            "split": self._feed.records.split,
            "seed": self._feed.seed,
            "window": self._feed.order.window,
            "nodes": self._feed.order.placement.nodes,
            "copies": self._feed.order.placement.copies,
            "epoch": self.epoch,
            "examples_read": self._examples_read,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken, with any number of ranks and any batch size.

        Where nodes hold parts of the set, their number stays; that of their ranks need not.

        Raises:
          UsageError: the state is of another data set, split, seed, window or partition.
        """
        mine = self.state()
        for name in ("version", "dataset", "split", "seed", "window", "nodes", "copies"):
            # States of sets that all nodes hold whole may say nothing of nodes.
            if state.get(name, 1 if name in ("nodes", "copies") else None) != mine[name]:
                raise UsageError(
                    f"the state has {name} {state.get(name)!r}, this reader {mine[name]!r}: the "
                    "order would be another one. Use the same data set and settings, or start "
                    "from epoch 0."
                )
        epoch: Any = state.get("epoch")
        read: Any = state.get("examples_read")
        counts = isinstance(epoch, int) and isinstance(read, int)
        if not (counts and epoch >= 0 and 0 <= read <= self.num_examples):
            raise UsageError(
                f"the state is damaged: epoch {epoch!r}, examples_read {read!r} of "
                f"{self.num_examples:,}. Use another one, or start from epoch 0."
            )
        self.epoch, self._examples_read = epoch, read

    def close(self) -> None:
        """Closes the shards."""
        self._feed.close()


class _Following:
    """Remembers what the backend was fed, to name what it could not decode."""

    def __init__(self, feed: Feed, epoch: int, start: int) -> None:
        self._feed = feed
        self._epoch = epoch
        self._start = start
        self._fed: dict[int, EncodedBatch] = {}
        self._error: ImagenetPrepError | None = None

    def batches(self) -> Iterator[EncodedBatch]:
        try:
            for step, batch in enumerate(self._feed.batches(self._epoch, self._start)):
                # Not the images: a dozen steps of them are 100 MB, and read again soon enough.
                self._fed[step] = batch._replace(encoded=[])
                self._fed.pop(step - _REMEMBERED_STEPS, None)
                yield batch
        except ImagenetPrepError as error:
            # Frameworks wrap what a Python callback raises into errors of their own.
            self._error = error
            raise

    def explain(self, error: Exception, step: int) -> None:
        """Masks the image that broke a step, or raises what was behind the framework's error."""
        if self._error is not None:
            raise self._error from None
        found = 0
        for later in range(step, step + _REMEMBERED_STEPS):
            batch = self._fed.get(later)
            if batch is None:
                continue
            for number, box in zip(batch.numbers.tolist(), batch.views.boxes, strict=True):
                if number < 0:
                    continue
                encoded = self._feed.records.read(number).encoded
                problem = _unusable(encoded, box.tolist())
                if problem is None:
                    continue
                where = self._feed.records.where(number)
                if not self._feed.skip_bad:
                    raise DataDamagedError(f"{where}: {problem}") from error
                self._feed.skip(number, f"{where}: {problem}")
                found += 1
        if not found:
            raise error


# What a backend holds at most: our own steps ahead, and the prefetching of tf.data or DALI.
_REMEMBERED_STEPS = 12


def _unusable(encoded: bytes, box: list[int]) -> str | None:
    """Returns what is wrong with a JPEG of which a box should be shown, or None."""
    import io

    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded), formats=("JPEG",)) as image:
            image.load()
            top, left, height, width = box
            if top + height > image.height or left + width > image.width:
                return f"the picture is {image.width} x {image.height}, its record says larger"
    except Exception as error:  # noqa: BLE001 - Pillow raises many kinds for broken files
        return f"does not decode: {error}"
    return None


def make_dataset(
    data_dir: str | os.PathLike[str],
    split: str,
    batch_size: int,
    image_size: int = 224,
    *,
    training: bool | None = None,
    world: World | None = None,
    seed: int = 0,
    backend: str = "auto",
    framework: str = "tensorflow",
    recipe: str = "resnet",
    dtype: str = "float32",
    layout: str = "NHWC",
    antialias: bool | None = None,
    device: str = "cpu",
    shuffle_window: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_gb: float | None = None,
    num_threads: int = 0,
    on_bad_record: str = "raise",
) -> Reader:
    """Returns the batches of one rank of a prepared data set.

    Labels, counts and shards come from the manifest. Every example comes exactly once an
    epoch over all ranks; training leaves out what does not fill a step of all ranks
    (`Reader.dropped_per_epoch`), evaluation pads its last step and masks the padding.

    Args:
      data_dir: folder of the data set, or its s3:// or http(s):// address.
      split: "train" or "validation".
      batch_size: examples a step and rank.
      image_size: height and width of the images in pixels.
      training: shuffled random crops, or the central crop in record order; by default the
        train split is for training.
      world: this process among those that train together; by default what the launcher says.
      seed: decides order, crops and mirroring, together with epoch and example alone.
      backend: "tfdata", "dali", or "auto": DALI for a GPU, else tf.data where installed.
      framework: what batches hold: tensors of "tensorflow", "numpy" arrays, or "dlpack".
      recipe: "resnet", or "tutorial" as the 2018 tutorial cropped and normalised.
      dtype: "float32", "bfloat16" (tf.data) or "float16" (DALI) normalised, or "uint8".
      layout: "NHWC" or "NCHW".
      antialias: filter before shrinking, as Pillow does; by default in evaluation only.
      device: "cpu", or "gpu" for DALI on the GPU of this local rank.
      shuffle_window: shards whose examples are shuffled with each other; 0 is all of them, and
        the default for a folder. A few keep reads near each other on disks that seek, and let
        a remote set be read while it is fetched: there the default is 16.
      cache_dir: where the ranks of a node keep a remote set; by default what
        IMAGENET_PREP_CACHE names, or ~/.cache/imagenet-prep.
      cache_gb: what the cache may hold, in 1e9 bytes; by default all of the set. At least two
        windows of shards. What the readers of a node hold beyond it stays until they let go: one
        window where ranks read in step, two windows for a reader of another split.
      num_threads: images decoded at once; 0 is one a core this process may use, shared
        among the ranks of a host.
      on_bad_record: "raise", or "skip": mask, count and list in `Reader.skipped`. A disk or server
        that fails, and a shard that is damaged as a whole, are raised either way.

    Raises:
      UsageError: no manifest, an unknown choice, a backend that is not installed, or a part of
        a partitioned set that other hosts than its own are to read.
      DataDamagedError: shards are missing or cut.
      StoreError: the system cannot read them, or the server refuses.
      IncompleteError: the server fails again and again, or the disk is full.
    """
    choices: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "split": (split, schema.SPLITS),
        "backend": (backend, BACKENDS),
        "framework": (framework, FRAMEWORKS),
        "recipe": (recipe, tuple(RECIPES)),
        "dtype": (dtype, DTYPES),
        "layout": (layout, ("NHWC", "NCHW")),
        "device": (device, ("cpu", "gpu")),
        "on_bad_record": (on_bad_record, ("raise", "skip")),
    }
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise UsageError(f"{name}={value!r}: expected one of {', '.join(map(repr, allowed))}")
    numbers = {"batch_size": (batch_size, 1), "image_size": (image_size, 1)}
    for name, (number, least) in (numbers | {"num_threads": (num_threads, 0)}).items():
        if number < least:
            raise UsageError(f"{name}={number}: expected at least {least}")
    world = world or World.from_environment()
    training = split == schema.TRAIN if training is None else training
    records, remote = _open(os.fspath(data_dir), split, cache_dir, cache_gb)
    _check_world(world, records.placement, data_dir)
    if shuffle_window is None:
        shuffle_window = _REMOTE_WINDOW if remote else 0
    threads = num_threads or max(1, len(os.sched_getaffinity(0)) // world.local_size)
    feed = Feed(
        records=records,
        order=Order(
            records.examples_per_shard,
            seed if training else None,
            shuffle_window,
            records.placement,
        ),
        world=world,
        batch_size=batch_size,
        training=training,
        recipe=RECIPES[recipe],
        seed=seed,
        skip_bad=on_bad_record == "skip",
    )
    if shuffle_window < 0:
        raise UsageError(f"shuffle_window={shuffle_window}: expected 0 or more shards")
    if training and not feed.steps(0).count:
        raise UsageError(
            f"{split} has {len(records):,} examples, fewer than one step of {world.size} ranks "
            f"with {batch_size} each. Choose a smaller batch size."
        )
    name = _choose_backend(backend, device)
    common: dict[str, Any] = {
        "batch_size": batch_size,
        "image_size": image_size,
        "recipe": RECIPES[recipe],
        "dtype": dtype,
        "layout": layout,
        "antialias": not training if antialias is None else antialias,
        "num_threads": threads,
    }
    if name == "tfdata":
        if dtype == "float16" or device == "gpu" or framework == "dlpack":
            raise UsageError("backend='tfdata' has no float16, no device='gpu' and no dlpack")
        from imagenet_prep.read.tfdata import TfDataBackend

        return Reader(feed, TfDataBackend(**common), _tensor_to(framework))
    if dtype == "bfloat16":
        raise UsageError("backend='dali' has no bfloat16: choose float16 or float32")
    from imagenet_prep.read.dali import DaliBackend

    there = records.manifest.splits[split]
    largest = (there.max_height, there.max_width)
    device_id = world.local_rank if device == "gpu" else None
    return Reader(
        feed, DaliBackend(**common, device_id=device_id, largest=largest), _dali_to(framework)
    )


def _open(
    data_dir: str,
    split: str,
    cache_dir: str | os.PathLike[str] | None,
    cache_gb: float | None,
) -> tuple[Records, bool]:
    """Returns the records of a split, and whether they lie elsewhere."""
    if "://" not in data_dir:
        if cache_dir is not None or cache_gb is not None:
            raise UsageError(f"{data_dir} is a folder: cache_dir and cache_gb are for remote sets")
        return Records(Path(data_dir).expanduser(), split), False
    from imagenet_prep.core.remote import check_base
    from imagenet_prep.read.cache import DEFAULT_FOLDER, FOLDER_VARIABLE, NodeCache

    try:
        check_base(data_dir)
    except ValueError as error:
        raise UsageError(f"data_dir: {error}") from None
    folder = Path(cache_dir or os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER).expanduser()
    limit = None if cache_gb is None else round(cache_gb * 1e9)
    cache = NodeCache(data_dir, folder, limit)
    return Records(cache.root, split, cache), True


def _check_world(world: World, placement: Placement, data_dir: str | os.PathLike[str]) -> None:
    """Refuses ranks that would not read each part of the set exactly once."""
    if placement.nodes == 1:
        return
    where = f"{os.fspath(data_dir)} is {placement}"
    if world.size != placement.nodes * world.local_size:
        raise UsageError(
            f"{where}: {placement.nodes} hosts with equally many ranks have to read it together, "
            f"here are {world.size} ranks, {world.local_size} on this host. Start them on all "
            "hosts, or replicate to the hosts that are there."
        )
    if world.cross_rank != placement.node:
        raise UsageError(
            f"{where}, but this host is number {world.cross_rank} among those that train. Start "
            "them in the order of the hosts file that replicate was given."
        )


def _choose_backend(backend: str, device: str) -> str:
    installed = {
        "tfdata": importlib.util.find_spec("tensorflow") is not None,
        "dali": importlib.util.find_spec("nvidia") is not None
        and importlib.util.find_spec("nvidia.dali") is not None,
    }
    if backend == "auto":
        order = ("dali",) if device == "gpu" else ("tfdata", "dali")
        backend = next((name for name in order if installed[name]), order[0])
    if not installed[backend]:
        extra = {"tfdata": "tf", "dali": "dali"}[backend]
        raise UsageError(
            f"backend {backend!r} is not installed: pip install 'imagenet-prep[{extra}]'"
        )
    return backend


def _tensor_to(framework: str) -> Callable[[Any], Any]:
    if framework == "numpy":
        return lambda tensor: tensor.numpy()
    return lambda tensor: tensor


def _dali_to(framework: str) -> Callable[[Any], Any]:
    if framework == "dlpack":
        return lambda tensor: tensor
    if framework == "numpy":
        import numpy as np

        return lambda tensor: np.array(tensor.as_cpu())
    from imagenet_prep.read.dali import to_tensorflow

    return to_tensorflow
