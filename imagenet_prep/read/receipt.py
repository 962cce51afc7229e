"""Computes a run's receipt from its log: the images that each training step used.

Log directories can be shared, so a log is untrusted input: the numbers in it are compared with the
dataset before they decide how long a command runs, and no address in it is contacted.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from imagenet_prep.core import strict_json
from imagenet_prep.core.address import is_remote
from imagenet_prep.core.errors import DataDamagedError, StoreError, UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset.column import Placement
from imagenet_prep.read.order import (
    MOST_APPEARANCES,
    Appearances,
    DrawnSteps,
    Order,
    Size,
    SizeSchedule,
    Steps,
)
from imagenet_prep.storage.dataset_store import Dataset, open_dataset
from imagenet_prep.storage.folder import LocalStore

if TYPE_CHECKING:
    import numpy.typing as npt

KEPT = "kept"
DISCARDED = "discarded"
UNSAVED = "not saved"
STATE_VERSION = 1  # increases if the format of `Reader.state` or the order of examples changes
# A line that chooses among the 14.2 million images of ImageNet-21K has up to 2.4 MB. The log of 90
# epochs of ImageNet has 90 MB if it has a line for each of 450,000 steps.
_MOST_LINE_BYTES = 4 << 20
_MOST_LOG_BYTES = 256 << 20
_MOST_SEGMENTS = 1 << 14
_MOST_NODES = 1 << 12
_MOST_BATCH = 1 << 20  # images of a step per rank, and ranks
_MOST_EPOCHS = 1 << 14
# Ordering an image takes 0.1 us, and an epoch of one node as long as _NODE_IMAGES images. The limit
# allows 300 epochs of ImageNet-21K.
_MOST_IMAGES = 1 << 32
_NODE_IMAGES = 10_000
# How many times as long it takes with weights, and with drawn sizes of batches.
_MOST_ORDER = 10
_DRAWN_IMAGES = 30


@dataclass(frozen=True)
class ReceiptState:
    """The content of `Reader.receipt`: a reader's state, and settings that affect the order."""

    version: int
    dataset: str
    split: str
    seed: int
    window: int
    nodes: int
    copies: int
    epoch: int
    examples_read: int
    data_dir: str
    ranks: int
    batch_size: int
    training: bool
    chosen: str | None = None
    edition: str | None = None
    choice: dict[str, str] = field(default_factory=dict)  # in a log, only the entry "numbers"
    crops: str = ""  # describes the images; logs of older runs have no description
    recipe: str = ""
    weights: str | None = None
    appearances: list[float] | None = None  # by class index, see order.Appearances
    sizes: str | None = None
    # The first epoch, the share of steps and the batch size of each size, see order.Size.
    size_epochs: list[int] | None = None
    size_shares: list[float] | None = None
    batch_sizes: list[int] | None = None

    def __post_init__(self) -> None:
        if self.version != STATE_VERSION:
            raise ValueError(f"expected state version {STATE_VERSION}, found {self.version}")
        is_sound = min(self.window, self.epoch, self.examples_read) >= 0
        is_sound &= min(self.nodes, self.ranks, self.batch_size) >= 1
        is_sound &= max(self.ranks, self.batch_size) <= _MOST_BATCH
        is_sound &= 1 <= self.copies <= self.nodes <= _MOST_NODES
        expected = self.appearances or [0.0]
        is_sound &= 0 <= min(expected) <= max(expected) < math.inf
        epochs = self.size_epochs or [0]
        shares = self.size_shares or [1.0]
        batch_sizes = self.batch_sizes or [self.batch_size]
        is_sound &= len(epochs) == len(shares) == len(batch_sizes)
        is_sound &= min(epochs) == 0 < min(shares) <= max(shares) < math.inf
        is_sound &= 1 <= min(batch_sizes) <= max(batch_sizes) <= _MOST_BATCH
        if not is_sound or self.ranks % self.nodes:
            raise ValueError("a number is out of range")
        if self.nodes > 1 and (self.appearances or self.batch_sizes):
            raise ValueError("several nodes with separate orders have no weights and sizes")

    @property
    def order(self) -> _Settings:
        """The settings that determine the order of an epoch."""
        seed = self.seed if self.training else None
        numbers = self.choice.get("numbers", "")
        chosen = (self.chosen or "", numbers) if self.choice else None
        appearances = None if self.appearances is None else tuple(self.appearances)
        return _Settings(seed, self.window, self.nodes, self.copies, chosen, appearances)

    @property
    def schedule(self) -> SizeSchedule:
        """The sizes of batches by epoch and step."""
        pairs = zip(self.size_epochs or [0], self.size_shares or [1.0], strict=True)
        sizes = [Size(epoch=epoch, share=share) for epoch, share in pairs]
        return SizeSchedule(sizes, self.batch_sizes or [self.batch_size], self.seed)

    def steps(self, epoch: int, start: int, num_examples: int) -> Steps | DrawnSteps:
        """Returns the steps of an epoch after its first `start` examples."""
        return self.schedule.steps(
            epoch, start, num_examples, self.ranks, drop_tail=self.training, nodes=self.nodes
        )


