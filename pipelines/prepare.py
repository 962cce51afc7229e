"""The batch run: archives -> index -> plan -> shards -> manifest.

`imagenet-prep prepare` and `python -m pipelines.prepare` are this program. It may be
killed at any moment and run again: it does what is left, and nothing twice.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_prep import report
from imagenet_prep.core import cli, naming, remote, schema
from imagenet_prep.core.errors import UsageError
from imagenet_prep.shards.summary import render

# Where the archives of a --source elsewhere are brought to, below --out.
ARCHIVES_FOLDER = f"{naming.WORK}/archives"

EXAMPLES = """\
  imagenet-prep prepare --source /data/ilsvrc2012 --out /data/imagenet-480
  imagenet-prep prepare --source /data/ilsvrc2012 --out /data/imagenet-256 --short-side 256
  imagenet-prep prepare --source /data/ilsvrc2012 --out /data/imagenet --keep-original
  imagenet-prep prepare --source /data/ilsvrc2012 --out /tmp/tenth --subset-per-class 128
  imagenet-prep prepare --source /data/ilsvrc2012 --out /data/imagenet-480 --dry-run
  imagenet-prep prepare --source /data/ilsvrc2012 --out s3://bucket/imagenet-480
  imagenet-prep prepare --source https://mirror.example.edu/ilsvrc --out /data/imagenet-480"""


