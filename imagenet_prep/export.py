"""Export a dataset to the format of another program, or the weights of a training run.

Every record is verified, and no image is decoded or changed. The other program need not be
installed. After an interruption, run the same command again to resume.

Examples:
  imagenet-prep export /data/imagenet-480 --to folder --out /data/folders
  imagenet-prep export /data/imagenet-480 --to tfds --out ~/tensorflow_datasets
  imagenet-prep export /data/imagenet-480 --to webdataset --out s3://bucket/tars --split validation
  imagenet-prep export /data/imagenet-480 --to recordio --out /data/mxnet
  imagenet-prep export imagenet_resnet --to torch --out resnet50.safetensors
  imagenet-prep export /data/imagenet-480 croissant.json --to croissant --about about.json
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from imagenet_prep.core import program, terminal
from imagenet_prep.core.address import is_remote
from imagenet_prep.core.errors import UsageError, some
from imagenet_prep.core.flags import AddressKind, WorkerFlags, flag, optional, switch
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, human_bytes
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.shared_flags import data_set, unknown_keys

if TYPE_CHECKING:
    from imagenet_prep.dataset.column import Column
    from imagenet_prep.exporting.examples import Format
    from imagenet_prep.storage.dataset_store import Dataset

FOLDER = "folder"
TFDS = "tfds"
WEBDATASET = "webdataset"
PARQUET = "parquet"
RECORDIO = "recordio"
TORCH = "torch"
CROISSANT = "croissant"
_HOW = dict.fromkeys((WEBDATASET, PARQUET), "; to export them, use --columns")
_HOW[FOLDER] = "; to export columns of texts, use --columns"
_OF_SETS = (FOLDER, TFDS, WEBDATASET, PARQUET, RECORDIO)


@dataclass(frozen=True)
class ExportConfig(WorkerFlags):
    """Settings of one export; see the help of each flag."""

    groups = {  # noqa: RUF012
        "Dataset and format": "dataset out to",
        "Images": "split classes keys exclude columns",
        "Result": "json",
    }
    dataset: str = data_set(
        help="dataset in a folder, s3:// or http(s)://; with --to torch, the --log-dir of a run"
    )
    out: str = flag(
        place=AddressKind.OUTPUT,
        help="empty folder or s3://bucket/prefix; with --to torch or croissant, a file; with --to "
        "recordio and one --split, the prefix of the file names",
        positional=True,
        aliases=("--out",),
        metavar="OUT",
    )
    to: str = flag(
        RECORDIO,
        choices=(*_OF_SETS, TORCH, CROISSANT),
        help="output format; folder: as for ImageFolder; tfds: TensorFlow Datasets; webdataset: "
        "tars; parquet: as on the Hugging Face Hub; recordio: MXNet; torch: weights of a run as "
        "safetensors, named as in torchvision; croissant: a description without images",
        aliases=("--format",),
    )
    split: tuple[str, ...] | None = optional(
        choices=schema.SPLITS,
        help="only export these splits, separated by commas (default: all)",
        metavar="NAMES",
        aliases=("--splits",),
        only={"to": _OF_SETS},
    )
    classes: tuple[str, ...] = flag(
        (),
        help="only export these classes, separated by commas: WNIDs or class indices",
        metavar="NAMES",
        only={"to": _OF_SETS},
    )
    columns: tuple[str, ...] = flag(
        (),
        help="also export these columns, separated by commas; --to folder and croissant take only "
        "texts",
        metavar="NAMES",
        only={"to": (FOLDER, WEBDATASET, PARQUET, CROISSANT)},
    )
    keys: str | None = optional(
        place=AddressKind.FILE,
        help="only export the images whose keys are in this file, one per line",
        only={"to": _OF_SETS},
    )
    exclude: str | None = optional(
        place=AddressKind.FILE,
        help="exclude the images whose keys are in this file, one per line, or the keys that this "
        "quarantine.jsonl of a dataset lists as excluded",
        only={"to": _OF_SETS},
    )
    allow_unknown: bool = unknown_keys(only={"to": _OF_SETS})
    about: str | None = optional(
        place=AddressKind.FILE,
        help="JSON file with the authors' Croissant fields, such as license and rai:dataBiases",
        only={"to": (CROISSANT,)},
    )
    allow_empty_class: bool = switch(
        help="create an empty folder for a class without images in a split", only={"to": (FOLDER,)}
    )
    holdout_as_val: bool = switch(
        help="write the holdout as val, where torchvision's and timm's scripts look for images",
        only={"to": (FOLDER,)},
    )
    json: bool = switch(help="print the summary as JSON, without progress")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to in _OF_SETS:
            AddressKind.FOLDER_OR_BUCKET.check("--out", self.out)
        if len({name.lower() for name in self.columns}) < len(self.columns):
            raise ValueError("--columns: two names differ at most in case, which readers ignore")
        for name in self.columns:
            # Parquet readers select `image.bytes` together with `image`.
            if self.to == PARQUET and name.partition(".")[0].lower() in schema.PARQUET_FIELDS:
                raise ValueError(f"--columns {name}: Parquet files have their own image and label")
            if self.to == WEBDATASET and name.startswith("__"):
                raise ValueError(f"--columns {name}: readers of tars use such names themselves")
            if self.to == FOLDER and name.lower() == schema.METADATA_FILE:
                raise ValueError(f"--columns {name}: metadata.jsonl has its own {name}")
        if is_remote(self.dataset) and self.to == TORCH:
            raise ValueError(f"{self.dataset}: --to torch needs the local folder of a run")
        if is_remote(self.out) and self.to in (TORCH, CROISSANT):
            raise ValueError(f"--out {self.out}: --to {self.to} needs a local file")
        if is_remote(self.out) and self.allow_empty_class:
            raise ValueError("--allow-empty-class needs a local folder: buckets have no folders")


def export(config: ExportConfig) -> Json:
    """Exports images, weights or metadata, and returns the summary."""
    if config.to == TORCH:
        return export_weights(config)
    if config.to == CROISSANT:
        return export_croissant(config)
    return export_images(config)


def export_images(config: ExportConfig) -> Json:
    """Exports the images of a dataset and returns the summary."""
    from imagenet_prep import engine
    from imagenet_prep.exporting import job
    from imagenet_prep.exporting.examples import ExportSource
    from imagenet_prep.read.config import WantedExamples
    from imagenet_prep.read.selection import Choice
    from imagenet_prep.storage import columns
    from imagenet_prep.storage.dataset_store import refuse_inside
    from imagenet_prep.storage.store import open_store

    source = ExportSource(config.dataset, config.columns)
    refuse_inside(config.out, source.dataset)
    existing = source.dataset.manifest.splits
    splits = [split for split in schema.SPLITS if split in (config.split or existing)]
    if config.holdout_as_val:
        _require_free_val(config, splits)
    with contextlib.closing(source):
        stored = columns.names(source.dataset.store)
        skipped = [name for name in stored if name not in config.columns]
        if skipped:
            terminal.say(f"columns not exported: {some(skipped)}{_HOW.get(config.to, '')}")
        format = _format(config, source.dataset)
        for split in splits:
            source.rows_of(split)
        place, called = format.place(config.out)
        classes = config.classes or None
        keys = config.keys
        wanted = WantedExamples(
            classes=classes,
            keys=keys,
            exclude=config.exclude,
            allow_unknown=config.allow_unknown,
        )
        done = job.run(
            job.ExportJob(
                source=source,
                splits=splits,
                choice=Choice(wanted, source.dataset.classes),
                to=config.to,
                format=format,
                store=open_store(place),
                called=called,
                workers=engine.Workers(config.workers, config.worker_kind),
                quiet=config.json,
            )
        )
    return {"out": config.out, "place": place, **done}


def _require_free_val(config: ExportConfig, splits: Sequence[str]) -> None:
    """Raises UsageError if there is no holdout to write as val, or if val is also validation."""
    if schema.HOLDOUT not in splits:
        raise UsageError(
            f"--holdout-as-val: {config.dataset} has no exported split holdout, only "
            f"{', '.join(splits)}. Remove this flag."
        )
    if schema.VALIDATION in splits:
        raise UsageError(
            "--holdout-as-val: val is the folder of the split validation, which is exported too. "
            "Select splits with --split train,holdout, or remove this flag."
        )


def _format(config: ExportConfig, dataset: Dataset) -> Format:
    from imagenet_prep.exporting.formats import (
        ImageFolderFormat,
        ParquetFormat,
        RecordIOFormat,
        Tfds,
        WebDatasetFormat,
    )

    wnids = dataset.classes.wnids
    labels = dataset.classes.render().decode()
    named = tuple(zip(wnids, dataset.classes.words, strict=True))
    # If --split names one split, its files are named like the last part of --out.
    prefix = config.out.rstrip("/").rpartition("/")[2] if len(config.split or ()) == 1 else ""
    opened = _columns(config, dataset)
    formats: dict[str, Callable[[], Format]] = {
        FOLDER: lambda: ImageFolderFormat(
            wnids,
            labels,
            allow_empty_class=config.allow_empty_class,
            columns=config.columns,
            holdout_as_val=config.holdout_as_val,
        ),
        TFDS: lambda: Tfds.of(dataset),
        WEBDATASET: lambda: WebDatasetFormat(named),
        PARQUET: lambda: ParquetFormat(wnids, tuple(column.begun() for column in opened)),
        RECORDIO: lambda: RecordIOFormat(prefix, labels),
    }
    return formats[config.to]()


def _columns(config: ExportConfig, dataset: Dataset) -> list[Column]:
    """Returns the columns to export; raises UsageError if the format cannot store one."""
    from imagenet_prep.storage import columns

    opened = [columns.open_column(dataset, name) for name in config.columns]
    arrays = [column.name for column in opened if not column.is_text]
    if arrays and config.to in (FOLDER, CROISSANT):
        raise UsageError(
            f"--columns {some(arrays)}: --to {config.to} only exports columns of texts. Use --to "
            f"{WEBDATASET} or {PARQUET} for arrays."
        )
    return opened


def export_weights(config: ExportConfig) -> Json:
    """Writes the weights of the last checkpoint to a file and returns the summary."""
    from imagenet_prep.trainer import checkpoint, interface

    last = interface.last(Path(config.dataset).expanduser())
    tensors = interface.tensors(last.facts["run"], last.arrays)
    network = interface.network_of(last.facts)
    notes = interface.notes(vars(network), interface.interface_of(last.facts))
    notes["step"] = str(last.step)
    num_bytes = interface.write(Path(config.out).expanduser(), tensors, notes)
    return {
        "out": config.out,
        "model": network.model,
        "classes": network.num_classes,
        "image_size": network.image_size,
        "checkpoint": checkpoint.name(last.step),
        "tensors": len(tensors),
        "bytes": num_bytes,
    }


def export_croissant(config: ExportConfig) -> Json:
    """Writes the Croissant file of a dataset and returns the summary."""
    from imagenet_prep.core import small_files, strict_json
    from imagenet_prep.exporting import croissant
    from imagenet_prep.storage.dataset_store import open_dataset
    from imagenet_prep.storage.local_file import complete_file
    from imagenet_prep.storage.store import is_inside

    out = Path(config.out).expanduser()
    about: Json = {}
    small_files.require_own(out, croissant.OWN)
    if config.about is not None:
        if is_inside(config.out, str(Path(config.about).expanduser())):
            raise UsageError(f"--about {config.about}: is also --out, which would replace it")
        try:
            about = dict(strict_json.loads(small_files.read(Path(config.about).expanduser())))
        except (OSError, TypeError, ValueError) as error:
            raise UsageError(f"--about {config.about}: expected a JSON object: {error}") from None
    name = config.dataset.rstrip("/").rpartition("/")[2]
    dataset = open_dataset(config.dataset)
    document = croissant.document(dataset, name, about, _columns(config, dataset))
    with complete_file(out, croissant.OWN) as file:
        file.write(json.dumps(document, indent=1, ensure_ascii=False).encode())
    missing = [field for field in croissant.OF_AUTHORS if field not in document]
    return {"out": config.out, "files": len(document["distribution"]), "missing": missing}


def _how_to_load(out: str, summary: Json) -> str:
    from imagenet_prep.trainer import interface

    model, classes = summary["model"], summary["classes"]
    call = f"torchvision.models.{model}(num_classes={classes})"
    if model == interface.TINY:
        call = f"Tiny({classes}, image_size={summary['image_size']})  # from examples/tiny.py"
    return (
        f"{out}: {model} for {counted(classes, 'class')}, from {summary['checkpoint']}, "
        f"{human_bytes(summary['bytes'])} of safetensors\n"
        f"  model = {call}\n"
        f"  model.load_state_dict(safetensors.torch.load_file({out!r}))"
    )


@program.verb("imagenet_prep.export", ExportConfig, __doc__)
def run(config: ExportConfig) -> None:
    summary = export(config)
    if config.json:
        print(json.dumps(summary, indent=1))
    elif config.to == TORCH:
        print(_how_to_load(config.out, summary))
    elif config.to == CROISSANT:
        print(f"{config.out}: describes {counted(summary['files'], 'file')}; contains no images")
        if summary["missing"]:
            missing = ", ".join(summary["missing"])
            print(f"before publication, add these fields with --about FILE: {missing}")
    else:
        for split, split_facts in summary["splits"].items():
            files = f"{counted(split_facts['files'], 'file')}, {human_bytes(split_facts['bytes'])}"
            print(
                f"{summary['place']}: {counted(split_facts['examples'], 'example')} of {split} as "
                f"{summary['to']} in {files}"
            )
        print(f"{summary['place']}/{summary['sums']} lists every file, for sha256sum --check")
