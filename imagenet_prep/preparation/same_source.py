"""Checks whether a finished dataset still matches its source.

If the last run noted the same source files, nothing is read. Otherwise keys, classes and sizes of
all images are compared with the tables of samples. If they are equal, the bytes are compared:
archives by the md5 in the manifest, files in folders by the sha256 in the table. Files in folders
that have not changed since the note was written are skipped.
"""

from __future__ import annotations

import hashlib
import itertools
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from imagenet_prep import engine
from imagenet_prep.codec.policy import CHECK_HEADER
from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import BadImageError, SourceError, UsageError, some
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.manifest import Manifest, Shard
from imagenet_prep.dataset.member import QUARANTINED, Member, parse_members
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.preparation.job import PrepareJob
from imagenet_prep.preparation.output import Output
from imagenet_prep.preparation.planning import take_inventory
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.preparation.tasks import HashedArchive, HashTask, hash_archive, plan_name
from imagenet_prep.shards import plan
from imagenet_prep.shards.sorted_tables import SortedRuns, side_by_side
from imagenet_prep.sources import shard_files
from imagenet_prep.sources.folder import FolderSource
from imagenet_prep.sources.image_table import ImageTable
from imagenet_prep.sources.scan import read_errors
from imagenet_prep.sources.shard_files import ShardFile, TfrecordSet
from imagenet_prep.sources.source import MemberReader
from imagenet_prep.storage import dataset_store, scratch
from imagenet_prep.storage.archive import open_archives
from imagenet_prep.storage.dataset_store import Dataset, missing_files
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import hashed, stamp
from imagenet_prep.storage.store import Store

_ADVICE = "Choose a different folder"
# Kinds of differences.
_ADDED = "added"
_REMOVED = "removed"
_OTHER = "other"
_RESIZED = "with a different class or size"
_ALTERED = "with changed bytes"
# Key, class index and size in bytes of a source image.
_Facts = tuple[str, int, int]
# Returns whether the bytes of an image (a member or sample) differ from its row of the table. For
# an image without a row, returns whether the bytes have changed since it was quarantined.
_Differs = Callable[[Any, Sample | None], bool]


def require_same_source(job: PrepareJob, output: Output, *, note: bool = True) -> None:
    """Raises UsageError with the differences if the source of `prepare` has changed.

    If the source has not changed and `note` is set, a note is written, so that the next run skips
    the comparison.
    """
    manifest, newest = output.seen.committed, output.seen.noted.newest
    if manifest is None or not output.is_doubted:
        return
    with scratch.temporary_folder() as folder:
        plans = LocalStore(folder)
        source = job.selection.source
        answers = source.evaluation.answers if source.evaluation else {}
        changes = _other_classes(manifest, source.classes, answers)
        listed = _is_listed(output.store, manifest)
        known = source.classes
        if manifest.classes.digest != known.digest:
            known = Dataset.at(output.store).labels
        new = [wnid for wnid in source.classes.wnids if wnid not in known.index]
        # New classes have numbers that no class of the dataset has.
        numbers = [known.index.get(wnid, ~n) for n, wnid in enumerate(source.classes.wnids)]
        kinds = set()
        try:
            images = _other_images(job, output.store, manifest, plans, newest, listed, numbers)
            for kind, words in images:
                changes.append(words)
                kinds.add(kind)
        except (SourceError, UsageError) as error:
            changes.append(str(error))
        changes = changes or [*_other_files(job, manifest, plans, newest, listed=listed)]
    advice = _advice(output.store.where(), job.selection, kinds, new)
    _settle(output, changes, advice, note=note)


