"""The job of prepare: its settings, resolved once against the source."""

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
from imagenet_prep.dataset import keys, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.editions import OBJECTNET
from imagenet_prep.dataset.member import PreparedImage
from imagenet_prep.dataset.orientation import APPLY, KEEP
from imagenet_prep.dataset.settings import EXCLUDED, ORIENTATION, PREPARE, Settings
from imagenet_prep.engine import PROCESSES, Workers
from imagenet_prep.preparation.config import Config
from imagenet_prep.preparation.selection import Selection, refuse_source_as_output
from imagenet_prep.preparation.space import Forecast
from imagenet_prep.preparation.standing import Wanted
from imagenet_prep.preparation.tasks import PLAN_FOLDER
from imagenet_prep.sources import boxes, detect, layout
from imagenet_prep.sources.folder import Folder
from imagenet_prep.sources.source import Part, Pixels
from imagenet_prep.storage import kept_lists, ledger, remote_path
from imagenet_prep.storage.kept_lists import KeptLists
from imagenet_prep.storage.origins import Origin
from imagenet_prep.storage.store import Store

# If images are only copied, a third of the time is spent in Python. From this size, processes
# finish earlier than threads although they start 1 s later (benchmarks/README.md).
_WORTH_PROCESSES_BYTES = 8 << 30
_TURNED = "; images are turned as their EXIF orientation says (see --orientation)"


@dataclass(frozen=True)
class Job:
    """A prepare command, resolved.

    `description` is one line for people about the source. `expected_md5` (of official archives)
    and `proven_md5` (already verified, not read again) are by archive name.
    """

    selection: Selection
    description: str
    policy: Policy
    workers: Workers
    wanted: Wanted
    expected_md5: dict[str, str]
    proven_md5: dict[str, str]
    fail_on_bad_image: bool
    quiet: bool

    @classmethod
    def of(cls, config: Config) -> Job:
        """Returns the job for a command line."""
        config = _splits_there(config)
        policy = Policy(
            None if config.keep_original else config.short_side,
            config.quality,
            config.check,
            codec=CODECS[config.codec],
        )
        require(policy)
        selection, description = _select(config)
        refuse_source_as_output(config.out, config.source, selection.source)
        rule = config.orientation_of(is_imagenet=selection.source.is_imagenet)
        # ObjectNet's images have a red border one pixel wide.
        border = int(selection.source.edition == OBJECTNET)
        policy = dataclasses.replace(policy, orientation=rule, border=border)
        kind = config.worker_kind
        num_bytes = sum(part.num_bytes for part in selection.source.parts)
        if kind == "auto" and policy.only_copies and num_bytes > _WORTH_PROCESSES_BYTES:
            kind = PROCESSES
        return cls(
            selection=selection,
            description=description
            + ("; with bounding boxes" if selection.annotations else "")
            + (_TURNED if rule == APPLY and not isinstance(selection.source, Pixels) else ""),
            policy=policy,
            workers=Workers(config.workers, kind, config.beam_args),
            wanted=_wanted(config, selection, policy),
            expected_md5={
                part.name: part.md5
                for part in selection.parts
                if part.md5 is not None and not config.allow_subset
            },
            proven_md5={} if config.rehash else _proven_md5(policy, selection.parts),
            fail_on_bad_image=config.on_bad_image == "fail",
            quiet=config.json,
        )

    @cached_property
    def transform(self) -> Callable[[bytes], PreparedImage]:
        """Encodes a source image for storage; raises BadImageError."""
        return partial(transform, policy=self.policy)

    def forecast(self, out: Store, plans: Store, folder: str = PLAN_FOLDER) -> Forecast:
        """Returns the estimate of the bytes to be written to `out`."""
        shrinks = self.policy.short_side is not None
        return Forecast(self.selection, self.transform, shrinks, self.workers, out, plans, folder)


