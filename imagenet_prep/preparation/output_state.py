"""Inspects the output location and decides the next steps of a run.

`look` reads the store once; all decisions follow from its result, without further I/O.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from imagenet_prep.core.errors import ImagenetPrepError, UsageError, differences, some
from imagenet_prep.dataset import schema, settings, tfds
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.dataset.member import DOUBTFUL
from imagenet_prep.dataset.settings import DatasetSettings
from imagenet_prep.shards.commit import require_few_bad_images
from imagenet_prep.sources.shard_files import split_of
from imagenet_prep.storage.dataset_store import Dataset, committed_dataset, missing_files
from imagenet_prep.storage.ledger import SourceLocation
from imagenet_prep.storage.store import Store, read_note

BEGUN = f"{schema.WORK}/run.json"
NOTED = f"{schema.WORK}/source.json"
# Limits of the search for datasets in a bucket: top-level folders, and subfolders of each.


@dataclass(frozen=True)
class WantedDataset:
    """The dataset that a run is to make: its settings, codec and source."""

    settings: DatasetSettings
    libraries: dict[str, str]  # {"codec": name} of the image codec; empty if all images are kept
    label_offset: int = schema.DEFAULT_LABEL_OFFSET
    # Whether images of ILSVRC2012 are missing; None to derive it from the sources.
    subset: bool | None = None
    name: str = tfds.IMAGENET
    # Digest of each split's source files; empty if the settings identify the source.
    identities: dict[str, str] = field(default_factory=dict)
    newest: int = 0  # time of the last change of a source file, in ns
    allowed_bad_images: int | None = None  # None for any number
    # Location of the source, for `report`; None if it is not a local folder.
    origin: SourceLocation | None = None
    # --force: replaces splits with other settings or a changed source; None if the verb lacks it.
    force: bool | None = None


@dataclass(frozen=True)
class Adoption:
    """The ordered (old, new) renames, and the (name, sha256) of each shard to adopt."""

    renames: list[tuple[str, str]]
    shards: list[tuple[str, str]]


@dataclass(frozen=True)
class Begun:
    """The content of run.json: the settings of the first run into this location."""

    config: settings.Config  # in the form of a manifest's config
    libraries: dict[str, str]
    adoption: Adoption | None = None  # written before adopt changes a file, to be finished later


@dataclass(frozen=True)
class Noted:
    """A finished run's note about the source, for the next run."""

    dataset: str  # digest of the manifest
    newest: int  # as in `WantedDataset`
    splits: dict[str, tuple[str, dict[str, str]]]  # identity of the source and `lacks`, by split


@dataclass(frozen=True)
class Standing:
    """The content of the output location at one moment."""

    where: str
    names: tuple[str, ...] = ()
    dataset: Dataset | None = None
    begun: Begun | None = None
    noted: Noted = Noted("", 0, {})
    complete: frozenset[str] = frozenset()  # splits with all files present, in the right sizes

    @property
    def committed(self) -> Manifest | None:
        """The manifest of the finished dataset at the location, if there is one."""
        return self.dataset.manifest if self.dataset else None

    @property
    def finished(self) -> dict[str, settings.Config]:
        """The settings of the dataset's splits; empty if this program did not write them."""
        return self.committed.settings.splits if self.committed else {}


class Decision(NamedTuple):
    """The splits that a run keeps, those that it removes, and those that it writes."""

    made: dict[str, settings.Config]  # settings of the splits that earlier runs started or finished
    replaced: list[str]  # splits that --force removes
    left: list[str]  # wanted splits that are not finished
    is_doubted: bool = False  # whether the sources may have changed


def look(store: Store, wanted: WantedDataset) -> Standing:
    """Returns the content of the output location."""
    # If the bucket does not exist, listing fails, but a request for the manifest would not.
    names = tuple(store.list_folder())
    work_files = store.list_folder(schema.WORK) if schema.WORK in names else ()
    in_work = {f"{schema.WORK}/{name}" for name in work_files}
    dataset = committed_dataset(store, in_work.union(names))
    begun = read_note(store, BEGUN, Begun) if BEGUN in in_work else None
    if dataset is None:
        return Standing(store.where(), names, begun=begun)
    manifest = dataset.manifest
    complete = frozenset[str]()
    noted = Noted(manifest.digest, 0, dict.fromkeys(manifest.splits, ("", manifest.lacks)))
    with contextlib.suppress(ImagenetPrepError):
        note = read_note(store, NOTED, Noted) if NOTED in in_work else noted
        if note.dataset == manifest.digest and {*note.splits} == {*manifest.splits}:
            noted = note
    if schema.MANIFEST in names:
        files = {s: manifest.files_of([s]) for s in wanted.settings.splits if s in manifest.splits}
        missing = missing_files(store, manifest.files_of(files))
        complete = frozenset(s for s in files if missing.isdisjoint(f.name for f in files[s]))
    return Standing(store.where(), names, dataset, begun, noted, complete)


