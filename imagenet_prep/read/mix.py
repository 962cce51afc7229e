"""`make_mix` reads several datasets as one: in exact proportions, and exact after a resume.

`Mix` has examples of several parts in a batch; `Alternation` takes each batch from one part.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from imagenet_prep.core.arguments import checked
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.spelling import as_seen
from imagenet_prep.core.world import require_same_ranks
from imagenet_prep.read.backend import CONVERTERS, Backend, open_backend
from imagenet_prep.read.config import ReadConfig, Shown
from imagenet_prep.read.dataset import make_dataset
from imagenet_prep.read.decode_steps import (
    as_batch,
    decoded_steps,
    require_last_loop,
    require_same_process,
)
from imagenet_prep.read.mix_feed import PART, MixFeed, Proportions
from imagenet_prep.read.reader import Reader
from imagenet_prep.read.receipt import STATE_VERSION, require_state
from imagenet_prep.read.recipes import height_and_width
from imagenet_prep.read.selection import NoExampleError

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.read.feed import Feed


# Attributes with threads, locks or loops of one process.
_OF_PROCESS = frozenset(("_feed", "_backend", "_loop", "_of_parent"))


class Mixed:
    """What `Mix` and `Alternation` share: the parts, their shares, and the position."""

    def __init__(self, parts: Mapping[str, Reader], weights: Mapping[str, float] | None) -> None:
        if not isinstance(parts, Mapping):
            raise UsageError(f"parts={parts!r}: expected a dict of readers by name")
        self.parts = dict(parts)
        self.names = tuple(parts)
        self._readers = [*parts.values()]
        self._loop: object = None  # the last one that began
        self._process = os.getpid()
        if len({*map(id, self._readers)}) < len(self._readers):
            raise UsageError("parts: one reader has two names: make a reader for each part")
        for name, reader in parts.items():
            if not isinstance(reader, Reader):
                raise UsageError(
                    f"part {name!r}: expected a reader of make_dataset, not {type(reader).__name__}"
                )
            if not reader.feed.config.is_training:
                raise UsageError(
                    f"part {name!r}: mixes and buckets are for training, and this reader is for "
                    "evaluation. Evaluate with make_dataset, or use training=True"
                )
            if reader.epoch or not reader.is_at_start:
                raise UsageError(
                    f"part {name!r}: its reader has been used, but a mix begins at epoch 0. Make a "
                    "new reader, and restore the state of the mix"
                )
        sizes = {name: float(reader.num_examples) for name, reader in parts.items()}
        self.shares = _shares(self.names, sizes if weights is None else weights)
        self.epoch = 0
        self.classes = _joined({name: reader.classes for name, reader in parts.items()})

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def num_examples(self) -> int:
        """The number of examples per epoch, over all parts and ranks."""
        return sum(reader.num_examples for reader in self._readers)

    @property
    def skipped(self) -> list[str]:
        """One message per record that this rank has skipped."""
        return [reason for reader in self._readers for reason in reader.skipped]

    def _renumber(self) -> None:
        """Gives the batches of all parts the class indices of the mix."""
        index = {wnid: number for number, wnid in enumerate(self.classes)}
        for reader in self._readers:
            reader.feed.mix = self
            reader.feed.renumber([index[wnid] for wnid in reader.classes])

    def _reopen_if_forked(self) -> None:
        """Reopens all parts if this process was forked from the one that made the mix."""
        self._require_own_readers()
        if self._process != os.getpid():
            # What has threads and locks of the parent stays open, as in a forked `Reader`.
            of_parent = dict(vars(self))
            self.__setstate__(self.__getstate__())
            self._of_parent = of_parent

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a copied or unpickled mix needs: its readers open their datasets again."""
        return {name: value for name, value in vars(self).items() if name not in _OF_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        # Unpickled readers are new; those of a copy or of a fork belong to the other mix.
        self.parts = {
            name: reader if reader.feed.mix is None else copy.copy(reader)
            for name, reader in self.parts.items()
        }
        self._readers = [*self.parts.values()]
        self._loop = None
        self._process = os.getpid()
        self._renumber()

    def _require_own_readers(self) -> None:
        """Raises UsageError if a newer mix has numbered the classes of a part differently."""
        if any(reader.feed.mix is not self for reader in self._readers):
            raise UsageError(
                "a newer mix or bucketed reader has readers of this one, and numbers their classes "
                "in its own order. Read the newer one, or make separate readers with make_dataset."
            )

    def close(self) -> None:
        """Closes the shards of all parts."""
        for reader in self._readers:
            reader.close()

    def _require_state(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Raises UsageError if a setting in a state differs from that of this mix."""
        require_state(state)
        state = {"names": [*self.names], **state}  # states of earlier versions have no names
        for name, value in own.items():
            if state.get(name) != value:
                raise UsageError(
                    f"the state has {name} {state.get(name)!r}, but this mix has {value!r}. Use "
                    "the same datasets and settings, or start from epoch 0."
                )


def _joined(classes_of: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Returns the classes of all parts; raises UsageError if two parts spell one differently."""
    joined: dict[str, None] = {}
    known: dict[str, tuple[str, str]] = {}
    for part, wnids in classes_of.items():
        spelt = {as_seen(wnid).casefold(): (part, wnid) for wnid in wnids if wnid not in joined}
        for name in spelt.keys() & known.keys():
            other, theirs = known[name]
            ours = spelt[name][1]
            raise UsageError(
                f"the class {ours!a} of part {part!r} and {theirs!a} of part {other!r} look the "
                "same, but would be two classes. Prepare one dataset with the spelling of the "
                "other: imagenet-prep prepare --classes-of OTHER; or choose classes= without it"
            )
        known |= spelt
        joined |= dict.fromkeys(wnids)
    return tuple(joined)


class Mix(Mixed):
    """Reads several datasets as one; created by `make_mix`.

    Each `for` loop yields the remaining batches of the current epoch, like that of a `Reader`. A
    batch has the fields of the parts, and `part`: [batch] int32, the number of each example's part
    in `names`; -1 if the mask is False. `class_index` is that of `classes`.

    Attributes:
      parts: the readers by name. Only the mix may read them.
      names: the names of the parts.
      classes: the WNID of each class index: those of all parts, in their order.
      shares: the share of each part in the examples.
      epoch: epoch of the next batch, from 0.

    Example:
      >>> from imagenet_prep.read import make_dataset, make_mix
      >>> part = make_dataset("/data/imagenet-480", "train", batch_size=8, fraction=0.5)
      >>> rest = make_dataset("/data/imagenet-480", "train", batch_size=8)
      >>> mix = make_mix({"half": part, "all": rest}, weights={"half": 1, "all": 3})
      >>> batch = next(iter(mix))
      >>> batch["images"].shape, batch["part"].shape, sorted(mix.state())[:3]
      ((8, 224, 224, 3), (8,), ['epoch', 'examples_read', 'names'])
    """

    def __init__(
        self, parts: Mapping[str, Reader], weights: Mapping[str, float] | None, seed: int
    ) -> None:
        super().__init__(parts, weights)
        _require_equal(parts)
        self._seed = seed
        for name, share in zip(self.names, self.shares, strict=True):
            if share * self.num_examples < 1:
                raise UsageError(
                    f"weights={dict(weights or {})}: part {name!r} would give less than one of the "
                    f"{self.num_examples:,} examples of an epoch. Choose a larger weight"
                )
        self._proportions = Proportions(self.shares, self.num_examples, seed)
        self._feed = MixFeed(self._readers, self._proportions)
        self._examples_read = 0
        self._renumber()

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches per complete epoch, which is the same on every rank."""
        return self._feed.steps(0).count

    @property
    def steps_left(self) -> int:
        """The number of remaining batches of the current epoch."""
        return self._feed.steps(self._examples_read).count

    @property
    def dropped_per_epoch(self) -> int:
        """The number of examples that are dropped per epoch."""
        return self._feed.steps(0).dropped

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        require_same_ranks(self._feed.config.rank)
        self._reopen_if_forked()
        self._loop = loop = object()
        process = os.getpid()
        steps = self.steps_left
        for read, images, encoded in decoded_steps(
            self._backend,
            partial(self._feed.batches, self.epoch),
            self._feed.mask_undecodable,
            self._feed.steps,
            self._examples_read,
            steps,
        ):
            require_last_loop(self._loop, loop)
            self._require_own_readers()
            self._examples_read = read
            steps -= 1
            if not steps:
                # Do this before the yield, since a loop that counts steps ends after this batch.
                self._begin_epoch()
            batch = as_batch(images, encoded, self._feed.config, self._feed.bfloat16)
            yield _with_part(batch, np.asarray(encoded.details[PART]), self._feed.config)
            require_same_process(process)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._feed = MixFeed(self._readers, self._proportions)
        vars(self).pop("_backend", None)

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self._examples_read = 0

    @cached_property
    def _backend(self) -> Backend:
        first, *_ = self._readers
        return open_backend(self._feed.config, first.manifest.splits[self._feed.config.split])

    def state(self) -> dict[str, Any]:
        """Returns the mix's position as JSON, the same on every rank."""
        windows = {name: reader.feed.order.window for name, reader in self.parts.items()}
        position = {"epoch": self.epoch, "examples_read": self._examples_read}
        return {**self._settings(), "windows": windows, **position}

    def _settings(self) -> dict[str, Any]:
        parts = {}
        for name, reader in self.parts.items():
            state = reader.state()
            # All parts are for training.
            fixed = state.keys() - {*_POSITION, "window", "training"}
            parts[name] = {key: state[key] for key in sorted(fixed)}
        return {
            "version": STATE_VERSION,
            "names": [*self.names],
            "parts": parts,
            "shares": [*self.shares],
            "num_examples": self.num_examples,
            "seed": self._seed,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`; the number of ranks and the batch size may have changed.

        Raises:
          UsageError: parts, shares or seed differ from the state.
        """
        self._require_state(state, self._settings())
        epoch, read = (state.get(name) for name in _POSITION)
        windows = state.get("windows")
        has_windows = isinstance(windows, dict) and windows.keys() == self.parts.keys()
        if not has_windows or not all(map(_is_count, cast("Any", windows).values())):
            raise UsageError(
                f"the state is damaged: windows {str(windows)[:200]}. Use a different state, or "
                "start from epoch 0."
            )
        if not (_is_count(epoch) and _is_count(read)) or cast("int", read) > self.num_examples:
            raise UsageError(
                f"the state is damaged: epoch {epoch!r}, examples_read {read!r} of "
                f"{self.num_examples:,}. Use a different state, or start from epoch 0."
            )
        for name, reader in self.parts.items():
            reader.feed.use_window(cast("Any", windows)[name])
        self._feed.forget_order()
        self._loop = None
        self.epoch = cast("int", epoch)
        self._examples_read = cast("int", read)
        if not self.steps_left:
            self._begin_epoch()

    state_dict, load_state_dict = state, restore  # the names that PyTorch's loaders use


class Alternation(Mixed):
    """Reads several datasets in turn, each batch from one of them; created by `make_mix`.

    The parts may differ in the size of images and batches. All ranks read the same part in a step.
    A batch has the fields of its part, and `part`: [batch] int32, its number in `names`.
    `class_index` is that of `classes`. After each step, the part that is furthest behind its share
    follows, so each part has given its share of the examples, to one step. Without weights, an
    epoch reads each part once; with weights, an epoch has as many examples as all parts together.

    Attributes:
      parts: the readers by name. Only the alternation may read them.
      names: the names of the parts.
      classes: the WNID of each class index: those of all parts, in their order.
      shares: the share of each part in the examples.
      epoch: epoch of the next batch, from 0.

    Example:
      >>> from imagenet_prep.read import make_dataset, make_mix
      >>> small = make_dataset("/data/imagenet-480", "train", 16, image_size=128, fraction=0.5)
      >>> large = make_dataset("/data/imagenet-480", "train", 8)
      >>> alternation = make_mix({"small": small, "large": large}, homogeneous=True)
      >>> sorted({batch["images"].shape for batch in alternation})
      [(8, 224, 224, 3), (16, 128, 128, 3)]
    """

    def __init__(self, parts: Mapping[str, Reader], weights: Mapping[str, float] | None) -> None:
        super().__init__(parts, weights)
        self._reads_once = weights is None
        # Examples of each part; without weights, in this epoch.
        self._read = [0] * len(self._readers)
        self._renumber()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._read = [*self._read]

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches per complete epoch, the same on every rank; not with weights.

        Raises:
          UsageError: with weights, epochs have different numbers of batches.
        """
        if not self._reads_once:
            raise UsageError(
                "with weights, the epochs of an alternation have different numbers of steps. Count "
                "examples: num_examples is the same for each epoch"
            )
        return sum(reader.steps_per_epoch for reader in self._readers)

    def __len__(self) -> int:
        try:
            return self.steps_per_epoch
        except UsageError as error:
            raise TypeError(str(error)) from None  # as of an object without length, for list()

    def __iter__(self) -> Iterator[Any]:
        """Yields the remaining batches of the epoch."""
        self._reopen_if_forked()
        self._loop = loop = object()
        process = os.getpid()
        loops: dict[int, Iterator[Any]] = {}
        part = self._next_part()
        while part is not None:
            require_last_loop(self._loop, loop)
            self._require_own_readers()
            reader = self._readers[part]
            if part not in loops or reader.is_at_start:
                loops[part] = reader.loop()
            size = reader.next_step_examples
            batch = next(loops[part])
            config = reader.feed.config
            batch = _with_part(batch, np.full(size // config.rank.size, part), config)
            self._read[part] += size
            part = self._next_part()
            if part is None:
                # Do this before the yield, since a loop that counts steps ends after this batch.
                self._begin_epoch()
            yield batch
            require_same_process(process)

    def _next_part(self) -> int | None:
        """Returns the number of the next step's part; None at the end of the epoch."""
        total = sum(self._read)
        best = None
        most_behind = -math.inf
        for part, reader in enumerate(self._readers):
            size = reader.next_step_examples
            if self._reads_once:
                is_finished = reader.epoch > self.epoch
            else:
                is_finished = total + size > (self.epoch + 1) * self.num_examples
            if is_finished:
                continue
            behind = self.shares[part] * (total + size) - self._read[part]
            if behind > most_behind:
                best = part
                most_behind = behind
        return best

    def _begin_epoch(self) -> None:
        self.epoch += 1
        if self._reads_once:
            self._read = [0] * len(self._readers)

    def state(self) -> dict[str, Any]:
        """Returns the position as JSON, the same on every rank."""
        return {
            **self._settings(),
            "parts": {name: reader.state() for name, reader in self.parts.items()},
            "epoch": self.epoch,
            "read": [*self._read],
        }

    def _settings(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "names": [*self.names],
            "shares": [*self.shares],
            "once": self._reads_once,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`; the number of ranks and the batch size may have changed.

        Raises:
          UsageError: parts or shares differ from the state.
        """
        self._require_state(state, self._settings())
        parts = state.get("parts")
        read = state.get("read")
        epoch = state.get("epoch")
        is_sound = isinstance(parts, dict) and parts.keys() == self.parts.keys()
        is_sound &= isinstance(read, list) and len(read) == len(self.names)
        if not is_sound or not all(_is_count(number) for number in (epoch, *cast("Any", read))):
            raise UsageError(
                f"the state has the parts {str(parts)[:200]}, this mix has {self.names}. Use the "
                "same datasets and settings, or start from epoch 0."
            )
        for name, reader in self.parts.items():
            reader.restore(cast("dict[str, Any]", parts)[name])
        self._loop = None
        self.epoch = cast("int", epoch)
        self._read = [*cast("list[int]", read)]
        if self._next_part() is None:
            self._begin_epoch()

    state_dict, load_state_dict = state, restore  # the names that PyTorch's loaders use


# The entries of a reader's state that change from step to step.
_POSITION = ("epoch", "examples_read")
# The settings of readers that the examples of one batch share.
_EQUAL = ("batch_size", "fields", "framework", "dtype", "layout", "as_tuple", "colour")


@overload
def make_mix(
    parts: Mapping[str, Reader],
    weights: Mapping[str, float] | None = None,
    *,
    homogeneous: Literal[False] = False,
    seed: int = 0,
) -> Mix: ...


@overload
def make_mix(
    parts: Mapping[str, Reader],
    weights: Mapping[str, float] | None = None,
    *,
    homogeneous: bool,
    seed: int = 0,
) -> Mix | Alternation: ...


@checked
def make_mix(
    parts: Mapping[str, Reader],
    weights: Mapping[str, float] | None = None,
    *,
    homogeneous: bool = False,
    seed: int = 0,
) -> Mix | Alternation:
    """Returns a mix of datasets, each with its share of the examples.

    Args:
      parts: readers for training by name, with the same ranks, fields and sizes.
      weights: the weight of each part by name; by default their numbers of examples, so that an
        epoch reads each example of each part once. Otherwise, an epoch has as many examples as all
        parts together, and each part begins its next epoch if it is at its end.
      homogeneous: True: each step has examples of one part only, and parts may differ in their
        sizes and batch sizes. False: batches have examples of all parts.
      seed: seed of the order of the parts in a `Mix`.

    Raises:
      UsageError: parts do not fit together, or a weight is not a number above 0.

    Example:
      >>> from imagenet_prep.read import make_dataset, make_mix
      >>> web = make_dataset("/data/imagenet-480", "train", batch_size=8)
      >>> own = make_dataset("/data/imagenet-480", "train", batch_size=8, fraction=0.5)
      >>> mix = make_mix({"web": web, "own": own}, weights={"web": 2, "own": 1})
      >>> batch = next(iter(mix))
      >>> mix.names[batch["part"][0]] in ("web", "own")
      True
    """
    if homogeneous:
        return Alternation(parts, weights)
    return Mix(parts, weights, seed)


@checked
def make_buckets(
    data_dir: str | os.PathLike[str],
    split: str,
    batch_size: int,
    sizes: Sequence[tuple[int, int]],
    **options: Any,
) -> Alternation:
    """Returns a reader whose batches have images of one shape: that nearest to their own shape.

    Args:
      data_dir, split, batch_size: as in `make_dataset`.
      sizes: height and width of each bucket. An image belongs to the bucket whose width / height is
        nearest to its own, on a logarithmic scale.
      **options: further arguments of `make_dataset`; `where` selects images of all buckets.

    Raises:
      UsageError: a bucket has images, but fewer than one step needs.

    Example:
      >>> from imagenet_prep.read import make_buckets
      >>> sizes = [(224, 224), (224, 320), (320, 224)]
      >>> buckets = make_buckets("/data/imagenet-480", "train", 4, sizes)
      >>> buckets.names
      ('320x224', '224x224', '224x320')
      >>> sorted({batch["images"].shape for batch in buckets})
      [(4, 224, 224, 3), (4, 224, 320, 3), (4, 320, 224, 3)]
    """
    by_aspect = sorted(map(height_and_width, sizes), key=lambda size: size[1] / size[0])
    aspects = [width / height for height, width in by_aspect]
    borders = [math.sqrt(low * high) for low, high in itertools.pairwise(aspects)]
    ratios = [high / low for low, high in itertools.pairwise(aspects)]
    if not by_aspect or min(ratios, default=2) <= 1:
        raise UsageError(f"sizes={[*sizes]}: expected sizes with different width / height")
    wanted = options.pop("where", None)
    parts = {}
    for number, (height, width) in enumerate(by_aspect):
        conditions = [] if wanted is None else [f"({wanted})"]
        if number > 0:
            conditions.append(f"width / height >= {borders[number - 1]!r}")
        if number < len(borders):
            conditions.append(f"width / height < {borders[number]!r}")
        where = " and ".join(conditions) or None
        with contextlib.suppress(NoExampleError):
            parts[f"{height}x{width}"] = make_dataset(
                data_dir, split, batch_size, (height, width), where=where, **options
            )
    if not parts:
        raise UsageError(f"{os.fspath(data_dir)}: no image of {split} matches where={wanted!r}")
    return Alternation(parts, None)


def _shares(names: Sequence[str], weights: Any) -> tuple[float, ...]:
    """Returns the share of each part; raises UsageError if a weight is missing or no number."""
    if not isinstance(weights, Mapping) or not names or set(weights) != set(names):
        raise UsageError(
            f"weights={weights!r}: expected a dict with a weight for each of {[*names]}"
        )
    values = [weights[name] for name in names]
    if not all(0 < value < math.inf for value in values):
        raise UsageError(f"weights={dict(weights)}: expected numbers above 0")
    total = math.fsum(values)
    return tuple(float(value / total) for value in values)


def _require_equal(parts: Mapping[str, Reader]) -> None:
    """Raises UsageError if the examples of the parts cannot be in one batch."""
    first_name, *_ = parts
    first = parts[first_name].feed.config
    first_columns = _types_of_columns(parts[first_name].feed)
    for name, reader in parts.items():
        config = reader.feed.config
        if config.backend != "native" or config.sizes or config.out is not None:
            raise UsageError(
                f"part {name!r}: a mix needs readers with backend='native', without sizes= and out="
            )
        pairs = [(setting, getattr(config, setting), getattr(first, setting)) for setting in _EQUAL]
        pairs.append(("world", config.rank, first.rank))
        pairs.append(("images", _look_of(config), _look_of(first)))
        pairs.append(("columns", _types_of_columns(reader.feed), first_columns))
        for setting, own, expected in pairs:
            if own != expected:
                raise UsageError(
                    f"part {name!r} has {setting}={own!r}, but part {first_name!r} has "
                    f"{expected!r}: a batch needs the same. homogeneous=True alternates instead"
                )


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _types_of_columns(feed: Feed) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns the type and shape of each column in the batches, by field."""
    made = {field: rows.column for field, rows in feed.columns.items()}
    return {field: (column.dtype, column.shape) for field, column in made.items()}


def _look_of(config: ReadConfig) -> list[Shown]:
    """Returns what the images show, without the settings that only choose crops."""
    neutral: dict[str, Any] = {
        "area": (1.0, 1.0),
        "aspect": (1.0, 1.0),
        "mirror": 0.0,
        "share": 1.0,
    }
    (arrays,) = config.shown
    return [replace(shown, crops=replace(shown.crops, **neutral)) for shown in arrays]


def _with_part(batch: Any, parts: npt.NDArray[Any], config: ReadConfig) -> Any:
    """Adds the number of each example's part to a batch, unless it is a tuple."""
    if config.as_tuple:
        return batch
    return {**batch, PART: CONVERTERS[config.array_framework](parts.astype(np.int32), False)}
