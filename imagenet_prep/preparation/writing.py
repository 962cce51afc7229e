"""The last step of prepare: writes the planned shards and commits the dataset, or previews both."""

from __future__ import annotations

import sys
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from imagenet_prep import engine
from imagenet_prep.codec.policy import CHECK_HEADER
from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import SourceError, some
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import printable, say
from imagenet_prep.dataset import formats, schema
from imagenet_prep.dataset.manifest import ManifestSource
from imagenet_prep.dataset.member import QUARANTINED, Incident, Member, parse_members
from imagenet_prep.engine import SharedRun, Stage
from imagenet_prep.engine.stage import end_jobs
from imagenet_prep.preparation.job import PrepareJob
from imagenet_prep.preparation.output import Draft, Output
from imagenet_prep.preparation.planning import Inventory, take_inventory
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.preparation.space import Forecast
from imagenet_prep.preparation.tasks import (
    HashedArchive,
    HashTask,
    ShardTask,
    WriteWork,
    excluded_incident,
    hash_archive,
    hash_of,
    plan_name,
)
from imagenet_prep.shards.commit import emptied, split_of
from imagenet_prep.shards.plan import MOST_BYTES
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.sources.folder import FolderSource
from imagenet_prep.sources.ilsvrc import Tars
from imagenet_prep.sources.labels import COUNTS, EDITION, Statement
from imagenet_prep.sources.scan import read_errors
from imagenet_prep.sources.source import MemberReader
from imagenet_prep.storage import scratch
from imagenet_prep.storage.archive import ArchiveReader, RemoteArchives, open_archives
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import is_newer, stamp
from imagenet_prep.storage.store import Store

Content = WrittenShard | HashedArchive
WriteStage = Stage[HashTask | ShardTask, Content]


@dataclass(frozen=True)
class PrepareWork:
    """Writes a shard from its plan file, or computes the md5 of an archive; picklable."""

    write: WriteWork
    images: MemberReader
    plans: Store
    folder: str
    archives: ArchiveReader | RemoteArchives
    expected_md5: Mapping[str, str]

    def __call__(self, task: HashTask | ShardTask) -> engine.Result[Content]:
        """Returns the receipt content and, for a shard, its files."""
        if isinstance(task, ShardTask):
            return self.write(task.name, self._planned(task.name))
        result = hash_archive(task, archives=self.archives)
        _refuse_other({task.archive: result.content.md5}, self.expected_md5)
        return result

    def _planned(self, shard: str) -> Iterator[tuple[Member, bytes]]:
        name = plan_name(shard, self.folder)
        members = parse_members(self.plans.read(name, most=MOST_BYTES))
        # Records are in hash order, but disks are fast in offset order. Therefore, all ranges are
        # announced to the kernel or the remote reader first.
        self.images.will_need(members)
        for member in members:
            yield member, self.images.read(member)


def _refuse_other(actual: Mapping[str, str], expected: Mapping[str, str]) -> None:
    for archive, md5 in actual.items():
        if md5 != expected.get(archive, md5):
            raise SourceError(
                f"{archive}: md5 {md5}, expected {expected[archive]}. The archive is damaged: "
                "download it again. If it was repacked on purpose, accept it with --allow-subset, "
                "which marks the dataset as a subset."
            )


def write(
    job: PrepareJob,
    inventory: Inventory,
    forecast: Forecast,
    output: Output,
    shared: SharedRun | None = None,
) -> None:
    """Writes the missing shards and commits the dataset."""
    announce_proven(job)
    plans = output.store if shared else output.store.local
    stage = write_stage(job, inventory, output.store, plans)
    begin(stage, inventory, forecast, output)
    tasks = write_tasks(job, inventory)
    images = inventory.examples
    receipts = engine.run(
        stage,
        tasks,
        job.workers,
        images=images,
        watch=output.watch,
        quiet=job.quiet,
        shared=shared,
    )
    contents = [receipt.content for receipt in receipts]

    def publish() -> bool:
        commit(job, inventory, output, contents, plans)
        return True

    if shared:
        shared.once("commit", lambda: None if output.left() else True, publish)
    else:
        # A killed run may have left a job on a different host, even if all its tasks are finished.
        end_jobs(output.store)
        publish()


