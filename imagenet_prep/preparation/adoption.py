"""Turns an existing set of shards into a dataset, in place or as hard links or copies.

The list of renames is stored before the first rename, so that the next run after a kill can finish
them.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from imagenet_prep import engine
from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError, UsageError, some
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema, tfds
from imagenet_prep.dataset.manifest import DatasetFile, Manifest
from imagenet_prep.dataset.settings import ADOPT, DatasetSettings
from imagenet_prep.preparation import existing_set
from imagenet_prep.preparation.existing_set import ExistingSet, check_existing_set
from imagenet_prep.preparation.output import Draft, Output, incidents_of_input
from imagenet_prep.preparation.output_state import BEGUN, Adoption, Begun, WantedDataset
from imagenet_prep.shards.commit import small_files, split_of, with_root
from imagenet_prep.sources import shard_files
from imagenet_prep.sources.shard_files import ShardFile, TfrecordSet
from imagenet_prep.storage import local_file
from imagenet_prep.storage.dataset_store import unrelated_names
from imagenet_prep.storage.folder import LocalStore, hard_link
from imagenet_prep.storage.local_file import LargeFile, removed_on_failure, storage_errors
from imagenet_prep.storage.remote import hashed
from imagenet_prep.storage.store import Store, damaged_note, read_note

# Version 0.1.0 stored its `Adoption` here.
_BEGUN_BEFORE = f"{schema.WORK}/adopt.json"
_SMALL_FILES = (schema.LABELS, schema.QUARANTINE, *schema.TFDS_FILES)


@dataclass(frozen=True)
class _Brought:
    """The empty content of a shard's receipt; the outputs of the receipt name the file."""


def finish_renames(store: LocalStore) -> None:
    """Finishes the renames that a killed run of adopt left unfinished in this folder."""
    _, begun = _begun(store)
    if begun is not None:
        with store.lock():
            _rename(store, begun.renames)


def complete(
    store: Store,
    source: TfrecordSet,
    checked: ExistingSet,
    workers: engine.Workers,
    *,
    in_place: bool,
    quiet: bool,
) -> None:
    """Renames, links or copies the shards, adds the missing files, and commits the dataset.

    The caller must lock the store. If `in_place`, the shards are already in the store.
    """
    adoption = Adoption(moves(source) if in_place else [], _shards(checked))
    if not is_begun(store, source, checked, in_place=in_place):
        wanted = _wanted(checked)
        begun_here = Begun(wanted.settings.config, wanted.libraries, adoption)
        store.write(BEGUN, strict_json.dumps(begun_here))
    if in_place:
        _rename(store.local, moves(source))
    else:
        shards = itertools.chain.from_iterable(source.splits[split] for split in checked.shards)
        tasks = [
            shard._replace(listed=checked_shard.entry)
            for shard, checked_shard in zip(shards, checked.all_shards, strict=True)
        ]
        bring = partial(_bring, source=source.store, store=store)
        digest = strict_json.digest(adoption.shards)
        stage = engine.Stage(ADOPT, digest, store, bring, _Brought)
        engine.run(stage, tasks, workers, quiet=quiet)
    _publish(store, checked, with_index=True)
    _commit(store, source, checked)


def is_begun(store: Store, source: TfrecordSet, checked: ExistingSet, *, in_place: bool) -> bool:
    """Returns whether a killed run has started to adopt these shards into this store.

    Raises UsageError if the store contains anything else that `complete` would have to replace.
    """
    note, begun = _begun(store)
    if begun is None:
        _refuse_obstacles(store, source, checked, in_place=in_place)
    elif begun.shards != _shards(checked):
        written = f"everything in {store.where()}"
        if in_place:
            folders = (f"{folder}/" for folder in schema.BESIDE)
            written = f"{note} and adopt's files: {', '.join((*folders, *_SMALL_FILES))}"
        raise UsageError(
            f"{store.where()}: a different dataset was adopted here, or the shards were replaced "
            f"later. Choose an empty --out, or remove {written}; then run the same command again."
        )
    return begun is not None


def _shards(checked: ExistingSet) -> list[tuple[str, str]]:
    return [(shard.shard, shard.sha256) for shard in checked.all_shards]


def _files(checked: ExistingSet) -> dict[str, DatasetFile]:
    files = itertools.chain.from_iterable(shard.entry.files for shard in checked.all_shards)
    return {file.name: file for file in files}