def decide(
    standing: Standing, wanted: WantedDataset, changed: Collection[str] = frozenset()
) -> Decision:
    """Decides which splits a run writes; `changed` are the splits with a changed source."""
    made = _made(standing, wanted)
    splits = wanted.settings.splits
    if not wanted.force:
        _refuse_differences(standing, wanted, made)
    replaced: list[str] = []
    if wanted.force:
        others = made.keys() if _other_libraries(standing, wanted) else changed
        replaced = [
            split
            for split, requested in splits.items()
            if split in made and (split in others or differences(made[split], requested))
        ]
    complete = standing.complete.difference(replaced)
    left = [
        split
        for split, requested in splits.items()
        if split not in complete or differences(standing.finished.get(split, {}), requested)
    ]
    _refuse_strangers(standing, wanted.settings.verb, made, left)
    kept = made.keys() - set(replaced)
    if kept:
        _refuse_other_codec(standing, wanted, left, kept)
    manifest = standing.committed
    if not left and manifest is not None:
        bad = sum(manifest.quarantined.values())
        if not wanted.settings.all_at_once:
            # In a manifest, the numbers of members of sources include bad images.
            read = sum(file.members for file in manifest.sources if split_of(file.name) in splits)
            bad = read - sum(manifest.splits[split].examples for split in splits)
        bad += manifest.repaired.get(DOUBTFUL, 0)
        require_few_bad_images(standing.where, bad, wanted.allowed_bad_images)
    noted = standing.noted.splits.items()
    is_doubted = any(wanted.identities.get(split, was) != was for split, (was, _) in noted)
    return Decision(made, replaced, left, is_doubted)


def _made(standing: Standing, wanted: WantedDataset) -> dict[str, settings.Config]:
    verb = wanted.settings.verb
    made: dict[str, settings.Config] = {}
    for config in [run.config for run in (standing.begun, standing.committed) if run]:
        existing = settings.recognised(config)
        if existing.verb != verb:
            raise UsageError(
                f"{standing.where} contains a dataset that {verb} did not make. Choose a different "
                "folder."
            )
        made |= existing.splits
        if wanted.settings.all_at_once:
            # Different splits would make a different dataset.
            made |= dict.fromkeys(wanted.settings.splits, config)
    return made


def _refuse_differences(
    standing: Standing, wanted: WantedDataset, made: dict[str, settings.Config]
) -> None:
    different: dict[str, None] = {}
    for split, requested in wanted.settings.splits.items():
        different |= dict.fromkeys(differences(made.get(split, requested), requested))
    if not different:
        return
    found = "a dataset with different settings"
    advice = "Choose a different folder"
    if standing.committed is None:
        found = "an unfinished dataset with different settings"
        advice = "Finish it with its original settings, or choose a different folder"
    if wanted.force is not None:
        advice += ", or replace it with --force"
    raise UsageError(f"{standing.where} contains {found}: {'; '.join(different)}. {advice}.")


def _refuse_strangers(
    standing: Standing, verb: str, made: Collection[str], left: Collection[str]
) -> None:
    """Raises UsageError for shards that are neither listed nor of the splits `left`.

    `Output.begin` compares the shards of these splits with the plan.
    """
    listed = standing.committed.shard_names if standing.committed else []
    strangers = [
        name
        for name in {*standing.names}.difference(listed)
        if schema.looks_like_shard(name) or schema.split_of(name) in made
        if schema.split_of(name) not in left or schema.split_of(name) not in made
    ]
    if strangers:
        raise not_ours(standing.where, verb, strangers)


def not_ours(where: str, verb: str, names: Iterable[str]) -> UsageError:
    """Returns the error for files that readers would read, but that are not of this run."""
    return UsageError(
        f"{where} already contains {some(sorted(names))}, which this run of {verb} does not "
        "write, and which readers would read. Finish the run that wrote them, move them away, or "
        "choose an empty folder."
    )


def _other_libraries(standing: Standing, wanted: WantedDataset) -> dict[str, str]:
    """Returns the existing dataset's libraries if they prevent this run from continuing it."""
    run = standing.begun or (standing.committed and standing.committed.producer)
    used = run.libraries if run else {}
    # A run that re-encodes nothing can continue with any library version.
    return used if wanted.libraries and used != wanted.libraries else {}


def _refuse_other_codec(
    standing: Standing, wanted: WantedDataset, left: Iterable[str], kept: Iterable[str]
) -> None:
    """Raises UsageError if splits that this run keeps or finishes have a different codec."""
    used = _other_libraries(standing, wanted)
    left = set(left)
    if standing.begun is None and standing.committed and standing.committed.splits.keys() <= left:
        return  # all of its splits are replaced
    advice = "Use the old codec, or choose a different folder"
    if wanted.force is False and set(kept) <= wanted.settings.splits.keys():
        advice = "Use the old codec, choose a different folder, or replace the dataset with --force"
    if used:
        raise UsageError(
            f"{standing.where} was started with codec {used.get('codec')}, but this run uses "
            f"{wanted.libraries.get('codec')}. {advice}."
        )
