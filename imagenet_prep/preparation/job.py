"""The job of a prepare command: the flags, completed with facts about the source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from imagenet_prep.codec.policy import CHECK_HEADER, CODECS, Policy
from imagenet_prep.codec.transform import RAW_ENCODING, encode_raw, require, transform
from imagenet_prep.core import address
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import exclusions, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.editions import OBJECTNET
from imagenet_prep.dataset.member import PreparedImage
from imagenet_prep.dataset.orientation import APPLY, KEEP, NEUTRAL
from imagenet_prep.dataset.settings import EXCLUDED, ORIENTATION, PREPARE, Settings
from imagenet_prep.engine import PROCESSES, Workers
from imagenet_prep.preparation.config import Config
from imagenet_prep.preparation.selection import Selection, refuse_source_as_output
from imagenet_prep.preparation.space import Forecast
from imagenet_prep.preparation.standing import Wanted
from imagenet_prep.preparation.tasks import PLAN_FOLDER
from imagenet_prep.sources import boxes, detect, image_table, layout
from imagenet_prep.sources.folder import Folder
from imagenet_prep.sources.source import Part, Pixels
from imagenet_prep.storage import ledger, remote_path
from imagenet_prep.storage.ledger import SourceLocation
from imagenet_prep.storage.remote_path import ListingFolder
from imagenet_prep.storage.store import Store

# If images are only copied, Python takes a third of the time. Above this size of the source,
# processes finish earlier than threads, although they start 1 s later (benchmarks/README.md).
_WORTH_PROCESSES_BYTES = 8 << 30
_ROTATED = "; images are rotated according to their EXIF orientation (see --orientation)"


@dataclass(frozen=True)
class Job:
    """A prepare command, completed with facts about the source."""

    selection: Selection
    description: str  # a line about the source, for the user
    policy: Policy
    workers: Workers
    wanted: Wanted
    expected_md5: dict[str, str]  # of official archives, by name
    proven_md5: dict[str, str]  # of archives that are already verified, by name
    fail_on_bad_image: bool
    quiet: bool

    @classmethod
    def of(cls, config: Config) -> Job:
        """Returns the job for a command line."""
        config = _with_existing_splits(config)
        policy = Policy(
            None if config.keep_original else config.short_side,
            config.quality,
            config.check,
            codec=CODECS[config.codec],
        )
        require(policy)
        selection, description = _select(config)
        refuse_source_as_output(config.out, config.source, selection.source)
        default = NEUTRAL if selection.source.is_imagenet else APPLY
        rule = config.orientation or (KEEP if config.keep_original else default)
        # ObjectNet's images have a red border one pixel wide.
        border = int(selection.source.edition == OBJECTNET)
        policy = dataclasses.replace(policy, orientation=rule, border=border)
        official = () if config.allow_subset else selection.parts
        kind = config.worker_kind
        num_bytes = sum(part.num_bytes for part in selection.source.parts)
        if kind == "auto" and policy.only_copies and num_bytes > _WORTH_PROCESSES_BYTES:
            kind = PROCESSES
        return cls(
            selection=selection,
            description=description
            + ("; with bounding boxes" if selection.annotations else "")
            + (_ROTATED if rule == APPLY and not isinstance(selection.source, Pixels) else ""),
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


def _with_existing_splits(config: Config) -> Config:
    """Drops the split validation if the source contains only folders of classes."""
    if address.is_remote(config.source) or schema.VALIDATION not in config.source_splits:
        return config
    root = Path(config.source).expanduser()
    kinds = [config.source_kind]
    if kinds == [detect.AUTO]:
        kinds = detect.recognised(root)
    if kinds[:1] == [detect.TABLE]:
        _, rows, _ = image_table.labelled(root, None if config.follow_links else root)
        if any(row.split == schema.VALIDATION for row in rows.values()):
            return config
    elif kinds[:1] != [detect.FOLDER] or not layout.has_only_classes(root):
        return config
    if config.validation_shards or {*config.splits} != {*schema.SOURCE_SPLITS}:
        raise UsageError(
            f"--source {config.source}: contains no split, so the only split is train. Remove "
            "--splits and --validation-shards, or add --holdout-per-class N, which moves N images "
            "of each class to validation."
        )
    return dataclasses.replace(config, splits=(schema.TRAIN,))


def _select(config: Config) -> tuple[Selection, str]:
    base = remote_path.lists_folder(config.out)
    lists = None
    if base is not None:
        lists = ListingFolder(base, writes=not config.dry_run, believed=not config.rehash)
    root = remote_path.locate(config.source, lists, hashes=config.check != CHECK_HEADER)
    splits = [split for split in schema.SPLITS if split in config.source_splits]
    source, description = detect.find(
        root,
        splits,
        config.source_kind,
        encode=encode_raw,
        encoding=RAW_ENCODING,
        follow_links=config.follow_links,
    )
    annotations = None
    if source.evaluation is not None:
        splits = [schema.TEST]
        if config.holds_out or config.train_shards or config.validation_shards:
            raise UsageError(
                f"--holdout, --train-shards, --validation-shards: {config.source} is an evaluation "
                "set, which has only the split test. Remove these flags."
            )
    elif not config.no_boxes and schema.TEST not in splits and not root.is_file():
        boxed = [split for split in splits if split != schema.HOLDOUT]
        annotations = boxes.find(root, boxed, official=source.classes.official)
    selection = Selection(
        source=source,
        where=config.source,
        annotations=annotations,
        splits=tuple(splits),
        classes=_chosen(source.classes, config.subset_classes),
        per_class=config.subset_per_class,
        any_counts=bool(config.allow_subset or config.subset_classes or config.subset_per_class),
        num_shards={split: getattr(config, f"{split}_shards") for split in schema.SOURCE_SPLITS},
        seed=config.seed,
        holdout=config.holdout_number,
        holdout_percent=config.holdout_percent,
        holdout_per_class=config.holdout_per_class,
        excluded=None
        if config.exclude is None
        else exclusions.read(config.exclude, allows_unknown=config.allow_unknown),
        # Receipts of earlier runs also have lists, so a new listing needs a different digest.
        listed_anew=config.rehash and address.is_remote(config.source),
    )
    return selection, description


def _proven_md5(policy: Policy, parts: Sequence[Part]) -> dict[str, str]:
    """Returns, by name, the md5 of the files that `download` verified and that are unchanged."""
    if policy.check == CHECK_HEADER:
        return {}
    files = {part.name: part.path for part in parts if isinstance(part.path, Path)}
    return {name: md5 for name, path in files.items() if (md5 := ledger.verified_md5(path))}


def _wanted(config: Config, selection: Selection, policy: Policy) -> Wanted:
    from_pixels = isinstance(selection.source, Pixels)
    byte_settings = {
        **config.byte_settings(),
        "boxes": selection.annotations is not None,
        **({"splits": [schema.TEST]} if selection.source.evaluation else {}),
        **({"border": policy.border} if policy.border else {}),
        **({"encoded_from_pixels": RAW_ENCODING} if from_pixels else {}),
        **({EXCLUDED: selection.excluded_summary} if selection.excluded else {}),
        **({} if policy.orientation == KEEP or from_pixels else {ORIENTATION: policy.orientation}),
    }
    origin = None
    if not address.is_remote(config.source):
        paths = ((part.name, part.path) for part in selection.parts)
        files = {name: str(path.absolute()) for name, path in paths if isinstance(path, Path)}
        root = Path(config.source).expanduser()
        if isinstance(selection.source, Folder):
            # Keys of a folder that contains only classes are relative to its parent.
            root = selection.source.root
        origin = SourceLocation(str(root.absolute()), files)
    return Wanted(
        Settings(PREPARE, dict.fromkeys(byte_settings["splits"], byte_settings)),
        policy.libraries,
        label_offset=config.label_offset,
        subset=selection.is_subset,
        name=selection.source.name,
        identities=dict.fromkeys(byte_settings["splits"], selection.identity),
        newest=max((part.newest for part in selection.parts), default=0),
        allowed_bad_images=config.allowed_bad_images,
        origin=origin,
    )


def _chosen(classes: ClassList, requested: Sequence[str]) -> frozenset[int]:
    """Returns the indices of the requested classes.

    A single number N means the first N, unless it is the name of a class.
    """
    indices = range(len(classes.wnids))
    (number, *others) = requested or [""]
    is_count = number.isascii() and number.isdecimal() and number not in classes.index
    if is_count and not others:
        if not int(number):
            raise UsageError(f"--subset-classes {number}: expected at least 1, or a class")
        return frozenset(indices[: int(number)])
    return frozenset(classes.indices(requested) if requested else indices)
