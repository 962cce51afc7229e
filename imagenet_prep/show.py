"""`imagenet-prep show`: shows the contents of a dataset, a shard or a training run."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from imagenet_prep.core import program, regular_file, terminal
from imagenet_prep.core.address import is_remote
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import DataDamagedError, UsageError, some
from imagenet_prep.core.flags import Place, Settings, optional, switch
from imagenet_prep.dataset import column, naming, schema
from imagenet_prep.dataset.flag import data_set
from imagenet_prep.storage.new_file import complete_file

if TYPE_CHECKING:
    from imagenet_prep.dataset.example import ImageExample
    from imagenet_prep.read.catalogue import Catalogue, Entry
    from imagenet_prep.read.receipt import Receipt
    from imagenet_prep.storage.opened import Dataset

HELP = """\
Look into a data set: what it is, or its images by key or by class. Or into one shard:
its records, or one of its images. Or into a training run: the images of its steps.

Examples:
  imagenet-prep show /data/imagenet-480
  imagenet-prep show /data/imagenet-480/train-00000-of-01024
  imagenet-prep show s3://bucket/imagenet-480/train-00000-of-01024 --json --limit 5
  imagenet-prep show /data/imagenet-480/train-00000-of-01024 --image 17 --out 17.jpg
  imagenet-prep show /data/imagenet-480 --keys --splits train
  imagenet-prep show /data/imagenet-480 --class n01440764 --limit 20
  imagenet-prep show /data/imagenet-480 --key n01440764/n01440764_10026.JPEG --out fish.jpg
  imagenet-prep show /data/imagenet-480 --image-file photo.jpg
  imagenet-prep show runs/1 --step 1000
  imagenet-prep show runs/1 --key n01440764/n01440764_10026.JPEG
  imagenet-prep show runs/1 --check"""

_FIRST_VALUES = 8
# A record without an image is an error.
_MAY_LACK = [key for key in schema.ALL_KEYS if key != schema.ENCODED]


@dataclass(frozen=True)
class Config(Settings):
    """Settings of one run; see the help of each flag."""

    dataset: str = data_set(
        place=Place.FILE_OR_OBJECT,
        help="a dataset, or one TFRecord file; a path, s3:// or http(s)://",
    )
    limit: int | None = optional(least=0, help="show only the first N records or images")
    image: int | None = optional(
        help="number of the record whose image is written to --out", metavar="RECORD"
    )
    out: str | None = optional(
        place=Place.FILE, help="the file to which --image or --key writes the image"
    )
    keys: bool = switch(
        help="list the keys of the data set, one a line, as --keys and --exclude of other verbs "
        "read them",
        without=("image", "key"),
    )
    key: str | None = optional(
        help="show the image of the data set that has this key, CLASS/NAME or NAME; of a run, the "
        "steps that used it",
        without=("image", "class_"),
    )
    class_: str | None = optional(
        help="show the images of this class: a WNID, a class index, the name of its folder, or a "
        "word such as planetarium; with --keys only their keys",
        metavar="CLASS",
        without=("image",),
    )
    step: int | None = optional(
        least=0,
        help="list the images that this step of a training run used; the dataset argument is then "
        "the --log-dir of the run. Steps count from 0",
        without=("key",),
    )
    check: bool = switch(
        help="check that the steps of a run used each image exactly once per epoch; exit code 1 if "
        "not",
        without=("step", "key"),
    )
    trained_on: str | None = optional(
        place=Place.ANYWHERE, help="the dataset of the run, if it has moved", metavar="SET"
    )
    image_file: str | None = optional(
        place=Place.FILE,
        help="tell whether the data set holds this image file, byte for byte as it is stored or as "
        "its source was, and where; exit code 1 if not",
        without=("image", "keys", "key", "class_"),
    )
    splits: tuple[str, ...] | None = optional(
        choices=schema.SPLITS,
        help="the splits of the data set to look through, separated by commas (default: all)",
        metavar="NAMES",
    )
    json: bool = switch(help="print one JSON object a line")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is not None and self.image is None and self.key is None:
            raise ValueError("--out needs --image or --key, which say what to write")
        if self.image is not None and self.out is None:
            raise ValueError("--image needs --out, the file to write")
        if self.splits is not None and not self.finds_images:
            raise ValueError(
                "--splits is for --keys, --key, --class and --image-file, which look into a set"
            )

    @property
    def asks_run(self) -> bool:
        """Whether a flag is given that only applies to runs."""
        return self.step is not None or self.check or self.trained_on is not None

    @property
    def finds_images(self) -> bool:
        """Whether images of a dataset are requested, not a shard."""
        asked = (self.key, self.class_, self.image_file)
        return self.keys or any(each is not None for each in asked)


def records(shard: str) -> Iterator[Json]:
    """Yields the content of each record of a shard, with the image under "encoded"."""
    from imagenet_prep.dataset import tfrecord

    name = shard.rpartition("/")[2]
    with _opened(shard) as stream:
        for record in tfrecord.read_records(stream, name):
            try:
                image = _decoded(record.payload)
            except DataDamagedError as error:
                raise DataDamagedError(
                    f"{name}: record {record.number} at byte {record.offset:,}: {error}"
                ) from error
            yield {
                "record": record.number,
                "offset": record.offset,
                "size": len(record.payload) + tfrecord.FRAMING_BYTES,
                **image._asdict(),
                "boxes": image.boxes._asdict(),
            }


def _decoded(payload: bytes) -> ImageExample:
    """Returns the example of a record in any known schema; missing keys are empty or 0."""
    from imagenet_prep.dataset import example, protobuf, tfds_record

    features = tfds_record.renamed(protobuf.parse(payload))
    return example.with_true_size(
        example.checked(features, dict.fromkeys(_MAY_LACK, schema.ABSENT))
    )


def _opened(shard: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if is_remote(shard):
        from imagenet_prep.storage.store import open_readable

        base, _, name = shard.rpartition("/")
        return open_readable(base).opened(name)
    try:
        return open(regular_file.open_to_read(Path(shard).expanduser()), "rb")
    except OSError as error:
        raise UsageError(f"{shard}: cannot be opened: {error.strerror}") from error


@program.verb("imagenet_prep.show", Config, HELP)
def run(config: Config) -> int:
    """Runs the verb and returns its exit code; errors are raised."""
    log = Path(config.dataset).expanduser() / naming.TRAINING_LOG
    if config.asks_run or _is_run(log):
        others = config.image, config.class_, config.image_file, config.splits
        if config.keys or any(each is not None for each in others):
            raise UsageError(f"{config.dataset} is a run: give --step, --key or --check")
        return _show_run(config, log)
    if config.finds_images:
        return _show_images(config)
    if _is_set(config.dataset):
        return _show_set(config)
    if config.image is not None and config.out is not None:
        return _write_image(config.dataset, config.image, Path(config.out))
    for row in itertools.islice(records(config.dataset), config.limit):
        _print(config, row, f"{row['record']:>6} @{row['offset']:<12,}")
    return 0


def _is_set(place: str) -> bool:
    """Returns whether a path or address is a dataset, not a single file."""
    from imagenet_prep.storage.store import open_readable

    if not is_remote(place):
        return Path(place).expanduser().is_dir()
    return open_readable(place).size(naming.MANIFEST) is not None


def _is_run(log: Path) -> bool:
    return log.is_file() and not (log.parent / naming.MANIFEST).exists()


def _show_run(config: Config, log: Path) -> int:
    from imagenet_prep.read import receipt
    from imagenet_prep.read.catalogue import Catalogue
    from imagenet_prep.storage.opened import open_dataset

    try:
        with open(regular_file.open_to_read(log), "rb") as lines:
            segments = receipt.parse(lines, str(log))
    except OSError as error:
        raise UsageError(f"{log}: cannot be read: {error.strerror}. Give a --log-dir") from error
    state = segments[0].state
    dataset = open_dataset(config.trained_on or state.data_dir, parts=True)
    if dataset.manifest.digest != state.dataset:
        raise UsageError(
            f"{dataset.where} has the digest {dataset.manifest.digest[:16]}, the dataset of the "
            f"run {state.dataset[:16]}. Give that dataset: --trained-on SET"
        )
    shards = dataset.manifest.splits[state.split].shards
    used = receipt.Receipt(segments, [shard.examples for shard in shards])
    catalogue = Catalogue(dataset, (state.split,))
    if config.key is not None:
        entry = _trained(config, dataset, state.split)
        return _show_uses(config, log, used, entry)
    if config.step is None:
        images, faults = used.faults()
        _print_row(config, {"steps": segments[-1].kept, "images": images, "faults": faults})
        return 1 if faults else 0
    uses = list(itertools.islice(used.step(config.step), config.limit))
    if not uses:
        last = max(each.reached for each in segments) - 1
        raise UsageError(f"{log}: no step {config.step:,}; the last one in the log is {last:,}")
    wanted = {number for _, number in uses}
    entries = {each.number: each for each in catalogue.entries() if each.number in wanted}
    if absent := wanted - entries.keys():
        lacks = terminal.counted(len(absent), "image")
        raise UsageError(
            f"{dataset.where} is only a part of the dataset, without {lacks} of the step. Give a "
            "complete one: --trained-on SET"
        )
    for use, number in uses:
        _print_row(config, {**use._asdict(), **entries[number]._asdict()})
    return 0


def _trained(config: Config, dataset: Dataset, split: str) -> Entry:
    """Returns the image with `config.key` of the split that a run used; UsageError if none."""
    from imagenet_prep.read.catalogue import Catalogue

    found = _found(config, Catalogue(dataset, tuple(dataset.manifest.splits)), config.key or "")
    used = [entry for entry in found if entry.split == split]
    if not used:
        raise UsageError(
            f"{config.dataset}: no step used {found[0].key}: it is in {found[0].split}, and the "
            f"run read {split}."
        )
    return used[0]


def _show_uses(config: Config, log: Path, used: Receipt, entry: Entry) -> int:
    """Shows the last checkpoint before an image was used, and the steps that used it."""
    from imagenet_prep.trainer import checkpoint

    step, uses = used.unseen(entry.number)
    file = checkpoint.name(step) if (log.parent / checkpoint.name(step)).exists() else None
    key = {} if entry.key == config.key else {"key": entry.key}  # NAME alone may be ambiguous
    _print_row(config, {**key, "unseen_until": step, "checkpoint": file})
    for use in itertools.islice(uses, config.limit):
        _print_row(config, use._asdict())
    return 0


def _print_row(config: Config, row: Json) -> None:
    if config.json:
        print(json.dumps(row, ensure_ascii=False))
        return
    for fault in row.pop("faults", ()):
        print(fault)
    print("  ".join(f"{name} {terminal.printable(str(value))}" for name, value in row.items()))


def _show_set(config: Config) -> int:
    from imagenet_prep.shards import summary
    from imagenet_prep.storage import columns
    from imagenet_prep.storage.opened import open_dataset

    if config.image is not None or config.limit is not None:
        raise UsageError(f"{config.dataset} is a data set: --image and --limit are for one shard")
    dataset = open_dataset(config.dataset, parts=True)
    manifest, first_class = dataset.manifest, dataset.classes.wnids[0]
    found = summary.of_set(dataset.store.where(naming.MANIFEST), dataset)
    made = {name: columns.find(dataset.store, name) for name in columns.names(dataset.store)}
    if config.json:
        of_columns = {
            name: each
            and {
                **vars(each.begun()),
                "splits": [*each.splits],
                "bytes": sum(file.num_bytes for file in each.files()),
            }
            for name, each in made.items()
        }
        content = {**found, "first_class": first_class, "columns": of_columns}
        print(json.dumps(content, indent=1))
        return 0
    print(summary.render_set(manifest, found, first_class))
    for name, each in made.items():
        line = "not complete"
        if each:
            size = terminal.human_bytes(sum(file.num_bytes for file in each.files()))
            line = f"{each.dtype} {list(each.shape)} of {', '.join(each.splits)}, {size}"
        if each and dataset.store.size(column.begun_name(name)) is not None:
            line += "; not complete"
        print(terminal.printable(f"column {name}: {line}"))
    return 0


def _rows(dataset: Dataset, split: str, shard: str, record: int) -> Json:
    """Returns type, shape and first values of a record's row in each finished column."""
    import numpy as np

    from imagenet_prep.read.columns import numbers_of
    from imagenet_prep.storage import columns

    (there,) = (each for each in dataset.shards(split) if each.name == shard)
    found: Json = {}
    for name in columns.names(dataset.store):
        made = columns.find(dataset.store, name)
        row = columns.row(dataset, made, split, there, record) if made else None
        if made and row is not None:
            values = np.frombuffer(row, made.descr)[:_FIRST_VALUES]
            first = numbers_of(values, made).tolist()
            found[name] = {"dtype": made.dtype, "shape": list(made.shape), "first": first}
    return found