def begin(stage: WriteStage, inventory: Inventory, forecast: Forecast, output: Output) -> None:
    """Claims the output for this run if the missing shards fit on the disk."""
    forecast.require_space_for_shards(inventory.plans, stage.receipts(inventory.shard_names))
    output.begin([split.split for split in inventory.plans], inventory.shard_names)
    output.forget_others(stage)


def write_tasks(job: PrepareJob, inventory: Inventory) -> list[HashTask | ShardTask]:
    """Returns the tasks of the write stage, longest first; --check header skips all HashTasks."""
    shards = [ShardTask(name) for name in inventory.shard_names]
    if job.policy.check == CHECK_HEADER:
        return [*shards]
    _refuse_other(inventory.md5, job.expected_md5)
    known = job.proven_md5.keys() | inventory.md5.keys()
    files = [part for part in job.selection.parts if part.path and part.name not in known]
    largest_first = sorted(files, key=lambda part: -part.num_bytes)
    return [*(HashTask(part.name) for part in largest_first), *shards]


def announce_proven(job: PrepareJob) -> None:
    """Prints the archives that are already verified; raises SourceError if one is not official."""
    _refuse_other(job.proven_md5, job.expected_md5)
    if job.proven_md5 and not job.quiet:
        names = ", ".join(job.proven_md5)
        print(
            f"md5 of {names}: verified by imagenet-prep download; not computed again, since the "
            "files have not changed (--rehash computes it again)",
            file=sys.stderr,
        )


def write_stage(job: PrepareJob, inventory: Inventory, store: Store, plans: Store) -> WriteStage:
    """Returns the stage that writes shards from the plan files in `plans` and hashes archives."""
    selection, wanted = job.selection, job.wanted
    classes = selection.source.classes
    archives = {part.name: part.path for part in selection.parts if part.path is not None}
    work = PrepareWork(
        WriteWork(store, job.transform, classes, wanted.label_offset, job.fail_on_bad_image),
        selection.images(store.local),
        plans,
        inventory.folder,
        open_archives(archives),
        job.expected_md5,
    )
    digest = strict_json.digest(
        [
            wanted.settings.config,
            wanted.libraries,
            [split.digest for split in inventory.plans],
            classes.render().decode(),
            # A changed source file invalidates the shards made from it.
            selection.identity,
        ]
    )
    return Stage("write", digest, store, work, WrittenShard | HashedArchive)


def _require_unchanged(selection: Selection) -> None:
    """Raises SourceError if an archive has changed; files in folders are checked when read."""
    parts = {part.path: part.newest for part in selection.parts}
    source = selection.source
    # All tars in a folder are one part.
    others = source.archives.values() if isinstance(source, Tars) else ()
    newest = max(parts.values())
    for path in (*parts, *others):
        if not isinstance(path, Path):
            continue
        with read_errors(path):
            status = path.stat()
        # On some file systems only the mtime changes, and a copy may set it to an earlier time.
        is_older = stamp(status) < parts.get(path, 0)
        if is_newer(status, parts.get(path, newest)) or (is_older and status.st_nlink < 2):
            raise SourceError(
                f"{path}: changed while it was read. Do not change the source during a run, and "
                "run the same command again."
            )


def _require_all(job: PrepareJob, inventory: Inventory, shards: Collection[WrittenShard]) -> None:
    selection = job.selection
    incidents = chain.from_iterable(shard.incidents for shard in shards)
    bad = sum(incident.action == QUARANTINED for incident in incidents)
    stored = sum(shard.examples for shard in shards)
    planned = inventory.examples
    listed = planned
    excluded = sum(inventory.excluded.values())
    # A folder is listed when the source is detected and again when it is read.
    if isinstance(selection.source, FolderSource) and not selection.is_part:
        listed = sum(part.images for part in selection.source.parts) - excluded
    if not stored + bad == planned == listed:
        raise SourceError(
            f"{selection.where}: has changed: {listed + excluded:,} images were in the source, "
            f"{excluded:,} were excluded, {planned:,} were planned, {stored:,} are stored and "
            f"{bad:,} are bad. Do not change the source during a run, and run the same command "
            "again."
        )


