"""Reads the facts for a report from the files of a dataset, which may be damaged or forged.

An unreadable file is listed as a problem and raises no error.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import samples, schema
from imagenet_prep.dataset.column import Column
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.manifest import Manifest, Shard
from imagenet_prep.dataset.member import Incident, Origin
from imagenet_prep.dataset.samples import Measured
from imagenet_prep.read.catalogue import Catalogue, CatalogueEntry
from imagenet_prep.storage import columns
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import find_source
from imagenet_prep.storage.remote import prefetch
from imagenet_prep.storage.store import Readable

# A receipt has a few hundred kB. Parsed JSON takes up to twenty times its size in memory.
_MAX_JSON_BYTES = 16 << 20
# Limits for the list of quarantined images, which has 300 bytes per line.
_MAX_LIST_BYTES = 64 << 20
_MAX_LINES = 1 << 18
# Maximum size of a record on the page. The largest image of ImageNet has 16 MB.
MAX_SHOWN_BYTES = 24 << 20
# Limits for times in receipts: a task after 2099 or of more than a year would make an endless
# plot, and the plots divide by the duration.
_LEAST_SECONDS = 1e-6
_MAX_SECONDS = 366 * 86_400.0
_LAST_S = 4_102_444_800.0
# Limit for counts and byte offsets, so that their sums over all shards fit into 64 bits.
_MAX_COUNT = 1 << 44
_STAGE = re.compile(r"([a-z]+)-[0-9a-z-]+")

Item = TypeVar("Item")

_READ = "read and write"
_CODEC = "decode, resize, encode"
_PROOF = "md5 of the sources"


@dataclass(frozen=True)
class ReplicaNote:
    """A replica of the dataset, and the time when it was verified.

    `copies` is the number of hosts with each shard if each host has only its part; else 0.
    """

    where: str
    when: str
    digest: str
    copies: int = 0


@dataclass(frozen=True)
class ReceiptFacts:
    """The fields of a receipt that a page shows; `start_s` is a Unix time."""

    start_s: float
    seconds: float
    worker: str
    shard: str | None = None
    sha256: str | None = None
    archive: str | None = None
    transform_s: float = 0.0
    examples: int = 0
    origins: list[Origin] = field(default_factory=list)


class ColumnState(NamedTuple):
    """The state of a column; `column` is None if column.json is damaged."""

    name: str
    column: Column | None
    state: str


@dataclass
class DatasetFacts:
    """The facts about a dataset, read from its files but not verified."""

    dataset: Dataset
    classes: list[tuple[str, str]]  # WNID and words, by class index
    incidents: list[Incident]  # lines of quarantine.jsonl
    problems: list[str]  # one sentence per problem
    columns: list[ColumnState]
    measured: Measured = field(default_factory=Measured)  # all images, from the tables of samples
    num_classes: dict[str, int] = field(default_factory=dict)  # by shard, if it has a table
    tasks: list[ReceiptFacts] = field(default_factory=list)  # one receipt per shard
    seconds_of: dict[str, float] = field(default_factory=dict)  # sum of all workers, by stage
    source: Readable | None = None  # store of the source, if known
    source_files: dict[str, str] = field(default_factory=dict)  # paths of archives, by name
    has_sought: bool = False  # whether a source image was needed
    has_found: bool = False  # whether one was read
    replicas: list[ReplicaNote] = field(default_factory=list)  # the last entry for each location

    @property
    def store(self) -> Readable:
        """The store of the dataset."""
        return self.dataset.store

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset."""
        return self.dataset.manifest

    @property
    def name(self) -> str:
        """The last part of the dataset's path."""
        return self.store.where().rpartition("/")[2]

    @property
    def examples(self) -> int:
        """Number of records in all splits."""
        return sum(split.examples for split in self.manifest.splits.values())

    @cached_property
    def examples_per_class(self) -> dict[int, int]:
        """Number of records in all splits by class index, without empty classes."""
        counts: Counter[int] = Counter()
        for split in self.manifest.splits.values():
            counts.update({index: n for index, n in enumerate(split.examples_per_class) if n})
        return counts

    @property
    def shards(self) -> list[Shard]:
        """The shards of all splits in this store."""
        return [*itertools.chain.from_iterable(map(self.dataset.shards, self.manifest.splits))]

    @property
    def num_excluded(self) -> int:
        """Number of images that were excluded on request."""
        return sum(line.is_excluded for line in self.incidents)

    @property
    def num_bytes(self) -> int:
        """Size of all shards in bytes."""
        return sum(split.num_bytes for split in self.manifest.splits.values())

    def class_name(self, class_index: int) -> tuple[str, str]:
        """Returns WNID and words of a class, or a substitute if labels.txt is damaged."""
        if class_index == schema.NO_CLASS:
            return "", ""  # a forgotten image
        if 0 <= class_index < len(self.classes):
            return self.classes[class_index]
        return f"class {class_index}", ""

    def words(self, class_index: int) -> str:
        """Returns the name of a class on the page: its WNID and words."""
        wnid, name = self.class_name(class_index)
        # A custom class has a folder name instead of a WNID.
        return name if name == wnid.replace("_", " ") else f"{wnid} {name}".strip()

    def images_of(self, keys: Sequence[str], total: int) -> Iterator[ImageExample | None]:
        """Yields the image of each key, or None; a damaged record becomes a problem.

        Two splits may have a key. It is sought in a split that has all keys; among several, in one
        with `total` images, of which these keys are some; else in the order of evaluation.
        """
        splits = [split for split in schema.EVALUATED_SPLITS if split in self.manifest.splits]
        splits.sort(key=lambda split: self.manifest.splits[split].examples != total)
        catalogues = {split: Catalogue(self.dataset, (split,)) for split in splits}
        found = _entries_of({*keys}, [*catalogues.values()])
        for key in keys:
            image = None
            if key in found:
                entry = found[key]
                try:
                    _, image = catalogues[entry.split].read(entry)
                except DataDamagedError as error:
                    self.problems.append(str(error))
            yield image

    def source_bytes(self, archive: str, offset: int, size: int) -> bytes | None:
        """Returns `size` bytes of a source file; None if they cannot be read.

        The manifest must name the file, because `archive` may come from a forged receipt.
        """
        named = {source.name for source in self.manifest.sources}
        if offset < 0 or not 0 <= size <= MAX_SHOWN_BYTES or not named & {*archive.split("/")}:
            return None
        self.has_sought = True
        # A folder of images may be given itself, also under a new name.
        inside = (archive.removeprefix(f"{name}/") for name in named)
        places = [(self.source, path) for path in dict.fromkeys([archive, *inside])]
        if archive in self.source_files:
            path = Path(self.source_files[archive])
            places = [(LocalStore(path.parent), path.name)]
        for store, name in places:
            with contextlib.suppress(DataDamagedError, StoreError, OverflowError, ValueError):
                data = store.read(name, offset, size) if store else b""
                if len(data) == size:
                    self.has_found = True
                    return data
        return None