def _advice(dataset: str, selection: Selection, kinds: Collection[str], new: Sequence[str]) -> str:
    """Returns what to do about a source with these kinds of differences and these new classes."""
    if not isinstance(selection.source, FolderSource):
        return _ADVICE
    if new:
        again = shlex.join(["imagenet-prep", "prepare", selection.where, "NEW"])
        return (
            f"amend cannot add or rename classes (new: {some(new)}). If class folders were only "
            "renamed, give them their former names. Otherwise, make a new dataset of all images: "
            f"run {again} with the flags of this dataset, with its quarantine.jsonl as --exclude, "
            "and with --allow-unknown"
        )
    command = f"imagenet-prep amend {shlex.quote(dataset)}"
    ways = []
    if _ADDED in kinds and isinstance(selection.source, ImageTable):
        ways.append(
            "To add only the new images, copy them to DIR/CLASS/ in a new folder DIR, and run "
            f"{command} --add DIR --out NEW. "
        )
    elif _ADDED in kinds:
        add = shlex.join(["--add", selection.where])
        ways.append(f"To add only the new images, run {command} {add} --out NEW. ")
    if _REMOVED in kinds:
        ways.append(
            f"To remove images, list their keys in a file, and run {command} --exclude FILE --out "
            "NEW. "
        )
    if {_ADDED, _REMOVED} <= {*kinds}:
        ways.append(
            "If images only moved to a different class, leave the dataset as it is, and run "
            f"{command} --relabel FILE --out NEW. "
        )
    if {_RESIZED, _ALTERED} & {*kinds}:
        ways.append(
            "To replace edited images, list their keys in a file, copy the images to DIR/CLASS/ in "
            f"a new folder DIR, and run {command} --exclude FILE --out NEW, and then imagenet-prep "
            "amend NEW --add DIR --readmit --out NEWER. "
        )
    if not ways:
        return _ADVICE
    return f"{''.join(ways)}To make the dataset again, choose a different folder"


def require_same_shards(
    source: TfrecordSet,
    splits: Iterable[str],
    excluded: Mapping[str, Collection[str]],
    output: Output,
    *,
    note: bool,
    quiet: bool,
) -> None:
    """Raises UsageError with the differences if shards that `resize` read have changed.

    `splits` are the finished splits, and `excluded` has the excluded keys by shard. With --force,
    changed splits are added to `output.changed` instead. `note` records that there is no change.
    """
    manifest = output.seen.committed
    changes = defaultdict[str, list[str]](list)
    if manifest is None or not output.is_doubted:
        return

    def differs(sample: Sample, row: Sample | None) -> bool:
        return row is not None and sample.sha256 != row.source_sha256

    splits = [*splits]
    labelling = shard_files.known_labelling(source) if splits else None
    answers = source.manifest.answers if source.manifest else {}
    for split in splits:
        if labelling:
            changes[split] += _other_classes(manifest, labelling.classes, answers)
        if source.manifest and source.manifest.has_samples:
            images = [
                partial(_kept, source.store, shard, excluded.get(shard.name, ()))
                for shard in source.manifest.splits[split].shards
            ]
            found = _differences(output.store, manifest, [split], images, differs)
            changes[split] += [words for _, words in found]
        if changes[split]:
            continue
        # Tables have neither bounding boxes nor the words of classes, but shards do.
        work = partial(_hash_shard, store=source.store)
        with scratch.temporary_folder() as folder:
            stage = engine.Stage("md5", manifest.digest, LocalStore(folder), work, HashedArchive)
            changes[split] += _other_md5s(manifest, stage, source.splits[split], quiet=quiet)
    if output.wanted.force and any(changes.values()):
        output.changed.update(split for split in changes if changes[split])
    else:
        _settle(output, [*itertools.chain.from_iterable(changes.values())], note=note)


def _settle(output: Output, changes: Sequence[str], advice: str = _ADVICE, *, note: bool) -> None:
    if changes:
        force = "" if output.wanted.force is None else ", or replace the dataset with --force"
        raise UsageError(
            f"{output.store.where()}: the source has changed since this dataset was made from it: "
            f"{'; '.join(changes)}. {advice}{force}."
        )
    if note:
        output.note_source()


def _other_classes(
    manifest: Manifest, classes: ClassList, answers: Mapping[str, Sequence[str]]
) -> list[str]:
    """Returns a description of the change if the labels of images have a different meaning."""
    sha256 = hashlib.sha256(classes.render()).hexdigest()
    is_same = all(file.sha256 == sha256 for file in manifest.files if file.name == schema.LABELS)
    if is_same and answers == manifest.answers:
        return []
    change = (
        "the classes have different names, words, positions or answers (if the dataset was made "
        "with --classes-of, use the flag again)"
    )
    return [change]


