"""`imagenet-prep export`: a split, or the weights of a run, in a format of other programs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagenet_prep.core import program
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.flags import Place, Settings, flag, parse
from imagenet_prep.core.terminal import counted, human_bytes
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.flag import data_set

EXAMPLES = """\
  imagenet-prep export /data/imagenet-480 --split train --out /data/mxnet/train
  imagenet-prep export /data/imagenet-480 --split validation --out /data/mxnet/val
  imagenet-prep export imagenet_resnet --format torch --out resnet50.safetensors"""

RECORDIO, TORCH = "recordio", "torch"
_EVERY = 1000


@dataclass(frozen=True)
class Config(Settings):
    """Settings of one export; see the help of each flag."""

    dataset: str = data_set(
        place=Place.FOLDER,
        help="folder of the data set; with --format torch that of a run, its --log-dir",
    )
    out: str = flag(
        place=Place.FOLDER,
        help="path of the files without their endings: PREFIX.rec, PREFIX.idx and PREFIX.lst; with "
        "--format torch the file",
        metavar="PREFIX|FILE",
    )
    format: str = flag(
        RECORDIO,
        choices=(RECORDIO, TORCH),
        help="recordio is MXNet's, as im2rec.py writes it; torch: the weights of a run's last "
        "checkpoint as safetensors, with the names and the layout of torchvision's ResNets, or of "
        "examples/tiny.py",
    )
    split: str = flag(
        schema.TRAIN,
        choices=schema.SPLITS,
        help="the split to export",
        only={"format": (RECORDIO,)},
    )
    json: bool = flag(False, help="print the summary as JSON, and no progress")


def export(config: Config) -> Json:
    """Writes the files and returns the summary; files of these names are replaced at the end.

    Raises:
      UsageError: no manifest, no such split, or only a part of the set is here.
      DataDamagedError: a record is damaged, or its label contradicts its class.
      StoreError, IncompleteError: the disk fails, or is full. No file was replaced.
    """
    from imagenet_prep import engine
    from imagenet_prep.core.errors import UsageError
    from imagenet_prep.dataset import recordio
    from imagenet_prep.read.records import Records
    from imagenet_prep.storage.large_file import LargeFile
    from imagenet_prep.storage.new_file import new_file
    from imagenet_prep.storage.os_errors import storage_errors

    records = Records(Path(config.dataset).expanduser(), config.split)
    if records.placement.nodes > 1:
        raise UsageError(f"{config.dataset} is {records.placement}: export needs the whole set.")
    prefix = Path(config.out).expanduser()
    total = len(records)
    progress = engine.Progress("export", -(-total // _EVERY), 0, quiet=config.json)
    with (
        contextlib.closing(records),
        contextlib.closing(progress),
        storage_errors("write", prefix.with_name(f"{prefix.name}.rec")),
        _replacing(prefix, (".lst", ".idx", ".rec")) as partial,
        LargeFile(partial[".rec"]) as data,
        new_file(partial[".idx"]) as index,
        new_file(partial[".lst"]) as names,
    ):
        for number in range(total):
            image = records.read(number)
            class_index = image.stored_label - records.manifest.label_offset
            path = f"{records.wnids[class_index]}/{image.filename}"
            index.write(recordio.index_line(number, data.num_bytes).encode())
            names.write(recordio.list_line(number, class_index, path).encode())
            data.append(recordio.frame(number, class_index, image.encoded))
            if (number + 1) % _EVERY == 0 or number + 1 == total:
                progress.add(examples=number % _EVERY + 1)
    return {
        "out": str(prefix),
        "split": config.split,
        "examples": total,
        "bytes": data.num_bytes,
        "sha256": data.sha256,
        "dataset": records.manifest.digest,
    }


def export_weights(config: Config) -> Json:
    """Writes the weights of a run's last checkpoint and returns the summary.

    Raises:
      UsageError: there is no run, or its network is none that PyTorch can have.
      DataDamagedError: no checkpoint is sound.
      StoreError, IncompleteError: the file cannot be written, or the disk is full.
    """
    from imagenet_prep.trainer import checkpoint, torchvision

    found = torchvision.last(Path(config.dataset).expanduser())
    named = torchvision.tensors(found)
    run = found.facts["run"]
    notes = {name: str(run[name]) for name in ("model", "num_classes", "image_size")}
    num_bytes = torchvision.write(
        Path(config.out).expanduser(), named, notes | {"step": str(found.step)}
    )
    return {
        "out": config.out,
        "model": run["model"],
        "classes": run["num_classes"],
        "image_size": run["image_size"],
        "checkpoint": checkpoint.name(found.step),
        "tensors": len(named),
        "bytes": num_bytes,
    }


def _how_to_load(out: str, summary: Json) -> str:
    """Returns what was written, and the lines of Python that read it."""
    from imagenet_prep.trainer import torchvision

    model, classes = summary["model"], summary["classes"]
    made = f"torchvision.models.{model}(num_classes={classes})"
    if model == torchvision.TINY:
        made = f"Tiny({classes}, image_size={summary['image_size']})  # of examples/tiny.py"
    return (
        f"{out}: {model} of {counted(classes, 'class')}, from {summary['checkpoint']}, "
        f"{human_bytes(summary['bytes'])} of safetensors\n"
        f"  model = {made}\n"
        f"  model.load_state_dict(safetensors.torch.load_file({out!r}))"
    )


@contextlib.contextmanager
def _replacing(prefix: Path, endings: Sequence[str]) -> Iterator[dict[str, Path]]:
    """Yields paths to write to, by ending; they become PREFIX and ending, in order, at the end."""
    from imagenet_prep.storage.folder import LocalStore
    from imagenet_prep.storage.os_errors import removed_on_failure

    prefix.parent.mkdir(parents=True, exist_ok=True)
    folder = LocalStore(prefix.parent)
    partial = {ending: folder.path(f".{prefix.name}{ending}.partial") for ending in endings}
    for path in partial.values():
        path.unlink(missing_ok=True)  # of a run that was killed
    with removed_on_failure(*partial.values()):
        yield partial
        # Whoever sees the large file, which is the last, sees the lists that belong to it.
        folder.remove(f"{prefix.name}{endings[-1]}")
        for ending, path in partial.items():
            folder.publish(path, f"{prefix.name}{ending}")


def run(argv: Sequence[str]) -> int:
    """Runs the verb and returns its exit code; errors are raised."""
    config = parse(
        Config,
        argv,
        verb="export",
        description="Write a split as files of another program, from its shards: every record is\n"
        "proven, no image is decoded or changed. Or write the weights of a run for PyTorch.\n"
        "Neither MXNet nor PyTorch nor TensorFlow is needed.",
        examples=EXAMPLES,
    )
    summary = export_weights(config) if config.format == TORCH else export(config)
    if config.json:
        print(json.dumps(summary, indent=1))
    elif config.format == TORCH:
        print(_how_to_load(config.out, summary))
    else:
        print(
            f"{config.out}.rec: {counted(summary['examples'], 'example')} of {config.split}, "
            f"{human_bytes(summary['bytes'])}; .idx and .lst beside it"
        )
    return 0


if __name__ == "__main__":
    program.main("imagenet_prep.export")
