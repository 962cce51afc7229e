"""The job of a prepare command: the flags, completed with facts about the source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from imagenet_prep.codec import planes
from imagenet_prep.codec.policy import CHECK_HEADER, CODECS, Policy
from imagenet_prep.codec.transform import RAW_ENCODING, encode_raw, transform
from imagenet_prep.core import address
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import schema, settings
from imagenet_prep.dataset.class_list import OBJECTNET, ClassList
from imagenet_prep.dataset.jpeg import APPLY, KEEP
from imagenet_prep.dataset.member import PreparedImage
from imagenet_prep.dataset.settings import ListDigest, Recipe
from imagenet_prep.engine import PROCESSES, Workers
from imagenet_prep.preparation.config import PrepareConfig
from imagenet_prep.preparation.output_state import WantedDataset
from imagenet_prep.preparation.selection import Selection, exclusions_of, refuse_source_as_output
from imagenet_prep.preparation.space import Forecast
from imagenet_prep.preparation.tasks import PLAN_FOLDER
from imagenet_prep.shards.equal_bytes import read_exclusions
from imagenet_prep.sources import boxes, detect, image_table, layout
from imagenet_prep.sources.folder import FolderSource
from imagenet_prep.sources.source import Pixels, SourcePart
from imagenet_prep.storage import ledger, remote_path
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.ledger import SourceLocation
from imagenet_prep.storage.remote_path import ListingFolder
from imagenet_prep.storage.store import Store

# If images are only copied, Python takes a third of the time. Above this size of the source,
# processes finish earlier than threads, although they start 1 s later (benchmarks/README.md).
_WORTH_PROCESSES_BYTES = 8 << 30
_ROTATED = "; images are rotated according to their EXIF orientation (see --orientation)"


@dataclass(frozen=True)
class PrepareJob:
    """A prepare command, completed with facts about the source."""

    selection: Selection
    description: str  # a line about the source, for the user
    policy: Policy
    workers: Workers
    wanted: WantedDataset
    expected_md5: dict[str, str]  # of official archives, by name
    proven_md5: dict[str, str]  # of archives that are already verified, by name
    fail_on_bad_image: bool
    quiet: bool

    @classmethod
    def of(cls, config: PrepareConfig) -> PrepareJob:
        """Returns the job for a command line."""
        recipe = _with_existing_splits(config, config.recipe())
        codec = CODECS[config.codec]
        planes.require()
        selection, description = _select(config, recipe)
        source = selection.source
        recipe = selection.recipe
        refuse_source_as_output(config.out, config.source, source)
        policy = Policy(
            recipe.short_side,
            recipe.quality,
            recipe.check,
            codec=codec,
            orientation=recipe.orientation or KEEP,
            border=recipe.border,
        )
        kind = config.worker_kind
        num_bytes = sum(part.num_bytes for part in source.parts)
        if kind == "auto" and policy.only_copies and num_bytes > _WORTH_PROCESSES_BYTES:
            kind = PROCESSES
        if selection.annotations:
            description += "; with bounding boxes"
        if recipe.orientation == APPLY:
            description += _ROTATED
        official = () if config.allow_subset else selection.parts
        return cls(
            selection=selection,
            description=description,
            policy=policy,
            workers=Workers(config.workers, kind, config.beam_args),
            wanted=_wanted(config, selection, policy),
            expected_md5={part.name: part.md5 for part in official if part.md5},
            proven_md5={} if config.rehash else _proven_md5(policy, selection.parts),
            fail_on_bad_image=config.on_bad_image == "fail",
            quiet=config.json,
        )

    @cached_property
    def transform(self) -> Callable[[bytes], PreparedImage]:
        """The function that encodes source images; it raises BadImageError for unusable images."""
        return partial(transform, policy=self.policy)

    def forecast(self, out: Store, plans: Store, folder: str = PLAN_FOLDER) -> Forecast:
        """Returns the estimator of the bytes to be written to `out`."""
        resizes = self.policy.short_side is not None
        return Forecast(self.selection, self.transform, resizes, self.workers, out, plans, folder)


def _with_existing_splits(config: PrepareConfig, recipe: Recipe) -> Recipe:
    """Drops the split validation if the source contains only folders of classes."""
    if address.is_remote(config.source) or schema.VALIDATION not in recipe.source_splits:
        return recipe
    root = Path(config.source).expanduser()
    kinds = [config.source_kind]
    if kinds == [detect.AUTO]:
        kinds = detect.recognised(root)
    if kinds[:1] == [detect.TABLE]:
        _, rows, _ = image_table.labelled(root, None if config.follow_links else root)
        if any(row.split == schema.VALIDATION for row in rows.values()):
            return recipe
    elif kinds[:1] != [detect.FOLDER] or not layout.has_only_classes(root):
        return recipe
    if recipe.validation_shards or {*config.splits} != {*schema.SOURCE_SPLITS}:
        raise UsageError(
            f"--source {config.source}: contains no split, so the only split is train. Remove "
            "--splits and --validation-shards, or add --holdout-per-class N, which moves N images "
            "of each class to validation."
        )
    return replace(recipe, splits=tuple(s for s in recipe.splits if s != schema.VALIDATION))


def _select(config: PrepareConfig, recipe: Recipe) -> tuple[Selection, str]:
    """Finds the source; returns the images to use, with the complete recipe, and a description."""
    base = remote_path.lists_folder(config.out)
    lists = None
    if base is not None:
        lists = ListingFolder(base, writes=not config.dry_run, believed=not config.rehash)
    root = remote_path.locate(config.source, lists, hashes=config.check != CHECK_HEADER)
    splits = recipe.source_splits
    source, description = detect.find(
        root,
        splits,
        config.source_kind,
        encode=encode_raw,
        encoding=RAW_ENCODING,
        follow_links=config.follow_links,
        classes=_classes_of(config),
    )
    annotations = None
    if source.evaluation is not None:
        if recipe.holdout or recipe.train_shards or recipe.validation_shards:
            raise UsageError(
                f"--holdout, --train-shards, --validation-shards: {config.source} is an evaluation "
                "set, which has only the split test. Remove these flags."
            )
        recipe = replace(recipe, splits=(schema.TEST,))
    elif recipe.boxes and schema.TEST not in splits and not root.is_file():
        boxed = [split for split in splits if split != schema.HOLDOUT]
        annotations = boxes.find(root, boxed, official=source.classes.official)
    exclusions = None
    excluded = None
    if config.exclude is not None:
        listed = read_exclusions(config.exclude, allows_unknown=config.allow_unknown)
        exclusions = exclusions_of(listed, recipe)
        excluded = ListDigest(exclusions.num_images, listed.sha256)
    rule = config.orientation
    if rule is None:
        rule = KEEP if config.keep_original else source.default_orientation
    from_pixels = isinstance(source, Pixels)
    recipe = replace(
        recipe,
        boxes=annotations is not None,
        # ObjectNet's images have a red border one pixel wide.
        border=1 if source.edition == OBJECTNET else 0,
        encoded_from_pixels=RAW_ENCODING if from_pixels else "",
        excluded=excluded,
        # Images that are made from pixels have no EXIF orientation.
        orientation="" if rule == KEEP or from_pixels else rule,
    )
    selection = Selection(
        source=source,
        where=config.source,
        recipe=recipe,
        annotations=annotations,
        classes=_chosen(source.classes, recipe.subset_classes),
        any_counts=bool(config.allow_subset or recipe.subset_classes or recipe.subset_per_class),
        exclusions=exclusions,
        # Receipts of earlier runs also have lists, so a new listing needs a different digest.
        listed_anew=config.rehash and address.is_remote(config.source),
    )
    return selection, description


def _classes_of(config: PrepareConfig) -> ClassList | None:
    """Returns the class list of the dataset in `--classes-of`, or None."""
    if config.classes_of is None:
        return None
    return open_dataset(address.absolute(config.classes_of)).classes


def _proven_md5(policy: Policy, parts: Sequence[SourcePart]) -> dict[str, str]:
    """Returns, by name, the md5 of the files that `download` verified and that are unchanged."""
    if policy.check == CHECK_HEADER:
        return {}
    files = {part.name: part.path for part in parts if isinstance(part.path, Path)}
    verified = {name: ledger.verified_md5(path) for name, path in files.items()}
    return {name: md5 for name, md5 in verified.items() if md5}


def _wanted(config: PrepareConfig, selection: Selection, policy: Policy) -> WantedDataset:
    origin = None
    if not address.is_remote(config.source):
        paths = ((part.name, part.path) for part in selection.parts)
        files = {name: str(path.absolute()) for name, path in paths if isinstance(path, Path)}
        root = Path(config.source).expanduser()
        if isinstance(selection.source, FolderSource):
            # Keys of a folder that contains only classes are relative to its parent.
            root = selection.source.root
        origin = SourceLocation(str(root.absolute()), files)
    recipe = selection.recipe
    return WantedDataset(
        settings.prepared(recipe),
        policy.libraries,
        label_offset=recipe.label_offset,
        subset=selection.is_subset,
        name=selection.source.name,
        identities=dict.fromkeys(recipe.splits, selection.identity),
        newest=max((part.newest for part in selection.parts), default=0),
        allowed_bad_images=config.allowed_bad_images,
        origin=origin,
    )


def _chosen(classes: ClassList, requested: Sequence[str]) -> frozenset[int]:
    """Returns the indices of the requested classes.

    A single number N means the first N, unless it is the name of a class.
    """
    indices = range(len(classes.wnids))
    if len(requested) == 1 and requested[0] not in classes.index:
        number = requested[0]
        if number.isascii() and number.isdecimal():
            if not int(number):
                raise UsageError(f"--subset-classes {number}: expected at least 1, or a class")
            return frozenset(indices[: int(number)])
    return frozenset(classes.indices(requested) if requested else indices)
