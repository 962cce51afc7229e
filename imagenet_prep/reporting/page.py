"""One self-contained page: nothing is fetched, and no text of a data set becomes markup.

Jinja2 escapes all that it is given; facts reach the script as JSON and the page as text
nodes. A content security policy allows the one script by its hash, and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import imagenet_prep
from imagenet_prep.core import schema
from imagenet_prep.core.cli import human_bytes
from imagenet_prep.reporting import plots
from imagenet_prep.reporting.facts import Facts
from imagenet_prep.reporting.sample import Incident, Tile

_MOST_PROBLEMS = 200
_MOST_ROWS = 200

_CHECKED = {
    "manifest": "every file is there with its size",
    "crc": "every byte of every file is what it was",
    "decode": "every byte is what it was, and every image decodes and has its label",
}


class Loading(NamedTuple):
    """How to read the data set: a title, and code to copy."""

    title: str
    code: str


def report(
    facts: Facts,
    tiles: list[Tile],
    incidents: list[Incident],
    *,
    level: str,
    seed: int,
    made_at: datetime,
) -> str:
    """Returns the report of a data set as HTML.

    Args:
      facts: of the data set.
      tiles, incidents: what to show of it.
      level: at which it was checked just now.
      seed: that drew the tiles.
      made_at: now, in UTC.
    """
    manifest = facts.manifest
    examples: dict[int, int] = {}
    for split in manifest.splits.values():
        for index, count in enumerate(split.examples_per_class):
            if count:
                examples[index] = examples.get(index, 0) + count
    classes = [
        {"text": " ".join(facts.class_name(index)).lower(), "examples": count}
        for index, count in examples.items()
    ]
    shown = len({tile.class_index for tile in tiles})
    return _render(
        "report.html.jinja",
        f"{facts.root.name}: report",
        made_at,
        data={"tiles": [_facts_of(tile) for tile in tiles], "classes": classes},
        facts=facts,
        manifest=manifest,
        tiles=tiles,
        tile_side=104,
        pairs=any(tile.before for tile in tiles),
        drawn_from=f"of {shown:,} of {len(examples):,} classes",
        incidents=incidents,
        plots=plots.of(facts),
        checked=f"Checked on {_time(made_at)} at level {level}: "
        + ("this is not so." if facts.problems else _CHECKED[level] + "."),
        loading=_loading(facts),
        settings=_settings(facts),
        seed=seed,
        most_problems=_MOST_PROBLEMS,
        most_rows=_MOST_ROWS,
    )


def broken(root: Path, problem: str, made_at: datetime) -> str:
    """Returns the report of a data set whose manifest cannot be used, as HTML."""
    title = f"{root.name}: damaged"
    return _render("broken.html.jinja", title, made_at, data={}, name=root.name, problem=problem)


def _render(
    template: str, title: str, made_at: datetime, *, data: dict[str, Any], **values: Any
) -> str:
    environment = Environment(
        loader=PackageLoader("imagenet_prep.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": lambda value: f"{value:,}",
        "size": human_bytes,
        "reasons": _reasons,
        "words": lambda tile: f"{tile.wnid} {tile.words} {tile.filename}".lower(),
    }
    script = _ours("script.js")
    digest = hashlib.sha256(script.encode()).digest()
    return environment.get_template(template).render(
        title=title,
        version=imagenet_prep.__version__,
        made_at=_time(made_at),
        style=Markup(_ours("style.css")),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_hash="sha256-" + base64.b64encode(digest).decode(),
        data=data,
        **values,
    )


def _ours(name: str) -> str:
    return (resources.files("imagenet_prep.reporting") / "templates" / name).read_text("utf-8")


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items()) or "none"


def _facts_of(tile: Tile) -> dict[str, Any]:
    rows = [
        ("class", f"{tile.wnid}, index {tile.class_index}"),
        ("file", tile.filename),
        ("shard", f"{tile.shard}, record {tile.record}, byte {tile.offset:,}"),
        ("stored", f"{tile.width} × {tile.height}, {human_bytes(tile.num_bytes)}"),
    ]
    origin = tile.origin
    if origin is not None:
        rows.append(("source", f"{origin.width} × {origin.height}, {human_bytes(origin.size)}"))
        rows.append(("lies in", f"{origin.archive}, byte {origin.offset:,}"))
    if tile.psnr is not None:
        rows.append(("PSNR", f"{tile.psnr:.1f} dB against the source shrunk by Lanczos"))
    if tile.boxes:
        rows.append(("boxes", str(tile.boxes)))
    return {
        "title": tile.words or tile.wnid,
        "rows": rows,
        "before": tile.before,
        "after": tile.after,
    }


def _settings(facts: Facts) -> list[tuple[str, str]]:
    manifest = facts.manifest
    rows = []
    for name, value in manifest.config.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        rows.append((name.replace("_", " "), text))
    rows.append((manifest.producer.name, manifest.producer.version))
    rows += sorted(manifest.producer.libraries.items())
    for key, what in manifest.lacks.items():
        rows.append((f"lacks {key}", what))
    for name, split in manifest.splits.items():
        rows.append((f"{name}, resized", f"{split.resized:,} of {split.examples:,}"))
        rows.append((f"{name}, largest sides", f"{split.max_width} × {split.max_height}"))
    return rows


def _loading(facts: Facts) -> list[Loading]:
    folder = str(facts.root.absolute())
    split = schema.TRAIN if schema.TRAIN in facts.manifest.splits else [*facts.manifest.splits][0]
    return [
        Loading(
            "TensorFlow Datasets",
            "import tensorflow_datasets as tfds\n"
            f"builder = tfds.builder_from_directory({folder!r})\n"
            f"{split} = builder.as_dataset(split={split!r})",
        ),
        Loading(
            "NVIDIA DALI, in a pipeline",
            "from pathlib import Path\n"
            "from nvidia.dali import fn, tfrecord as tfrec\n"
            f"root = Path({folder!r})\n"
            "records = fn.readers.tfrecord(\n"
            f"    path=sorted(map(str, root.glob('{split}-*'))),\n"
            f"    index_path=sorted(map(str, root.glob('index/{split}-*'))),\n"
            "    features={\n"
            f"        '{schema.ENCODED}': tfrec.FixedLenFeature((), tfrec.string, ''),\n"
            f"        '{schema.LABEL}': tfrec.FixedLenFeature([1], tfrec.int64, -1),\n"
            "    },\n"
            ")",
        ),
    ]
