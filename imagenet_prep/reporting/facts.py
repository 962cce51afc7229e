"""What the files of a data set say about it. None of them is trusted.

People also ask for a report when something looks wrong. So a file that cannot be read is no
error: the page shows it as a problem. Only receipts that name a shard of this data set count.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import class_list, measures, naming, placement
from imagenet_prep.dataset.manifest import Manifest, Shard
from imagenet_prep.dataset.measures import Origin
from imagenet_prep.dataset.placement import Placement
from imagenet_prep.storage import origins
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.store import Store

# A receipt has some hundred kB. In memory, JSON takes up to twenty times its size.
_MAX_JSON_BYTES = 16 << 20
# A list of quarantined images has 300 bytes a line.
_MAX_LIST_BYTES, _MAX_LINES = 64 << 20, 1 << 18
# The largest image, or record with an image, that the page shows: several are in memory at once.
# ImageNet's largest image has 16 MB.
MAX_SHOWN_BYTES = 24 << 20
# Larger values in a receipt would make a plot without end: no task takes a year, none began after
# the year 2099, and measured values lie between 2^-16 and 2^63. Shorter times would be lost beside
# the time of the start, and something is divided by them.
_LEAST_SECONDS, _MAX_SECONDS, _LAST_S = 1e-6, 366 * 86_400.0, 4_102_444_800.0
_BINS = set(map(str, range(-16 * measures.BINS_PER_OCTAVE, 63 * measures.BINS_PER_OCTAVE)))
# Added up over all shards, counts still fit into 64 bits. No archive has 17 TB.
_MAX_COUNT, _MAX_SUM = 1 << 44, 1e300
# Receipts, as for `canonical.fits`, and what those of older versions or other stages leave out.
_RECEIPT = {
    **dict.fromkeys(("start_s", "seconds", "transform_s"), float),
    **dict.fromkeys(("shard", "sha256", "archive"), (str, type(None))),
    "worker": str,
    "examples": int,
    "num_classes": (int, type(None)),
    "origins": [[int, str, str, int, int, int, int]],
    "sums": {str: float},
    "histograms": {str: {str: int}},
}
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("shard", "sha256", "archive", "num_classes")),
    "transform_s": 0.0,
    "worker": "",
    "examples": 0,
    "origins": [],
    "sums": {},
    "histograms": {},
}
_INCIDENT_NUMBERS = ("class_index", "offset", "size")
# Lines of the lists, as for `canonical.fits`.
_INCIDENT = {
    **dict.fromkeys(("key", "archive", "action", "reason", "detail"), str),
    **dict.fromkeys(_INCIDENT_NUMBERS, int),
}
_REPLICA = dict.fromkeys(("where", "when", "digest"), str)
_STAGE = re.compile(r"([a-z]+)-[0-9a-z-]+")

# Reads that are under way at a time.
_AHEAD = 8
Item = TypeVar("Item")
Answer = TypeVar("Answer")

_READ, _CODEC, _PROOF = "read and write", "decode, shrink, encode", "md5 of the sources"


class ClassName(NamedTuple):
    """A class: WNID (or the id of another data set's class) and words."""

    wnid: str
    words: str


class Task(NamedTuple):
    """One finished task of the run.

    Attributes:
      start_s, seconds: since the epoch; how long.
      worker: who did it; "" in receipts of older versions.
      examples: images written; 0 for other work.
    """

    start_s: float
    seconds: float
    worker: str
    examples: int


@dataclass
class Facts:
    """What is known of one data set.

    Attributes:
      store: where it lies.
      manifest: its manifest.
      part: which of its shards lie here.
      classes: by class index.
      incidents: lines of quarantine.jsonl.
      problems: one sentence for each thing that is wrong.
      origins: (shard, origin) of some records, as receipts name them.
      histograms: over all shards, by measure; empty without receipts.
      sums: over the same images, by measure.
      num_classes: classes in each shard whose receipt says so, by its name.
      tasks: that wrote its shards.
      seconds_of: working time of all workers together, by stage.
      source: where the source lies; None where nothing tells.
      source_files: its files that lie elsewhere, by name.
      replicas: the last line of naming.REPLICAS about each place.
    """

    store: Store
    manifest: Manifest
    part: Placement
    classes: list[ClassName]
    incidents: list[dict[str, Any]]
    problems: list[str]
    origins: list[tuple[str, Origin]] = field(default_factory=list)
    histograms: measures.Histograms = field(default_factory=dict)
    sums: Counter[str] = field(default_factory=Counter)
    num_classes: dict[str, int] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    seconds_of: dict[str, float] = field(default_factory=dict)
    source: Store | None = None
    source_files: dict[str, str] = field(default_factory=dict)
    replicas: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What it is called: the last part of its address."""
        return self.store.where().rpartition("/")[2]

    @cached_property
    def index_of_wnid(self) -> dict[str, int]:
        """Class index by WNID."""
        return {name.wnid: index for index, name in enumerate(self.classes)}

    @property
    def examples(self) -> int:
        """Records over all splits."""
        return sum(split.examples for split in self.manifest.splits.values())

    @cached_property
    def examples_per_class(self) -> dict[int, int]:
        """Records over all splits, by index of those classes that have any."""
        found: Counter[int] = Counter()
        for split in self.manifest.splits.values():
            found.update({index: n for index, n in enumerate(split.examples_per_class) if n})
        return found

    @property
    def shards(self) -> list[Shard]:
        """The shards that lie here, of all splits."""
        splits = self.manifest.splits
        return [shard for split in splits for shard in self.part.shards(self.manifest, split)]

    @property
    def num_shards(self) -> int:
        """Shards over all splits."""
        return sum(len(split.shards) for split in self.manifest.splits.values())

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(split.num_bytes for split in self.manifest.splits.values())

    def class_name(self, class_index: int) -> ClassName:
        """Returns a class; a substitute if labels.txt is damaged."""
        if 0 <= class_index < len(self.classes):
            return self.classes[class_index]
        return ClassName(f"class {class_index}", "")

    def source_bytes(self, archive: str, offset: int, size: int) -> bytes | None:
        """Returns bytes of the source, or None if it is not there any more.

        Only of what the manifest names as a source: receipts and lists name the archive, and what
        else lies in its folder is nobody's business.
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


def gather(
    store: Store, manifest: Manifest, problems: list[str], source: Store | None = None
) -> Facts:
    """Returns the facts of the data set in `store`.

    Args:
      store: where it lies.
      manifest: its manifest, proven.
      problems: what a check has found.
      source: where the archives lie; None for where runs of this user have read them.
    """
    folder = store.as_folder
    facts = Facts(
        store=store,
        manifest=manifest,
        # Only folders of hosts hold less.
        part=placement.load(folder.root, manifest) if folder else placement.WHOLE,
        classes=_classes(store, manifest),
        incidents=[line for line in _lines(store, naming.QUARANTINE) if _is_incident(line)],
        problems=list(problems),
        replicas=_replicas(store),
    )
    if source is not None:
        facts.source = source
    elif (origin := origins.find(manifest.digest)) is not None:
        facts.source = LocalStore(Path(origin.root))
        facts.source_files = origin.files
    _read_receipts(facts)
    return facts


def ahead(
    function: Callable[[Item], Answer], items: Iterable[Item]
) -> Iterator[tuple[Item, Future[Answer]]]:
    """Yields each item, with function(item) under way, and the next few: servers answer slowly."""
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="ahead") as pool:
        waiting: deque[tuple[Item, Future[Answer]]] = deque()
        for item in items:
            waiting.append((item, pool.submit(function, item)))
            if len(waiting) == _AHEAD:
                yield waiting.popleft()
        yield from waiting