class _Settings(NamedTuple):
    """The settings of `Order`; `chosen` has the packed numbers of examples, and their sha256."""

    seed: int | None
    window: int
    nodes: int
    copies: int
    chosen: tuple[str, str] | None
    appearances: tuple[float, ...] | None


@dataclass(frozen=True)
class _LogRow:
    """A line of the log that was written after `step` steps, at a start or a checkpoint."""

    kind: str
    step: int
    receipt: dict[str, Any]

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ValueError("a step is negative")
        # The other entries are the filters of the reader, which may be long lists.
        choice = self.receipt.get("choice")
        if isinstance(choice, dict) and choice:
            self.receipt["choice"] = {"numbers": choice.get("numbers")}


@dataclass
class Segment:
    """The steps from a start or checkpoint of a run to the next start or checkpoint."""

    run: int  # number of the start, from 1
    first: int  # number of the first step, from 0
    state: ReceiptState  # state of the reader before the first step
    reached: int = 0  # the log shows that the run has trained all steps before this one
    kept: int = 0  # the weights that the run saved or continued with include the steps before it


class Use(NamedTuple):
    """A step in which a rank used an image; the new `weights` were KEPT, DISCARDED or UNSAVED."""

    step: int
    epoch: int
    run: int
    rank: int
    weights: str


class _Piece(NamedTuple):
    """Successive steps of one epoch, and the positions of their images in each node's order."""

    segment: Segment
    epoch: int
    first: int
    steps: int
    places: slice
    batch_size: int

    @property
    def per_node(self) -> int:
        """The number of images per step that the ranks of one node read."""
        state = self.segment.state
        return state.ranks * self.batch_size // state.nodes


def parse(lines: Iterable[bytes], where: str) -> list[Segment]:
    """Returns the segments of a run from the lines of its log, which is named `where` in errors."""
    segments: list[Segment] = []
    trained = b""
    damage = ""
    for number, line in enumerate(lines, 1):
        # Most lines report training steps. Only the last of these lines in a segment is needed.
        if b'"receipt"' not in line:
            trained = line if b'"train"' in line else trained
            continue
        where_in_log = f"{where}: line {number:,} is damaged"
        try:
            content = strict_json.loads(line)
        except ValueError as error:
            damage = damage or f"{where_in_log} ({error})"
            continue
        try:
            row = strict_json.parse(_LogRow, content, others=True)
            run = segments[-1].run if segments else 0
            is_start = row.kind == "start"
            # At a checkpoint, only the reader's state is logged, without the settings of the run.
            before = {} if is_start or not segments else vars(segments[-1].state)
            state = strict_json.parse(ReceiptState, before | row.receipt)
        except ValueError as error:
            raise DataDamagedError(f"{where_in_log} ({error})") from None
        if damage and not is_start:  # before a start, a power failure may have truncated a line
            raise DataDamagedError(damage)
        if len(segments) == _MOST_SEGMENTS:
            raise DataDamagedError(f"{where_in_log}: more than {_MOST_SEGMENTS:,} checkpoints")
        if segments:
            segments[-1].reached = max(row.step, _trained(trained) if is_start else 0)
        segments.append(Segment(run + is_start, row.step, state))
        trained = b""
        damage = ""
    if not segments:
        raise UsageError(
            f"{where}: no line contains the reader's state, so the images of a step are unknown. "
            "`imagenet-prep train` writes these lines; docs/train.md shows them for custom loops."
        )
    if len({(segment.state.dataset, segment.state.split) for segment in segments}) > 1:
        raise UsageError(f"{where}: the run has read several datasets or splits")
    segments[-1].reached = max(segments[-1].first, _trained(trained))
    _mark_kept(segments)
    return segments


