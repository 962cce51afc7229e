"""Makes a new dataset from an existing one: excludes, relabels or adds images.

Only changed shards are written, and their unchanged records are copied byte for byte. All other
shards are hard links, or copies made by the bucket's server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import TypeVar

from imagenet_prep import engine
from imagenet_prep.codec.policy import CHECK_DECODE, CHECK_HEADER, CODECS, Policy
from imagenet_prep.codec.transform import keep, prove_stored, require, transform
from imagenet_prep.core import canonical, errors, records
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import BadImageError, UsageError, some
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import naming, samples, schema, settings, tfds
from imagenet_prep.dataset.column import Column
from imagenet_prep.dataset.manifest import Manifest, Shard, Split
from imagenet_prep.dataset.member import (
    QUARANTINED,
    REPAIRED,
    Incident,
    Member,
    PreparedImage,
)
from imagenet_prep.dataset.orientation import KEEP, RULES
from imagenet_prep.dataset.samples import Head
from imagenet_prep.dataset.settings import ADOPT, AMEND, Amendment, Listed, Settings
from imagenet_prep.preparation.additions import Additions, Comparison, sentences
from imagenet_prep.preparation.amended_shard import AmendWork
from imagenet_prep.preparation.carried import Carrier
from imagenet_prep.preparation.changes import Request, ShardChange, changes_of, without_images
from imagenet_prep.preparation.output import Draft, Output
from imagenet_prep.preparation.selection import refuse_source_as_output
from imagenet_prep.preparation.standing import Wanted
from imagenet_prep.preparation.tasks import WriteWork
from imagenet_prep.shards.commit import emptied
from imagenet_prep.shards.samples_root import samples_root
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.sources.shard_files import split_of
from imagenet_prep.storage import columns, dataset_store
from imagenet_prep.storage.dataset_store import Dataset, open_dataset, refuse_inside
from imagenet_prep.storage.store import Store

_T = TypeVar("_T")


@dataclass(frozen=True)
class _ImageSettings:
    """The settings with which the images of a split were encoded, from the manifest."""

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
    """An amend command: the dataset, the requested changes and the workers.

    Attributes:
      request: the changes; `add` has all images of the folder.
      readmit: whether to add images that an earlier step has excluded.
    """

    dataset: Dataset
    request: Request
    workers: engine.Workers
    readmit: bool = False
    quiet: bool = False

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset."""
        return self.dataset.manifest

    @cached_property
    def base(self) -> settings.Config:
        """The config of the dataset before its first amendment."""
        return self._of_config(settings.base)

    @cached_property
    def seed(self) -> int:
        """The seed that assigned images to shards; 0 if the manifest contains no seed."""
        seed = self.base.get("seed")
        return seed if type(seed) is int else 0

    @cached_property
    def add(self) -> Additions | None:
        """The images of --add that are new in the dataset."""
        request = self.request
        if request.add is None:
            return None
        comparison = Comparison(request.add, self.dataset)
        splits = request.splits or [*self.manifest.splits]
        return comparison.select(request.exclude, splits, self._is_usable, readmit=self.readmit)

    def _is_usable(self, split: str, member: Member) -> bool:
        """Returns whether an image of --add can be decoded."""
        assert self.request.add
        try:
            self.transform_of(split)(self.request.add.source.images.read(member))
        except BadImageError:
            return False
        return True

    @cached_property
    def changes(self) -> list[ShardChange]:
        """The shards to be changed, with their changes."""
        changes = changes_of(replace(self.request, add=self.add), self.dataset, self.seed)
        for change in changes:
            # A shard that loses all its images needs at least one new image that can be stored.
            if len(change.excluded) == change.shard.examples:
                split = split_of(change.name)
                if not any(self._is_usable(split, member) for member in change.added):
                    raise without_images([change.name])
        return changes

    @cached_property
    def columns(self) -> tuple[list[Column], list[str]]:
        """The complete columns, and the names of incomplete columns, which are not copied."""
        return columns.complete_columns(self.dataset)

    @cached_property
    def wanted(self) -> Wanted:
        """The dataset to make, whose config lists all amendments since the images were prepared."""
        exclude = self.request.exclude
        relabel = self.request.relabel
        add = self.add
        num_excluded = sum(len(change.excluded) for change in self.changes)
        num_relabelled = sum(len(change.relabelled) for change in self.changes)
        step = Amendment(
            self.manifest.digest,
            Listed(num_excluded, exclude.sha256) if exclude else None,
            Listed(num_relabelled, relabel.listed.sha256) if relabel else None,
            add.summary if add else None,
            self.request.narrowing,
        )
        steps = [*self._of_config(settings.amendments), step]
        splits = [*self.manifest.splits]
        config = {"verb": AMEND, "splits": splits, "amendments": steps, "base": self.base}
        return Wanted(
            # The JSON round trip makes this config equal to the one read back from disk.
            Settings(AMEND, dict.fromkeys(splits, canonical.loads(canonical.dumps(config)))),
            self.manifest.producer.libraries,
            label_offset=self.manifest.label_offset,
            # An amended dataset never matches a published edition's counts and labels.
            subset=True,
            name=tfds.name_of(self.dataset.tfds_info),
        )

    def transform_of(self, split: str) -> Callable[[bytes], PreparedImage]:
        """Returns the transform that encodes new images like the existing ones of a split."""

        def parse(config: settings.Config) -> tuple[str, _ImageSettings]:
            verb, splits = settings.parse(settings.base(config))
            return verb, records.parse(_ImageSettings, splits.get(split, {}), others=True)

        verb, of_split = self._of_config(parse)
        codec = self.manifest.producer.libraries.get("codec", "")
        if verb == ADOPT or of_split.short_side is of_split.quality is None:
            any_colorspace = schema.COLORSPACE in self.manifest.lacks
            return partial(_keep_undamaged, any_colorspace=any_colorspace)
        if codec not in CODECS.values():
            raise UsageError(
                f"{self.dataset.where}: its images were encoded with the codec {codec}, which this "
                "version lacks, so the images of --add cannot be encoded in the same way. Use the "
                "version of imagenet-prep that made the dataset."
            )
        image_settings = {**vars(of_split), "quality": of_split.quality or Policy.quality}
        policy = Policy(codec=codec, **image_settings)
        require(policy)
        return partial(transform, policy=policy)

    def _of_config(self, parse: Callable[[settings.Config], _T]) -> _T:
        try:
            return parse(self.manifest.config)
        except ValueError as error:
            where = self.dataset.store.where(naming.MANIFEST)
            raise errors.ManifestError(
                f"{where}: its config is not from imagenet-prep: {error}. Get the dataset again."
            ) from None