def index_of(facts: Facts, shard: str, numbers: Container[int]) -> dict[int, str]:
    """Returns those lines of a shard's index that have these numbers, as far as it has them.

    Raises:
      DataDamagedError: it cannot be read.
    """
    name = naming.index_name(shard)
    try:
        lines = io.BytesIO(facts.store.read(name, 0, _MAX_LIST_BYTES))
        return {at: line.decode("ascii") for at, line in enumerate(lines) if at in numbers}
    except (StoreError, ValueError) as error:
        raise DataDamagedError(f"{name}: cannot be read: {error}") from error


def _read_receipts(facts: Facts) -> None:
    archives = {source.name for source in facts.manifest.sources}
    stages: defaultdict[str, float] = defaultdict(float)
    # One receipt of each shard counts, also if a shard was made twice, e.g. repaired.
    left = {s.name: s.sha256 for split in facts.manifest.splits.values() for s in split.shards}
    for folder, content in _receipts(facts.store):
        receipt = _DEFAULTS | content
        if not _makes_sense(receipt):
            # The data set itself is not damaged: only a plot lacks this receipt's figures.
            continue
        shard, seconds = receipt["shard"], receipt["seconds"]
        if shard is None:
            stage = _STAGE.fullmatch(folder)
            if receipt["archive"] in archives:
                stages[_PROOF] += seconds
            elif stage:
                stages[stage[1]] += seconds
        elif shard in left and left[shard] == receipt["sha256"]:
            del left[shard]
            stages[_CODEC] += receipt["transform_s"]
            stages[_READ] += max(seconds - receipt["transform_s"], 0.0)
            facts.tasks.append(Task(*(receipt[name] for name in Task._fields)))
            facts.origins += [(shard, Origin(*row)) for row in receipt["origins"]]
            if receipt["num_classes"] is not None:
                facts.num_classes[shard] = receipt["num_classes"]
            facts.sums.update(receipt["sums"])
            for name, counts in receipt["histograms"].items():
                merged = facts.histograms.setdefault(name, Counter())
                merged.update({int(key): count for key, count in counts.items()})
    facts.seconds_of = dict(stages)