def _mark_kept(segments: Sequence[Segment]) -> None:
    """Sets `kept`, the steps that the final weights contain, from the last segment to the first."""
    last = segments[-1]
    last.kept = last.first
    limit = last.first
    following = last
    for segment in segments[-2::-1]:
        # A start discards the steps after the checkpoint that it resumes from.
        if following.run > segment.run:
            limit = min(limit, following.first)
        segment.kept = min(segment.reached, limit)
        following = segment


def _trained(row: bytes) -> int:
    """Returns 1 + the step number in a training line of the log; 0 if the line is truncated."""
    try:
        return 1 + strict_json.parse(int, strict_json.loads(row).get("step"))
    except (ValueError, AttributeError):  # missing or truncated
        return 0


def require_state(state: object) -> None:
    """Raises UsageError if `state` is not from the method `state` of a reader or mix."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise UsageError(f"state={state!r:.200}: expected the dict that state() returned")


def packed(chosen: npt.NDArray[np.int64], num_examples: int) -> str:
    """Returns the numbers of chosen examples as a compressed bit mask in base64."""
    mask = np.zeros(num_examples, bool)
    mask[chosen] = True
    return base64.b64encode(zlib.compress(np.packbits(mask).tobytes())).decode()


def _unpacked(chosen: str, sha256: str, num_examples: int) -> npt.NDArray[np.int64]:
    try:
        data = base64.b64decode(chosen)
        data = zlib.decompressobj().decompress(data, -(-num_examples // 8))
        mask = np.unpackbits(np.frombuffer(data, np.uint8))[:num_examples]
    except (ValueError, zlib.error):
        mask = np.empty(0, np.uint8)
    numbers = np.flatnonzero(mask)
    if hashlib.sha256(numbers.tobytes()).hexdigest() != sha256:
        raise DataDamagedError("the log of the run: the list of chosen examples is damaged")
    return numbers


class Receipt:
    """Computes the example numbers of the images that each step of a run used."""

    def __init__(
        self,
        segments: Sequence[Segment],
        examples_per_shard: Sequence[int],
        classes: Callable[[], npt.NDArray[np.int64]] | None = None,
    ) -> None:
        """`classes` returns the class index of each example, for runs with weights."""
        self._classes = functools.cache(classes) if classes is not None else None
        self.segments = segments
        self.split = segments[0].state.split
        self._examples_per_shard = tuple(examples_per_shard)
        self._num_examples = sum(examples_per_shard)
        most = max(segment.state.nodes for segment in segments)
        if most > self._num_examples:
            raise DataDamagedError(
                f"the log of the run: {most:,} nodes, but {self.split} has only "
                f"{counted(self._num_examples, 'example')}"
            )
        self._orders = functools.lru_cache(maxsize=4)(self._orders_of)
        self._epoch = functools.lru_cache(maxsize=1)(self._sorted)
        self._orders(segments[-1].state.order)  # refuses a damaged list of chosen examples
        # Refuse a log that claims too much before any epoch is ordered.
        for _ in self._pieces():
            pass

    def step(self, step: int) -> Iterator[tuple[Use, int]]:
        """Yields (use, example number) of each image of a step, each time that the step was run."""
        for piece in self._pieces():
            if 0 <= step - piece.first < piece.steps:
                size = piece.per_node
                begin = (step - piece.first) * size
                for node, order in enumerate(self._epoch(piece.segment.state.order, piece.epoch)):
                    numbers = order[piece.places][begin : begin + size].tolist()
                    for offset, number in enumerate(numbers, begin):
                        yield self._use(piece, node, offset), number % self._num_examples

    def uses(self, number: int) -> Iterator[Use]:
        """Yields the steps that used an image, in the order of the log."""

        @functools.cache
        def positions(settings: Any, epoch: int) -> list[tuple[int, int]]:
            pairs = []
            for node, order in enumerate(self._orders(settings)):
                pairs += [(node, place) for place in order.positions(epoch, number)]
            return pairs

        for piece in self._pieces():
            for node, place in positions(piece.segment.state.order, piece.epoch):
                if piece.places.start <= place < piece.places.stop:
                    yield self._use(piece, node, place - piece.places.start)

    def unseen(self, number: int) -> tuple[int, Iterator[Use]]:
        """Returns the step of the checkpoint before an image's first kept use, and all its uses."""
        # Stop at the first kept use, since every epoch takes time to compute.
        uses = self.uses(number)
        early = []
        limit = self.segments[-1].kept
        for use in uses:
            early.append(use)
            if use.weights == KEPT:
                limit = use.step
                break
        firsts = [segment.first for segment in self.segments if segment.first <= limit]
        return max(firsts), chain(early, uses)

    def faults(self) -> tuple[int, list[str]]:
        """Checks that the steps behind the final weights use each image exactly once per epoch.

        Returns the number of used images, and one message per violation. Images that training drops
        because they do not fill the last step of an epoch are not a violation.
        """
        by_epoch: dict[int, list[_Piece]] = defaultdict(list)
        for piece in self._pieces(kept=True):
            by_epoch[piece.epoch].append(piece)
        used = 0
        faults: list[str] = []
        before = -1
        by_order = [*sorted(by_epoch.items()), (-1, [])]
        for (epoch, pieces), (_, following) in pairwise(by_order):
            if epoch > before + 1:
                skipped = f"epoch {before + 1}"
                if epoch > before + 2:
                    skipped += f" to {epoch - 1}"
                faults.append(f"before step {pieces[0].first:,}: no image of {skipped} was used")
            before = epoch
            orders = self._epoch(pieces[0].segment.state.order, epoch)
            # An example that appears several times in an epoch has several numbers.
            most = max(int(order.max(initial=0)) + 1 for order in orders)
            seen = np.zeros(max(most, self._num_examples), bool)
            for piece in pieces:
                for order in self._epoch(piece.segment.state.order, epoch):
                    numbers = order[piece.places]
                    again = np.flatnonzero(seen[numbers])
                    seen[numbers] = True
                    used += len(numbers)
                    if len(again):
                        steps = piece.first + again[[0, -1]] // piece.per_node
                        faults.append(
                            f"steps {steps[0]:,} to {steps[1]:,}: "
                            f"epoch {epoch} used {counted(len(again), 'image')} again"
                        )
            faults += self._unused(epoch, seen, pieces, following[:1])
        return used, faults

    def _unused(
        self,
        epoch: int,
        seen: npt.NDArray[np.bool_],
        pieces: Sequence[_Piece],
        following: Sequence[_Piece],
    ) -> Iterator[str]:
        """Yields a message for each gap with unused images between the pieces of an epoch."""
        in_order = sorted(pieces, key=lambda piece: piece.places.start)
        starts = [piece.places.start for piece in in_order]
        gaps = np.zeros(len(pieces) + 1, np.int64)
        for order in self._epoch(pieces[-1].segment.state.order, epoch):
            before = np.searchsorted(starts, np.flatnonzero(~seen[order]), side="right")
            gaps += np.bincount(before, minlength=len(gaps))
        ends = [*in_order, *following]
        step_sizes = [piece.per_node * piece.segment.state.nodes for piece in ends]
        if following and gaps[-1] < max(step_sizes):
            gaps[-1] = 0
        for piece, count in zip(ends, gaps.tolist(), strict=False):
            if count:
                unused = counted(count, "image")
                yield f"before step {piece.first:,}: epoch {epoch} did not use {unused}"

    def _pieces(self, *, kept: bool = False) -> Iterator[_Piece]:
        """Yields the pieces in the order of the log; only those with kept weights if `kept`.

        Raises DataDamagedError before it yields more pieces than a run can have.
        """
        images = 0
        before: tuple[_Settings, int] | None = None
        for segment in self.segments:
            state = segment.state
            first = segment.first
            epoch = state.epoch
            read = state.examples_read
            end = segment.kept if kept else segment.reached
            while first < end:
                if (state.order, epoch) != before:
                    before = state.order, epoch
                    num_orders = state.nodes if state.choice else 1
                    images += self._num_examples * num_orders + state.nodes * _NODE_IMAGES
                    if state.appearances:
                        images += _MOST_ORDER * self._num_examples
                    if state.batch_sizes:
                        images += _DRAWN_IMAGES * self._num_examples
                if epoch > _MOST_EPOCHS or images > _MOST_IMAGES:
                    raise DataDamagedError(
                        f"the log of the run: start number {segment.run} claims {end:,} steps and "
                        f"reaches epoch {epoch:,} of {counted(self._num_examples, 'example')} on "
                        f"{counted(state.nodes, 'node')}, which is more than a run can have. Train "
                        "again, or remove the log."
                    )
                total = self._orders(state.order)[0].num_examples
                rest = state.steps(epoch, read, total)
                if rest.count < 1 and not read:
                    raise DataDamagedError(
                        f"the log of the run: the reader's state at start number {segment.run} "
                        f"does not fit a dataset with {counted(total, 'example')} to read"
                    )
                for piece in _pieces_of(segment, epoch, first, rest, end):
                    yield piece
                    first += piece.steps
                epoch += 1
                read = 0

    def _use(self, piece: _Piece, node: int, offset: int) -> Use:
        """Returns the `Use` of an image, given its node and its offset in the node's images."""
        segment = piece.segment
        step = piece.first + offset // piece.per_node
        rank = (node * piece.per_node + offset % piece.per_node) // piece.batch_size
        weights = DISCARDED
        if step < segment.kept:
            weights = KEPT
        elif segment.run == self.segments[-1].run:
            weights = UNSAVED  # the run ended after its last checkpoint
        return Use(step, piece.epoch, segment.run, rank, weights)

    def _sorted(self, settings: _Settings, epoch: int) -> list[npt.NDArray[np.int64]]:
        return [order.epoch(epoch) for order in self._orders(settings)]

    def _orders_of(self, settings: _Settings) -> list[Order]:
        chosen = None
        if settings.chosen is not None:
            chosen = _unpacked(*settings.chosen, self._num_examples)
        nodes = settings.nodes
        parts = [Placement(node, nodes, settings.copies) for node in range(nodes)]
        per_shard = self._examples_per_shard
        appearances = self._appearances(settings, chosen)
        return [
            Order(per_shard, settings.seed, settings.window, part, chosen, appearances)
            for part in parts
        ]

    def _appearances(
        self, settings: _Settings, chosen: npt.NDArray[np.int64] | None
    ) -> Appearances | None:
        if settings.appearances is None or self._classes is None:
            return None
        classes = self._classes()
        if chosen is not None:
            classes = classes[chosen]
        expected = settings.appearances
        if settings.seed is None or len(expected) <= max(classes, default=-1):
            raise DataDamagedError("the log of the run: its weights do not fit the dataset")
        appearances = Appearances(expected, classes)
        if not 1 <= appearances.total <= MOST_APPEARANCES * len(classes):
            raise DataDamagedError("the log of the run: its weights are out of range")
        return appearances


