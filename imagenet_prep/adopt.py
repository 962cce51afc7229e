"""`imagenet-prep adopt`: gives a set that another program wrote what it lacks, without re-encoding.

In place: names are set right, and index files, labels.txt, TFDS files and the manifest are added;
the bytes of the shards stay. With --out the shards are linked into a new folder, with --rewrite
written anew there. No file that was there before is ever replaced.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_prep.core import cli
from imagenet_prep.dataset import naming, schema

if TYPE_CHECKING:
    from imagenet_prep.core.errors import ImagenetPrepError
    from imagenet_prep.dataset.manifest import Manifest
    from imagenet_prep.preparation.existing_set import ExistingSet
    from imagenet_prep.sources.shard_files import TfrecordSet
    from imagenet_prep.storage.folder import LocalStore

EXAMPLES = """\
  imagenet-prep adopt /data/imagenet-tfrecords --dry-run
  imagenet-prep adopt /data/imagenet-tfrecords
  imagenet-prep adopt /data/train-val-tfrecord-480 --out /data/imagenet-480
  imagenet-prep adopt /data/imagenet2012/5.1.0 --rewrite --out /data/imagenet"""

# Written before the first change: the renames that a run after a kill has to finish.
_BEGUN = f"{naming.WORK}/adopt.json"
# Of a list in one sentence.
_SHOWN = 5
_STALE = dict.fromkeys(
    ((schema.HEIGHT, "untrue"), (schema.WIDTH, "untrue")),
    ": from before a resize, --rewrite corrects it",
)
_SMALL_FILES = (naming.LABELS, naming.QUARANTINE, naming.TFDS_FEATURES, naming.TFDS_INFO)


@dataclass(frozen=True)
class Config(cli.WorkerFlags):
    """Settings of one run; see the help of each flag."""

    folder: str = cli.flag(
        place=cli.Place.FOLDER,
        help="folder with TFRecord shards, flat or in train/ and validation/",
        positional=True,
        metavar="DIR",
    )
    out: str | None = cli.flag(
        None,
        place=cli.Place.FOLDER,
        help="leave the folder as it is and make the data set here, of hard links to its shards",
        metavar="DIR",
    )
    rewrite: bool = cli.flag(
        False,
        help="write the shards again to --out, with all keys, true sizes and labels from 1; the "
        "images stay byte for byte",
    )
    allow_subset: bool = cli.flag(
        False, help="accept other numbers of images than those of ILSVRC2012"
    )
    dry_run: bool = cli.flag(
        False, help="read everything, print what was found and would be done; change nothing"
    )
    json: bool = cli.flag(False, help="print the result as JSON")

    def __post_init__(self) -> None:
        """Refuses values that are not allowed, and flags that contradict each other."""
        super().__post_init__()
        if self.rewrite and self.out is None:
            raise ValueError("--rewrite: give --out, since no shard is ever replaced")


def adopt(config: Config) -> tuple[dict[str, Any], ImagenetPrepError | None]:
    """Carries out a run, or what is left of it.

    Returns:
      What was found and done, and why the set was refused, where it was: then nothing is changed.

    Raises:
      ImagenetPrepError: the class says with which exit code the command ends.
    """
    # Everything behind the flags costs a second to import: not for --help.
    from imagenet_prep.core.errors import UsageError
    from imagenet_prep.engine import Workers
    from imagenet_prep.preparation import rewrite
    from imagenet_prep.preparation.existing_set import check_existing_set
    from imagenet_prep.sources import shard_files
    from imagenet_prep.storage import scratch
    from imagenet_prep.storage.folder import LocalStore

    root = Path(config.folder).expanduser()
    out = root if config.out is None else Path(config.out).expanduser()
    if config.out is not None and out.resolve() == root.resolve():
        raise UsageError(f"--out {out} is the folder itself; leave it out to work in place")
    workers = Workers(config.workers, config.worker_kind)
    store = LocalStore(out)
    if config.dry_run:
        found = shard_files.find(root)
        with scratch.place() as place:
            seen = check_existing_set(found, LocalStore(place), workers, quiet=config.json)
        return _summary(config, found, seen, None), _refusal(config, found, seen)
    if config.out is None:
        if store.size(naming.MANIFEST) is not None:
            return {"folder": str(out), "already": _load(store).digest}, None
        if store.size(_BEGUN) is not None:
            with store.lock():
                _rename(store, _begun(store)["renames"])
    found = shard_files.find(root)
    with store.lock():
        store.remove_temporaries()
        seen = check_existing_set(found, store, workers, quiet=config.json)
        made = None
        refusal = _refusal(config, found, seen)
        if refusal is None and not config.rewrite:
            made = _complete(store, found, seen, in_place=config.out is None)
    if refusal is None and config.rewrite:
        # What `resize --keep-original` does, of a set that was found without a fault.
        job = rewrite.Job(
            found=found,
            splits=tuple(found.splits),
            policy=None,
            workers=workers,
            allowed_bad_images=0,
            labelling=seen.labelling,
            quiet=config.json,
        )
        rewrite.run(job, out)
        made = _load(store)
    return _summary(config, found, seen, made), refusal


def _refusal(config: Config, found: TfrecordSet, seen: ExistingSet) -> ImagenetPrepError | None:
    """Returns what keeps a set from being adopted at all."""
    from imagenet_prep.core.errors import DataDamagedError, SourceError, UsageError

    if seen.problems:
        shown = "; ".join(seen.problems[:_SHOWN])
        return DataDamagedError(
            f"{found.root}: {len(seen.problems):,} problems, all of them listed above: {shown}"
            f"{'; ...' if len(seen.problems) > _SHOWN else ''}. Nothing was changed. Fetch what is "
            "damaged again."
        )
    counts = seen.count_problems
    if counts and not config.allow_subset:
        return SourceError(
            f"{found.root}: not the whole of ILSVRC2012: {'; '.join(counts)}. Get the missing "
            "part, or pass --allow-subset if this is what you want."
        )
    if schema.ENCODED in seen.missing_features and not config.rewrite:
        return UsageError(
            f"{found.root}: the records have TensorFlow Datasets' keys, which readers of the slim "
            "schema do not know. Give --rewrite --out DIR: the images stay byte for byte."
        )
    return None


def _complete(
    store: LocalStore, found: TfrecordSet, seen: ExistingSet, *, in_place: bool
) -> Manifest:
    """Sets names right, adds what is missing beside the shards, commits; returns the manifest."""
    from imagenet_prep.core import canonical
    from imagenet_prep.core.errors import UsageError

    shards = [[r["shard"], r["sha256"]] for receipts in seen.receipts.values() for r in receipts]
    if store.size(_BEGUN) is None:
        _refuse_obstacles(store, found, seen, in_place=in_place)
        begun = {"renames": _moves(found) if in_place else [], "shards": shards}
        store.write(_BEGUN, canonical.dumps(begun))
    elif _begun(store)["shards"] != shards:
        raise UsageError(
            f"{store.root}: another set was adopted here, or its shards were replaced since. "
            f"Choose an empty --out; or, to begin anew, remove {_BEGUN} and what adopt made: "
            f"{naming.INDEX}/, {', '.join(_SMALL_FILES)}."
        )
    if in_place:
        _rename(store, _moves(found))
    else:
        _link(store, found)
    for receipts in seen.receipts.values():
        for receipt in receipts:
            store.write(naming.index_name(receipt["shard"]), _index(receipt))
    return _commit(store, seen)


def _moves(found: TfrecordSet) -> list[tuple[str, str]]:
    """Returns (path now, name then), relative to the folder, in an order that frees each name."""
    return [
        (str(shard.path.relative_to(found.root)), shard.name)
        for shards in found.splits.values()
        for shard in shards
        if shard.path != found.root / shard.name
    ]


def _begun(store: LocalStore) -> dict[str, Any]:
    """Returns what an earlier run was about to do here, where that is what adopt does.

    The folder may come from elsewhere, and its `.work` with it.

    Raises:
      DataDamagedError: it is anything else.
    """
    from imagenet_prep.sources import shard_files
    from imagenet_prep.storage import notes

    begun = notes.read(store, _BEGUN, renames=list, shards=list)
    for key in ("renames", "shards"):
        if not all(
            type(pair) is list and [type(each) for each in pair] == [str, str]
            for pair in begun[key]
        ):
            raise notes.damaged(store, _BEGUN, f"{key!r} holds something else than pairs of text")
    names = {name for name, _ in begun["shards"]}
    for before, after in begun["renames"]:
        if after not in names or not shard_files.becomes(before, after):
            raise notes.damaged(store, _BEGUN, f"adopt would never rename {before!r} to {after!r}")
    return begun


def _rename(store: LocalStore, moves: Sequence[Sequence[str]]) -> None:
    """Renames in order; a run after a kill does what is left.

    A name that is taken was either renamed to already, or is refused beforehand: a shard's new
    name is free as soon as the shard before it has moved.
    """
    from imagenet_prep.storage.folder import storage_errors

    for before, after in moves:
        if not store.path(after).exists():
            store.rename(before, after)
    for folder in {store.path(before).parent for before, _ in moves} - {store.root}:
        if folder.is_dir():
            with storage_errors("remove", folder):
                folder.rmdir()


def _link(store: LocalStore, found: TfrecordSet) -> None:
    import errno

    from imagenet_prep.core.errors import UsageError
    from imagenet_prep.storage.folder import storage_errors

    for shards in found.splits.values():
        for shard in shards:
            target = store.path(shard.name)
            if target.exists() and target.samefile(shard.path):
                continue
            try:
                with storage_errors("link", target):
                    target.hardlink_to(shard.path)
            except Exception as error:
                if getattr(error.__cause__, "errno", None) == errno.EXDEV:
                    raise UsageError(
                        f"{store.root} is on another file system than {found.root}: hard links do "
                        "not reach there. Choose --out beside it, or copy by --rewrite."
                    ) from error
                raise


def _refuse_obstacles(
    store: LocalStore, found: TfrecordSet, seen: ExistingSet, *, in_place: bool
) -> None:
    """Raises UsageError for files that lie where others would have to go."""
    from imagenet_prep.core.errors import UsageError

    shards = {shard.path for shards in found.splits.values() for shard in shards}
    folders = {path.parent for path in shards} - {store.root}
    strangers = [name for name in _SMALL_FILES if store.size(name) is not None]
    index = {r["shard"]: _index(r) for receipts in seen.receipts.values() for r in receipts}
    strangers += [
        naming.index_name(name)
        for name in store.names(naming.INDEX)
        if name not in index or store.read(naming.index_name(name)) != index[name]
    ]
    if store.root.is_dir():
        strangers += [
            path.name
            for path in sorted(store.root.iterdir())
            if naming.looks_like_shard(path.name) and path not in shards and path not in folders
        ]
    if in_place:
        if linked := sorted(folder.name for folder in folders if folder.is_symlink()):
            raise UsageError(
                f"{store.root}: {', '.join(linked)} is a link: shards of another folder are not "
                "moved. Give --out DIR, which links them."
            )
        strangers += [
            str(path.relative_to(store.root))
            for folder in sorted(folders)
            for path in sorted(folder.iterdir())
            if path not in shards
        ]
    if strangers:
        advice = "or give --out DIR" if in_place else "or choose an empty --out"
        raise UsageError(
            f"{store.root}: {', '.join(strangers[:_SHOWN])} in the way: no file is replaced, and "
            "readers would take what begins with train or valid for a shard. Move them away, "
            f"{advice}."
        )


def _index(receipt: dict[str, Any]) -> bytes:
    from imagenet_prep.dataset import tfrecord

    lines, offset = [], 0
    for size in receipt["record_bytes"]:
        lines.append(tfrecord.index_line(offset, size))
        offset += size
    return "".join(lines).encode()


def _commit(store: LocalStore, seen: ExistingSet) -> Manifest:
    import hashlib

    from imagenet_prep.core import canonical
    from imagenet_prep.dataset.settings import ADOPT, Settings
    from imagenet_prep.preparation.output import Output, Wanted
    from imagenet_prep.shards.commit import num_per_class, split_of

    classes = seen.labelling.classes
    splits = {}
    for split, receipts in seen.receipts.items():
        whole = [
            {
                **receipt,
                "index_bytes": len(_index(receipt)),
                "index_sha256": hashlib.sha256(_index(receipt)).hexdigest(),
                "resized": 0,
                "incidents": [],
            }
            for receipt in receipts
        ]
        splits[split] = split_of(whole, num_per_class(receipts, len(classes.wnids)))
    settings = Settings(ADOPT, {split: {} for split in splits})
    # What the shards were made from, nobody knows any more: the manifest names no sources.
    Output(store, Wanted(settings, libraries={})).commit(
        splits,
        classes,
        label_offset=seen.labelling.offset,
        missing_features=seen.missing_features,
        plan_digest=canonical.digest(
            [shard.sha256 for split in splits.values() for shard in split.shards]
        ),
        subset=bool(seen.count_problems),
    )
    return _load(store)


def _load(store: LocalStore) -> Manifest:
    from imagenet_prep.dataset import manifest

    return manifest.loads(store.read(naming.MANIFEST), str(store.path(naming.MANIFEST)))


def _findings(found: TfrecordSet, seen: ExistingSet) -> list[str]:
    """Returns what is odd about a set, a sentence each."""
    findings = []
    for split, shards in found.splits.items():
        first, last = shards[0].path, shards[-1].path
        if first.parent != found.root:
            findings.append(f"{split}: lies in {first.parent.name}/, readers look one folder up")
        if first.name.startswith(f"{split}-") and first.name != shards[0].name:
            findings.append(
                f"{split}: names count from 1: {shards[0].name} is missing, {last.name} is there"
            )
        elif not first.name.startswith(f"{split}-"):
            findings.append(f"{split}: named as TensorFlow Datasets does, {first.name}")
    labelling = seen.labelling
    last_label = len(labelling.classes.wnids) - 1 + labelling.offset
    findings.append(
        f"labels: {labelling.offset} ... {last_label}, class index + {labelling.offset}"
    )
    findings += [f"counts: {problem}" for problem in seen.count_problems]
    if schema.ENCODED in seen.missing_features:
        findings.append("records: TensorFlow Datasets' keys, not those of the slim schema")
    else:
        findings += [
            f"{key}: {kind} in {n:,} of {seen.examples:,} records{_STALE.get((key, kind), '')}"
            for key, kinds in sorted(seen.lack_counts.items())
            for kind, n in kinds.items()
        ]
    if seen.not_rgb:
        findings.append(f"{seen.not_rgb:,} images are grey or CMYK, not RGB as their records say")
    findings += [f"damaged: {problem}" for problem in seen.problems]
    return findings


def _summary(
    config: Config, found: TfrecordSet, seen: ExistingSet, made: Manifest | None
) -> dict[str, Any]:
    moves = [] if config.rewrite else _moves(found)
    return {
        "folder": config.out or config.folder,
        "digest": made.digest if made else None,
        "splits": {
            split: {
                "examples": sum(receipt["examples"] for receipt in receipts),
                "shards": len(receipts),
                "bytes": sum(receipt["num_bytes"] for receipt in receipts),
            }
            for split, receipts in seen.receipts.items()
        },
        "findings": _findings(found, seen),
        "problems": seen.problems,
        "lacks": seen.missing_features if made is None else made.lacks,
        "renames": moves,
    }


def run(argv: Sequence[str]) -> int:
    """Runs the verb and returns its exit code; errors are raised."""
    config = cli.parse(
        Config,
        argv,
        verb="adopt",
        description="Give a set of TFRecord shards that another program wrote what it lacks: "
        "right names, index\nfiles, labels.txt, TFDS files, a manifest. Images are never encoded "
        "again, no file is replaced.\nKilled or interrupted, run it again: it does what is left.",
        examples=EXAMPLES,
    )
    summary, refusal = adopt(config)
    print(json.dumps(summary, indent=1) if config.json else _render(summary))
    if refusal is not None:
        raise refusal
    return 0


def _render(summary: dict[str, Any]) -> str:
    """Returns the summary for a person."""
    if "already" in summary:
        return (
            f"{summary['folder']} is a data set already ({summary['already'][:16]}); nothing to "
            "do. imagenet-prep verify proves it."
        )
    lines = [
        f"{name}: {s['examples']:,} examples in {s['shards']} shards, {cli.human_bytes(s['bytes'])}"
        for name, s in summary["splits"].items()
    ]
    lines += [f"found: {finding}" for finding in summary["findings"]]
    how = "would be named" if summary["digest"] is None else "is now"
    lines += [f"{before} {how} {after}" for before, after in summary["renames"]]
    if summary["digest"] is None:
        lines.append("nothing was changed")
    else:
        manifest = Path(summary["folder"]) / naming.MANIFEST
        lines.append(f"manifest: {manifest} ({summary['digest'][:16]})")
    return "\n".join(lines)


if __name__ == "__main__":
    cli.main("imagenet_prep.adopt")