def _splits_there(config: Config) -> Config:
    """Drops the validation split if the source is only a folder of classes."""
    if address.is_remote(config.source) or schema.VALIDATION not in config.source_splits:
        return config
    root, kinds = Path(config.source).expanduser(), [config.source_kind]
    if kinds == [detect.AUTO]:
        kinds = detect.recognised(root)
    if kinds != [detect.FOLDER] or (found := layout.split_folders(root)).names or not found.folders:
        return config
    if config.validation_shards or {*config.splits} != {*schema.SOURCE_SPLITS}:
        raise UsageError(
            f"--source {config.source}: holds only folders of classes, which are the split train. "
            "Leave out --splits and --validation-shards, or give --holdout-per-class N, which "
            "makes validation of N images of each class."
        )
    return dataclasses.replace(config, splits=(schema.TRAIN,))


def _select(config: Config) -> tuple[Selection, str]:
    base, lists = kept_lists.beside(config.out), None
    if base is not None:
        lists = KeptLists(base, writes=not config.dry_run, believed=not config.rehash)
    root = remote_path.locate(config.source, lists, hashes=config.check != CHECK_HEADER)
    splits = [split for split in schema.SPLITS if split in config.source_splits]
    found, description = detect.find(
        root,
        splits,
        config.source_kind,
        encode=encode_raw,
        encoding=RAW_ENCODING,
        follow_links=config.follow_links,
    )
    annotations = None
    if found.evaluation is not None:
        splits = [schema.TEST]
        if config.holds_out or config.train_shards or config.validation_shards:
            raise UsageError(
                f"--holdout, --train-shards, --validation-shards: {config.source} is a set to "
                "evaluate on and has the split test alone. Leave them out."
            )
    elif not config.no_boxes and schema.TEST not in splits and not root.is_file():
        annotations = boxes.find(root, splits, official=found.classes.official)
    selection = Selection(
        source=found,
        where=config.source,
        annotations=annotations,
        splits=tuple(splits),
        classes=_chosen(found.classes, config.subset_classes),
        per_class=config.subset_per_class,
        any_counts=config.asks_for_subset,
        num_shards={
            schema.TRAIN: config.train_shards,
            schema.VALIDATION: config.validation_shards,
        },
        seed=config.seed,
        holdout=config.holdout_number,
        holdout_percent=config.holdout_percent,
        holdout_per_class=config.holdout_per_class,
        excluded=None if config.exclude is None else keys.read_list(config.exclude),
        # Earlier lists are also in receipts, so a relisting needs a different digest.
        listed_anew=config.rehash and address.is_remote(config.source),
    )
    return selection, description


def _proven_md5(policy: Policy, parts: Sequence[Part]) -> dict[str, str]:
    """Returns the md5, by name, of files verified by `download` and not changed since."""
    if policy.check == CHECK_HEADER:
        return {}
    found = {
        part.name: ledger.verified_md5(part.path) for part in parts if isinstance(part.path, Path)
    }
    return {name: md5 for name, md5 in found.items() if md5 is not None}


def _wanted(config: Config, selection: Selection, policy: Policy) -> Wanted:
    excluded = selection.excluded
    from_pixels = isinstance(selection.source, Pixels)
    byte_settings = {
        **config.byte_settings(),
        "boxes": selection.annotations is not None,
        **({"splits": [schema.TEST]} if selection.source.evaluation else {}),
        **({"border": policy.border} if policy.border else {}),
        **({"encoded_from_pixels": RAW_ENCODING} if from_pixels else {}),
        **({} if excluded is None else {EXCLUDED: excluded.summary}),
        **({} if policy.orientation == KEEP or from_pixels else {ORIENTATION: policy.orientation}),
    }
    parts, is_remote = selection.parts, address.is_remote(config.source)
    files = {p.name: str(p.path.absolute()) for p in parts if isinstance(p.path, Path)}
    origin = None
    if not is_remote:
        root = Path(config.source).expanduser()
        if isinstance(selection.source, Folder):
            # Keys of a folder that contains only classes are relative to its parent.
            root = selection.source.root
        origin = Origin(str(root.absolute()), files)
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


def _chosen(classes: ClassList, asked: Sequence[str]) -> frozenset[int]:
    """Returns the indices of the requested classes; a single number N means the first N."""
    if not asked:
        return frozenset(range(len(classes.wnids)))
    if len(asked) == 1 and asked[0].isascii() and asked[0].isdecimal():
        return frozenset(range(min(int(asked[0]), len(classes.wnids))))
    return frozenset(classes.indices(asked))