def gather(dataset: Dataset, problems: list[str], source: Readable | None = None) -> DatasetFacts:
    """Reads the facts of a dataset with a valid manifest; `problems` come from `verify`.

    If `source` is None, archives are read at the paths that this user's `prepare` recorded.
    """
    store = dataset.store
    facts = DatasetFacts(
        dataset,
        classes=_classes(dataset),
        incidents=[
            line
            for line in _lines(store, schema.QUARANTINE, Incident)
            if all(0 <= n < _MAX_COUNT for n in (line.offset, line.size))
            if schema.NO_CLASS <= line.class_index < _MAX_COUNT
        ],
        problems=list(problems),
        columns=[
            _column(dataset, name) for name in _unless_refused(store.list_folder, schema.COLUMNS)
        ],
        replicas=replicas_of(store),
    )
    if source is not None:
        facts.source = source
    else:
        origin = find_source(dataset.manifest.digest)
        if origin is not None:
            facts.source = LocalStore(Path(origin.root))
            facts.source_files = origin.files
    _read_receipts(facts)
    _read_tables(facts)
    return facts


def _entries_of(keys: set[str], catalogues: Sequence[Catalogue]) -> dict[str, CatalogueEntry]:
    """Returns the image of each key in one of the splits, of which the first ones are preferred."""
    found: list[dict[str, CatalogueEntry]] = []
    for catalogue in catalogues:
        entries = {key: entry for key, (entry, *_) in catalogue.find(keys).items()}
        if all(key in entries and entries[key].key == key for key in keys):
            return entries
        found.append(entries)
    found.sort(key=lambda entries: entries.keys() != keys)
    exact: dict[str, CatalogueEntry] = {}
    similar: dict[str, CatalogueEntry] = {}
    for key, entry in itertools.chain.from_iterable(each.items() for each in found):
        (exact if entry.key == key else similar).setdefault(key, entry)
    return similar | exact


def replicas_of(store: Readable) -> list[ReplicaNote]:
    """Returns the last note about each replica that was made from a dataset."""
    lines = _lines(store, schema.REPLICAS, ReplicaNote)
    return [*{line.where: line for line in lines}.values()]


def index_of(facts: DatasetFacts, shard: str, numbers: Container[int]) -> dict[int, str]:
    """Returns the requested lines of a shard's index, by number; omits missing lines."""
    name = schema.index_name(shard)
    try:
        lines = io.BytesIO(facts.store.read(name, 0, _MAX_LIST_BYTES))
        return {at: line.decode("ascii") for at, line in enumerate(lines) if at in numbers}
    except (StoreError, ValueError) as error:
        raise DataDamagedError(f"{name}: cannot be read: {error}") from error