def _is_listed(store: Store, manifest: Manifest) -> bool:
    files = [*manifest.files, *filter(None, (shard.samples for shard in manifest.shards))]
    return manifest.has_samples and not missing_files(store, files)


def _other_images(
    job: PrepareJob,
    store: Store,
    manifest: Manifest,
    plans: LocalStore,
    newest: int,
    listed: bool,
    numbers: Sequence[int],
) -> Iterator[tuple[str, str]]:
    """Yields the kind and the description of each difference between the images.

    `numbers` has the dataset's class index for each class of the source.
    """
    if not listed:
        return
    selection = job.selection
    workers = engine.Workers(job.workers.num)
    reads = job.policy.check != CHECK_HEADER and any(not p.path for p in selection.source.parts)
    inventory = take_inventory(selection, plans, workers, quiet=job.quiet, unpack=reads)
    differs = None
    if reads:
        differs = partial(_is_other_file, job=job, images=selection.images(plans), newest=newest)
    removed = _quarantined(store, manifest)

    def planned(shard: str) -> Iterator[tuple[_Facts, Member]]:
        for member in parse_members(plans.read(plan_name(shard), most=plan.MOST_BYTES)):
            facts = member.key, numbers[member.class_index], member.size
            removed.discard(facts)
            yield facts, member

    parts: dict[str, list[plan.SplitPlan]] = {}
    for split in inventory.plans:
        parts.setdefault(manifest.settings.origin(split.split), []).append(split)
    # If the source has grown, images move between train and the holdout: compare both together.
    has_changed = False
    for of_source in parts.values():
        names = itertools.chain.from_iterable(split.shard_names for split in of_source)
        images = [partial(planned, name) for name in names]
        splits = [split.split for split in of_source]
        for change in _differences(store, manifest, splits, images, differs):
            has_changed = True
            yield change
    if removed:
        has_changed = True
        keys = some(sorted(key for key, _, _ in removed))
        yield _REMOVED, f"{counted(len(removed), 'quarantined image')} removed ({keys})"
    digest = strict_json.digest([split.digest for split in inventory.plans])
    if selection.annotations and digest != manifest.plan_digest and not has_changed:
        yield _OTHER, "the bounding boxes, or the paths of images, have changed"


def _quarantined(store: Store, manifest: Manifest) -> set[_Facts]:
    lines = dataset_store.incidents(store, manifest)
    return {(i.key, i.class_index, i.size) for i in lines if i.action == QUARANTINED}


def _kept(store: Store, shard: Shard, excluded: Collection[str]) -> Iterator[tuple[_Facts, Sample]]:
    for sample in dataset_store.sample_rows(store, shard):
        if sample.key not in excluded:
            yield (sample.key, sample.class_index, sample.num_bytes), sample


def _is_other_file(
    member: Member, row: Sample | None, *, job: PrepareJob, images: MemberReader, newest: int
) -> bool:
    """Returns whether an image has changed since it was written to the dataset or quarantined."""
    source = job.selection.source
    if isinstance(source, FolderSource):
        path = source.root / member.archive
        with read_errors(path):
            if stamp(path.stat()) <= newest:
                return False
    data = images.read(member)
    if row is not None:
        return hashlib.sha256(data).hexdigest() != row.source_sha256
    try:
        job.transform(data)
    except BadImageError:
        return False
    return True


def _differences(
    store: Store,
    manifest: Manifest,
    splits: Sequence[str],
    images: Sequence[Callable[[], Iterable[tuple[_Facts, Any]]]],
    differs: _Differs | None,
) -> Iterator[tuple[str, str]]:
    """Yields differences between finished splits and the images now planned for their shards.

    Each has its kind, and is described in words.
    """
    listed = (manifest.splits[split].shards for split in splits if split in manifest.splits)
    shards = itertools.chain.from_iterable(listed)
    where = " and ".join(splits)
    bad = _quarantined(store, manifest)
    altered: list[str] = []
    with scratch.temporary_folder() as folder:
        old_runs = SortedRuns(folder / "old")
        new_runs = SortedRuns(folder / "new")
        for shard, planned_images in itertools.zip_longest(shards, images):
            rows = [*dataset_store.sample_rows(store, shard)] if shard else []
            planned = [*planned_images()] if planned_images else []
            altered_keys = _altered(rows, planned, bad, differs)
            if altered_keys is not None:
                altered += altered_keys
                continue
            was = ((row.key, row.class_index, row.source_bytes) for row in rows)
            now = (facts for facts, _ in planned if facts not in bad)
            old_runs.write(map(_entry, was))
            new_runs.write(map(_entry, now))
        kinds = _unequal(old_runs, new_runs)
    for kind, keys in {**kinds, _ALTERED: altered}.items():
        if keys:
            words = f"{where}: {counted(len(keys), 'image')} {kind} ({some(sorted(keys))})"
            yield kind, words
    if (old_runs.keys or new_runs.keys) and not any(kinds.values()):
        yield "", f"{where}: images now belong to different shards"


