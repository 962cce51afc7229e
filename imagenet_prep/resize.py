r"""Make a dataset with smaller images from TFRecord shards of any program.

Shards may come from this program, slim, tensorflow/tpu, the AWS scripts or TensorFlow Datasets.
The number of shards and the order of records stay. If it is interrupted, run the same command
again to resume. Options for Apache Beam go after --; --runner=DirectRunner runs on this machine.

Examples:
  imagenet-prep resize -i /data/imagenet-full -o /data/imagenet-480 --splits train,validation
  imagenet-prep resize -i s3://bucket/imagenet-full -o s3://bucket/imagenet-480
  imagenet-prep resize -i IN -o OUT --short-side 256 --quality 90 --dry-run
  python -m imagenet_prep.resize -d imagenet -i IN -o OUT --subset_name train \
      --num_preprocess_threads 60 --num_intra_threads 2 --num_inter_threads 2
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from imagenet_prep.codec.policy import CODEC_HELP, CODECS
from imagenet_prep.core import program, terminal
from imagenet_prep.core.address import with_absolute
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.flags import Place, flag, optional, switch
from imagenet_prep.core.terminal import counted, human_bytes
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.flag import data_set
from imagenet_prep.dataset.orientation import KEEP, NEUTRAL, RULES
from imagenet_prep.preparation.config import RunFlags

# The tutorial's parser accepted every unambiguous prefix of these flags.
_TUTORIAL_FLAGS = (
    *("--dataset_name", "--input_dir", "--output_dir", "--force", "--subset_name", "--stretch"),
    *("--size", "--quality", "--start_offset"),
    *("--num_preprocess_threads", "--num_intra_threads", "--num_inter_threads"),
)


@dataclass(frozen=True)
class Config(RunFlags):
    """Settings of one run; see the help of each flag."""

    groups = {  # noqa: RUF012
        "Input and output": "input_dir output_dir splits exclude force",
        "Size": "short_side quality stretch keep_original",
    }
    input_dir: str = data_set(
        place=Place.FOLDER_OR_BUCKET,
        help="folder or s3://bucket/prefix with TFRecord shards, flat or in train/ and validation/",
        names=("-i", "--input-dir"),
    )
    output_dir: str = flag(
        place=Place.FOLDER_OR_BUCKET,
        help="the dataset to make, a folder or s3://bucket/prefix; a second run may add a split",
        aliases=("-o",),
    )
    splits: tuple[str, ...] = flag(
        (schema.TRAIN,),
        choices=schema.SPLITS,
        help="splits to make, separated by commas",
        metavar="NAMES",
        aliases=("-s", "--subset-name"),
    )
    dataset_name: str | None = optional(
        choices=("imagenet", "flowers"),
        help="imagenet: refuse a set without WNIDs; flowers: take the class list from the records "
        "(default: by what the records hold)",
        aliases=("-d",),
    )
    short_side: int = flag(
        480,
        least=1,
        help="shrink images whose shorter edge is longer than this many pixels",
        metavar="PX",
        aliases=("-r", "--size"),
    )
    quality: int = flag(
        85,
        least=1,
        most=100,
        help="JPEG quality of images that are encoded",
        metavar="1-100",
        aliases=("-Q",),
    )
    codec: str = flag("auto", choices=tuple(CODECS), help=CODEC_HELP)
    stretch: bool = switch(
        help="make every image a square of --short-side pixels: proportions are lost, and small "
        "images are enlarged",
        aliases=("-R",),
    )
    keep_original: bool = switch(
        help="keep every image byte for byte, whatever its size; only what the records lack is "
        "added"
    )
    orientation: str | None = optional(
        choices=RULES,
        help="an image whose EXIF orientation is not 1: neutral leaves its pixels and sets the tag "
        "to 1; apply turns its pixels and boxes; keep leaves the tag of what is not shrunk "
        "(default: neutral; keep with --keep-original)",
    )
    exclude: str | None = optional(
        place=Place.FILE,
        help="leave out the images whose keys this file lists, one a line: "
        "n01440764/n01440764_10026.JPEG",
    )
    force: bool = switch(
        help="replace a split that resize made in OUTPUT with other settings, another codec or "
        "another input, and nothing else",
        aliases=("-f",),
    )
    start_offset: int = flag(0, help="only 0: finished shards are found without it", metavar="0")
    num_preprocess_threads: int = flag(
        0, least=0, help="the number of workers if --workers is not given, but not more than cores"
    )
    num_intra_threads: int = flag(
        0, least=0, help="accepted, without effect: an image is resized by one thread"
    )
    num_inter_threads: int = flag(0, least=0, help="accepted, without effect")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_original and self.stretch:
            raise ValueError("--keep-original keeps what --stretch would change")
        if self.keep_original and self.orientation not in (None, KEEP):
            raise ValueError(
                f"--orientation {self.orientation} changes what --keep-original keeps byte for byte"
            )
        if self.start_offset:
            raise ValueError(
                f"--start_offset {self.start_offset}: not needed. Run the same command again and "
                "finished shards are kept, whatever their number; so leave it out"
            )

    @property
    def num_workers(self) -> int:
        """Number of workers, 0 for one per core; the tutorial's 60 threads were a queue length."""
        cores = len(os.sched_getaffinity(0))
        return self.workers or min(self.num_preprocess_threads, cores)


