r"""Make a dataset with smaller images from TFRecord shards that any program wrote.

Shards may come from this program, slim, tensorflow/tpu, the AWS scripts or TensorFlow Datasets.
The new dataset keeps the number of shards and the order of records. After an interruption, run the
same command again to resume. Options for Apache Beam go after --; with --runner=DirectRunner, Beam
runs on this machine.

Examples:
  imagenet-prep resize -i /data/imagenet-full -o /data/imagenet-480 --splits train,validation
  imagenet-prep resize -i s3://bucket/imagenet-full -o s3://bucket/imagenet-480
  imagenet-prep resize -i IN -o OUT --short-side 256 --quality 90 --dry-run
  python -m imagenet_prep.resize -d imagenet -i IN -o OUT --subset_name train \
      --num_preprocess_threads 60 --num_intra_threads 2 --num_inter_threads 2
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from imagenet_prep.codec.policy import CODEC_HELP, CODECS
from imagenet_prep.core import program, terminal
from imagenet_prep.core.address import with_absolute
from imagenet_prep.core.flags import AddressKind, flag, optional, switch
from imagenet_prep.core.limits import num_cores
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, human_bytes
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.jpeg import KEEP, NEUTRAL, RULES
from imagenet_prep.dataset.shared_flags import data_set, unknown_keys
from imagenet_prep.preparation.config import RunFlags

# The parser of the AWS tutorial's script accepts every unambiguous prefix of these flags.
_TUTORIAL_FLAGS = (
    "--dataset_name",
    "--input_dir",
    "--output_dir",
    "--force",
    "--subset_name",
    "--stretch",
    "--size",
    "--quality",
    "--start_offset",
    "--num_preprocess_threads",
    "--num_intra_threads",
    "--num_inter_threads",
)


@dataclass(frozen=True)
class ResizeConfig(RunFlags):
    """Settings of one run; see the help of each flag."""

    groups = {  # noqa: RUF012
        "Input and output": "input_dir output_dir splits exclude force",
        "Size": "short_side quality stretch keep_original",
    }
    input_dir: str = data_set(
        place=AddressKind.FOLDER_OR_BUCKET,
        help="folder or s3://bucket/prefix with TFRecord shards, flat or in train/ and validation/",
        names=("-i", "--input-dir"),
    )
    output_dir: str = flag(
        place=AddressKind.FOLDER_OR_BUCKET,
        help="folder or s3://bucket/prefix for the new dataset; a later run can add a split",
        aliases=("-o",),
    )
    splits: tuple[str, ...] = flag(
        (schema.TRAIN,),
        choices=schema.SPLITS,
        help="splits to resize, separated by commas",
        metavar="NAMES",
        aliases=("-s", "--subset-name"),
    )
    dataset_name: str | None = optional(
        choices=("imagenet", "flowers"),
        help="accepted classes; imagenet: only WNIDs; flowers: the classes of the records",
        aliases=("-d",),
    )
    short_side: int = flag(
        480,
        least=1,
        help="target length of the shorter edge; smaller images are not resized",
        metavar="PX",
        aliases=("-r", "--size"),
    )
    quality: int = flag(
        85,
        least=1,
        most=100,
        help="JPEG quality of re-encoded images",
        metavar="1-100",
        aliases=("-Q",),
    )
    codec: str = flag("auto", choices=tuple(CODECS), help=CODEC_HELP)
    stretch: bool = switch(
        help="resize every image to a square of --short-side pixels; small images are enlarged",
        aliases=("-R",),
        without=("keep_original",),
    )
    keep_original: bool = switch(
        help="keep the bytes of every image, and only add missing fields to the records"
    )
    orientation: str | None = optional(
        choices=RULES,
        help="handling of EXIF orientations; neutral: set the tag to 1; apply: rotate the image; "
        "keep: keep the tag of images that are not resized (default: neutral; with "
        "--keep-original, keep)",
    )
    exclude: str | None = optional(
        place=AddressKind.FILE,
        help="exclude the images whose keys are in this file, one per line, or the images that "
        "this quarantine.jsonl of a dataset lists as excluded",
    )
    allow_unknown: bool = unknown_keys()
    force: bool = switch(
        help="replace splits that resize made with different settings, codec or input",
        aliases=("-f",),
    )
    start_offset: int = flag(
        0, help="only 0 is accepted; finished shards are found without it", metavar="0"
    )
    num_preprocess_threads: int = flag(
        0, least=0, help="number of workers if --workers is not given, at most one per core"
    )
    num_intra_threads: int = flag(0, least=0, help="accepted, without effect")
    num_inter_threads: int = flag(0, least=0, help="accepted, without effect")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_original and self.orientation not in (None, KEEP):
            raise ValueError(
                f"--keep-original cannot be combined with --orientation {self.orientation}, which "
                "changes images"
            )
        if self.start_offset:
            raise ValueError(
                f"--start_offset {self.start_offset}: expected 0. Remove this flag: finished "
                "shards are found without it"
            )

    @property
    def num_workers(self) -> int:
        """Number of workers; by default --num_preprocess_threads, but at most one per core."""
        return self.workers or min(self.num_preprocess_threads, num_cores())


def resize(config: ResizeConfig) -> Json:
    """Resizes the images and returns the summary."""
    from imagenet_prep.codec import planes
    from imagenet_prep.codec.policy import Policy
    from imagenet_prep.core.errors import UsageError
    from imagenet_prep.engine import Workers
    from imagenet_prep.preparation import rewrite
    from imagenet_prep.shards.equal_bytes import read_exclusions
    from imagenet_prep.sources import shard_files
    from imagenet_prep.storage import columns
    from imagenet_prep.storage.store import open_store

    if config.beam_args:
        config = with_absolute(config, "input_dir", "output_dir")
    if config.num_intra_threads or config.num_inter_threads:
        terminal.say(
            "--num_intra_threads and --num_inter_threads have no effect. Use --workers instead."
        )
    tfrecords = shard_files.find(open_store(config.input_dir))
    columns.say_left_behind(tfrecords.store)
    splits = tuple(split for split in schema.SPLITS if split in config.splits)
    absent = [split for split in splits if split not in tfrecords.splits]
    if absent:
        raise UsageError(
            f"{tfrecords.store.where()}: no shards of {', '.join(absent)}. Choose --splits from "
            f"{', '.join(tfrecords.splits)}"
        )
    policy = Policy(
        config.short_side,
        config.quality,
        stretch=config.stretch,
        codec=CODECS[config.codec],
        orientation=config.orientation or NEUTRAL,
    )
    if not config.keep_original:
        planes.require()
    exclude = None
    if config.exclude is not None:
        exclude = read_exclusions(config.exclude, allows_unknown=config.allow_unknown)
    job = rewrite.ResizeJob(
        found=tfrecords,
        splits=splits,
        policy=None if config.keep_original else policy,
        workers=Workers(config.num_workers, config.worker_kind, config.beam_args),
        allowed_bad_images=config.allowed_bad_images,
        exclude=exclude,
        licence=config.licence,
        wnids_only=config.dataset_name == "imagenet",
        force=config.force,
        quiet=config.json,
    )
    out = open_store(config.output_dir)
    return rewrite.preview(job, out) if config.dry_run else rewrite.run(job, out)


def _spelled_out(argv: Sequence[str]) -> list[str]:
    """Returns the command line with abbreviated flags of the AWS tutorial written in full."""
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    for place, word in enumerate(words[:end]):
        name, equals, value = word.partition("=")
        matches = [flag for flag in _TUTORIAL_FLAGS if flag.startswith(name)]
        if name.startswith("--") and len(matches) == 1:
            words[place] = matches[0] + equals + value
    return words


@program.verb("imagenet_prep.resize", ResizeConfig, __doc__, rewrite=_spelled_out)
def run(config: ResizeConfig) -> None:
    summary = resize(config)
    print(json.dumps(summary, indent=1) if config.json else _render(summary))


def _render(summary: Json) -> str:
    from imagenet_prep.shards.commit import render

    if "workers" in summary:
        lines = [
            f"{name}: {counted(s['shards'], 'shard')}, {human_bytes(s['source_bytes'])}, "
            f"{s['first_file']} ... -> {s['first_shard']} ..."
            for name, s in summary["splits"].items()
        ]
        lines.append(f"labels: {summary['labels']}")
        run = f"would run on {summary['workers']}; dry run, nothing was written"
        lines.append(
            run if summary["left"] else f"{summary['out']} already has this dataset: nothing to do"
        )
        return "\n".join(lines)
    notes = [
        f"{split}: in the input, but not in the output. To add it, use --splits {split}"
        for split in summary["left_in_input"]
    ]
    return render(summary, notes)
