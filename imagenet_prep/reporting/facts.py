"""Reads the facts in the files of a dataset, none of which is trusted.

A report must also work for damaged datasets, so an unreadable file is shown as a problem instead
of raising an error. Only receipts that name a shard of this dataset are used.
"""

from __future__ import annotations

import io
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from imagenet_prep.core import canonical, records
from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import measures, naming
from imagenet_prep.dataset.manifest import Manifest, Shard
from imagenet_prep.dataset.measures import Measured
from imagenet_prep.dataset.member import Incident, Origin
from imagenet_prep.dataset.placement import Placement
from imagenet_prep.storage import origins
from imagenet_prep.storage.ahead import ahead
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.opened import Dataset
from imagenet_prep.storage.store import Readable

# A receipt has some hundred kB. JSON takes up to twenty times its size in memory.
_MAX_JSON_BYTES = 16 << 20
# The list of quarantined images has 300 bytes per line.
_MAX_LIST_BYTES, _MAX_LINES = 64 << 20, 1 << 18
# The largest record shown. Several are in memory at once; ImageNet's largest image has 16 MB.
MAX_SHOWN_BYTES = 24 << 20
# Limits for receipts: no task takes a year or starts after 2099, and larger values would make an
# endless plot. Shorter times are lost in the precision of the start time, and are divisors.
_LEAST_SECONDS, _MAX_SECONDS, _LAST_S = 1e-6, 366 * 86_400.0, 4_102_444_800.0
# The sum of such counts over all shards fits into 64 bits. No archive has 17 TB.
_MAX_COUNT = 1 << 44
_STAGE = re.compile(r"([a-z]+)-[0-9a-z-]+")

Item = TypeVar("Item")

_READ, _CODEC, _PROOF = "read and write", "decode, shrink, encode", "md5 of the sources"


class ClassName(NamedTuple):
    """The WNID or other id of a class, and its name in words."""

    wnid: str
    words: str


class Task(NamedTuple):
    """A finished task of the run; `start_s` is in seconds since the epoch."""

    start_s: float
    seconds: float
    worker: str
    examples: int


@dataclass(frozen=True)
class Replica:
    """A replica of the dataset, and the time when it was verified."""

    where: str
    when: str
    digest: str


@dataclass(frozen=True)
class _Receipt:
    """The parts of a receipt, of any stage, that a page shows."""

    start_s: float
    seconds: float
    worker: str
    shard: str | None = None
    sha256: str | None = None
    archive: str | None = None
    transform_s: float = 0.0
    examples: int = 0
    origins: list[Origin] = field(default_factory=list)


