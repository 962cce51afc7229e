"""Publishes a dataset's small files and manifest, limits bad images, and summarises a run.

`publish` writes the small files, and then the manifest.

`refuse_too_many` and `require_few_bad_images` limit the number of quarantined images.

`of_set` and `summarise` return summaries of a dataset and of a run as JSON; `render_set` and
`render` return them as text.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError, some
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, human_bytes, printable
from imagenet_prep.dataset import formats, schema, settings, tfds
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.consistency import tfds_files
from imagenet_prep.dataset.manifest import DatasetFile, Manifest, Split
from imagenet_prep.dataset.member import OF_INPUT, QUARANTINED, REPAIRED, Incident
from imagenet_prep.shards.equal_bytes import also_in_train, with_kept
from imagenet_prep.shards.sorted_tables import samples_root
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.store import Store

_MOST_SOURCES = 8
_MOST_KEYS = 10


def of_set(path: str, dataset: Dataset) -> Json:
    """Returns the contents of a manifest as JSON, without its lists of shards and sources."""
    manifest = dataset.manifest
    splits: dict[str, Json] = {}
    for name, split in manifest.splits.items():
        splits[name] = {
            "examples": split.examples,
            "shards": len(split.shards),
            "bytes": split.num_bytes,
            "resized": split.resized,
        }
        missing = _missing(dataset, name)
        if missing:
            splits[name]["missing_classes"] = missing
    steps = manifest.settings.amendments
    return {
        "manifest": path,
        "digest": manifest.digest,
        "splits": splits,
        "classes": manifest.classes.count,
        "label_offset": manifest.label_offset,
        "claims_ilsvrc2012": manifest.claims_ilsvrc2012,
        "subset": manifest.subset,
        **({"edition": manifest.edition} if manifest.edition else {}),
        "repaired": manifest.repaired,
        "quarantined": manifest.quarantined,
        "excluded": dataset_store.num_excluded(dataset.store, manifest),
        "ignored": manifest.ignored,
        **({"amendments": strict_json.loads(strict_json.dumps(steps))} if steps else {}),
    }


def _missing(dataset: Dataset, split: str) -> list[str]:
    splits = dataset.manifest.splits
    train = splits[schema.TRAIN].examples_per_class if schema.TRAIN in splits else []
    counts = enumerate(zip(train, splits[split].examples_per_class, strict=False))
    # Only read the class list if needed, because it is a separate file.
    return [dataset.classes.wnids[i] for i, (in_train, here) in counts if in_train and not here]


def summarise(path: str, dataset: Dataset, new: Sequence[WrittenShard], seconds: float) -> Json:
    """Returns the result of a run as JSON, from the receipts of the shards that it wrote."""
    written = sum(receipt.examples for receipt in new)
    contents = of_set(path, dataset)
    if written:
        for name, keys in also_in_train(dataset).items():
            also = {"images": len(keys), "keys": keys[:_MOST_KEYS]}
            contents["splits"][name]["also_in_train"] = also
    return {
        **contents,
        "written_examples": written,
        "written_bytes": sum(receipt.num_bytes for receipt in new),
        "read_bytes": sum(receipt.source_bytes for receipt in new),
        "seconds": round(seconds, 2),
        "images_per_s": round(written / seconds, 1),
    }


def render(summary: Json, notes: Sequence[str] = ()) -> str:
    """Returns the result of a run as text; the verb may add `notes`."""
    lines = _lines_of_set(summary)
    if summary["written_examples"]:
        lines.append(
            f"this run: {counted(summary['written_examples'], 'image')} in "
            f"{summary['seconds']:,.1f} s, {summary['images_per_s']:,.0f} images/s, "
            f"{human_bytes(summary['read_bytes'])} in, "
            f"{human_bytes(summary['written_bytes'])} out"
        )
    else:
        lines.append("this run: nothing was left to do")
    lines += [*notes, *_last_lines(summary)]
    if "report" in summary:
        lines.append(f"report: {summary['report']}")
    return "\n".join(lines)


def render_set(manifest: Manifest, summary: Json, first_class: str) -> str:
    """Returns the counts, labels, settings and sources of a dataset as text."""
    producer = manifest.producer
    stored = manifest.label_offset
    classes = manifest.classes
    others = f"TFDS, tf.data and DALI return {stored}"
    if stored:
        others += f": subtract {stored}"
    label = f"class index 0 = {first_class}: stored label {stored}"
    libraries = (f", {name} {version}" for name, version in sorted(producer.libraries.items()))
    config = manifest.config.get("base", manifest.config)
    lines = [
        *_lines_of_set(summary),
        f"classes: {classes.count:,}, {'ILSVRC2012' if classes.official else 'custom'}",
        f"labels: {label}. Our readers return 0; {others}",
        f"made by: {producer.name} {producer.version}{''.join(libraries)}",
        f"settings: {', '.join(f'{name} {value}' for name, value in _chosen(config or {}))}",
    ]
    for source in manifest.sources[:_MOST_SOURCES]:
        md5 = f", md5 {source.md5}" if source.md5 else ""
        size = human_bytes(source.num_bytes)
        images = counted(source.members, "image")
        lines.append(f"from: {source.name}: {size}, {images}{md5}")
    more = len(manifest.sources) - _MOST_SOURCES
    if more > 0:
        lines.append(f"from: {more:,} more")
    return "\n".join(map(printable, [*lines, *_last_lines(summary)]))


def _chosen(config: settings.Config) -> list[tuple[str, object]]:
    """Returns the settings of a manifest that differ from their defaults, as a flat list."""
    splits = config.get("splits")
    flat = [(name, value) for name, value in config.items() if name != "splits"]
    for split, settings_of_split in splits.items() if isinstance(splits, dict) else ():
        flat += ((f"{split} {name}", value) for name, value in settings_of_split.items())
    # A seed of 0 is a choice, although 0 == False.
    return [
        (name, value) for name, value in flat if value is not False and value not in (None, [], "")
    ]


def _lines_of_set(summary: Json) -> list[str]:
    lines = [
        f"{name}: {counted(s['examples'], 'example')} in {counted(s['shards'], 'shard')}, "
        f"{human_bytes(s['bytes'])}, {s['resized']:,} resized"
        for name, s in summary["splits"].items()
    ]
    for name, split in summary["splits"].items():
        missing = split.get("missing_classes")
        if missing:
            classes = f"{counted(len(missing), 'class')} of train"
            lines.append(printable(f"{name}: no image of {classes}: {some(missing)}"))
        also = split.get("also_in_train")
        if also:
            lines.append(
                printable(
                    f"{name}: {counted(also['images'], 'image')} with the bytes of an image of "
                    f"train, such as {', '.join(also['keys'][:3])}. With them, accuracies are too "
                    "high. To list all copies, run imagenet-prep duplicates"
                )
            )
    for action in ("repaired", "quarantined"):
        reasons = summary[action]
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        lines.append(f"{action}: {sum(reasons.values()):,}" + (f" ({counts})" if counts else ""))
    lines += summary.get("unread", ())
    if summary["excluded"]:
        lines.append(f"excluded: {summary['excluded']:,}")
    if summary["ignored"]:
        lines.append(f"ignored: {printable(formats.ignored_in_words(summary['ignored']))}")
    return lines


def _last_lines(summary: Json) -> list[str]:
    lines = [f"edition: {summary['edition']}"] if "edition" in summary else []
    for step in summary.get("amendments", ()):
        lists = (
            f"{name} {step[name]['images']:,} ({step[name]['sha256'][:16]})"
            for name in ("exclude", "forget", "relabel", "add")
            if name in step
        )
        lines.append(printable(f"amended: {step['parent'][:16]}, {', '.join(lists)}"))
    # Custom images have no official counts.
    if summary["subset"] and summary["claims_ilsvrc2012"]:
        lines.append("subset: the counts differ from ILSVRC2012's official ones")
    return [*lines, f"manifest: {summary['manifest']} ({summary['digest'][:16]})"]


def publish(
    store: Store,
    draft: Manifest,
    *,
    incidents: Iterable[Incident],
    classes: ClassList,
    name: str = tfds.IMAGENET,
    replaced: Manifest | None = None,
) -> Manifest:
    """Publishes the small files and then dataset.json; returns the manifest.

    The store already contains all shards, indexes and tables. `draft` is the manifest without the
    fields quarantined, repaired, files and samples_root. `replaced` is the old manifest, if any.
    """
    splits = {split: with_root(store, entry) for split, entry in draft.splits.items()}
    incidents = with_kept(store, draft, incidents)
    incidents.sort(key=lambda incident: (incident.key, incident.line))
    contents = small_files(draft, incidents=incidents, classes=classes, name=name)
    manifest = dataclasses.replace(
        draft,
        splits=splits,
        quarantined=_count(incidents, QUARANTINED),
        repaired=_count(incidents, REPAIRED),
        files=[
            DatasetFile(name, len(data), hashlib.sha256(data).hexdigest())
            for name, data in sorted(contents.items())
        ],
    )
    if store.as_folder:
        store.as_folder.settle()
    store.verify_published(manifest.files_of(splits)[len(manifest.files) :])
    # Of the processes that share a run, a slow one may publish the same manifest again.
    if replaced and replaced.digest != manifest.digest:
        # The old manifest must not be visible together with the new small files.
        store.write(schema.REPLACED, replaced.dumps())
        store.remove(schema.MANIFEST)
    for name, data in contents.items():
        store.write(name, data)
    # Write the manifest last: once it is visible, all files that it names exist.
    store.verify_published(manifest.files)
    store.write(schema.MANIFEST, manifest.dumps())
    if replaced:
        store.remove(schema.REPLACED)
    return manifest


def small_files(
    draft: Manifest, *, incidents: Iterable[Incident], classes: ClassList, name: str
) -> dict[str, bytes]:
    """Returns the contents of a dataset's small files by name; see `publish` for the arguments."""
    return {
        schema.LABELS: classes.render(),
        **tfds_files(draft, classes),
        schema.QUARANTINE: b"".join(incident.line for incident in incidents),
        schema.TFDS_INFO: tfds.dataset_info(
            name,
            {split: entry.shards for split, entry in draft.splits.items()},
            draft.subset,
            draft.settings.licence,
        ),
    }


