"""The summary that a run prints at its end, as JSON and as text."""

from __future__ import annotations

from collections.abc import Sequence

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.terminal import human_bytes
from imagenet_prep.dataset import settings
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.shards.writer import WrittenShard


def summarise(path: str, committed: Manifest, new: Sequence[WrittenShard], seconds: float) -> Json:
    """Returns the result as JSON.

    Args:
      path: of the manifest.
      committed: the manifest.
      new: receipts of the shards that this run wrote.
      seconds: that it took.
    """
    written = sum(receipt.examples for receipt in new)
    return {
        "manifest": path,
        "digest": committed.digest,
        "splits": {
            name: {
                "examples": split.examples,
                "shards": len(split.shards),
                "bytes": split.num_bytes,
                "resized": split.resized,
            }
            for name, split in committed.splits.items()
        },
        "subset": committed.subset,
        **({"edition": committed.edition} if committed.edition else {}),
        "repaired": committed.repaired,
        "quarantined": committed.quarantined,
        "excluded": settings.num_excluded(committed.config),
        "written_examples": written,
        "written_bytes": sum(receipt.num_bytes for receipt in new),
        "read_bytes": sum(receipt.source_bytes for receipt in new),
        "seconds": round(seconds, 2),
        "images_per_s": round(written / seconds, 1),
    }


def render(summary: Json, notes: Sequence[str] = ()) -> str:
    """Returns a result for a person; `notes` are more lines of the verb."""
    lines = [
        f"{name}: {s['examples']:,} examples in {s['shards']} shards, "
        f"{human_bytes(s['bytes'])}, {s['resized']:,} resized"
        for name, s in summary["splits"].items()
    ]
    for action in ("repaired", "quarantined"):
        reasons = summary[action]
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        lines.append(f"{action}: {sum(reasons.values()):,}" + (f" ({counts})" if counts else ""))
    if summary["excluded"]:
        lines.append(f"excluded: {summary['excluded']:,}")
    if summary["written_examples"]:
        lines.append(
            f"this run: {summary['written_examples']:,} images in {summary['seconds']:,.1f} s, "
            f"{summary['images_per_s']:,.0f} images/s, "
            f"{human_bytes(summary['read_bytes'])} in, "
            f"{human_bytes(summary['written_bytes'])} out"
        )
    else:
        lines.append("this run: nothing was left to do")
    lines += notes
    if "edition" in summary:
        lines.append(f"edition: {summary['edition']}")
    if summary["subset"]:
        lines.append("subset: counts are not ILSVRC2012's official ones; the manifest says so")
    lines.append(f"manifest: {summary['manifest']} ({summary['digest'][:16]})")
    if "report" in summary:
        lines.append(f"report: {summary['report']}")
    return "\n".join(lines)
