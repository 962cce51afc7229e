"""Summaries of a dataset and of a run, as JSON and as text."""

from __future__ import annotations

from collections.abc import Sequence

from imagenet_prep.core import canonical
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import some
from imagenet_prep.core.terminal import counted, human_bytes, printable
from imagenet_prep.dataset import ignored, schema, settings
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset

_MOST_SOURCES = 8


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
        "ignored": ignored.together(source.ignored for source in manifest.sources),
        **({"amendments": canonical.loads(canonical.dumps(steps))} if steps else {}),
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
    return {
        **of_set(path, dataset),
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
    for action in ("repaired", "quarantined"):
        reasons = summary[action]
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        lines.append(f"{action}: {sum(reasons.values()):,}" + (f" ({counts})" if counts else ""))
    lines += summary.get("unread", ())
    if summary["excluded"]:
        lines.append(f"excluded: {summary['excluded']:,}")
    if summary["ignored"]:
        lines.append(f"ignored: {printable(ignored.in_words(summary['ignored']))}")
    return lines


def _last_lines(summary: Json) -> list[str]:
    lines = [f"edition: {summary['edition']}"] if "edition" in summary else []
    for step in summary.get("amendments", ()):
        lists = (
            f"{name} {step[name]['images']:,} ({step[name]['sha256'][:16]})"
            for name in ("exclude", "relabel", "add")
            if name in step
        )
        lines.append(printable(f"amended: {step['parent'][:16]}, {', '.join(lists)}"))
    # Custom images have no official counts.
    if summary["subset"] and summary["claims_ilsvrc2012"]:
        lines.append("subset: the counts differ from ILSVRC2012's official ones")
    return [*lines, f"manifest: {summary['manifest']} ({summary['digest'][:16]})"]