def _read_receipts(facts: DatasetFacts) -> None:
    archives = {source.name for source in facts.manifest.sources}
    stages: defaultdict[str, float] = defaultdict(float)
    # A shard that was written twice has two receipts, of which only one is used.
    pending: dict[str, str] = {}
    for split in facts.manifest.splits.values():
        pending |= {shard.name: shard.sha256 for shard in split.shards}
    for folder, receipt in _receipts(facts.store):
        shard, seconds = receipt.shard, receipt.seconds
        if shard is None:
            stage = _STAGE.fullmatch(folder)
            if receipt.archive in archives:
                stages[_PROOF] += seconds
            elif stage:
                stages[stage[1]] += seconds
        elif shard in pending and pending[shard] == receipt.sha256:
            del pending[shard]
            stages[_CODEC] += receipt.transform_s
            stages[_READ] += max(seconds - receipt.transform_s, 0.0)
            facts.tasks.append(receipt)
    facts.seconds_of = dict(stages)


def _read_tables(facts: DatasetFacts) -> None:
    """Adds the sizes of images from the tables of samples; lists a damaged table as a problem."""
    shards = [shard for shard in facts.shards if shard.samples]
    for shard, rows in zip(shards, facts.dataset.rows(shards), strict=True):
        try:
            measured = samples.of(rows)
        except (DataDamagedError, StoreError) as error:
            facts.problems.append(str(error))
            continue
        facts.measured.add(measured)
        facts.num_classes[shard.name] = len(measured.classes)


def _column(dataset: Dataset, name: str) -> ColumnState:
    """Returns the state of a column according to column.json; `verify` checks its other files."""
    store = dataset.store
    try:
        column, begun = (columns.find(store, name, begun=begun) for begun in (False, True))
    except (DataDamagedError, StoreError):
        return ColumnState(name, None, "damaged")
    if column is None or begun:
        return ColumnState(name, column or begun, "not complete")
    state = columns.mismatch(dataset, column) or "belongs to the current tables of samples"
    return ColumnState(name, column, state)


def _makes_sense(receipt: ReceiptFacts) -> bool:
    counts = [receipt.examples]
    for record, _, _, *numbers in receipt.origins:
        counts += [record, *numbers]
    times = [seconds for seconds in (receipt.seconds, receipt.transform_s) if seconds != 0]
    return (
        0 <= receipt.start_s <= _LAST_S
        and all(_LEAST_SECONDS <= seconds <= _MAX_SECONDS for seconds in times)
        and all(0 <= count < _MAX_COUNT for count in counts)
    )


def _receipts(store: Readable) -> Iterator[tuple[str, ReceiptFacts]]:
    """Yields the stage's folder name and the content of each valid receipt, ordered by path."""
    read = partial(_bytes, store, most=_MAX_JSON_BYTES)
    for folder in _unless_refused(store.list_folder, schema.WORK):
        place = f"{schema.WORK}/{folder}/receipts"
        names = [name for name in _unless_refused(store.names, place) if name.endswith(".json")]
        # Parse one receipt at a time, because JSON takes much memory.
        for _, reading in prefetch(read, (f"{place}/{name}" for name in names)):
            receipt = _parsed(ReceiptFacts, reading.result())
            if receipt is not None and _makes_sense(receipt):
                yield folder, receipt


def _unless_refused(listing: Callable[[str], list[str]], folder: str) -> list[str]:
    """Returns the names in a folder; [] if the folder is a link or cannot be listed."""
    with contextlib.suppress(StoreError, DataDamagedError):
        return listing(folder)
    return []


def _classes(dataset: Dataset) -> list[tuple[str, str]]:
    """Returns the classes; [] if the class list is damaged, which `verify` reports."""
    with contextlib.suppress(DataDamagedError, StoreError):
        return [*zip(dataset.labels.wnids, dataset.labels.words, strict=True)]
    return []


def _lines(store: Readable, name: str, kind: type[Item]) -> Iterator[Item]:
    lines = io.BytesIO(_bytes(store, name, _MAX_LIST_BYTES))
    for line in itertools.islice(lines, _MAX_LINES):
        record = _parsed(kind, line)
        if record is not None:
            yield record


def _parsed(kind: type[Item], data: bytes) -> Item | None:
    with contextlib.suppress(ValueError):
        if len(data) <= _MAX_JSON_BYTES:
            return strict_json.parse(kind, strict_json.loads(data), others=True)
    return None


def _bytes(store: Readable, name: str, most: int) -> bytes:
    """Returns up to `most` bytes of a file; b"" if reading fails or is refused."""
    with contextlib.suppress(StoreError, DataDamagedError):
        return store.read(name, 0, most)
    return b""
