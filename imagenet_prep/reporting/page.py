"""The pages of `report`: one dataset, two datasets, or a damaged dataset."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.terminal import counted, human_bytes
from imagenet_prep.dataset import ignored, schema, tfrecord
from imagenet_prep.dataset.schema import LEVELS
from imagenet_prep.reporting import plots, training
from imagenet_prep.reporting.disagreements import APART, EQUAL, NONE, SHARED, Disagreements
from imagenet_prep.reporting.facts import Facts
from imagenet_prep.reporting.mistakes import Mistakes
from imagenet_prep.reporting.render import render, time_of
from imagenet_prep.reporting.sample import ShownIncident, Tile

if TYPE_CHECKING:
    # It needs a package for SSIM that the report of a single dataset does not use.
    from imagenet_prep.reporting.compare import Comparison

_MOST_PROBLEMS = 200
_MOST_ROWS = 200
_TIMES = "\N{MULTIPLICATION SIGN}"


def report(
    facts: Facts,
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
    """Returns the report of a dataset as HTML; `tiles` were drawn with `seed`."""
    manifest = facts.manifest
    classes = [
        {"text": " ".join(facts.class_name(index)).lower(), "examples": count}
        for index, count in facts.examples_per_class.items()
    ]
    shown = len({tile.class_index for tile in tiles})
    counts = {name: plots.num_classes(split) for name, split in manifest.splits.items()}
    return render(
        "report.html.jinja",
        f"{facts.name}: report",
        made_at,
        data={"tiles": [_facts_of(tile) for tile in tiles], "classes": classes},
        filters={
            "reasons": _reasons,
            "by_ending": ignored.in_words,
            "words": lambda tile: (
                f"{tile.image.wnid} {tile.image.text} {tile.image.filename}".lower()
            ),
        },
        facts=facts,
        manifest=manifest,
        # Custom images have no official counts.
        is_subset=manifest.subset and manifest.claims_ilsvrc2012,
        is_read=level != schema.LEVEL_MANIFEST,
        fewer_classes=[each for each in counts.items() if each[1] < manifest.classes.count],
        ignored=ignored.together(source.ignored for source in manifest.sources),
        tiles=tiles,
        tile_side=104,
        pairs=any(tile.before for tile in tiles),
        drawn_from=f"of {shown:,} of {counted(len(classes), 'class')}",
        incidents=incidents,
        plots=plots.of(facts),
        trained=plots.training(trained) if trained else None,
        mistakes=mistakes,
        disagreements=disagreements,
        kinds=(EQUAL, SHARED, APART, NONE),
        header=training.HEADER,
        rows=training.cells(trained),
        checked=f"Checked on {time_of(made_at)} at level {level}: "
        + ("this is what is wrong:" if facts.problems else LEVELS[level] + "."),
        loading=_loading(facts),
        settings=_settings(facts),
        seed=seed,
        most_problems=_MOST_PROBLEMS,
        most_rows=_MOST_ROWS,
    )


def comparison(found: Comparison, *, seed: int, made_at: datetime) -> str:
    """Returns the comparison of two datasets as HTML."""
    one, other = found.facts
    names = [one.name, other.name]
    if names[0] == names[1]:
        names = [one.store.where(), other.store.where()]
    return render(
        "compare.html.jinja",
        f"{names[0]} and {names[1]}",
        made_at,
        data={},
        comparison=found,
        missing=list(zip(names, names[::-1], found.missing, strict=True)),
        names=names,
        ratio=f"{_TIMES} {other.num_bytes / one.num_bytes:.2f}",
        rows=[
            (label, *(shown(facts) for facts in found.facts)) for label, shown in _COMPARED.items()
        ],
        worst=[match for match in found.matches if match.pictures],
        seed=seed,
        most_problems=_MOST_PROBLEMS,
    )


def _train_bytes(facts: Facts) -> int:
    split = facts.manifest.splits.get(schema.TRAIN)
    return split.num_bytes if split else facts.num_bytes


def _bytes_per_example(facts: Facts) -> float:
    return facts.num_bytes / max(facts.examples, 1)


def _duration(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds < 120 else f"{seconds / 60:,.1f} min"


# Rows of the table. 1.25 GB/s is a 10 Gbit/s network, 0.2 GB/s is a hard disk.
_COMPARED: dict[str, Callable[[Facts], str]] = {
    "examples": lambda facts: f"{facts.examples:,}",
    "disk": lambda facts: human_bytes(facts.num_bytes),
    "bytes an example": lambda facts: human_bytes(_bytes_per_example(facts)),
    "read in an epoch of train": lambda facts: human_bytes(_train_bytes(facts)),
    "an epoch over 10 Gbit/s": lambda facts: _duration(_train_bytes(facts) / 1.25e9),
    "an epoch from a disk of 200 MB/s": lambda facts: _duration(_train_bytes(facts) / 0.2e9),
    "images/s that 10 Gbit/s carry": lambda facts: (
        f"{1.25e9 / max(_bytes_per_example(facts), 1):,.0f}"
    ),
    "largest width and height": lambda facts: ", ".join(
        f"{split.max_width:,} and {split.max_height:,}" for split in facts.manifest.splits.values()
    ),
    "left out": lambda facts: f"{sum(facts.manifest.quarantined.values()):,}",
    "manifest": lambda facts: facts.manifest.digest[:16],
}


def broken(where: str, problem: str, made_at: datetime) -> str:
    """Returns the report of a dataset with an unusable manifest, as HTML."""
    name = where.rpartition("/")[2]
    title = f"{name}: damaged"
    return render("broken.html.jinja", title, made_at, data={}, name=name, problem=problem)


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items()) or "none"


def _facts_of(tile: Tile) -> Json:
    record, image = tile.record, tile.image
    offset, _ = tfrecord.index_numbers(record.line)
    rows = [
        ("class", f"{image.wnid}, index {tile.class_index}"),
        ("file", image.filename),
        ("shard", f"{record.shard}, record {record.number}, byte {offset:,}"),
        ("stored", f"{image.width} {_TIMES} {image.height}, {human_bytes(tile.num_bytes)}"),
    ]
    if (origin := record.origin) is not None:
        size = f"{origin.width} {_TIMES} {origin.height}, {human_bytes(origin.size)}"
        rows += [("source", size), ("lies in", f"{origin.archive}, byte {origin.offset:,}")]
    if tile.psnr is not None:
        rows.append(("PSNR", f"{tile.psnr:.1f} dB against the source shrunk by Lanczos"))
    if image.boxes.xmin:
        rows.append(("boxes", str(len(image.boxes.xmin))))
    return {
        "title": image.text or image.wnid,
        "rows": rows,
        "before": tile.before,
        "after": tile.after,
    }


def _settings(facts: Facts) -> list[tuple[str, str]]:
    """Returns the settings of the dataset that differ from their defaults."""
    manifest = facts.manifest
    rows = []
    for name, value in manifest.config.items():
        if value is None or value == []:
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        rows.append((name.replace("_", " "), text))
    rows.append(("program", f"{manifest.producer.name} {manifest.producer.version}"))
    libraries = sorted(manifest.producer.libraries.items())
    rows.append(("libraries", ", ".join(f"{name} {version}" for name, version in libraries)))
    rows += [(f"lacks {key}", what) for key, what in manifest.lacks.items()]
    for name, split in manifest.splits.items():
        sides = f"width at most {split.max_width:,}, height at most {split.max_height:,}"
        rows.append((name, f"{split.resized:,} resized; {sides}"))
    return rows


def _loading(facts: Facts) -> dict[str, str]:
    """Returns code that reads the dataset, by title."""
    folder, splits = facts.store.where(), facts.manifest.splits
    offset = facts.manifest.label_offset
    minus, why = "", "stored labels are class indices: they count from 0"
    if offset:
        minus, why = f" - {offset}", f"stored labels count from {offset}: subtract {offset}"
    split = schema.TRAIN if schema.TRAIN in splits else next(iter(splits))
    ways = {}
    ways["imagenet-prep's own reader"] = (
        "from imagenet_prep.read import make_dataset\n"
        f"{split} = make_dataset({folder!r}, {split!r}, batch_size=256)\n"
        f"for batch in {split}:\n"
        "    batch['images'], batch['class_index'], batch['mask']  # class_index counts from 0"
    )
    ways["PyTorch"] = (
        "import torch\n"
        "from imagenet_prep.read import make_dataset\n"
        f"{split} = make_dataset({folder!r}, {split!r}, batch_size=256,\n"
        "    backend='native', framework='dlpack', layout='NCHW')\n"
        f"for batch in {split}:\n"
        "    images = torch.from_dlpack(batch['images'])  # [256, 3, 224, 224] float32\n"
        "    labels = torch.from_dlpack(batch['class_index']).long()  # count from 0"
    )
    if facts.store.as_folder is None:
        return ways  # the other readers only read folders
    ways["TensorFlow Datasets"] = (
        "import tensorflow_datasets as tfds\n"
        f"builder = tfds.builder_from_directory({folder!r})\n"
        f"for example in builder.as_dataset(split={split!r}):\n"
        f"    image = example['image']['encoded']\n"
        f"    class_index = example['image']['class']['label']{minus}  # {why}"
    )
    ways["NVIDIA DALI, in a pipeline"] = (
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
        ")\n"
        f"class_index = records['{schema.LABEL}']{minus}  # {why}"
    )
    return ways