def _pieces_of(
    segment: Segment, epoch: int, first: int, rest: Steps | DrawnSteps, end: int
) -> Iterator[_Piece]:
    """Yields the pieces of the rest of an epoch, each with one batch size, before step `end`."""
    nodes = segment.state.nodes
    steps = min(rest.count, end - first)
    place = rest.start // nodes
    groups = [(rest.shape_of(0).batch_size, steps)] if steps > 0 else []
    if isinstance(rest, DrawnSteps):
        sizes = (rest.shape_of(step).batch_size for step in range(steps))
        groups = [(size, len([*run])) for size, run in groupby(sizes)]
    for batch_size, count in groups:
        images = count * segment.state.ranks * batch_size // nodes
        yield _Piece(segment, epoch, first, count, slice(place, place + images), batch_size)
        first += count
        place += images


def of_run(log: Path, data_dir: str | None) -> tuple[Dataset, Receipt]:
    """Returns the dataset and the receipt of a run; `data_dir` replaces the logged location.

    Raises DataDamagedError if the log is damaged or a link, and UsageError if it names an address.
    """
    segments = segments_of(log)
    state = segments[-1].state  # the dataset may have moved since the first start
    if data_dir is None:
        data_dir = _local_folder(state.data_dir, log)
    dataset = open_dataset(data_dir, parts=True)
    if dataset.manifest.digest != state.dataset:
        raise UsageError(
            f"{dataset.where}: its digest is {dataset.manifest.digest[:16]}, but the run read a "
            f"dataset with the digest {state.dataset[:16]}. Pass that dataset with --trained-on SET"
        )
    return dataset, receipt_for(dataset, segments, log)


