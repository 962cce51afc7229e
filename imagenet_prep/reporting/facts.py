"""All that a data set's own files tell of it, gathered without trusting any of them.

A report is asked for when something looks wrong, too. So what cannot be read becomes a
problem to show, never an error; of the receipts only those count that name a shard of this
very data set.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from imagenet_prep.core import measures, naming, placement
from imagenet_prep.core.errors import DataDamagedError, ImagenetPrepError
from imagenet_prep.core.manifest import Manifest, Shard
from imagenet_prep.core.measures import Origin
from imagenet_prep.core.placement import Placement
from imagenet_prep.core.store import LocalStore

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
      root: its folder.
      manifest: its manifest.
      part: which of its shards lie here.
      classes: by class index.
      incidents: lines of quarantine.jsonl.
      problems: what is wrong with it, a sentence each.
      origins: (shard, origin) of some records, as receipts name them.
      histograms: over all shards, by measure; empty without receipts.
      sums: over the same images, by measure.
      num_classes: classes in each shard whose receipt says so, by its name.
      tasks: that wrote its shards.
      seconds_of: work of all workers together, by stage.
      source_root, source_files: where the source lay: a folder, and files by name.
      replicas: the last line of naming.REPLICAS about each place.
    """

    root: Path
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
    source_root: Path | None = None
    source_files: dict[str, str] = field(default_factory=dict)
    replicas: list[dict[str, Any]] = field(default_factory=list)

    @property
    def examples(self) -> int:
        """Records over all splits."""
        return sum(split.examples for split in self.manifest.splits.values())

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
        """Returns a class, also where labels.txt is damaged."""
        if 0 <= class_index < len(self.classes):
            return self.classes[class_index]
        return ClassName(f"class {class_index}", "")

    def source_bytes(self, archive: str, offset: int, size: int) -> bytes | None:
        """Returns bytes of the source where it is still at hand, else None."""
        path = Path(self.source_files.get(archive, ""))
        if archive not in self.source_files:
            if self.source_root is None:
                return None
            path = self.source_root / archive
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                data = file.read(size)
        except (OSError, ValueError):
            return None
        return data if len(data) == size else None


def gather(root: Path, manifest: Manifest, problems: list[str], source: Path | None) -> Facts:
    """Returns the facts of the data set in `root`.

    Args:
      root: its folder.
      manifest: its manifest, proven.
      problems: what a check has found.
      source: folder of the archives, where it is not the one that they were read from.
    """
    facts = Facts(
        root=root,
        manifest=manifest,
        part=placement.load(root, manifest),
        classes=_classes(root),
        incidents=[line for line in _lines(root, naming.QUARANTINE) if _is_incident(line)],
        problems=list(problems),
        replicas=_replicas(root),
    )
    origin = _json(root, naming.ORIGIN)
    files = origin.get("files")
    if source is not None:
        facts.source_root = source
    elif isinstance(origin.get("root"), str) and isinstance(files, dict):
        facts.source_root = Path(origin["root"])
        facts.source_files = {name: str(path) for name, path in files.items()}
    _read_receipts(facts)
    return facts


def record_at(facts: Facts, shard: str, index: list[str], number: int) -> bytes:
    """Returns the framed bytes of one record.

    Args:
      facts: of the data set.
      shard: its name.
      index: lines of the shard's index.
      number: of the record.

    Raises:
      DataDamagedError: the index or the shard is not what it should be there.
    """
    try:
        offset, size = map(int, index[number].split())
        with open(facts.root / shard, "rb") as file:
            file.seek(offset)
            return file.read(size)
    except (OSError, ValueError, IndexError) as error:
        raise DataDamagedError(f"{shard}: record {number}: cannot be read: {error}") from error


def index_of(facts: Facts, shard: str) -> list[str]:
    """Returns the lines of a shard's index.

    Raises:
      DataDamagedError: it cannot be read.
    """
    name = naming.index_name(shard)
    try:
        return (facts.root / name).read_text("ascii").splitlines()
    except (OSError, ValueError) as error:
        raise DataDamagedError(f"{name}: cannot be read: {error}") from error


def _read_receipts(facts: Facts) -> None:
    sha256 = {s.name: s.sha256 for split in facts.manifest.splits.values() for s in split.shards}
    archives = {source.name for source in facts.manifest.sources}
    histograms: dict[str, Counter[int]] = {}
    stages: defaultdict[str, float] = defaultdict(float)
    # Of a shard that was made twice, e.g. mended, one receipt is enough.
    left = dict(sha256)
    for path in sorted(facts.root.glob(f"{naming.WORK}/*/receipts/*.json")):
        receipt = _json(facts.root, str(path.relative_to(facts.root)))
        try:
            task = Task(
                receipt["start_s"],
                receipt["seconds"],
                receipt.get("worker", ""),
                receipt.get("examples", 0),
            )
            shard = receipt.get("shard")
            if shard is None:
                is_proof = receipt.get("archive") in archives
                stages[_PROOF if is_proof else path.parts[-3].partition("-")[0]] += task.seconds
                continue
            if left.get(shard) != receipt["sha256"]:
                continue
            del left[shard]
            transform_s = receipt.get("transform_s", 0.0)
            stages[_CODEC] += transform_s
            stages[_READ] += max(task.seconds - transform_s, 0.0)
            facts.tasks.append(task)
            facts.origins += [(shard, Origin(*row)) for row in receipt.get("origins", [])]
            if "num_classes" in receipt:
                facts.num_classes[shard] = receipt["num_classes"]
            facts.sums.update(receipt.get("sums", {}))
            for name, counts in receipt.get("histograms", {}).items():
                histograms.setdefault(name, Counter()).update(
                    {int(number): count for number, count in counts.items()}
                )
        except (KeyError, TypeError, ValueError, AttributeError):
            # A damaged receipt is no damage of the data set: it costs a bar of a plot.
            continue
    facts.histograms = histograms
    facts.seconds_of = dict(stages)


def _classes(root: Path) -> list[ClassName]:
    try:
        text = (root / naming.LABELS).read_text("utf-8", errors="replace")
    except OSError:
        return []
    return [ClassName(*line.partition(" ")[::2]) for line in text.splitlines()]


def _replicas(root: Path) -> list[dict[str, Any]]:
    lines = [line for line in _lines(root, naming.REPLICAS) if isinstance(line.get("where"), str)]
    return list({line["where"]: line for line in lines}.values())


def _is_incident(line: dict[str, Any]) -> bool:
    kinds: dict[str, type] = {
        "key": str,
        "archive": str,
        "action": str,
        "reason": str,
        "detail": str,
    }
    kinds |= {"class_index": int, "offset": int, "size": int}
    return all(isinstance(line.get(name), kind) for name, kind in kinds.items())


def _lines(root: Path, name: str) -> Iterator[dict[str, Any]]:
    try:
        lines = LocalStore(root).read(name).splitlines()
    except ImagenetPrepError:
        return
    for line in lines:
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict):
            yield content


def _json(root: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads(LocalStore(root).read(name))
    except (ImagenetPrepError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