def _entry(facts: _Facts) -> bytes:
    key, class_index, num_bytes = facts
    return b"%b\0%d,%d\n" % (key.encode(), class_index, num_bytes)


def _unequal(old_runs: SortedRuns, new_runs: SortedRuns) -> dict[str, list[str]]:
    """Returns the keys of the images that are only in old or new runs, or changed, by kind."""
    removed: list[bytes] = []
    added: list[bytes] = []
    other: list[bytes] = []
    for old_entries, new_entries in side_by_side([old_runs, new_runs]):
        old = dict(entry.split(b"\0") for entry in old_entries)
        new = dict(entry.split(b"\0") for entry in new_entries)
        removed += old.keys() - new.keys()
        added += new.keys() - old.keys()
        other += (key for key in old.keys() & new.keys() if old[key] != new[key])
    kinds = {_REMOVED: removed, _ADDED: added, _RESIZED: other}
    return {kind: [key.decode() for key in keys] for kind, keys in kinds.items()}


def _altered(
    rows: Iterable[Sample],
    images: Iterable[tuple[_Facts, Any]],
    bad: set[_Facts],
    differs: _Differs | None,
) -> list[str] | None:
    """Returns the keys of images with changed bytes; None if keys, classes or sizes differ."""
    remaining = iter(rows)
    altered = []
    row = next(remaining, None)
    for facts, image in images:
        is_row = row is not None and facts == (row.key, row.class_index, row.source_bytes)
        if not is_row and facts not in bad:
            return None
        if differs and differs(image, row if is_row else None):
            altered.append(facts[0])
        if is_row:
            row = next(remaining, None)
    return altered if row is None else None


def _other_files(
    job: PrepareJob, manifest: Manifest, work_store: LocalStore, newest: int, *, listed: bool
) -> Iterator[str]:
    before = {source.name: source for source in manifest.sources}
    archives = {}
    for part in job.selection.parts:
        if part.path is None and part in job.selection.source.parts and listed:
            continue  # the images of this folder are compared one by one
        was = before.get(part.name)
        if was is None or was.num_bytes != part.num_bytes:
            size = f"{was.num_bytes:,} bytes" if was else "absent"
            yield f"{part.name}: was {size}, now has {part.num_bytes:,} bytes"
        elif part.path and was.md5 and not 0 < part.newest <= newest:
            archives[part.name] = part.path
    if archives:
        work = partial(hash_archive, archives=open_archives(archives))
        stage = engine.Stage("md5", manifest.digest, work_store, work, HashedArchive)
        yield from _other_md5s(manifest, stage, [*map(HashTask, archives)], quiet=job.quiet)


def _hash_shard(shard: ShardFile, *, store: Store) -> engine.Result[HashedArchive]:
    md5 = hashlib.md5(usedforsecurity=False)
    with store.open_file(shard.path, shard.stat) as file:
        for _ in hashed(file, [md5]):
            pass
    return engine.Result(HashedArchive(shard.file, shard.num_bytes, md5.hexdigest()))


def _other_md5s(
    manifest: Manifest,
    stage: engine.Stage[Any, HashedArchive],
    tasks: Sequence[Any],
    *,
    quiet: bool,
) -> Iterator[str]:
    before = {source.name: source.md5 for source in manifest.sources}
    for receipt in engine.run(stage, tasks, engine.Workers(), quiet=quiet):
        archive = receipt.content
        md5 = before.get(archive.archive)
        if archive.md5 != md5:
            yield f"{archive.archive}: had md5 {md5}, has {archive.md5}"