@dataclass(frozen=True)
class Config:
    """Settings of one run; see the help of each flag."""

    source: str = cli.flag(
        help="folder with the archives or images; or http(s):// or s3:// where the ILSVRC2012 "
        "archives are downloaded from, into OUT/.work/archives",
        metavar="DIR|URL",
    )
    out: str = cli.flag(
        help="the data set: a folder, made if absent, or s3://bucket/prefix", metavar="DIR|URL"
    )
    source_kind: str = cli.flag(
        "auto",
        choices=("auto", "ilsvrc", "folder", "parquet", "cifar10"),
        help="layout of the source; auto recognises it and says what it saw",
    )
    splits: tuple[str, ...] = cli.flag(
        schema.SPLITS, help="splits to make, separated by commas", metavar="NAMES"
    )
    train_shards: int | None = cli.flag(
        None, help="shards of train (default: 1024, fewer for a subset)", metavar="N"
    )
    validation_shards: int | None = cli.flag(
        None,
        help="shards of validation (default: 128, fewer for a subset)",
        metavar="N",
    )
    short_side: int = cli.flag(
        480,
        help="shrink images whose shorter edge is longer than this many pixels",
        metavar="PX",
    )
    quality: int = cli.flag(90, help="JPEG quality of images that are encoded", metavar="1-100")
    keep_original: bool = cli.flag(False, help="keep every size; sound RGB JPEGs byte for byte")
    check: str = cli.flag(
        "decode",
        choices=("decode", "header"),
        help="proof asked of sources: decode every image and hash the archives, or trust "
        "archives proven before and look at headers",
    )
    no_boxes: bool = cli.flag(False, help="leave out bounding boxes that lie beside the source")
    seed: int = cli.flag(0, help="decides which image lies in which shard", metavar="N")
    label_offset: int = cli.flag(
        schema.DEFAULT_LABEL_OFFSET,
        help="stored label = class index + this",
        metavar="0|1",
    )
    allow_subset: bool = cli.flag(False, help="accept other counts than ILSVRC2012's")
    subset_classes: tuple[str, ...] = cli.flag(
        (),
        help="only these WNIDs, or the first N classes; labels do not shift",
        metavar="N|WNIDS",
    )
    subset_per_class: int | None = cli.flag(
        None, help="at most this many images a class, chosen by the seed", metavar="N"
    )
    on_bad_image: str = cli.flag(
        "quarantine",
        choices=("quarantine", "fail"),
        help="what a bad image does to the run",
    )
    max_bad: int | None = cli.flag(
        None,
        help="stop when more images than this are bad (default: no limit)",
        metavar="N",
    )
    workers: int = cli.flag(0, help="images in work at a time; 0 is one a core", metavar="N")
    worker_kind: str = cli.flag(
        "auto", choices=("auto", "threads", "processes"), help="what a worker is"
    )
    report: bool = cli.flag(False, help=f"end with a page of pictures, OUT/{naming.REPORT}")
    dry_run: bool = cli.flag(False, help="print the plan and the disk it needs; write nothing")
    json: bool = cli.flag(False, help="print the result as JSON")
    beam_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses combinations that cannot mean anything."""
        unknown = set(self.splits) - set(schema.SPLITS)
        if unknown or not self.splits:
            raise ValueError(f"--splits: expected some of {', '.join(schema.SPLITS)}")
        positive = (
            "short_side",
            "train_shards",
            "validation_shards",
            "subset_per_class",
        )
        for name in positive:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} {value}: expected at least 1")
        for name in ("workers", "max_bad"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"--{name.replace('_', '-')}: expected 0 or more")
        if self.subset_classes == ("0",):
            raise ValueError("--subset-classes 0: expected at least 1")
        if not 1 <= self.quality <= 100:
            raise ValueError(f"--quality {self.quality}: expected 1 to 100")
        if self.label_offset not in (0, 1):
            raise ValueError(f"--label-offset {self.label_offset}: expected 0 or 1")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"--seed {self.seed}: expected 64 bits")
        for name, split in (
            ("train_shards", "train"),
            ("validation_shards", "validation"),
        ):
            if getattr(self, name) and split not in self.splits:
                raise ValueError(f"--{name.replace('_', '-')} without {split} in --splits")
        if self.report and self.dry_run:
            raise ValueError("--report shows what was made, --dry-run makes nothing")
        if "://" in self.out:
            self._check_remote_out()
        if remote.is_remote(self.source):
            self._check_remote_source()

    def _check_remote_out(self) -> None:
        if not self.out.startswith("s3://"):
            raise ValueError("--out: expected a folder or s3://bucket/prefix")
        try:
            remote.check_base(self.out)
        except ValueError as error:
            raise ValueError(f"--out: {error}") from None
        if self.report:
            raise ValueError(
                "--report shows a data set in a folder: imagenet-prep replicate brings it there"
            )
        if remote.is_remote(self.source):
            raise ValueError(
                "--source: archives are downloaded into OUT, and a bucket is no folder: get them "
                "by imagenet-prep download"
            )

    def _check_remote_source(self) -> None:
        try:
            remote.check_base(self.source)
        except ValueError as error:
            raise ValueError(f"--source: {error}") from None
        if self.source_kind not in ("auto", "ilsvrc"):
            raise ValueError("--source: only the ILSVRC2012 archives are downloaded")
        if self.dry_run:
            raise ValueError(
                "--dry-run plans with archives that are here: get them by imagenet-prep download"
            )

    def decisive(self) -> dict[str, Any]:
        """Returns the settings that decide the data set's bytes."""
        return {
            "splits": [split for split in schema.SPLITS if split in self.splits],
            "train_shards": self.train_shards,
            "validation_shards": self.validation_shards,
            "short_side": None if self.keep_original else self.short_side,
            "quality": self.quality,
            "check": self.check,
            "seed": self.seed,
            "label_offset": self.label_offset,
            "subset_classes": list(self.subset_classes),
            "subset_per_class": self.subset_per_class,
        }

    @property
    def allowed_bad_images(self) -> int | None:
        """How many images may be left out; None for any number."""
        return 0 if self.on_bad_image == "fail" else self.max_bad

    @property
    def asks_for_subset(self) -> bool:
        """Whether other counts than the official ones were asked for."""
        return bool(self.allow_subset or self.subset_classes or self.subset_per_class)