def restore(
    store: Store, manifest: Manifest, lost: Sequence[str], workers: engine.Workers, *, quiet: bool
) -> None:
    """Re-creates `lost` files and missing samples tables; raises DataDamagedError if it cannot."""
    where = store.where()
    lost_shards = sorted({*lost} & {*manifest.shard_names})
    if lost_shards:
        raise DataDamagedError(
            f"{where}: {counted(len(lost_shards), 'shard')} missing or of a different size than in "
            f"the manifest: {some(lost_shards)}. Copy them from the original dataset, then run "
            "the same command again."
        )
    source = shard_files.find(store, check=schema.LABELS not in lost)
    if schema.LABELS in lost:
        # The classes are read from the records. Remove our own TFDS files first, since they would
        # be treated as files that TFDS wrote.
        lost = [*dict.fromkeys((*lost, *schema.TFDS_FILES))]
        store.remove(*schema.TFDS_FILES)
        source = replace(source, dataset=None)
    # Tables may be lost, so the keys are made from the records, as a previous `adopt` made them.
    checked = check_existing_set(source, store, workers, has_tables=False, quiet=quiet)
    if checked.problems:
        raise DataDamagedError(
            f"{where}: {counted(len(checked.problems), 'problem')}: {some(checked.problems)}. "
            "Nothing was changed. Run imagenet-prep verify to see how to fix them."
        )
    classes = checked.labelling.classes
    small = small_files(manifest, incidents=(), classes=classes, name=tfds.IMAGENET)
    files = _files(checked)
    expected = {file.name: file.sha256 for file in manifest.files_of(manifest.splits)}
    different = []
    for name in lost:
        content = small[name] if name in small else _content(store, checked, files[name])
        if hashlib.sha256(content).hexdigest() == expected[name]:
            store.write(name, content)
        else:
            different.append(name)
    if different:
        raise DataDamagedError(
            f"{where}: {counted(len(different), 'file')} missing or of a different size than in "
            f"the manifest, and cannot be restored from the shards: {some(different)}. Run "
            "imagenet-prep verify to see how to replace them."
        )
    if not manifest.has_samples:
        _add_tables(store, manifest, checked)


def _add_tables(store: Store, manifest: Manifest, checked: ExistingSet) -> None:
    _publish(store, checked, with_index=False)
    splits = {}
    for name, split in manifest.splits.items():
        shards = [
            replace(shard, samples_bytes=new.samples_bytes, samples_sha256=new.samples_sha256)
            for shard, new in zip(split.shards, checked.shards[name], strict=True)
        ]
        splits[name] = with_root(store, replace(split, shards=shards))
    finished = replace(manifest, splits=splits)
    store.verify_published(finished.files_of(splits))
    store.write(schema.MANIFEST, finished.dumps())


def _publish(store: Store, checked: ExistingSet, *, with_index: bool) -> None:
    for shard in checked.all_shards:
        for file in shard.entry.files[0 if with_index else 1 : 2]:
            store.write(file.name, _content(store, checked, file))


def _content(store: Store, checked: ExistingSet, file: DatasetFile) -> bytes:
    """Returns the content of an index or table that `check_existing_set` wrote."""
    name = f"{checked.tables}/{file.name}"
    new = checked.renamed.get(file.name)
    if new:
        data, _ = existing_set.renamed_keys(store, name, new)
    else:
        data = store.read(name, most=file.num_bytes)
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DataDamagedError(
            f"{store.where(name)}: has changed since it was written. Remove the dataset's "
            f"{schema.WORK} folder, then run the same command again."
        )
    return data


def moves(source: TfrecordSet) -> list[tuple[str, str]]:
    """Returns (old path, new name) pairs, ordered so that no rename replaces a file."""
    shards = itertools.chain.from_iterable(source.splits.values())
    return [(shard.path, shard.name) for shard in shards if shard.path != shard.name]


def _begun(store: Store) -> tuple[str, Adoption | None]:
    """Returns the name and the `Adoption` (or None) of adopt's work file; checks its renames."""
    note = BEGUN
    begun = None
    if store.size(BEGUN) is not None:
        begun = read_note(store, BEGUN, Begun).adoption
    if begun is None and store.size(_BEGUN_BEFORE) is not None:
        note = _BEGUN_BEFORE
        begun = read_note(store, _BEGUN_BEFORE, Adoption)
    names = {name for name, _ in begun.shards} if begun else set()
    for before, after in begun.renames if begun else ():
        if after not in names or not shard_files.becomes(before, after):
            raise damaged_note(store, note, f"adopt would never rename {before!r} to {after!r}")
    return note, begun