def with_root(store: Store, split: Split) -> Split:
    """Returns a split with the root of its samples added, or unchanged if it has no tables."""
    if split.samples_root or split.shards[0].samples is None:
        return split
    return dataclasses.replace(split, samples_root=samples_root(store, split.shards))


def emptied(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Returns the indices of classes that had images before and have none now."""
    counts = zip(before, after, strict=True)
    return [index for index, (had, has) in enumerate(counts) if had and not has]


def split_of(receipts: Sequence[WrittenShard], num_per_class: Sequence[int]) -> Split:
    """Returns the manifest entry of a split, from the receipts of its shards in order.

    `num_per_class` is the number of members by class index, including quarantined members.
    """
    examples_per_class = list(num_per_class)
    for receipt in receipts:
        for incident in receipt.incidents:
            if incident.action == QUARANTINED:
                if not 0 <= incident.class_index < len(examples_per_class):
                    raise DataDamagedError(
                        f"{receipt.shard}: its receipt in .work quarantines an image of class "
                        f"{incident.class_index:,}, but there are {len(examples_per_class):,} "
                        "classes. Remove .work, then run the same command again."
                    )
                examples_per_class[incident.class_index] -= 1
    return Split(
        examples=sum(examples_per_class),
        num_bytes=sum(receipt.num_bytes for receipt in receipts),
        examples_per_class=examples_per_class,
        resized=sum(receipt.resized for receipt in receipts),
        max_height=max(receipt.max_height for receipt in receipts),
        max_width=max(receipt.max_width for receipt in receipts),
        shards=[receipt.entry for receipt in receipts],
    )


def num_per_class(receipts: Iterable[Mapping[int, int]], num_classes: int) -> list[int]:
    """Adds up counts by class index; returns the totals as a list."""
    total: Counter[int] = Counter()
    for counts in receipts:
        total.update(counts)
    return [total[index] for index in range(num_classes)]


def _count(incidents: Iterable[Incident], action: str) -> dict[str, int]:
    counted = (i.reason for i in incidents if i.action.removeprefix(OF_INPUT) == action)
    return dict(sorted(Counter(counted).items()))


def refuse_too_many(bad: Sequence[Incident], limit: int | None) -> None:
    """Raises DataDamagedError if a run has found more bad images than `limit` allows."""
    if limit is not None and len(bad) > limit:
        last = bad[-1]
        raise DataDamagedError(
            f"{len(bad)} bad images, more than --max-bad {limit}; the last is {last.key} "
            f"({last.archive} byte {last.offset:,}): {last.detail}. Finished shards are kept. "
            "Check the source, then run again with a higher --max-bad, or without it."
        )


def require_few_bad_images(where: str, bad: int, allowed: int | None) -> None:
    """Raises DataDamagedError if a finished dataset has more bad images than the run allows."""
    if allowed is not None and bad > allowed:
        raise DataDamagedError(
            f"{where} is finished, but {bad} images are quarantined or doubtful, and only "
            f"{allowed} are allowed. They are listed in {schema.QUARANTINE}."
        )
