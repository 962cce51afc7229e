"""Renders the pages of `imagenet-prep report`: one dataset, two datasets, or a broken manifest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import human_bytes
from imagenet_prep.dataset import keys, record_files, schema
from imagenet_prep.dataset.member import REPAIRED
from imagenet_prep.reporting import plots, scaling
from imagenet_prep.reporting.facts import DatasetFacts
from imagenet_prep.reporting.render import (
    APART,
    EQUAL,
    NONE,
    SHARED,
    Disagreements,
    Mistakes,
    render,
)
from imagenet_prep.reporting.sample import ShownIncident, Tile

if TYPE_CHECKING:
    # This module imports scikit-image, which a report about one dataset does not need.
    from imagenet_prep.reporting.compare import Comparison

_TIMES = "\N{MULTIPLICATION SIGN}"


def report(
    facts: DatasetFacts,
    tiles: list[Tile],
    incidents: list[ShownIncident],
    *,
    level: str,
    seed: int,
    made_at: datetime,
    trained: Sequence[Any] = (),
    mistakes: Mistakes | None = None,
    disagreements: Disagreements | None = None,
) -> str:
    """Returns the report of a dataset as HTML; `tiles` were selected with `seed`."""
    manifest = facts.manifest
    classes = [
        {"text": " ".join(facts.class_name(index)).lower(), "examples": count}
        for index, count in facts.examples_per_class.items()
    ]
    counts = {name: plots.num_classes(split) for name, split in manifest.splits.items()}
    return render(
        "report.html.jinja",
        f"{facts.name}: report",
        made_at,
        data={"tiles": [_facts_of(tile) for tile in tiles], "classes": classes},
        facts=facts,
        manifest=manifest,
        # A custom dataset has no official number of images.
        is_subset=manifest.subset and manifest.claims_ilsvrc2012,
        is_read=level != schema.LEVEL_MANIFEST,
        fewer_classes=[(s, n) for s, n in counts.items() if n < manifest.classes.count],
        ignored=manifest.ignored,
        has_wnids=all(keys.WNID.fullmatch(wnid) for wnid, _ in facts.classes),
        tiles=tiles,
        num_classes=len(classes),
        drawn_classes=len({tile.class_index for tile in tiles}),
        incidents=[each for each in incidents if each.line.action != REPAIRED],
        repaired=[each for each in incidents if each.line.action == REPAIRED],
        plots=plots.of(facts),
        trained=plots.training(trained) if trained else None,
        mistakes=mistakes,
        disagreements=disagreements,
        kinds=(EQUAL, SHARED, APART, NONE),
        header=scaling.HEADER,
        rows=scaling.cells(trained),
        level=level,
        guarantee=schema.LEVELS[level],
        settings=_settings(facts),
        seed=seed,
    )


def comparison(compared: Comparison, *, seed: int, made_at: datetime) -> str:
    """Returns the comparison of two datasets as HTML."""
    one, other = compared.facts
    names = [one.name, other.name]
    if names[0] == names[1]:
        names = [one.store.where(), other.store.where()]
    return render(
        "compare.html.jinja",
        f"{names[0]} and {names[1]}",
        made_at,
        data={},
        comparison=compared,
        missing=list(zip(names, names[::-1], compared.missing, strict=True)),
        names=names,
        ratio=f"{_TIMES} {other.num_bytes / one.num_bytes:.2f}",
        worst=[match for match in compared.matches if match.pictures],
        seed=seed,
    )


def broken(where: str, problem: str, made_at: datetime) -> str:
    """Returns the HTML page for a dataset with an invalid manifest."""
    name = where.rpartition("/")[2]
    title = f"{name}: damaged"
    return render("broken.html.jinja", title, made_at, data={}, name=name, problem=problem)


def _facts_of(tile: Tile) -> Json:
    record, image = tile.record, tile.image
    offset, _ = record_files.index_numbers(record.line)
    rows = [
        ("class", f"{image.wnid}, index {tile.class_index}"),
        ("file", image.filename),
        ("shard", f"{record.shard}, record {record.number}, byte {offset:,}"),
        ("stored", f"{image.width} {_TIMES} {image.height}, {human_bytes(tile.num_bytes)}"),
    ]
    origin = record.origin
    if origin is not None:
        size = f"{origin.width} {_TIMES} {origin.height}, {human_bytes(origin.size)}"
        rows += [("source", size), ("archive", f"{origin.archive}, byte {origin.offset:,}")]
    if tile.psnr is not None:
        rows.append(("PSNR", f"{tile.psnr:.1f} dB, compared with the source resized with Lanczos"))
    if image.boxes.xmin:
        rows.append(("boxes", str(len(image.boxes.xmin))))
    return {
        "title": image.text or image.wnid,
        "rows": rows,
        "before": tile.before,
        "after": tile.after,
    }


def _settings(facts: DatasetFacts) -> list[tuple[str, str]]:
    """Returns (name, value) pairs of the non-empty settings, program, libraries and splits."""
    producer = facts.manifest.producer
    settings = []
    libraries = sorted(producer.libraries.items())
    for name, value in facts.manifest.config.items():
        if value is not None and value != []:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            settings.append((name.replace("_", " "), text))
    settings.append(("program", f"{producer.name} {producer.version}"))
    settings.append(("libraries", ", ".join(f"{name} {version}" for name, version in libraries)))
    settings += [(f"lacks {key}", kind) for key, kind in facts.manifest.lacks.items()]
    for name, split in facts.manifest.splits.items():
        sides = f"width at most {split.max_width:,}, height at most {split.max_height:,}"
        settings.append((name, f"{split.resized:,} resized; {sides}"))
    return settings