def segments_of(log: Path) -> list[Segment]:
    """Returns the segments in the log of a run; raises as `of_run`."""
    try:
        with open(LocalStore(log.parent).open(log.name, os.O_RDONLY), "rb") as file:
            return parse(_bounded_lines(file, log), str(log))
    except OSError as error:
        raise UsageError(
            f"{log}: cannot be read: {error.strerror}. Give the --log-dir of a run"
        ) from error
    except StoreError as error:
        raise DataDamagedError(f"{log}: is a link or not a regular file.") from error


def receipt_for(dataset: Dataset, segments: Sequence[Segment], log: Path) -> Receipt:
    """Returns the receipt of a run on a dataset; raises DataDamagedError if they do not match."""
    state = segments[-1].state
    if state.split not in dataset.manifest.splits:
        raise DataDamagedError(f"{log}: {dataset.where} has no split {state.split[:80]!r}")
    shards = dataset.manifest.splits[state.split].shards
    classes = functools.partial(_class_indices, dataset, state.split)
    return Receipt(segments, [shard.examples for shard in shards], classes)


def _class_indices(dataset: Dataset, split: str) -> npt.NDArray[np.int64]:
    """Returns the class index of each example of a split."""
    from imagenet_prep.read.records import Records
    from imagenet_prep.read.selection import class_indices

    return class_indices(Records(dataset, split))


def _bounded_lines(file: BinaryIO, log: Path) -> Iterator[bytes]:
    """Yields the lines of a log; raises DataDamagedError if a line or the log is too long."""
    rest = _MOST_LOG_BYTES
    while line := file.readline(_MOST_LINE_BYTES + 1):
        rest -= len(line)
        if len(line) > _MOST_LINE_BYTES or rest < 0:
            raise DataDamagedError(
                f"{log}: has more than {_MOST_LOG_BYTES:,} bytes, or a line with more than "
                f"{_MOST_LINE_BYTES:,}, so no training run wrote it."
            )
        yield line


def _local_folder(data_dir: str, log: Path) -> str:
    """Returns the location of the dataset in a log, unless it is an address."""
    if is_remote(data_dir):
        raise UsageError(
            f"{log}: the run read {data_dir[:200]!r}. An address in a log is not contacted, since "
            "a different user may have written it. If you trust it, add --trained-on ADDRESS."
        )
    if not data_dir.startswith("/") or "\0" in data_dir:
        raise DataDamagedError(f"{log}: {data_dir[:200]!r} is not the location of a dataset")
    return data_dir
