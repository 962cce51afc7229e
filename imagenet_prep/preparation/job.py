"""The work of prepare: resolves its settings once, then goes from plans to a committed set."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from imagenet_prep import engine
from imagenet_prep.codec.policy import CHECK_HEADER, CODECS, Policy
from imagenet_prep.codec.transform import RAW_ENCODING, encode_raw, require, transform
from imagenet_prep.core import address, canonical
from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import keys, schema
from imagenet_prep.dataset.manifest import Source
from imagenet_prep.dataset.member import Incident, parse_members
from imagenet_prep.dataset.orientation import APPLY, KEEP
from imagenet_prep.dataset.settings import EXCLUDED, ORIENTATION, PREPARE, Settings
from imagenet_prep.engine import PROCESSES, Stage, Workers
from imagenet_prep.preparation.config import Config
from imagenet_prep.preparation.output import Output
from imagenet_prep.preparation.planning import Inventory
from imagenet_prep.preparation.selection import Selection, refuse_source_as_output
from imagenet_prep.preparation.space import Forecast
from imagenet_prep.preparation.standing import Wanted
from imagenet_prep.preparation.tasks import (
    HashedArchive,
    HashTask,
    ShardTask,
    WriteWork,
    planned_images,
    refuse_other_md5,
    write_or_hash,
)
from imagenet_prep.shards.commit import split_of
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.sources import boxes, detect, layout
from imagenet_prep.sources.editions import OBJECTNET
from imagenet_prep.sources.folder import Folder
from imagenet_prep.sources.labels import ClassList
from imagenet_prep.sources.source import Part, Pixels
from imagenet_prep.storage import kept_lists, proven, remote_path
from imagenet_prep.storage.kept_lists import KeptLists
from imagenet_prep.storage.origins import Origin
from imagenet_prep.storage.remote_archives import open_archives
from imagenet_prep.storage.store import Store

# If images are only copied, a third of the time is Python's. From this size on, processes finish
# earlier than threads, though they start 1 s later (benchmarks/README.md).
_WORTH_PROCESSES_BYTES = 8 << 30
_TURNED = "; images are turned as their EXIF orientation says (see --orientation)"


@dataclass(frozen=True)
class Job:
    """One request, resolved.

    Attributes:
      selection: the images, and how they are assigned to shards.
      description: of the source, one line for people.
      policy: for the codec.
      workers: how much runs at once.
      wanted: the data set to make.
      expected_md5: by name of an official archive.
      proven_md5: by name of an archive that need not be read for it.
      fail_on_bad_image: raise instead of leaving a bad image out.
      quiet: show no progress.
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
        """Returns the job that a command line asks for.

        Raises:
          ImagenetPrepError: what is needed is missing, unreadable or damaged.
        """
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
        # ObjectNet's images have a red border, of one pixel.
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


def _splits_there(config: Config) -> Config:
    """Returns the settings without validation where a folder of classes alone is the source."""
    if address.is_remote(config.source) or schema.VALIDATION not in config.source_splits:
        return config
    root = Path(config.source).expanduser()
    if layout.named_splits(root).folders:
        return config
    kinds = [config.source_kind]
    if config.source_kind == detect.AUTO:
        kinds = detect.recognised(root)
    elif config.source_kind == detect.FOLDER and not layout.is_class_root(root):
        kinds = []
    return (
        dataclasses.replace(config, splits=(schema.TRAIN,)) if kinds == [detect.FOLDER] else config
    )


def _select(config: Config) -> tuple[Selection, str]:
    """Returns the requested images, and one line for people about their source.

    What is found on a server is kept beside the data set.
    """
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
    elif not config.no_boxes and not root.is_file():
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
        # Lists of an earlier run are in its receipts too.
        listed_anew=config.rehash and address.is_remote(config.source),
    )
    return selection, description


def _proven_md5(policy: Policy, parts: Sequence[Part]) -> dict[str, str]:
    """Returns the md5, by name, of files that `download` has proven and nobody touched since."""
    if policy.check == CHECK_HEADER:
        return {}
    found = {part.name: proven.find(part.path) for part in parts if isinstance(part.path, Path)}
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
            # Images of a folder that holds nothing but classes are named from the folder above.
            root = selection.source.root
        origin = Origin(str(root.absolute()), files)
    return Wanted(
        Settings(PREPARE, dict.fromkeys(byte_settings["splits"], byte_settings)),
        policy.libraries,
        label_offset=config.label_offset,
        subset=selection.is_subset,
        name=selection.source.name,
        source_sizes={part.name: part.num_bytes for part in selection.parts},
        allowed_bad_images=config.allowed_bad_images,
        origin=origin,
    )


def _chosen(classes: ClassList, asked: Sequence[str]) -> frozenset[int]:
    """Returns the indices of the requested classes: WNIDs, or how many."""
    if not asked:
        return frozenset(range(len(classes.wnids)))
    if len(asked) == 1 and asked[0].isdigit():
        return frozenset(range(min(int(asked[0]), len(classes.wnids))))
    if unknown := sorted(set(asked) - set(classes.wnids)):
        raise UsageError(f"--subset-classes: {', '.join(unknown)} not in the class list")
    return frozenset(classes.index[wnid] for wnid in asked)


def write(job: Job, inventory: Inventory, forecast: Forecast, output: Output) -> None:
    """Writes the shards that are missing, then commits the whole, on this machine.

    Raises:
      StoreError: too little space; nothing was written.
      SourceError: a proven archive is not the official one, or was touched while it was read.
      ImagenetPrepError: as for `engine.run` and `Output.commit`.
    """
    announce_proven(job)
    begin(job, inventory, forecast, output)
    stage = write_stage(job, inventory, output.store, output.store.local)
    work = (stage, write_tasks(job, inventory), job.workers)
    images, watch = sum(split.examples for split in inventory.plans), output.watch
    receipts = engine.run(*work, title="write", images=images, watch=watch, quiet=job.quiet)
    commit(job, inventory, output, [receipt.content for receipt in receipts])


