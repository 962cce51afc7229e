"""The settings of `prepare`: each flag, its default, and what cannot be meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from imagenet_prep.codec.policy import CODEC_HELP, CODECS
from imagenet_prep.core import address, cli
from imagenet_prep.dataset import naming, schema


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
        None, help="shards of validation (default: 128, fewer for a subset)", metavar="N"
    )
    short_side: int = cli.flag(
        480, help="shrink images whose shorter edge is longer than this many pixels", metavar="PX"
    )
    quality: int = cli.flag(90, help="JPEG quality of images that are encoded", metavar="1-100")
    codec: str = cli.flag("auto", choices=tuple(CODECS), help=CODEC_HELP)
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
        schema.DEFAULT_LABEL_OFFSET, help="stored label = class index + this", metavar="0|1"
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
        "quarantine", choices=("quarantine", "fail"), help="what a bad image does to the run"
    )
    max_bad: int | None = cli.flag(
        None, help="stop when more images than this are bad (default: no limit)", metavar="N"
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
        for name in ("short_side", "train_shards", "validation_shards", "subset_per_class"):
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
        for split in schema.SPLITS:
            if getattr(self, f"{split}_shards") and split not in self.splits:
                raise ValueError(f"--{split}-shards without {split} in --splits")
        if self.report and self.dry_run:
            raise ValueError("--report shows what was made, --dry-run makes nothing")
        if "://" in self.out:
            self._check_remote_out()
        if address.is_remote(self.source):
            self._check_remote_source()

    def _check_remote_out(self) -> None:
        if not self.out.startswith("s3://"):
            raise ValueError("--out: expected a folder or s3://bucket/prefix")
        try:
            address.check_base(self.out)
        except ValueError as error:
            raise ValueError(f"--out: {error}") from None
        if self.report:
            raise ValueError(
                "--report shows a data set in a folder: imagenet-prep replicate brings it there"
            )
        if address.is_remote(self.source):
            raise ValueError(
                "--source: archives are downloaded into OUT, and a bucket is no folder: get them "
                "by imagenet-prep download"
            )

    def _check_remote_source(self) -> None:
        try:
            address.check_base(self.source)
        except ValueError as error:
            raise ValueError(f"--source: {error}") from None
        if self.source_kind not in ("auto", "ilsvrc"):
            raise ValueError("--source: only the ILSVRC2012 archives are downloaded")
        if self.dry_run:
            raise ValueError(
                "--dry-run plans with archives that are here: get them by imagenet-prep download"
            )

    def byte_settings(self) -> dict[str, Any]:
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