def resize(config: Config) -> Json:
    """Resizes, or resumes, and returns the summary."""
    from imagenet_prep.codec.policy import Policy
    from imagenet_prep.codec.transform import require
    from imagenet_prep.core.errors import UsageError
    from imagenet_prep.dataset import keys
    from imagenet_prep.engine import Workers
    from imagenet_prep.preparation import rewrite
    from imagenet_prep.sources import shard_files
    from imagenet_prep.storage import columns
    from imagenet_prep.storage.store import open_store

    found = shard_files.find(open_store(config.input_dir))
    columns.say_left_behind(found.store)
    splits = tuple(split for split in schema.SPLITS if split in config.splits)
    if absent := [split for split in splits if split not in found.splits]:
        raise UsageError(
            f"{found.store.where()}: no shards of {', '.join(absent)}; there are shards of "
            f"{', '.join(found.splits)} (see --splits)"
        )
    policy = Policy(
        config.short_side,
        config.quality,
        stretch=config.stretch,
        codec=CODECS[config.codec],
        orientation=config.orientation or NEUTRAL,
    )
    if not config.keep_original:
        require(policy)
    job = rewrite.Job(
        found=found,
        splits=splits,
        policy=None if config.keep_original else policy,
        workers=Workers(config.num_workers, config.worker_kind, config.beam_args),
        allowed_bad_images=config.allowed_bad_images,
        exclude=None if config.exclude is None else keys.read_list(config.exclude),
        wnids_only=config.dataset_name == "imagenet",
        force=config.force,
        quiet=config.json,
    )
    out = open_store(config.output_dir)
    return rewrite.preview(job, out) if config.dry_run else rewrite.run(job, out)


def run(argv: Sequence[str]) -> int:
    """Runs the verb and returns its exit code; errors are raised."""
    return _run(_spelled_out(argv))


@program.verb("imagenet_prep.resize", Config, __doc__)
def _run(config: Config) -> None:
    if config.beam_args:
        config = with_absolute(config, "input_dir", "output_dir")
    if config.num_intra_threads or config.num_inter_threads:
        terminal.say(
            "--num_intra_threads and --num_inter_threads have no effect here; "
            "--workers says how many shards are in work."
        )
    summary = resize(config)
    print(json.dumps(summary, indent=1) if config.json else _render(summary))


def _spelled_out(argv: Sequence[str]) -> list[str]:
    """Returns the command line with prefixes of the tutorial's flags expanded."""
    words = list(argv)
    for place, word in enumerate(words):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        meant = [flag for flag in _TUTORIAL_FLAGS if flag.startswith(name)]
        if name.startswith("--") and len(meant) == 1:
            words[place] = meant[0] + equals + value
    return words


def _render(summary: Json) -> str:
    from imagenet_prep.shards.summary import render  # not needed for --help

    if "workers" in summary:
        lines = [
            f"{name}: {counted(s['shards'], 'shard')}, {human_bytes(s['source_bytes'])}, "
            f"{s['first_file']} ... -> {s['first_shard']} ..."
            for name, s in summary["splits"].items()
        ]
        lines.append(f"labels: {summary['labels']}")
        lines.append(f"would run on {summary['workers']}; nothing was written")
        return "\n".join(lines)
    notes = [
        f"{split}: lies in the input, not in the result; --splits {split} adds it"
        for split in summary["left_in_input"]
    ]
    return render(summary, notes)