def begin(job: Job, inventory: Inventory, forecast: Forecast, output: Output) -> None:
    """Takes the place for this run, once there is a plan.

    Raises:
      StoreError: too little space; nothing was written.
      UsageError: another run took the place.
    """
    check_space(job, inventory, forecast, output.store)
    output.begin([split.split for split in inventory.plans])


def check_space(job: Job, inventory: Inventory, forecast: Forecast, store: Store) -> None:
    """Makes sure that what is left to be written fits on the disk.

    Raises:
      StoreError: too little space.
    """
    shards = {name for split in inventory.plans for name in split.shard_names}
    done = write_stage(job, inventory, store, forecast.plans).receipts(shards)
    forecast.check_shards(inventory.plans, shards - done.keys())


def write_tasks(job: Job, inventory: Inventory) -> list[HashTask | ShardTask]:
    """Returns all tasks of the stage that writes, those that take longest first.

    With --check header, no archive is hashed.

    Raises:
      SourceError: an archive that was hashed while it was listed is not the official one.
    """
    shards = [ShardTask(name) for split in inventory.plans for name in split.shard_names]
    if job.policy.check == CHECK_HEADER:
        return [*shards]
    for archive, md5 in inventory.md5.items():
        refuse_other_md5(archive, md5, job.expected_md5)
    known = job.proven_md5.keys() | inventory.md5.keys()
    files = [part for part in job.selection.parts if part.path and part.name not in known]
    largest_first = sorted(files, key=lambda part: -part.num_bytes)
    return [*(HashTask(part.name) for part in largest_first), *shards]


def announce_proven(job: Job) -> None:
    """Says which archives are not read for their md5; raises SourceError for another one."""
    for archive, md5 in job.proven_md5.items():
        refuse_other_md5(archive, md5, job.expected_md5)
    if job.proven_md5 and not job.quiet:
        names = ", ".join(job.proven_md5)
        print(
            f"md5 of {names}: proven by download, and the file is untouched since. It is not "
            "read again for it (--rehash reads it).",
            file=sys.stderr,
        )


def write_stage(
    job: Job, inventory: Inventory, store: Store, plans: Store
) -> Stage[HashTask | ShardTask, WrittenShard | HashedArchive]:
    """Returns the stage that writes shards and hashes archives.

    Args:
      job, inventory: what is to be written.
      store: where it goes.
      plans: where the plan files lie: beside the data set, or on this machine alone.
    """
    selection, wanted = job.selection, job.wanted
    classes = selection.source.classes
    archives = {part.name: part.path for part in selection.parts if part.path is not None}
    reader = selection.images(store.local)
    work = WriteWork(
        store=store,
        transform=partial(transform, policy=job.policy),
        classes=classes,
        label_offset=wanted.label_offset,
        fail_on_bad_image=job.fail_on_bad_image,
    )
    # A shard that was made from an archive which its server has replaced since does not count.
    stamps = [part.stamp for part in selection.parts] if address.is_remote(selection.where) else []
    digest = canonical.digest(
        [
            wanted.settings.config,
            wanted.libraries,
            [split.digest for split in inventory.plans],
            classes.render().decode(),
            sorted(wanted.source_sizes.items()),
            *stamps,
        ]
    )
    function = partial(
        write_or_hash,
        write=work,
        images=partial(planned_images, reader=reader, plans=plans, folder=inventory.folder),
        archives=open_archives(archives),
        expected_md5=job.expected_md5,
    )
    return Stage("write", digest, store, function, WrittenShard | HashedArchive)


def commit(
    job: Job,
    inventory: Inventory,
    output: Output,
    made: Sequence[WrittenShard | HashedArchive],
) -> None:
    """Publishes the manifest, from what the receipts of all tasks say.

    Raises:
      SourceError: a proven archive was touched while it was read.
      ImagenetPrepError: as for `Output.commit`.
    """
    # The members of a proven archive have its md5 if it is still the file that was proven.
    for part in job.selection.parts:
        proof = job.proven_md5.get(part.name)
        if proof and isinstance(part.path, Path) and proven.find(part.path) != proof:
            raise SourceError(
                f"{part.path}: was touched while it was read, so its proven md5 counts no more. "
                "Run the same command again: the file is then read for its md5."
            )
    read = {each.archive: each.md5 for each in made if isinstance(each, HashedArchive)}
    md5 = {**job.proven_md5, **inventory.md5, **read}
    shards = {each.shard: each for each in made if isinstance(each, WrittenShard)}
    output.commit(
        {
            split.split: split_of([shards[n] for n in split.shard_names], split.num_per_class)
            for split in inventory.plans
        },
        job.selection.source.classes,
        incidents=[
            *(incident for shard in shards.values() for incident in shard.incidents),
            *(
                Incident(*member[:5], EXCLUDED, "listed", "the list of --exclude has its key")
                for member in parse_members(inventory.excluded)
            ),
        ],
        sources=[
            Source(
                part.name,
                part.num_bytes,
                md5.get(part.name),
                inventory.taken[part.name],
                dict(part.ignored),
            )
            for part in job.selection.parts
        ],
        plan_digest=canonical.digest([split.digest for split in inventory.plans]),
        edition=inventory.edition,
        answers=evaluation.answers if (evaluation := job.selection.source.evaluation) else None,
    )