def prepare(config: Config) -> dict[str, Any]:
    """Carries out a run, or what is left of it; returns the summary that is printed.

    Raises:
      ImagenetPrepError: the class says with which exit code the command ends.
    """
    # Everything behind the flags costs a second to import: not for --help.
    from imagenet_prep.core.store import LocalStore, open_store
    from pipelines import space
    from pipelines.inventory import index_stage, take_inventory
    from pipelines.output import Output
    from pipelines.tasks import Job

    if remote.is_remote(config.source):
        config = dataclasses.replace(config, source=_bring_archives(config))
    job = Job.of(config)
    if not config.json:
        print(f"source: {job.seen}", file=sys.stderr)
    if config.dry_run:
        with tempfile.TemporaryDirectory() as scratch:
            store = LocalStore(Path(scratch))
            inventory = take_inventory(job, store, quiet=True, unpack=False)
            return space.foresee(job, store, inventory.plans, open_store(config.out))
    output = Output(job, open_store(config.out))
    if (manifest := output.committed()) is not None:
        output.remove_unpacked()
        return output.summary(manifest)
    with output.store.lock():
        output.clear()
        space.check_unpacking(job, output.store, *index_stage(job, output.store.local))
        inventory = take_inventory(job, output.store, quiet=config.json)
        return output.summary(output.write(inventory))


def _bring_archives(config: Config) -> str:
    """Downloads the archives that --source names and returns the folder they are in.

    Raises:
      ImagenetPrepError: as for `download`.
      UsageError: the data set is finished, so that nothing is worth a download.
    """
    from imagenet_prep.core.store import LocalStore
    from imagenet_prep.download import Config as Download
    from imagenet_prep.download import download

    out = Path(config.out).expanduser()
    folder = out / ARCHIVES_FOLDER
    if (out / naming.MANIFEST).exists() and not folder.exists():
        raise UsageError(
            f"{out}: finished, and its archives were removed. Prove it by imagenet-prep verify; "
            "to mend it, download the archives and give their folder as --source."
        )
    # No link on the way there is followed.
    LocalStore(out).make_folder(ARCHIVES_FOLDER)
    what = tuple(split for split in schema.SPLITS if split in config.splits)
    download(
        Download(
            into=str(folder),
            what=(*what, "devkit"),
            base_url=config.source,
            allow_other=config.allow_subset,
            json=config.json,
        )
    )
    return str(folder)


def run(argv: Sequence[str]) -> int:
    """Runs the verb and returns its exit code; errors are raised."""
    ours, beam_args = cli.split_command(argv)
    config = cli.parse(
        Config,
        ours,
        verb="prepare",
        description="Turn the ILSVRC2012 archives into resized, sharded, proven TFRecords.\n"
        "Killed or interrupted, run it again: it does what is left.\n"
        "Options for Apache Beam go after --.",
        examples=EXAMPLES,
    )
    if beam_args:
        config = dataclasses.replace(
            config,
            source=cli.absolute(config.source),
            out=cli.absolute(config.out),
            beam_args=tuple(beam_args),
        )
    if config.report:
        report.require_packages()
    summary = prepare(config)
    if config.report:
        summary["report"] = str(report.report(report.Config(config.out)))
    print(json.dumps(summary, indent=1) if config.json else _render(summary))
    return 0


def main(argv: Sequence[str]) -> None:
    """Runs the verb; never returns."""
    cli.finish(lambda: run(argv))


def _render(summary: dict[str, Any]) -> str:
    """Returns the summary for a person."""
    if "free_bytes" in summary:
        lines = [
            f"{name}: {s['examples']:,} images, {cli.human_bytes(s['source_bytes'])} -> "
            f"{s['shards']} shards, about {cli.human_bytes(s['estimated_bytes'])}"
            for name, s in summary["splits"].items()
        ]
        if summary["unpacked_bytes"]:
            unpacked = cli.human_bytes(summary["unpacked_bytes"])
            lines.append(f"unpacked while it runs: about {unpacked}")
        if summary["disk"] != summary["out"]:
            shards = sum(split["estimated_bytes"] for split in summary["splits"].values())
            lines.append(f"{summary['out']}: about {cli.human_bytes(shards)}")
        lines.append(
            f"disk: about {cli.human_bytes(summary['disk_bytes'])} needed, "
            f"{cli.human_bytes(summary['free_bytes'])} free at {summary['disk']}"
        )
        lines.append(f"would run on {summary['workers']}; nothing was written")
        return "\n".join(lines)
    return render(summary)


if __name__ == "__main__":
    # By its real name, so that worker processes can import what they are sent.
    from pipelines import prepare as program  # noqa: PLW0406 - on purpose, see above

    program.main(sys.argv[1:])
