"""Rewrites the shards of an existing dataset, split by split: `resize` and `adopt --rewrite`."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain

from imagenet_prep import engine
from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import is_rgb, keep, transform
from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import BadImageError, UsageError
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.jpeg import KEEP
from imagenet_prep.dataset.keys import WNID, KeyList
from imagenet_prep.dataset.manifest import ManifestSource, require_samples
from imagenet_prep.dataset.member import REPAIRED, Incident, Member
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.dataset.settings import (
    EXCLUDED,
    HOLDOUT_PER_CLASS,
    KEEP_ORIGINAL,
    LICENCE,
    ORIENTATION,
    RESIZE,
    Config,
    DatasetSettings,
)
from imagenet_prep.preparation import changes, existing_set
from imagenet_prep.preparation.output import Draft, Output, incidents_of_input
from imagenet_prep.preparation.output_state import WantedDataset
from imagenet_prep.preparation.same_source import require_same_shards
from imagenet_prep.preparation.tasks import WriteWork, excluded_record
from imagenet_prep.shards.commit import num_per_class, split_of
from imagenet_prep.shards.sorted_tables import same_key
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.sources import shard_files
from imagenet_prep.sources.shard_files import Labelling, ShardFile, TfrecordSet
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import refuse_inside
from imagenet_prep.storage.ledger import SourceLocation
from imagenet_prep.storage.store import Store, same_place


@dataclass(frozen=True)
class RewriteWork:
    """Writes a shard from one shard of the input dataset, read in one pass; picklable."""

    write: WriteWork
    store: Store
    labelling: Labelling
    count_colorspaces: bool  # whether to count images that are kept although they are not RGB
    excluded: Mapping[str, Mapping[str, str]]
    renamed: Mapping[str, Mapping[int, str]]

    def __call__(self, shard: ShardFile) -> engine.Result[WrittenShard]:
        """Writes the shard; returns its receipt content and files."""
        md5 = hashlib.md5(usedforsecurity=False)
        counts = existing_set.Counts()
        incidents: list[Incident] = []
        excluded = self.excluded.get(shard.name, {})
        samples: dict[str, Sample] = {}
        if excluded and shard.listed:
            rows = dataset_store.sample_rows(self.store, shard.listed)
            samples = {sample.key: sample for sample in rows if sample.key in excluded}

        def images() -> Iterator[tuple[Member, bytes]]:
            new = self.renamed.get(schema.samples_name(shard.name), {})
            seen: dict[str, int] = {}
            records = shard_files.read(self.store, shard, self.labelling, [md5])
            for number, (read, data) in enumerate(records):
                member = read._replace(key=new.get(number, read.key))
                first = seen.setdefault(member.key, number)
                if first != number:
                    # Equal keys in different shards are found when the split is committed.
                    places = (f"record {record} of {shard.file}" for record in (first, number))
                    raise same_key(self.store, member.key, *places)
                if member.key in excluded:
                    sample = samples[member.key]
                    salt = excluded[member.key]
                    incidents.append(excluded_record(shard.name, shard.split, sample, salt))
                    continue
                counts.add(member)
                counts.not_rgb += self.count_colorspaces and _is_kept_without_rgb(data)
                yield member, data

        written, outputs = self.write(shard.name, images())
        source = ManifestSource(
            shard.file, shard.num_bytes, md5.hexdigest(), counts.num_per_class.total()
        )
        incidents = [*written.incidents, *incidents]
        content = replace(written, incidents=incidents, source=source, **vars(counts))
        return engine.Result(content, outputs)


@dataclass(frozen=True)
class ResizeJob:
    """A resize command, or adopt --rewrite."""

    found: TfrecordSet
    splits: tuple[str, ...]
    policy: Policy | None  # None to keep all images byte for byte
    workers: engine.Workers
    allowed_bad_images: int | None = None
    labelling: Labelling | None = None
    exclude: KeyList | None = None
    renamed: Mapping[str, Mapping[int, str]] = field(default_factory=dict)  # see `ExistingSet`
    licence: str = ""  # of the images; "" for that of the input
    wnids_only: bool = False
    force: bool | None = None
    quiet: bool = False

    @cached_property
    def excluded(self) -> dict[str, Mapping[str, str]]:
        """The excluded images by shard, as in `ShardChange`."""
        if self.exclude is None:
            return {}
        require_samples(self.found.manifest, self.found.store.where())
        assert self.found.dataset
        request = changes.ChangeRequest(self.exclude, splits=self.splits)
        of_shards = changes.changes_of(request, self.found.dataset, seed=0)
        return {change.name: change.excluded for change in of_shards}

    def shard_names(self, splits: Sequence[str]) -> list[str]:
        """Returns the names of the shards of these splits."""
        shards = chain.from_iterable(self.found.splits[split] for split in splits)
        return [shard.name for shard in shards]

    def num_excluded(self, split: str) -> int:
        """Returns the number of excluded images of a split."""
        return sum(len(self.excluded.get(shard.name, ())) for shard in self.found.splits[split])

    @cached_property
    def input_incidents(self) -> list[Incident]:
        """The lines of the input's quarantine.jsonl, marked as lines of the input."""
        return incidents_of_input(self.found)

    @cached_property
    def wanted(self) -> WantedDataset:
        """The dataset to make; the names and sizes of the source files identify the source."""
        byte_settings = KEEP_ORIGINAL
        libraries = {}
        if self.policy is not None:
            byte_settings = {name: getattr(self.policy, name) for name in KEEP_ORIGINAL}
            if self.policy.orientation != KEEP:
                byte_settings[ORIENTATION] = self.policy.orientation
            libraries = self.policy.libraries
        identities: dict[str, str] = {}
        made: dict[str, Config] = {}
        manifest = self.found.manifest
        labels = "" if manifest else shard_files.labels(self.found.store)
        licence = self.licence or (manifest.settings.licence if manifest else "")
        for split in self.splits:
            files = self.found.splits[split]
            source = strict_json.digest([[shard.file, shard.num_bytes] for shard in files])
            made[split] = {**byte_settings, "source": source}
            if manifest and manifest.settings.holdout_split == schema.VALIDATION:
                made[split][HOLDOUT_PER_CLASS] = True
            if licence:
                made[split][LICENCE] = licence
            if self.exclude:
                listed = {"images": self.num_excluded(split), "sha256": self.exclude.sha256}
                made[split][EXCLUDED] = listed
            identity = manifest.digest if manifest else existing_set.identity(files)
            identities[split] = strict_json.digest([identity, labels]) if labels else identity
        # `report` shows source images from this location.
        origin = None
        folder = self.found.store.as_folder
        if folder:
            root = folder.root.absolute()
            shards = chain.from_iterable(self.found.splits.values())
            origin = SourceLocation(
                str(root), {shard.file: str(root / shard.path) for shard in shards}
            )
        subset = None
        if manifest and manifest.evaluates:
            subset = manifest.subset or self.exclude is not None
        return WantedDataset(
            DatasetSettings(RESIZE, made),
            libraries,
            subset=subset,
            identities=identities,
            allowed_bad_images=self.allowed_bad_images,
            origin=origin,
            force=self.force,
        )