@dataclass
class Facts:
    """The facts of one dataset, none of them verified."""

    dataset: Dataset
    classes: list[ClassName]  # by class index
    incidents: list[Incident]  # lines of quarantine.jsonl
    problems: list[str]  # one sentence each
    origins: list[tuple[str, Origin]] = field(default_factory=list)  # by shard, for some records
    measured: Measured = field(default_factory=Measured)  # all images, from the tables of samples
    num_classes: dict[str, int] = field(default_factory=dict)  # by shard, if it has a table
    tasks: list[Task] = field(default_factory=list)  # tasks that wrote the shards
    seconds_of: dict[str, float] = field(default_factory=dict)  # of all workers, by stage
    source: Readable | None = None  # store of the source, if known
    source_files: dict[str, str] = field(default_factory=dict)  # paths of its other files, by name
    replicas: list[Replica] = field(default_factory=list)  # the last entry about each location

    @property
    def store(self) -> Readable:
        """The store of the dataset."""
        return self.dataset.store

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset."""
        return self.dataset.manifest

    @property
    def part(self) -> Placement:
        """The part of the shards that is in this store."""
        return self.dataset.placement

    @property
    def name(self) -> str:
        """The last part of the dataset's path."""
        return self.store.where().rpartition("/")[2]

    @cached_property
    def index_of_wnid(self) -> dict[str, int]:
        """Class index by WNID."""
        return {name.wnid: index for index, name in enumerate(self.classes)}

    @property
    def examples(self) -> int:
        """Number of records in all splits."""
        return sum(split.examples for split in self.manifest.splits.values())

    @cached_property
    def examples_per_class(self) -> dict[int, int]:
        """Number of records in all splits by class index, without empty classes."""
        found: Counter[int] = Counter()
        for split in self.manifest.splits.values():
            found.update({index: n for index, n in enumerate(split.examples_per_class) if n})
        return found

    @property
    def shards(self) -> list[Shard]:
        """The shards in this store, of all splits."""
        return [shard for split in self.manifest.splits for shard in self.dataset.shards(split)]

    @property
    def num_shards(self) -> int:
        """Number of shards in all splits."""
        return sum(len(split.shards) for split in self.manifest.splits.values())

    @property
    def num_bytes(self) -> int:
        """Size of all shards in bytes."""
        return sum(split.num_bytes for split in self.manifest.splits.values())

    def class_name(self, class_index: int) -> ClassName:
        """Returns a class, or a substitute if labels.txt is damaged."""
        if 0 <= class_index < len(self.classes):
            return self.classes[class_index]
        return ClassName(f"class {class_index}", "")

    def source_bytes(self, archive: str, offset: int, size: int) -> bytes | None:
        """Returns bytes of the source, or None if it is missing.

        Only files named in the manifest are read, because a receipt may be forged.
        """
        named = {source.name for source in self.manifest.sources}
        if offset < 0 or not 0 <= size <= MAX_SHOWN_BYTES or not named & {*archive.split("/")}:
            return None
        store, name = self.source, archive
        if archive in self.source_files:
            path = Path(self.source_files[archive])
            store, name = LocalStore(path.parent), path.name
        if store is None:
            return None
        try:
            data = store.read(name, offset, size)
        except (DataDamagedError, StoreError, OverflowError, ValueError):
            return None
        return data if len(data) == size else None


def gather(dataset: Dataset, problems: list[str], source: Readable | None = None) -> Facts:
    """Returns the facts of a dataset with a valid manifest, and the `problems` of a check.

    Without a `source`, the archives are looked up at the locations used by this user's runs.
    """
    store = dataset.store
    facts = Facts(
        dataset,
        classes=_classes(dataset),
        incidents=list(filter(_is_shown, _lines(store, naming.QUARANTINE, Incident))),
        problems=list(problems),
        replicas=list({one.where: one for one in _lines(store, naming.REPLICAS, Replica)}.values()),
    )
    if source is not None:
        facts.source = source
    elif (origin := origins.find(dataset.manifest.digest)) is not None:
        facts.source = LocalStore(Path(origin.root))
        facts.source_files = origin.files
    _read_receipts(facts)
    _read_tables(facts)
    return facts


def index_of(facts: Facts, shard: str, numbers: Container[int]) -> dict[int, str]:
    """Returns the lines of a shard's index with these numbers, if they exist."""
    name = naming.index_name(shard)
    try:
        lines = io.BytesIO(facts.store.read(name, 0, _MAX_LIST_BYTES))
        return {at: line.decode("ascii") for at, line in enumerate(lines) if at in numbers}
    except (StoreError, ValueError) as error:
        raise DataDamagedError(f"{name}: cannot be read: {error}") from error