def _rename(store: LocalStore, renames: Sequence[Sequence[str]]) -> None:
    """Renames files in order. If a new name exists, an earlier run has already renamed the file."""
    for before, after in renames:
        old = store.path(before)
        new = store.path(after)
        if not new.exists():
            store.rename(before, after)
        elif old.exists() and old.samefile(new):
            # After a crash, a file can have both names, in two folders.
            store.remove(before)
    for folder in {store.path(before).parent for before, _ in renames} - {store.root}:
        if folder.is_dir():
            with storage_errors("remove", folder):
                # A killed run may not have synced its renames to disk.
                local_file.sync_folder(folder)
                folder.rmdir()


def _bring(shard: ShardFile, *, source: Store, store: Store) -> engine.Result[_Brought]:
    temporary = store.temporary()
    where = source.where(shard.path)
    folder = source.as_folder
    if folder and store.as_folder:
        with storage_errors("link", temporary):
            called = (source.where(), store.where())
            stat = shard.stat
            remedy = "copy the shards with --rewrite"
            hard_link(folder.path(shard.path), temporary, stat.size, stat, called, remedy)
    else:
        with removed_on_failure(temporary):
            with (
                storage_errors(f"copy {where} to", temporary),
                source.open_file(shard.path, shard.stat) as stream,
                LargeFile(temporary) as file,
            ):
                for chunk in hashed(stream, ()):
                    file.append(chunk)
            if file.sha256 != shard.sha256:
                raise DataDamagedError(
                    f"{where}: changed after it was checked: sha256 {file.sha256}, expected "
                    f"{shard.sha256}. Run the same command again."
                )
    return engine.Result(_Brought(), (engine.TaskOutput(temporary, shard.name, shard.sha256),))


def _refuse_obstacles(
    store: Store, source: TfrecordSet, checked: ExistingSet, *, in_place: bool
) -> None:
    shards = {shard.path for shard in itertools.chain.from_iterable(source.splits.values())}
    folders = {path.rpartition("/")[0] for path in shards} - {""}
    ours = shards | folders if in_place else set()
    strangers = [name for name in _SMALL_FILES if store.size(name) is not None]
    expected = _files(checked)
    for folder in schema.BESIDE:
        paths = (f"{folder}/{name}" for name in store.names(folder))
        strangers += (path for path in paths if not _has(store, expected.get(path)))
    strangers += [
        name for name in store.list_folder() if schema.looks_like_shard(name) and name not in ours
    ]
    if in_place:
        linked = sorted(name for name in folders if store.local.path(name).is_symlink())
        if linked:
            raise UsageError(
                f"{store.where()}: {', '.join(linked)} is a symbolic link, and adopt does not move "
                "shards out of a linked folder. Add --out DIR to make hard links to them."
            )
        for folder in sorted(folders):
            paths = (f"{folder}/{name}" for name in store.list_folder(folder))
            strangers += (path for path in paths if path not in shards)
    else:
        strangers += unrelated_names(store)
    if strangers:
        advice = "or add --out DIR" if in_place else "or choose an empty --out"
        raise UsageError(
            f"{store.where()}: these files are in the way: {some(strangers)}. adopt does not "
            "replace files, and readers treat every file whose name starts with train or valid as "
            f"a shard. Move them away, {advice}."
        )


def _has(store: Store, file: DatasetFile | None) -> bool:
    if file is None or store.size(file.name) != file.num_bytes:
        return False
    data = store.read(file.name, most=file.num_bytes)
    return hashlib.sha256(data).hexdigest() == file.sha256


def _wanted(checked: ExistingSet) -> WantedDataset:
    return WantedDataset(
        DatasetSettings(ADOPT, {split: {} for split in checked.shards}),
        libraries={},
        label_offset=checked.labelling.offset,
        subset=bool(checked.count_problems),
    )


def _commit(store: Store, source: TfrecordSet, checked: ExistingSet) -> None:
    per_class = checked.examples_per_class
    # The original sources of the shards are unknown, so the manifest lists none.
    draft = Draft(
        splits={name: split_of(shards, per_class[name]) for name, shards in checked.shards.items()},
        classes=checked.labelling.classes,
        incidents=incidents_of_input(source),
        lacks=checked.lacks,
        plan_digest=strict_json.digest([shard.sha256 for shard in checked.all_shards]),
        edition=checked.edition,
        parent=source.manifest,
    )
    Output(store, _wanted(checked)).commit(draft)