def run(job: ResizeJob, store: Store) -> Json:
    """Writes the unfinished splits to a store and returns the summary."""
    output, pending = _output(job, store)
    if pending or output.changed:
        with output.store.lock():
            pending = output.left()
            labelling = _labelling(job, store, output, pending)
            _ = job.input_incidents  # report a damaged list before anything is written
            output.begin(pending, job.shard_names(pending))
            for split in pending:
                _write(job, store, output, split, labelling)
    summary = output.end()
    return {**summary, "left_in_input": sorted(set(job.found.splits) - set(summary["splits"]))}


def preview(job: ResizeJob, store: Store) -> Json:
    """Returns the result of a dry run; raises the errors that a run would raise before it writes.

    It reads tables, the first and last shards and, if the input has changed, what `run` compares.
    """
    output, pending = _output(job, store, note=False)
    output.older_files(job.shard_names(pending))
    _ = job.input_incidents
    labelling = shard_files.known_labelling(job.found)
    labels = "only known after all shards are read, so a run reads them twice"
    if labelling is not None:
        last = len(labelling.classes.wnids) - 1 + labelling.offset
        classes = "ILSVRC2012's classes" if labelling.classes.official else "its own classes"
        labels = f"{classes}, labels {labelling.offset} ... {last}"
    return {
        "out": store.where(),
        "splits": {
            split: {
                "shards": len(shards),
                "source_bytes": sum(shard.num_bytes for shard in shards),
                "first_file": job.found.store.where(shards[0].path),
                "first_shard": shards[0].name,
            }
            for split, shards in job.found.splits.items()
            if split in job.splits
        },
        "labels": labels,
        "left": sorted({*pending, *output.changed}),
        "workers": f"{job.workers.count} {job.workers.resolved_kind}",
    }


def _output(job: ResizeJob, store: Store, *, note: bool = True) -> tuple[Output, list[str]]:
    """Returns the output and its unfinished splits; raises UsageError if `run` cannot write it."""
    source = job.found.store
    shards = chain.from_iterable(job.found.splits[split] for split in job.splits)
    folders = {shard.path.rpartition("/")[0] for shard in shards}
    if any(same_place(store.where(), source.where(folder)) for folder in {"", *folders}):
        raise UsageError(f"{store.where()} is the input. Choose a different folder for the result.")
    if job.found.dataset:
        refuse_inside(store.where(), job.found.dataset)
    output = Output(store, job.wanted)
    pending = output.left()
    finished = [split for split in job.splits if split not in pending]
    require_same_shards(job.found, finished, job.excluded, output, note=note, quiet=job.quiet)
    return output, pending