def _read_receipts(facts: Facts) -> None:
    archives = {source.name for source in facts.manifest.sources}
    stages: defaultdict[str, float] = defaultdict(float)
    # One receipt per shard, even if a shard was written twice, e.g. repaired.
    left = {s.name: s.sha256 for split in facts.manifest.splits.values() for s in split.shards}
    for folder, receipt in _receipts(facts.store):
        shard, seconds = receipt.shard, receipt.seconds
        if shard is None:
            stage = _STAGE.fullmatch(folder)
            if receipt.archive in archives:
                stages[_PROOF] += seconds
            elif stage:
                stages[stage[1]] += seconds
        elif shard in left and left[shard] == receipt.sha256:
            del left[shard]
            stages[_CODEC] += receipt.transform_s
            stages[_READ] += max(seconds - receipt.transform_s, 0.0)
            facts.tasks.append(Task(receipt.start_s, seconds, receipt.worker, receipt.examples))
            facts.origins += [(shard, origin) for origin in receipt.origins]
    facts.seconds_of = dict(stages)


def _read_tables(facts: Facts) -> None:
    """Measures all images by the tables of samples; a damaged table is reported as a problem."""
    shards = [shard for shard in facts.shards if shard.samples]
    for shard, rows in zip(shards, facts.dataset.rows(shards), strict=True):
        try:
            found = measures.of(rows)
        except (DataDamagedError, StoreError) as error:
            facts.problems.append(str(error))
            continue
        facts.measured.add(found)
        facts.num_classes[shard.name] = len(found.classes)


def _makes_sense(receipt: _Receipt) -> bool:
    counts = [receipt.examples]
    counts += [
        number for record, _, _, *numbers in receipt.origins for number in (record, *numbers)
    ]
    return (
        0 <= receipt.start_s <= _LAST_S
        and all(
            _LEAST_SECONDS <= each <= _MAX_SECONDS
            for each in (receipt.seconds, receipt.transform_s)
            if each != 0
        )
        and all(0 <= count < _MAX_COUNT for count in counts)
    )


def _receipts(store: Readable) -> Iterator[tuple[str, _Receipt]]:
    """Yields valid receipts with the folder name of their stage, ordered by path."""

    def read(name: str) -> bytes:
        return _bytes(store, name, _MAX_JSON_BYTES)

    for folder in _unless_refused(store.list_folder, naming.WORK):
        place = f"{naming.WORK}/{folder}/receipts"
        names = [name for name in _unless_refused(store.names, place) if name.endswith(".json")]
        # Parse one receipt at a time, because JSON takes much memory.
        for _, reading in ahead(read, (f"{place}/{name}" for name in names)):
            receipt = _parsed(_Receipt, reading.result())
            if receipt is not None and _makes_sense(receipt):
                yield folder, receipt


def _unless_refused(listing: Callable[[str], list[str]], folder: str) -> list[str]:
    """Returns the names in a folder; none if it is a link or cannot be listed."""
    try:
        return listing(folder)
    except (StoreError, DataDamagedError):
        return []


def _classes(dataset: Dataset) -> list[ClassName]:
    """Returns the classes; none if the list is damaged, which the check reports."""
    try:
        classes = dataset.labels
    except (DataDamagedError, StoreError):
        return []
    return [ClassName(*row) for row in zip(classes.wnids, classes.words, strict=True)]


def _is_shown(incident: Incident) -> bool:
    numbers = (incident.class_index, incident.offset, incident.size)
    return all(0 <= number < _MAX_COUNT for number in numbers)


def _lines(store: Readable, name: str, kind: type[Item]) -> Iterator[Item]:
    lines = io.BytesIO(_bytes(store, name, _MAX_LIST_BYTES))
    for line in itertools.islice(lines, _MAX_LINES):
        if (record := _parsed(kind, line)) is not None:
            yield record


def _parsed(kind: type[Item], data: bytes) -> Item | None:
    try:
        if len(data) <= _MAX_JSON_BYTES:
            return records.parse(kind, canonical.loads(data), others=True)
    except ValueError:
        pass
    return None


def _bytes(store: Readable, name: str, most: int) -> bytes:
    """Returns up to `most` bytes of a file; b"" for a pipe, a link in .work or a missing file."""
    try:
        return store.read(name, 0, most)
    except (StoreError, DataDamagedError):
        return b""