def _keep_undamaged(data: bytes, *, any_colorspace: bool) -> PreparedImage:
    """Returns a JPEG unchanged; raises BadImageError for damage, or for a JPEG that is not RGB."""
    image = keep(data)
    prove_stored(data, image.height, image.width, any_colorspace=any_colorspace)
    return image


def refuse(dataset: Dataset, out: Store) -> None:
    """Raises an error before anything is written if the dataset cannot be amended into `out`."""
    folder, where = dataset.store.as_folder, dataset.where
    if (folder is None) != (out.as_folder is None):
        raise UsageError(
            f"--out {out.where()}: the result must be on the same storage as {where}. Choose "
            f"{'a prefix on the same server' if folder is None else 'a local folder'}. Afterwards, "
            "`imagenet-prep replicate` copies the new dataset to other locations."
        )
    refuse_inside(out.where(), dataset)
    dataset.demand_samples()
    if lost := dataset.missing_files():
        raise errors.DataDamagedError(
            f"{where}: {counted(len(lost), 'file')} missing or of a different size than in the "
            f"manifest: {some(lost)}. Nothing was written. Run imagenet-prep verify {where}"
        )


def run(job: Job, store: Store) -> Json:
    """Makes the amended dataset, or finishes an unfinished one, and returns the summary."""
    if job.request.add:
        source = job.request.add.source
        refuse_source_as_output(store.where(), str(source.root), source)
    if job.add and not (job.add.all_members or job.request.lists):
        raise UsageError(
            f"--add: no new image, so nothing was written. {'; '.join(sentences(job.add.counts))}."
        )
    output = Output(store, job.wanted)
    changes = job.changes
    carried: dict[str, Json] = {}
    _ = job.columns  # report a damaged column before anything is written
    if output.left():
        with output.store.lock():
            if pending := output.left():
                output.begin(pending, job.manifest.shard_names)
                carried = _write(job, changes, output)
    summary = output.end()
    before, now = job.manifest.splits, Dataset.at(store).manifest.splits
    empty = {
        name: some([job.dataset.classes.wnids[index] for index in indices])
        for name, split in now.items()
        if (indices := emptied(before[name].examples_per_class, split.examples_per_class))
    }
    changed = _changed(job)
    if job.add:
        bad = _quarantined(job.add, Dataset.at(store))
        changed["added"] -= bad
        changed["add"] |= {"stored": changed["added"], "quarantined": bad}
    return {**summary, "amended": {**changed, "emptied": empty, "columns": carried}}


def preview(job: Job, store: Store) -> Json:
    """Returns the changes that a run would make."""
    Output(store, job.wanted).older_files(job.manifest.shard_names)
    return {"amended": {**_changed(job), "emptied": {}, "columns": {}}}


def _quarantined(add: Additions, amended: Dataset) -> int:
    """Returns the number of new images that are quarantined."""
    new = {(member.archive, member.size) for member in add.all_members}
    lines = dataset_store.incidents(amended.store, amended.manifest)
    return sum(line.action == QUARANTINED and (line.archive, line.size) in new for line in lines)


