"""Makes a new dataset from an existing one: excludes, relabels or adds images.

Only changed shards are written, and their unchanged records are copied byte for byte. All other
shards are hard links, or copies made by the bucket's server.

Columns are copied: the column files of unchanged shards are linked. For a changed shard, the rows
of records with the same key and image are copied. The rows of all other records are missing. A
column with missing rows is left unfinished, and the script that writes it then computes only the
missing rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import secrets
import shlex
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain

from imagenet_prep import engine
from imagenet_prep.codec import planes
from imagenet_prep.codec.policy import CHECK_DECODE, CHECK_HEADER, CODECS, Policy
from imagenet_prep.codec.transform import keep, prove_stored, transform
from imagenet_prep.core import errors, strict_json
from imagenet_prep.core.errors import BadImageError, DataDamagedError, UsageError, some
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import column, keys, samples, schema, settings, tfds
from imagenet_prep.dataset.column import Column, ColumnFile
from imagenet_prep.dataset.jpeg import KEEP, RULES
from imagenet_prep.dataset.manifest import Manifest, Shard, Split
from imagenet_prep.dataset.member import (
    QUARANTINED,
    REPAIRED,
    SALT_BYTES,
    Incident,
    Member,
    PreparedImage,
)
from imagenet_prep.dataset.settings import ADOPT, AMEND, Amendment, DatasetSettings, ListDigest
from imagenet_prep.preparation.additions import AdditionComparison, Additions, sentences
from imagenet_prep.preparation.changes import (
    AmendWork,
    ChangeRequest,
    ShardChange,
    changes_of,
    without_images,
)
from imagenet_prep.preparation.output import Draft, Output
from imagenet_prep.preparation.output_state import WantedDataset
from imagenet_prep.preparation.selection import refuse_source_as_output
from imagenet_prep.preparation.tasks import WriteWork
from imagenet_prep.shards.commit import emptied
from imagenet_prep.shards.sorted_tables import samples_root
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.sources.shard_files import split_of
from imagenet_prep.storage import columns, dataset_store
from imagenet_prep.storage.dataset_store import Dataset, open_dataset, refuse_inside
from imagenet_prep.storage.free_space import require_space
from imagenet_prep.storage.local_file import new_file, removed_on_failure, storage_errors
from imagenet_prep.storage.remote import Stat, as_file, hashed
from imagenet_prep.storage.store import Readable, Store, read_note

_FIRST_KEYS = 10
# The salt of an unfinished run that forgets images.
_SALT = f"{schema.WORK}/salt"


class Carrier:
    """Copies one column of the parent to the store of the amended dataset."""

    def __init__(self, parent: Dataset, store: Store, parent_column: Column) -> None:
        self._parent = parent
        self._store = store
        self._column = parent_column
        self._linked = 0
        self._rows = 0
        self._missing: list[str] = []

    def carry(self, splits: Mapping[str, Split]) -> Json:
        """Links or copies the column files of these splits; returns counts of files and rows."""
        name = self._column.name
        complete = self._column.begun()
        unfinished: list[ColumnFile] = []
        for split in self._column.splits:
            files = self._of_split(split, splits[split])
            if any(file.missing for file in files):
                unfinished += files
            else:
                complete = complete.with_files(split, files)
        for file in unfinished:
            self._store.write(column.receipt_name(name, file.shard), strict_json.dumps(file))
        if unfinished:
            self._store.write(column.begun_name(name), self._column.begun().dumps())
        if complete.splits:
            self._store.write(column.record_name(name), complete.dumps())
        return {
            "linked_files": self._linked,
            "copied_rows": self._rows,
            "missing_rows": len(self._missing),
            "first_missing": self._missing[:_FIRST_KEYS],
        }

    def _of_split(self, split: str, amended: Split) -> list[ColumnFile]:
        old = self._parent.manifest.splits[split].shards
        files = list(zip(self._column.splits[split], old, amended.shards, strict=True))
        staying = [self._column.file(rows) for rows, _, new in files if rows.is_of(new)]
        self._store.adopt_files(self._parent.store, staying)
        self._linked += len(staying)
        return [
            rows if rows.is_of(new) else self._of_shard(rows, old, new) for rows, old, new in files
        ]

    def _of_shard(self, rows: ColumnFile, old: Shard, new: Shard) -> ColumnFile:
        """Writes the column file of a changed shard; missing rows are zeros, or have no text."""
        parent_column = self._column
        store = self._store
        digest = hashlib.sha256()
        before = self._records(self._parent.store, old)
        after = self._records(store, new)
        stay = {*before} & {*after}
        missing = [number for number, record in enumerate(after) if record not in stay]
        # The common records have the same order in both shards.
        old_rows = zip(before, self._read(rows), strict=True)
        kept = (row for record, row in old_rows if record in stay)
        temporary = store.temporary()
        header = parent_column.header(len(after))
        num_bytes = 0
        with removed_on_failure(temporary), storage_errors("write", temporary):
            with new_file(temporary) as file:
                empty = parent_column.empty_row
                written = (next(kept) if record in stay else empty for record in after)
                for data in itertools.chain([header], written):
                    digest.update(data)
                    num_bytes += file.write(data)
                # Read the rest: the parent's file is verified when its end is reached.
                deque(kept, maxlen=0)
            name = parent_column.file_name(new.name)
            sha256 = digest.hexdigest()
            store.publish(temporary, name, sha256)
        self._rows += len(after) - len(missing)
        self._missing += [after[number][1] for number in missing]
        table = new.samples_sha256
        return ColumnFile(new.name, len(after), num_bytes, sha256, table, tuple(missing))

    def _records(self, store: Readable, shard: Shard) -> list[tuple[int, str, bytes]]:
        """Returns (class, key, image) of each record; class is 0 if the column ignores classes."""
        of_class = self._column.made_from == column.OF_CLASS
        heads = dataset_store.each_table(partial(samples.heads, images=True), store, [shard])
        return [(index if of_class else 0, key, image) for index, key, image in next(heads)]

    def _read(self, rows: ColumnFile) -> Iterator[bytes]:
        """Yields the rows of a column file of the parent; verifies the file after the last row."""
        parent_column = self._column
        digest = hashlib.sha256()
        store = self._parent.store
        name = parent_column.file(rows).name
        with store.open_file(name) as opened:
            file = as_file(hashed(opened, [digest]))
            head = file.read(len(parent_column.header(rows.rows)))
            in_rows: str | None = None
            for _ in range(rows.rows):
                row = parent_column.read_row(file)
                in_rows = in_rows or parent_column.row_problem(row)
                yield row
            if file.read():
                in_rows = in_rows or "has more rows than column.json says"
        where = store.where(name)
        wrong = columns.misfit(parent_column, rows, head, digest.hexdigest(), where, in_rows)
        if wrong:
            raise DataDamagedError(f"{wrong}.")


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
class AmendJob:
    """An amend command: the dataset, the requested changes and the workers.

    Attributes:
      request: the changes; `add` has all images of the folder.
      readmit: whether to add images that an earlier step has excluded.
    """

    dataset: Dataset
    request: ChangeRequest
    workers: engine.Workers
    readmit: bool = False
    quiet: bool = False

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset."""
        return self.dataset.manifest

    @cached_property
    def made(self) -> DatasetSettings:
        """The settings of the dataset; raises ManifestError if a different program wrote them."""
        with self._config_errors():
            return settings.parse(self.manifest.config)

    @property
    def base(self) -> settings.Config:
        """The config of the dataset before its first amendment."""
        return self.manifest.config if self.made.base is None else self.made.base

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
        comparison = AdditionComparison(request.add, self.dataset)
        splits = request.splits or [*self.manifest.splits]
        add = comparison.select(request.exclude, splits, self._is_usable, readmit=self.readmit)
        return request.relabel.apply(add, splits) if request.relabel else add

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
    def wanted(self) -> WantedDataset:
        """The dataset to make, whose config lists all amendments since the images were prepared."""
        exclude = self.request.exclude
        relabel = self.request.relabel
        add = self.add
        num_excluded = sum(len(change.excluded) for change in self.changes)
        num_relabelled = sum(len(change.relabelled) for change in self.changes)
        step = Amendment(
            self.manifest.digest,
            ListDigest(num_excluded, exclude.sha256) if exclude else None,
            ListDigest(num_relabelled, relabel.listed.sha256) if relabel else None,
            add.summary if add else None,
            self.request.narrowing,
        )
        if self.request.salt:
            step = Amendment(self.manifest.digest, forget=self._forgotten(num_excluded))
        steps = [*self.made.amendments, step]
        return WantedDataset(
            settings.amended(self.manifest.splits, steps, self.base),
            self.manifest.producer.libraries,
            label_offset=self.manifest.label_offset,
            # An amended dataset never matches a published edition's counts and labels.
            subset=True,
            name=tfds.name_of(self.dataset.tfds_info),
        )

    def _forgotten(self, num_stored: int) -> ListDigest:
        """Returns the number of forgotten images, and a salted digest of their names."""
        request = self.request
        listed = request.exclude.sha256 if request.exclude else None
        digest = strict_json.digest([listed, sorted(request.forgotten)])
        return ListDigest(num_stored + len(request.forgotten), keys.salted(request.salt, digest))

    def _made_of(self, split: str) -> _ImageSettings | None:
        """Returns the settings that encoded the images of a split; None if they are kept."""
        with self._config_errors():
            first = settings.parse(self.base)
            made = strict_json.parse(_ImageSettings, first.splits.get(split, {}), others=True)
        is_kept = first.verb == ADOPT or (made.short_side is None and made.quality is None)
        return None if is_kept else made

    def keeps_images(self, split: str) -> bool:
        """Whether new images of a split are stored as they are."""
        return self._made_of(split) is None

    def transform_of(self, split: str) -> Callable[[bytes], PreparedImage]:
        """Returns the transform that encodes new images like the existing ones of a split."""
        made = self._made_of(split)
        codec = self.manifest.producer.libraries.get("codec", "")
        if made is None:
            any_colorspace = schema.COLORSPACE in self.manifest.lacks
            return partial(_keep_undamaged, any_colorspace=any_colorspace)
        if codec not in CODECS.values():
            raise UsageError(
                f"{self.dataset.where}: its images were encoded with the codec {codec}, which this "
                "version lacks, so the images of --add cannot be encoded in the same way. Use the "
                "version of imagenet-prep that made the dataset."
            )
        policy = Policy(
            made.short_side,
            made.quality or Policy.quality,
            made.check,
            stretch=made.stretch,
            codec=codec,
            orientation=made.orientation,
        )
        planes.require()
        return partial(transform, policy=policy)

    @contextlib.contextmanager
    def _config_errors(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            where = self.dataset.store.where(schema.MANIFEST)
            raise errors.ManifestError(
                f"{where}: its config is not from imagenet-prep: {error}. Get the dataset again."
            ) from None


def _keep_undamaged(data: bytes, *, any_colorspace: bool) -> PreparedImage:
    """Returns a JPEG unchanged; raises BadImageError for damage, or for a JPEG that is not RGB."""
    image = keep(data)
    prove_stored(data, image.height, image.width, any_colorspace=any_colorspace)
    return image


def salt_for(dataset: Dataset, out: Store) -> str:
    """Returns the salt for the lines of forgotten images: a dataset and its versions have one."""
    finished = dataset_store.committed_dataset(out, out.list_folder())
    for known in filter(None, (dataset, finished)):
        for line in dataset_store.incidents(known.store, known.manifest):
            if line.salt:
                return line.salt
    if out.size(_SALT) is not None:
        return read_note(out, _SALT, str)
    return secrets.token_hex(SALT_BYTES)


def refuse(dataset: Dataset, out: Store) -> None:
    """Raises an error before anything is written if the dataset cannot be amended into `out`."""
    folder = dataset.store.as_folder
    where = dataset.where
    if (folder is None) != (out.as_folder is None):
        kind = "a prefix on the same server" if folder is None else "a local folder"
        raise UsageError(
            f"--out {out.where()}: the result must be on the same storage as {where}. Choose "
            f"{kind}. Afterwards, `imagenet-prep replicate` copies the new dataset to other "
            "locations."
        )
    refuse_inside(out.where(), dataset)
    dataset.require_samples()
    lost = dataset.missing_files()
    if lost:
        raise errors.DataDamagedError(
            f"{where}: {counted(len(lost), 'file')} missing or of a different size than in the "
            f"manifest: {some(lost)}. Nothing was written. Run imagenet-prep verify "
            f"{shlex.quote(where)}"
        )


def _require_change(job: AmendJob) -> None:
    """Raises UsageError if the command would change no image."""
    if job.add and not (job.add.all_members or job.request.lists):
        raise UsageError(
            f"--add: no new image, so nothing was written. {'; '.join(sentences(job.add.counts))}."
        )
    relabel = job.request.relabel
    if relabel is None or relabel.listed.allows_unknown or job.request.splits is not None:
        return  # with --splits, all lines may be for other splits
    if not job.changes:
        raise UsageError(
            f"{relabel.listed.path}: every image that it lists already has this class in "
            f"{job.dataset.where}, so nothing was written."
        )


def preview(job: AmendJob, store: Store) -> Json:
    """Returns the changes that a run would make."""
    Output(store, job.wanted).older_files(job.manifest.shard_names)
    return {"amended": {**_summary(job), "emptied": {}, "columns": {}}}


def run(job: AmendJob, store: Store) -> Json:
    """Makes the amended dataset, or finishes an unfinished one, and returns the summary."""
    if job.request.add:
        source = job.request.add.source
        refuse_source_as_output(store.where(), str(source.root), source)
    _require_change(job)
    output = Output(store, job.wanted)
    columns_of_run: dict[str, Json] = {}
    _ = job.columns  # report a damaged column before anything is written
    if output.left():
        with store.lock():
            # A run that held the lock may have finished the dataset.
            unfinished = output.left()
            if unfinished:
                stage = _stage(job, output)
                finished = stage.receipts(change.name for change in job.changes)
                _require_space(job, store, [c for c in job.changes if c.name not in finished])
                if job.request.salt:
                    # A repeated run needs the same salt.
                    store.write(_SALT, strict_json.dumps(job.request.salt))
                output.begin(unfinished, job.manifest.shard_names)
                columns_of_run = _write(job, stage, output)
                store.remove(_SALT)
    summary = output.end()
    amended = Dataset.at(store)
    changes = _summary(job)
    if job.add:
        quarantined = _num_quarantined(job.add, amended)
        changes["added"] -= quarantined
        changes["add"] |= {"stored": changes["added"], "quarantined": quarantined}
    emptied_classes = _emptied_classes(job.dataset, amended)
    return {
        **summary,
        "amended": {**changes, "emptied": emptied_classes, "columns": columns_of_run},
    }


def _summary(job: AmendJob) -> Json:
    """Returns the counts of the changes, as printed by --json."""
    changes = job.changes
    counts: Json = {
        "parent": job.manifest.digest,
        "excluded": sum(len(change.excluded) for change in changes),
        "relabelled": sum(len(change.relabelled) for change in changes),
        "added": sum(len(change.added) for change in changes),
        "shards": len(changes),
        "of_shards": len(job.manifest.shard_names),
        "bytes": sum(change.shard.num_bytes for change in changes),
        "columns_left_behind": job.columns[1],
    }
    if job.add:
        counts["add"] = job.add.counts
    return counts


def _num_quarantined(add: Additions, amended: Dataset) -> int:
    """Returns the number of new images that are quarantined."""
    new = {(member.archive, member.size) for member in add.all_members}
    lines = dataset_store.incidents(amended.store, amended.manifest)
    return sum(line.action == QUARANTINED and (line.archive, line.size) in new for line in lines)


def _emptied_classes(parent: Dataset, amended: Dataset) -> dict[str, str]:
    """Returns, by split, the classes of which no image remains."""
    names = {}
    for name, split in amended.manifest.splits.items():
        before = parent.manifest.splits[name]
        indices = emptied(before.examples_per_class, split.examples_per_class)
        if indices:
            names[name] = some([parent.classes.wnids[index] for index in indices])
    return names


def _write(
    job: AmendJob, stage: engine.Stage[ShardChange, WrittenShard], output: Output
) -> dict[str, Json]:
    """Writes changed shards, links or copies the others, commits; returns row counts by column."""
    store = output.store
    parent = job.dataset.store
    # Read before anything is written: a file that is replaced later is not linked.
    stats = _stats(parent)
    receipts = engine.run(stage, job.changes, job.workers, watch=output.watch, quiet=job.quiet)
    written = {receipt.content.shard: receipt.content for receipt in receipts}
    unchanged = [shard.files for shard in job.manifest.shards if shard.name not in written]
    try:
        store.adopt_files(parent, [*chain.from_iterable(unchanged)], stats)
    except errors.IncompleteError:
        # A replaced parent is the likely cause, and its message is clearer.
        _require_same_parent(job)
        raise
    _require_same_parent(job)
    return _commit(job, output, written)


def _stats(parent: Readable) -> dict[str, Stat]:
    """Returns the state of each file of a dataset in a folder; {} for a bucket."""
    stats: dict[str, Stat] = {}
    if parent.as_folder:
        for folder in ("", *schema.BESIDE):
            for name, stat in parent.as_folder.stats(folder).items():
                stats[f"{folder}/{name}".lstrip("/")] = stat
    return stats


def _stage(job: AmendJob, output: Output) -> engine.Stage[ShardChange, WrittenShard]:
    """Returns the stage that writes the changed shards."""
    add = job.add
    writes = {
        split: WriteWork(
            store=output.store,
            transform=job.transform_of(split) if add else keep,
            classes=job.dataset.classes,
            label_offset=job.manifest.label_offset,
            fail_on_bad_image=False,
        )
        for split in job.manifest.splits
    }
    work = AmendWork(
        job.dataset,
        job.seed,
        writes,
        images=add.source.images if add else None,
        sha256=add.sha256 if add else {},
    )
    digest = strict_json.digest(job.wanted.settings.config)
    return engine.Stage(AMEND, digest, output.store, work, WrittenShard)


def _require_space(job: AmendJob, out: Store, changes: Sequence[ShardChange]) -> None:
    """Raises StoreError if the changed shards do not fit on the disk.

    Only images with a known size are counted, so that no run that fits is refused: not those that
    are resized.
    """
    added = sum(member.size for change in changes for member in change.added)
    most = added + sum(change.shard.num_bytes for change in changes)
    # Do not read the tables of samples if even the shards as they are would fit.
    if out.as_folder is None or out.as_folder.free_bytes() >= most:
        return
    needed = 0
    for change in changes:
        (rows,) = job.dataset.rows([change.shard])
        needed += sum(row.num_bytes for row in rows if row.key not in change.excluded)
        if job.keeps_images(split_of(change.name)):
            needed += sum(member.size for member in change.added)
    why = f" for {counted(len(changes), 'changed shard')}"
    require_space(out, needed, why, "or choose an --out on a larger disk")


def _require_same_parent(job: AmendJob) -> None:
    now = open_dataset(job.dataset.store, check=False).manifest.digest
    if now != job.manifest.digest:
        raise UsageError(
            f"{job.dataset.where}: the dataset was replaced while amend read it: digest "
            f"{now[:16]}, expected {job.manifest.digest[:16]}. Choose an empty --out and run the "
            "same command again."
        )


def _commit(job: AmendJob, output: Output, written: Mapping[str, WrittenShard]) -> dict[str, Json]:
    """Copies the columns and publishes the manifest; returns row counts by column."""
    parent = job.manifest
    splits = {}
    for name, split in parent.splits.items():
        shards = [written[s.name].entry if s.name in written else s for s in split.shards]
        splits[name] = _split_of(output.store, shards, parent.classes.count)
    row_counts = {
        column.name: Carrier(job.dataset, output.store, column).carry(splits)
        for column in job.columns[0]
    }
    new = [*chain.from_iterable(shard.incidents for shard in written.values())]
    sources = [*parent.sources]
    if job.request.salt:
        named = {keys.with_split(*image) for image in _excluded(job) | job.request.forgotten}
        sources = [source.without(named) for source in sources]
    if job.add and (job.add.all_members or job.add.excluded):
        new += job.add.excluded
        sources.append(job.add.as_source(sources))
    shards = [*chain.from_iterable(split.shards for split in splits.values())]
    draft = Draft(
        splits=splits,
        classes=job.dataset.classes,
        incidents=[*_kept_incidents(job), *new],
        sources=sources,
        lacks=parent.lacks,
        plan_digest=strict_json.digest([shard.sha256 for shard in shards]),
        parent=parent,
    )
    output.commit(draft)
    return row_counts


def _excluded(job: AmendJob) -> set[tuple[str, str]]:
    """Returns split and key of the stored images that the run excludes."""
    excluded: set[tuple[str, str]] = set()
    for change in job.changes:
        split = split_of(change.name)
        excluded.update((split, key) for key in change.excluded)
    return excluded


def _kept_incidents(job: AmendJob) -> Iterator[Incident]:
    """Yields the lines of the parent that the amended dataset keeps."""
    excluded = _excluded(job)
    salt = job.request.salt
    forgotten = excluded | job.request.forgotten if salt else set()
    # The split of a line of version 0.1.0 may be unknown.
    forgotten |= {("", key) for _, key in forgotten}
    class_of: dict[tuple[str, str], int] = {}
    for change in job.changes:
        split = split_of(change.name)
        for key, class_index in change.relabelled.items():
            class_of[split, key] = class_index
    replaced = job.add.replaced if job.add else ()
    for line in dataset_store.incidents(job.dataset.store, job.manifest):
        image = line.split, line.key
        # Other lines with this key are about images that are not stored.
        is_stored = line.action.endswith(REPAIRED)
        if line in replaced or (is_stored and image in excluded):
            continue
        if image in forgotten:
            line = line.forgotten(salt)
        elif is_stored and image in class_of:
            line = replace(line, class_index=class_of[image])
        yield line


def _split_of(store: Store, shards: list[Shard], num_classes: int) -> Split:
    """Returns the manifest's entry of a split, from the tables of its shards."""
    per_class: Counter[int] = Counter()
    resized = 0
    max_height = 0
    max_width = 0
    for row in chain.from_iterable(dataset_store.each_table(samples.parse, store, shards)):
        per_class[row.class_index] += 1
        # Compare sets: rotation swaps the sides of an image, but is no resize.
        resized += {row.height, row.width} != {row.source_height, row.source_width}
        max_height = max(max_height, row.height)
        max_width = max(max_width, row.width)
    return Split(
        examples=per_class.total(),
        num_bytes=sum(shard.num_bytes for shard in shards),
        examples_per_class=[per_class[index] for index in range(num_classes)],
        resized=resized,
        max_height=max_height,
        max_width=max_width,
        shards=shards,
        samples_root=samples_root(store, shards),
    )