def _labelling(job: ResizeJob, store: Store, output: Output, pending: Sequence[str]) -> Labelling:
    existing = output.seen.dataset
    known = None
    if existing and set(existing.manifest.splits) - set(pending):
        known = existing.classes
    labelling = job.labelling or existing_set.settle_labels(
        job.found, store, job.workers, known=known, quiet=job.quiet
    )
    classes = labelling.classes
    where = job.found.store.where()
    if job.wnids_only and not all(map(WNID.fullmatch, classes.wnids)):
        raise UsageError(
            f"{where}: its classes are not WNIDs but {', '.join(classes.wnids[:3])} ... If this "
            "is intended, remove --dataset_name."
        )
    if known is not None and known.digest != classes.digest:
        raise UsageError(
            f"{where}: its {counted(len(classes.wnids), 'class')} differ from the "
            f"{counted(len(known.wnids), 'class')} of the dataset in {store.where()}. Choose a "
            "different folder."
        )
    return labelling


def _write(job: ResizeJob, store: Store, output: Output, split: str, labelling: Labelling) -> None:
    """Writes and commits the shards of a split."""
    shards = job.found.splits[split]
    stage = _stage(job, store, split, labelling)
    output.forget_others(stage)
    manifest = job.found.manifest
    receipts = engine.run(
        stage,
        shards,
        job.workers,
        title=f"{RESIZE} {split}",
        # Without a manifest, the number of images is unknown until all are read.
        images=manifest.splits[split].examples - job.num_excluded(split) if manifest else 0,
        watch=output.watch,
        quiet=job.quiet,
    )
    written = [receipt.content for receipt in receipts]
    if manifest is None:
        existing_set.check_validation_labels(written, labelling.classes, job.found.store)
    output.commit(_draft(job, split, labelling.classes, written))


def _stage(
    job: ResizeJob, store: Store, split: str, labelling: Labelling
) -> engine.Stage[ShardFile, WrittenShard]:
    write = WriteWork(
        store=store,
        transform=keep if job.policy is None else partial(transform, policy=job.policy),
        classes=labelling.classes,
        label_offset=job.wanted.label_offset,
        fail_on_bad_image=job.allowed_bad_images == 0,
    )
    names = [shard.name for shard in job.found.splits[split]]
    work = RewriteWork(
        write,
        job.found.store,
        labelling,
        count_colorspaces=job.policy is None,
        excluded={name: job.excluded[name] for name in names if name in job.excluded},
        renamed=job.renamed,
    )
    parts = [
        job.wanted.settings.splits[split],
        job.wanted.libraries,
        labelling.offset,
        labelling.classes.render().decode(),
        job.wanted.identities[split],
    ]
    if job.renamed:
        parts.append(sorted(job.renamed))
    return engine.Stage(f"{RESIZE}-{split}", strict_json.digest(parts), store, work, WrittenShard)


def _draft(
    job: ResizeJob, split: str, classes: ClassList, written: Sequence[WrittenShard]
) -> Draft:
    counts = num_per_class([shard.num_per_class for shard in written], len(classes.wnids))
    not_rgb = any(shard.not_rgb for shard in written)
    incidents = [*chain.from_iterable(shard.incidents for shard in written)]
    incidents += _carried(job, split, {incident.key for incident in incidents})
    return Draft(
        splits={split: split_of(written, counts)},
        classes=classes,
        incidents=incidents,
        sources=[shard.source for shard in written if shard.source],
        lacks={schema.COLORSPACE: schema.WRONG} if not_rgb else {},
        # The edition cannot be derived from counts, since the images may be a selection.
        parent=job.found.manifest,
    )


def _carried(job: ResizeJob, split: str, changed: Container[str]) -> Iterator[Incident]:
    """Yields the lines of the input that concern a split; `changed` are keys with new lines.

    Lines of an unknown split and those of excluded images are in the lines of every split.
    """
    others = job.found.splits.keys() - {split}
    for line in job.input_incidents:
        if line.split in others and not line.is_excluded:
            continue
        is_stored = line.action.endswith(REPAIRED)
        if not (is_stored and line.split == split and line.key in changed):
            yield line


def _is_kept_without_rgb(data: bytes) -> bool:
    try:
        return not is_rgb(keep(data).encoded)
    except BadImageError:
        return False  # it is quarantined