def _makes_sense(receipt: dict[str, Any]) -> bool:
    """Returns whether all figures of a receipt are there, and within their bounds."""
    if not canonical.fits(receipt, _RECEIPT):
        return False
    origins, histograms = receipt["origins"], receipt["histograms"].values()
    counts = [receipt["examples"], receipt["num_classes"] or 0]
    counts += [number for record, _, _, *numbers in origins for number in (record, *numbers)]
    counts += [count for histogram in histograms for count in histogram.values()]
    times = [receipt[name] for name in ("seconds", "transform_s")]
    return (
        0 <= receipt["start_s"] <= _LAST_S
        and all(_LEAST_SECONDS <= each <= _MAX_SECONDS for each in times if each != 0)
        and all(0 <= value <= _MAX_SUM for value in receipt["sums"].values())
        and all(0 <= count < _MAX_COUNT for count in counts)
        and all(histogram.keys() <= _BINS for histogram in histograms)
        and all(any(histogram.values()) for histogram in histograms)
    )


def _receipts(store: Store) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (name of its stage's folder, receipt) in the order of their paths."""

    def read(name: str) -> bytes:
        return _bytes(store, name, _MAX_JSON_BYTES)

    for folder in _unless_refused(store.list_folder, naming.WORK):
        place = f"{naming.WORK}/{folder}/receipts"
        names = [name for name in _unless_refused(store.names, place) if name.endswith(".json")]
        # Parsed one at a time: JSON takes memory.
        for _, reading in ahead(read, (f"{place}/{name}" for name in names)):
            yield folder, _parsed(reading.result())


def _unless_refused(listing: Callable[[str], list[str]], folder: str) -> list[str]:
    """Returns the names in a folder; none where it is a link, or may not be listed."""
    try:
        return listing(folder)
    except (StoreError, DataDamagedError):
        return []


def _classes(store: Store, manifest: Manifest) -> list[ClassName]:
    """Returns the classes of the list that the manifest states; none where there is another file.

    The page then says so, where it shows what verify has found. The file may be a link to anything.
    """
    data = _bytes(store, naming.LABELS, _MAX_LIST_BYTES)
    stated = {file.sha256 for file in manifest.files if file.name == naming.LABELS}
    if hashlib.sha256(data).hexdigest() not in stated:
        return []
    try:
        rows = class_list.parse(data, naming.LABELS)
    except DataDamagedError:
        return []
    return [ClassName(*row) for row in rows]


def _replicas(store: Store) -> list[dict[str, Any]]:
    lines = [line for line in _lines(store, naming.REPLICAS) if canonical.fits(line, _REPLICA)]
    return list({line["where"]: line for line in lines}.values())


def _is_incident(line: dict[str, Any]) -> bool:
    return canonical.fits(line, _INCIDENT) and all(
        0 <= line[name] < _MAX_COUNT for name in _INCIDENT_NUMBERS
    )


def _lines(store: Store, name: str) -> Iterator[dict[str, Any]]:
    lines = io.BytesIO(_bytes(store, name, _MAX_LIST_BYTES))
    for line in itertools.islice(lines, _MAX_LINES):
        yield _parsed(line)


def _parsed(data: bytes) -> dict[str, Any]:
    """Returns an object of JSON; an empty one for anything else, or for too much of it."""
    try:
        content = canonical.loads(data) if len(data) <= _MAX_JSON_BYTES else None
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _bytes(store: Store, name: str, most: int) -> bytes:
    """Returns up to `most` bytes of a file; b"" for a pipe, a link in .work or a missing file."""
    try:
        return store.read(name, 0, most)
    except (StoreError, DataDamagedError):
        return b""
