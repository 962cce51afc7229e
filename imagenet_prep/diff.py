"""Compare the images of two datasets: presence, labels, bytes and sizes.

Only the tables of samples are read, not the images.

Examples:
  imagenet-prep diff /data/imagenet-480 /data/imagenet-256
  imagenet-prep diff s3://bucket/imagenet-480 /data/imagenet-480 --exit-code
  imagenet-prep diff /data/old https://host/new --out differences.csv
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_prep.core import program, terminal
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.core.flags import AddressKind, Settings, flag, optional, switch
from imagenet_prep.core.strict_json import Json
from imagenet_prep.dataset.shared_flags import without_manifest

if TYPE_CHECKING:
    from imagenet_prep.dataset.samples import Difference
    from imagenet_prep.storage.dataset_store import Dataset

# Maximum numbers of keys per kind of difference, in JSON and in printed text.
_FIRST_KEYS = 10
_SHOWN_KEYS = 3
_WORDS = {
    "only_in_a": "only in A",
    "only_in_b": "only in B",
    "other_label": "other label",
    "other_bytes": "other bytes",
    "other_size": "other size",
}


_dataset = functools.partial(
    flag, place=AddressKind.ANYWHERE, positional=True, read=without_manifest
)


@dataclass(frozen=True)
class DiffConfig(Settings):
    """Settings of one comparison; see the help of each flag."""

    a: str = _dataset(metavar="A", help="dataset A: a folder, s3://bucket/prefix or http(s)://...")
    b: str = _dataset(metavar="B", help="dataset B")
    out: str | None = optional(
        place=AddressKind.FILE,
        help="write all differences to this CSV file, one line per key",
        metavar="CSV",
    )
    prove: bool = switch(
        help="read all tables of samples, and check them against the hashes in the manifests"
    )
    exit_code: bool = switch(help="exit with code 1 if the datasets differ")
    json: bool = switch(help="print the counts as JSON")


def diff(config: DiffConfig) -> Json:
    """Returns the counts and first keys of differences; writes all differences to `config.out`."""
    from imagenet_prep.shards.difference import common_tables, differences, splits_that_differ
    from imagenet_prep.storage import columns
    from imagenet_prep.storage.dataset_store import open_dataset

    a = open_dataset(config.a)
    b = open_dataset(config.b)
    splits = splits_that_differ(a, b)
    if config.prove:
        _require_roots(a)
        _require_roots(b)
    counts: dict[str, Counter[str]] = {
        split: Counter() for split in {**a.manifest.splits, **b.manifest.splits}
    }
    first: dict[str, dict[str, list[str]]] = {
        split: {kind: [] for kind in _WORDS} for split in counts
    }
    with _written(config.out) as write:
        for difference in differences(a, b, splits) if splits else ():
            counts[difference.split].update(difference.kinds)
            for kind in difference.kinds:
                # There may be millions of differences: only the first keys are kept.
                keys = first[difference.split][kind]
                if len(keys) < _FIRST_KEYS:
                    keys.append(difference.key)
            write(difference)
    trusted = () if config.prove else splits
    same_classes = a.classes.wnids == b.classes.wnids
    total = sum(counts.values(), Counter())
    differing_columns = columns.differences(a, b)
    facts = {
        name: {
            "dataset": dataset.where,
            "digest": dataset.manifest.digest,
            "examples": sum(split.examples for split in dataset.manifest.splits.values()),
        }
        for name, dataset in (("a", a), ("b", b))
    }
    return {
        **facts,
        "equal": same_classes and not total and not differing_columns,
        "same_classes": same_classes,
        "proven": config.prove,
        **{kind: total[kind] for kind in _WORDS},
        "columns": differing_columns,
        "splits": {
            split: {
                "equal": not split_counts,
                # Tables that were not read, because both manifests have the same hash for them.
                "trusted_tables": len(common_tables(a, b, split)) if split in trusted else 0,
                **{kind: split_counts[kind] for kind in _WORDS},
                "first_keys": first[split],
            }
            for split, split_counts in counts.items()
        },
    }


def _require_roots(dataset: Dataset) -> None:
    """Raises DataDamagedError if the tables of samples do not match the manifest."""
    from imagenet_prep.shards.sorted_tables import wrong_roots

    wrong = wrong_roots(dataset)
    if wrong:
        raise DataDamagedError(f"{dataset.where}: {'; '.join(wrong)}. Run imagenet-prep verify.")


@contextlib.contextmanager
def _written(out: str | None) -> Iterator[Callable[[Difference], Any]]:
    """Yields a function that writes a difference; the file appears at `out` when complete."""
    from imagenet_prep.core.small_files import FileKind
    from imagenet_prep.dataset.samples import DIFFERENCES
    from imagenet_prep.storage.local_file import complete_file

    if out is None:
        yield lambda _: None
        return
    path = Path(out).expanduser()
    kind = FileKind("a list of differences", ",".join(DIFFERENCES).encode())
    with complete_file(path, kind) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        lines = csv.writer(text)
        lines.writerow(DIFFERENCES)
        yield lambda difference: lines.writerow(_row(difference))
        text.detach()


def _row(difference: Difference) -> list[Any]:
    row: list[Any] = [difference.split, difference.key, " ".join(difference.kinds)]
    for stored in (difference.a, difference.b):
        row += [""] * 6 if stored is None else stored
    return row


def _text(result: Json) -> Iterator[str]:
    for name in "ab":
        facts = result[name]
        yield f"{name.upper()}: {facts['dataset']}, {terminal.counted(facts['examples'], 'image')}"
    if not result["same_classes"]:
        yield "the class lists differ, so labels are compared by WNID"
    for split, row in result["splits"].items():
        if row["equal"]:
            checked = ": the same images, with the same labels and bytes"
            stated = " according to the hashes in both manifests. To check the hashes, use --prove"
            yield f"{split}: equal{checked if result['proven'] else stated}"
            continue
        yield f"{split}:"
        for kind, keys in row["first_keys"].items():
            count = row[kind]
            if count:
                shown = [*map(terminal.printable, keys[:_SHOWN_KEYS]), "..."]
                yield f"  {_WORDS[kind]:<11} {count:>12,}  {', '.join(shown[:count])}"
        tables = row["trusted_tables"]
        if tables:
            yield (
                f"  equal according to both manifests: {terminal.counted(tables, 'table')} of "
                "samples. To read them, use --prove"
            )
    for name, difference in result["columns"].items():
        yield f"column {name}: {difference}"


@program.verb("imagenet_prep.diff", DiffConfig, __doc__, resumes=False)
def run(config: DiffConfig) -> int:
    result = diff(config)
    if config.json:
        print(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        print("\n".join(_text(result)))
        if config.out is not None:
            print(f"{config.out}: all differences")
    # As in git: 1 if there are differences.
    return 1 if config.exit_code and not result["equal"] else 0
