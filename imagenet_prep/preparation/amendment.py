"""Makes a new dataset from an existing one: excludes, relabels or adds images.

Only changed shards are written. All others are hard links, or copies made by the bucket's server.
Unchanged records are copied byte for byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from imagenet_prep import engine
from imagenet_prep.codec.policy import CHECK_DECODE, CHECK_HEADER, CODECS, Policy
from imagenet_prep.codec.transform import keep, require, transform
from imagenet_prep.core import canonical, records
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import (
    DataDamagedError,
    IncompleteError,
    ManifestError,
    UsageError,
    some,
)
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import naming, samples, schema, settings, tfds
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.column import Column
from imagenet_prep.dataset.manifest import Manifest, Shard, Split
from imagenet_prep.dataset.member import Incident, PreparedImage
from imagenet_prep.dataset.orientation import KEEP, RULES
from imagenet_prep.dataset.samples import Head
from imagenet_prep.dataset.settings import ADOPT, AMEND, Amendment, Listed, Settings
from imagenet_prep.preparation.amended_shard import AmendWork
from imagenet_prep.preparation.carried import Carrier
from imagenet_prep.preparation.changes import Request, ShardChange, changes_of
from imagenet_prep.preparation.draft import Draft
from imagenet_prep.preparation.output import Output, listed_incidents
from imagenet_prep.preparation.selection import refuse_source_as_output
from imagenet_prep.preparation.standing import Wanted
from imagenet_prep.preparation.tasks import WriteWork
from imagenet_prep.shards.commit import emptied
from imagenet_prep.shards.samples_root import samples_root
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.sources import layout
from imagenet_prep.sources.shard_files import split_of
from imagenet_prep.storage import columns, tables
from imagenet_prep.storage.opened import Dataset, open_dataset
from imagenet_prep.storage.store import Store, same_place


@dataclass(frozen=True)
class _Made:
    """The image settings of a split, from the manifest."""

    short_side: int | None = None
    quality: int | None = None
    check: str = CHECK_DECODE
    stretch: bool = False
    orientation: str = KEEP

    def __post_init__(self) -> None:
        wrong = self.short_side is not None and self.short_side < 1
        if wrong or (self.quality is not None and not 1 <= self.quality <= 100):
            raise ValueError(f"short_side {self.short_side}, quality {self.quality}")
        if self.check not in (CHECK_DECODE, CHECK_HEADER) or self.orientation not in RULES:
            raise ValueError(f"check {self.check!r}, orientation {self.orientation!r}")


@dataclass(frozen=True)
class Job:
    """One request, resolved."""

    dataset: Dataset
    request: Request
    workers: engine.Workers
    quiet: bool = False

    @property
    def there(self) -> Manifest:
        """The manifest of the dataset."""
        return self.dataset.manifest

    @property
    def classes(self) -> ClassList:
        """The classes of the dataset."""
        return self.dataset.classes

    @cached_property
    def steps(self) -> list[Amendment]:
        """All amendments since the dataset was prepared; this one is the last."""
        request = self.request
        exclude, relabel, add = request.exclude, request.relabel, request.add
        step = Amendment(
            self.there.digest,
            exclude and Listed(len(exclude.keys), exclude.sha256),
            relabel and Listed(len(relabel.class_of), relabel.listed.sha256),
            add.summary if add else None,
        )
        return [*_parsed(self, settings.amendments), step]

    @cached_property
    def base(self) -> settings.Config:
        """The config of the dataset before its first amendment."""
        found: settings.Config = _parsed(self, settings.base)
        return found

    @cached_property
    def seed(self) -> int:
        """The seed that assigned images to shards; 0 if the manifest contains none."""
        found = self.base.get("seed")
        return found if type(found) is int else 0

    @cached_property
    def changes(self) -> list[ShardChange]:
        """The shards to be changed."""
        return changes_of(self.request, self.dataset, self.seed)

    @cached_property
    def columns(self) -> tuple[list[Column], list[str]]:
        """The complete columns, and the names of incomplete ones, which are not carried over."""
        return columns.complete(self.dataset)

    @cached_property
    def wanted(self) -> Wanted:
        """The dataset to make."""
        splits = list(self.there.splits)
        config = {"verb": AMEND, "splits": splits, "amendments": self.steps, "base": self.base}
        return Wanted(
            # A JSON round trip, so that it equals the config read back from disk.
            Settings(AMEND, dict.fromkeys(splits, canonical.loads(canonical.dumps(config)))),
            self.there.producer.libraries,
            label_offset=self.there.label_offset,
            # An amended dataset never matches a published edition's counts and labels.
            subset=True,
            name=tfds.name_of(self.dataset.tfds_info),
        )

    def transform_of(self, split: str) -> Callable[[bytes], PreparedImage]:
        """Returns the transform that encodes new images like the existing ones of a split."""
        try:
            made = settings.parse(self.base)
            of_split = records.parse(_Made, made.splits.get(split, {}), others=True)
        except ValueError as error:
            raise _not_ours(self, error) from None
        codec = self.there.producer.libraries.get("codec", "")
        if made.verb == ADOPT or of_split.short_side is of_split.quality is None:
            return keep
        if codec not in CODECS.values():
            raise UsageError(
                f"{self.dataset.where}: its images were made by the codec {codec}, which this "
                "program has not, so --add cannot make others alike."
            )
        policy = Policy(
            of_split.short_side,
            of_split.quality or Policy.quality,
            of_split.check,
            stretch=of_split.stretch,
            codec=codec,
            orientation=of_split.orientation,
        )
        require(policy)
        return partial(transform, policy=policy)


def refuse(dataset: Dataset, out: Store) -> None:
    """Raises an error if the dataset cannot be amended into `out`, before anything is written."""
    store, where = dataset.store, dataset.where
    folder = store.as_folder
    if (folder is None) != (out.as_folder is None):
        raise UsageError(
            f"--out {out.where()}: {where} is amended where it lies, into another "
            f"{'prefix of its server' if folder is None else 'folder beside it'}. Then "
            "`imagenet-prep replicate` brings the new set elsewhere."
        )
    places = [where, out.where()]
    if folder:
        places = [str(Path(place).resolve()) for place in places]
    if same_place(*places) or places[1].startswith(f"{places[0]}/"):
        raise UsageError(
            f"--out {out.where()} lies in the set itself, which stays as it is. Choose a place "
            "beside it."
        )
    dataset.demand_samples()
    if wrong := dataset.lost():
        raise DataDamagedError(
            f"{where}: missing, or not as long as the manifest says: "
            f"{counted(len(wrong), 'file')}: {some(wrong)}. Nothing was written. Run verify there."
        )


def run(job: Job, store: Store) -> Json:
    """Makes the amended dataset, or finishes it, and returns the summary."""
    if job.request.add:
        source = job.request.add.source
        refuse_source_as_output(store.where(), str(source.root), source)
    output, changes, carried = Output(store, job.wanted), job.changes, dict[str, Json]()
    _ = job.columns  # A damaged one is reported before anything is written.
    if output.left():
        with output.store.lock():
            if left := output.left():
                output.begin(left)
                carried = _write(job, changes, output)
    summary = output.end()
    made = Dataset.at(store).manifest
    lost = {
        name: some([job.classes.wnids[index] for index in indices])
        for name, split in made.splits.items()
        if (indices := emptied(job.there.splits[name].examples_per_class, split.examples_per_class))
    }
    return {**summary, "amended": {**_changed(job), "emptied": lost, "columns": carried}}


def preview(job: Job, store: Store) -> Json:
    """Returns the changes that a run would make."""
    Output(store, job.wanted).left()
    return {"amended": {**_changed(job), "emptied": {}, "columns": {}}}


def _changed(job: Job) -> Json:
    changes = job.changes
    return {
        "parent": job.there.digest,
        "excluded": sum(len(change.excluded) for change in changes),
        "relabelled": sum(len(change.relabelled) for change in changes),
        "added": sum(len(change.added) for change in changes),
        "shards": len(changes),
        "of_shards": sum(len(split.shards) for split in job.there.splits.values()),
        "bytes": sum(change.shard.num_bytes for change in changes),
        "columns_left_behind": job.columns[1],
    }


def _write(job: Job, changes: Sequence[ShardChange], output: Output) -> dict[str, Json]:
    """Writes changed shards, links or copies the rest, and commits; returns carried columns."""
    store, add = output.store, job.request.add
    parent = job.dataset.store.as_folder
    stats = {}
    for folder in ("", *naming.BESIDE):
        for name, stat in parent.stats(folder).items() if parent else ():
            stats[f"{folder}/{name}".lstrip("/")] = stat
    writes = {
        split: WriteWork(
            store=store,
            transform=job.transform_of(split) if add else keep,
            classes=job.classes,
            label_offset=job.there.label_offset,
            fail_on_bad_image=False,
        )
        for split in job.there.splits
    }
    work = AmendWork(
        job.dataset.store,
        job.there.lacks,
        job.there.label_offset,
        job.classes,
        job.seed,
        writes,
        add.source.images if add else None,
        add.sha256 if add else {},
    )
    digest = canonical.digest(job.wanted.settings.config)
    stage = engine.Stage(AMEND, digest, store, work, WrittenShard)
    receipts = engine.run(
        stage, changes, job.workers, title=AMEND, watch=output.watch, quiet=job.quiet
    )
    written = {receipt.content.shard: receipt.content for receipt in receipts}
    shards = [shard for split in job.there.splits.values() for shard in split.shards]
    others = [shard for shard in shards if shard.name not in written]
    try:
        store.take_over(job.dataset.store, [f for shard in others for f in shard.files], stats)
    except IncompleteError:
        _demand_parent(job)
        raise
    _demand_parent(job)
    return _commit(job, output, written)


def _demand_parent(job: Job) -> None:
    now = open_dataset(job.dataset.store, check=False).manifest.digest
    if now != job.there.digest:
        raise UsageError(
            f"{job.dataset.where}: the dataset was replaced while it was amended: digest "
            f"{now[:16]}, expected {job.there.digest[:16]}. Choose an empty --out, and run the "
            "same command again."
        )


def _commit(job: Job, output: Output, written: Mapping[str, WrittenShard]) -> dict[str, Json]:
    there = job.there
    splits = {
        name: _split(
            output.store,
            [written[s.name].entry if s.name in written else s for s in split.shards],
            len(job.classes.wnids),
        )
        for name, split in there.splits.items()
    }
    carried = {
        each.name: Carrier(job.dataset, output.store, each).carry(splits) for each in job.columns[0]
    }
    incidents = [incident for each in written.values() for incident in each.incidents]
    changed = {(split_of(each.shard), i.key) for each in written.values() for i in each.incidents}
    changed |= {(split, key) for split, of_split in job.request.new.items() for key in of_split}
    taken_out = schema.VALIDATION if job.base.get("holdout_per_class") else schema.HOLDOUT
    before = (
        each
        for each in listed_incidents(job.dataset.store, there)
        if not any((split, each.key) in changed for split in _splits_of(each, splits, taken_out))
    )
    draft = Draft(
        splits=splits,
        classes=job.classes,
        incidents=[*before, *incidents],
        sources=there.sources,
        lacks=there.lacks,
        plan_digest=canonical.digest([s.sha256 for each in splits.values() for s in each.shards]),
        parent=there,
    )
    output.commit(draft)
    return carried


def _splits_of(incident: Incident, splits: Collection[str], taken_out: str) -> Collection[str]:
    """Returns the splits that may contain the image, judged by its source folder.

    Train and validation may share keys, unless validation was `taken_out` of the train folder.
    """
    folder, slash, _ = incident.archive.removeprefix(f"{layout.KAGGLE}/").partition("/")
    split = (slash and layout.split_called(folder)) or split_of(incident.archive)
    if split == schema.TEST and schema.TEST not in splits:
        split = schema.VALIDATION
    if split not in splits:
        return splits
    return (split, taken_out) if split == schema.TRAIN else (split,)


def _split(store: Store, shards: list[Shard], num_classes: int) -> Split:
    per_class: Counter[int] = Counter()
    resized = height = width = 0

    def counted() -> Iterator[Head]:
        nonlocal resized, height, width
        for sample in chain.from_iterable(tables.each(samples.parse, store, shards)):
            per_class[sample.class_index] += 1
            # A rotated image has the same sides.
            resized += {sample.height, sample.width} != {
                sample.source_height,
                sample.source_width,
            }
            height, width = max(height, sample.height), max(width, sample.width)
            yield sample.head

    root = samples_root(counted(), store, shards)
    return Split(
        examples=per_class.total(),
        num_bytes=sum(shard.num_bytes for shard in shards),
        examples_per_class=[per_class[index] for index in range(num_classes)],
        resized=resized,
        max_height=height,
        max_width=width,
        shards=shards,
        samples_root=root,
    )


def _parsed(job: Job, parse: Callable[[settings.Config], Any]) -> Any:
    try:
        return parse(job.there.config)
    except ValueError as error:
        raise _not_ours(job, error) from None


def _not_ours(job: Job, error: ValueError) -> ManifestError:
    where = job.dataset.store.where(naming.MANIFEST)
    return ManifestError(f"{where}: its config was not written by this program: {error}")