def _changed(job: Job) -> Json:
    changes = job.changes
    return {
        "parent": job.manifest.digest,
        "excluded": sum(len(change.excluded) for change in changes),
        "relabelled": sum(len(change.relabelled) for change in changes),
        "added": sum(len(change.added) for change in changes),
        "shards": len(changes),
        "of_shards": sum(len(split.shards) for split in job.manifest.splits.values()),
        "bytes": sum(change.shard.num_bytes for change in changes),
        "columns_left_behind": job.columns[1],
        **({"add": job.add.counts} if job.add else {}),
    }


def _write(job: Job, changes: Sequence[ShardChange], output: Output) -> dict[str, Json]:
    """Writes changed shards, links or copies the others, commits; returns row counts by column."""
    store, manifest, add = output.store, job.manifest, job.add
    parent = job.dataset.store.as_folder
    stats = {}
    for folder in ("", *naming.BESIDE):
        for name, stat in parent.stats(folder).items() if parent else ():
            stats[f"{folder}/{name}".lstrip("/")] = stat
    writes = {
        split: WriteWork(
            store=store,
            transform=job.transform_of(split) if add else keep,
            classes=job.dataset.classes,
            label_offset=manifest.label_offset,
            fail_on_bad_image=False,
        )
        for split in manifest.splits
    }
    new = (add.source.images, add.sha256) if add else (None, {})
    work = AmendWork(job.dataset, job.seed, writes, *new)
    digest = canonical.digest(job.wanted.settings.config)
    stage = engine.Stage(AMEND, digest, store, work, WrittenShard)
    receipts = engine.run(stage, changes, job.workers, watch=output.watch, quiet=job.quiet)
    written = {receipt.content.shard: receipt.content for receipt in receipts}
    shards = (shard for split in manifest.splits.values() for shard in split.shards)
    files = [file for shard in shards if shard.name not in written for file in shard.files]
    try:
        store.adopt_files(job.dataset.store, files, stats)
    except errors.IncompleteError:
        _demand_parent(job)
        raise
    _demand_parent(job)
    return _commit(job, output, written)


def _demand_parent(job: Job) -> None:
    now = open_dataset(job.dataset.store, check=False).manifest.digest
    if now != job.manifest.digest:
        raise UsageError(
            f"{job.dataset.where}: the dataset was replaced while amend read it: digest "
            f"{now[:16]}, expected {job.manifest.digest[:16]}. Choose an empty --out and run the "
            "same command again."
        )


def _commit(job: Job, output: Output, written: Mapping[str, WrittenShard]) -> dict[str, Json]:
    parent = job.manifest
    splits = {}
    for name, split in parent.splits.items():
        shards = [written[s.name].entry if s.name in written else s for s in split.shards]
        splits[name] = _split(output.store, shards, parent.classes.count)
    carried = {
        column.name: Carrier(job.dataset, output.store, column).carry(splits)
        for column in job.columns[0]
    }
    new = [incident for shard in written.values() for incident in shard.incidents]
    sources = [*parent.sources]
    if job.add and (job.add.all_members or job.add.excluded):
        new += job.add.excluded
        sources.append(job.add.as_source(sources))
    draft = Draft(
        splits=splits,
        classes=job.dataset.classes,
        incidents=[*_kept_incidents(job, new), *new],
        sources=sources,
        lacks=parent.lacks,
        plan_digest=canonical.digest([s.sha256 for of in splits.values() for s in of.shards]),
        parent=parent,
    )
    output.commit(draft)
    return carried


def _kept_incidents(job: Job, new: Sequence[Incident]) -> Iterator[Incident]:
    """Yields the lines of the parent that the amended dataset keeps."""
    excluded = {(line.split, line.key) for line in new if line.is_excluded}
    class_of = {
        (split_of(change.name), key): class_index
        for change in job.changes
        for key, class_index in change.relabelled.items()
    }
    replaced = job.add.replaced if job.add else ()
    for line in dataset_store.incidents(job.dataset.store, job.manifest):
        image = line.split, line.key
        # Other lines with this key are about images that are not stored.
        is_stored = line.action.endswith(REPAIRED)
        if line in replaced or (is_stored and image in excluded):
            continue
        if is_stored and image in class_of:
            line = replace(line, class_index=class_of[image])
        yield line


def _split(store: Store, shards: list[Shard], num_classes: int) -> Split:
    per_class: Counter[int] = Counter()
    resized = height = width = 0

    def heads() -> Iterator[Head]:
        nonlocal resized, height, width
        for sample in chain.from_iterable(dataset_store.each_table(samples.parse, store, shards)):
            per_class[sample.class_index] += 1
            # Compare sets: rotation swaps the sides of an image, but is no resize.
            source = {sample.source_height, sample.source_width}
            resized += {sample.height, sample.width} != source
            height = max(height, sample.height)
            width = max(width, sample.width)
            yield sample.head

    root = samples_root(heads(), store, shards)
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