def commit(
    job: PrepareJob, inventory: Inventory, output: Output, contents: Sequence[Content], plans: Store
) -> None:
    """Publishes the manifest from the receipts of all tasks; `plans` has the plan files."""
    read = {file.archive: file.md5 for file in contents if isinstance(file, HashedArchive)}
    md5 = {**job.proven_md5, **inventory.md5, **read}
    shards = {shard.shard: shard for shard in contents if isinstance(shard, WrittenShard)}
    _require_all(job, inventory, shards.values())
    _require_unchanged(job.selection)
    evaluation = job.selection.source.evaluation
    draft = Draft(
        splits={
            split.split: split_of([shards[n] for n in split.shard_names], split.num_per_class)
            for split in inventory.plans
        },
        classes=job.selection.source.classes,
        incidents=[
            *chain.from_iterable(shard.incidents for shard in shards.values()),
            *_excluded(job, inventory, plans, output.store.local),
        ],
        sources=[
            ManifestSource(
                part.name,
                part.num_bytes,
                md5.get(part.name),
                inventory.taken.get(part.name, 0),
                dict(part.ignored),
            )
            for part in job.selection.parts
        ],
        plan_digest=strict_json.digest([split.digest for split in inventory.plans]),
        edition=inventory.edition,
        answers=evaluation.answers if evaluation else {},
    )
    for split in inventory.plans:
        lost = emptied(split.num_per_class, draft.splits[split.split].examples_per_class)
        if lost:
            names = printable(some([draft.classes.wnids[index] for index in lost]))
            say(f"{split.split}: all images of {names} were quarantined, see {schema.QUARANTINE}")
    output.commit(draft)


def _excluded(
    job: PrepareJob, inventory: Inventory, plans: Store, unpacked: LocalStore
) -> Iterator[Incident]:
    """Yields the incidents of the excluded images, with the hashes of their files."""
    images = job.selection.images(unpacked)
    exclusions = job.selection.exclusions
    for split, members in inventory.excluded_members(plans):
        images.will_need(members)
        for member in members:
            sha256 = hash_of(member, images)
            salt = ""
            if exclusions:
                file = exclusions.listed.find(split, sha256)
                salt = file.salt if file else exclusions.salt_of(split, member.key)
            yield excluded_incident(member, split, sha256, salt=salt)


def _evidence(selection: Selection, inventory: Inventory) -> Iterator[Statement]:
    """Yields the statements of the source, and the edition and counts found from them."""
    source = selection.source
    yield from source.evidence
    edition = inventory.edition or (source.edition.name if source.edition else "none")
    yield Statement(EDITION, "", edition)
    if source.edition is None or inventory.edition or selection.is_part:
        return
    for split in inventory.plans:
        if split.split in source.edition.examples:
            problems = source.count_problems(split.split, split.num_per_class)
            yield Statement(COUNTS + split.split, "", "; ".join(problems) or "as published")


def preview(job: PrepareJob, output: Output) -> Json:
    """Plans and checks a run, and writes nothing; adds to the result of `Forecast.content`."""
    pending = output.left()
    store = output.store
    with scratch.temporary_folder() as folder:
        plans = LocalStore(folder)
        inventory = take_inventory(job.selection, plans, job.workers, quiet=True, unpack=False)
        finished: Container[str] = inventory.shard_names
        if pending:
            output.older_files(inventory.shard_names)
            finished = write_stage(job, inventory, store, plans).receipts(inventory.shard_names)
        return {
            **job.forecast(store, plans).content(inventory.plans, finished),
            "ignored": formats.together(dict(part.ignored) for part in job.selection.parts),
            "evidence": [s._asdict() for s in _evidence(job.selection, inventory)],
            "left": pending,
        }