def _show_images(config: Config) -> int:
    from imagenet_prep.read.catalogue import Catalogue
    from imagenet_prep.storage.opened import open_dataset

    dataset = open_dataset(config.dataset, parts=True)
    there = dataset.manifest.splits
    if absent := set(config.splits or ()) - there.keys():
        raise UsageError(
            f"{config.dataset}: no split {some(sorted(absent))}; there are: {', '.join(there)}"
        )
    catalogue = Catalogue(dataset, config.splits or tuple(there))
    if config.image_file is not None:
        return _show_file(config, catalogue, Path(config.image_file).expanduser())
    if config.key is None:
        found = catalogue.entries(config.class_)
    else:
        found = iter(_found(config, catalogue, config.key))
    for entry in itertools.islice(found, config.limit):
        if config.keys and config.json:
            print(json.dumps(entry._asdict(), ensure_ascii=False))
            continue
        if config.keys:
            terminal.print_data(entry.key)
            continue
        place, image = catalogue.read(entry)
        row = {**entry._asdict(), **place, **image._asdict(), "boxes": image.boxes._asdict()}
        if config.key is not None:
            row["columns"] = _rows(dataset, entry.split, row["shard"], row["record"])
        _print(config, row, f"{row['shard']} {row['record']:>6}")
        if config.out is not None:
            _write(image.encoded, Path(config.out))
            break
    return 0


def _found(config: Config, catalogue: Catalogue, key: str) -> list[Entry]:
    if entries := catalogue.find({key}):
        return entries[key]
    near = catalogue.like(key)
    raise UsageError(
        f"{config.dataset}: no image has the key {key}. "
        + (f"Did you mean {near}? " if near else "")
        + "Keys are CLASS/NAME or NAME; --keys lists them all."
    )


def _show_file(config: Config, catalogue: Catalogue, path: Path) -> int:
    import hashlib

    try:
        with open(regular_file.open_to_read(path), "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    is_found = False
    for entry, sample in itertools.islice(catalogue.having(sha256), config.limit):
        is_found = True
        shard, record = catalogue.place(entry)
        is_stored = sample.sha256 == sha256
        if config.json:
            row = {**entry._asdict(), "shard": shard, "record": record, "is_stored": is_stored}
            print(json.dumps({**row, **sample._asdict()}, ensure_ascii=False))
            continue
        how = "byte for byte"
        if not is_stored:
            reason = f", {sample.reason}" if sample.reason else ""
            how = f"as its source was; stored {sample.width}x{sample.height} ({sample.action}"
            how += f"{reason})"
        print(f"{shard} {record:>6} {terminal.printable(f'{entry.wnid} {entry.key}')}  {how}")
    if not is_found and not config.json:
        print(f"{path} (sha256 {sha256}) is not in {config.dataset}")
    return 0 if is_found else 1


def _print(config: Config, row: Json, where: str) -> None:
    num_bytes = len(row.pop("encoded"))
    if config.json:
        print(json.dumps({**row, "encoded_bytes": num_bytes}, ensure_ascii=False))
        return
    wnid, name, text = (terminal.printable(row[key]) for key in ("wnid", "filename", "text"))
    size = f"{row['width']:>5}x{row['height']:<5} {num_bytes:>9,} B"
    print(f"{where} {row['stored_label']:>4} {wnid} {size}  {name}  {text}")
    for made, of in row.get("columns", {}).items():
        values = ", ".join(f"{value:.6g}" for value in of["first"])
        more = ", ..." if len(of["first"]) < math.prod(of["shape"]) else ""
        print(terminal.printable(f"  {made}: {of['dtype']} {of['shape']}: {values}{more}"))


def _write_image(shard: str, number: int, out: Path) -> int:
    last = -1
    for row in records(shard):
        last = row["record"]
        if last == number:
            _write(row["encoded"], out)
            what = terminal.printable(f"{row['wnid']} {row['text']}")
            print(f"{out}: {row['width']}x{row['height']} {what}")
            return 0
    raise UsageError(f"{shard.rpartition('/')[2]}: no record {number}; it has records 0 to {last}")


def _write(encoded: bytes, out: Path) -> None:
    regular_file.demand_own(out, "an image like this one", encoded[:2])
    with complete_file(out) as file:
        file.write(encoded)
