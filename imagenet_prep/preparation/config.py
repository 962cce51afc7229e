"""The flags of `prepare`, the checks of their values, and the flags shared with `resize`."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass

from imagenet_prep.codec.policy import CODEC_HELP, CODECS
from imagenet_prep.core import address
from imagenet_prep.core.flags import AddressKind, WorkerFlags, after_dashes, flag, optional, switch
from imagenet_prep.core.strict_json import Json
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.jpeg import RULES
from imagenet_prep.dataset.settings import Recipe
from imagenet_prep.dataset.shared_flags import unknown_keys

# Source kinds that can be read from a server.
_ON_SERVERS = ("auto", "ilsvrc", "imagenet21k", "evaluation", "webdataset")
_MOST_LICENCE = 500
_HOLDOUT = re.compile(r"([0-9]{1,12}|[0-9]{1,2}\.[0-9]{1,6}(?=%))(%?)")


@dataclass(frozen=True, kw_only=True)
class RunFlags(WorkerFlags):
    """Flags shared by prepare and resize."""

    groups = {"Faults and result": "on_bad_image dry_run json"}  # noqa: RUF012
    on_bad_image: str = flag(
        "quarantine",
        choices=("quarantine", "fail"),
        help="handling of unusable images; quarantine: exclude the image and list it in "
        "quarantine.jsonl; fail: stop the run with exit code 3",
    )
    max_bad: int | None = optional(
        least=0,
        help="stop if more than this many images are unusable or doubtful (default: no limit)",
    )
    licence: str = flag(
        "",
        help="licence of the images, such as CC-BY-4.0 (SPDX) or a sentence; recorded in the "
        "manifest and dataset_info.json, and shown by report, Croissant and exports",
        metavar="TEXT",
        aliases=("--license",),
    )
    dry_run: bool = switch(help="print the source and the planned dataset; write nothing")
    json: bool = switch(help="print the result as JSON")
    beam_args: tuple[str, ...] = after_dashes("Options for Apache Beam go", are_flags=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_line = self.licence.isprintable() and self.licence == self.licence.strip()
        if not is_line or len(self.licence) > _MOST_LICENCE:
            raise ValueError(
                f"--licence: expected one line of at most {_MOST_LICENCE} characters, such as "
                "CC-BY-4.0. Give the address of a longer text"
            )

    @property
    def allowed_bad_images(self) -> int | None:
        """The maximum number of unusable images; None for no limit."""
        return 0 if self.on_bad_image == "fail" else self.max_bad


@dataclass(frozen=True)
class PrepareConfig(RunFlags):
    """The settings of a prepare command; the help of each flag describes its field."""

    groups = {  # noqa: RUF012
        "Source and dataset": "source out source_kind",
        "Images": "splits holdout exclude subset_classes subset_per_class",
        "Size": "short_side quality keep_original",
    }
    source: str = flag(
        place=AddressKind.ANYWHERE,
        help="folder with the archives or images; or s3://bucket/prefix or http(s)://... with the "
        "archives of ILSVRC2012, ImageNet-21K or an evaluation set, read directly from there",
        positional=True,
        aliases=("--source",),
        metavar="SOURCE",
    )
    out: str = flag(
        place=AddressKind.FOLDER_OR_BUCKET,
        help="the dataset to make, a folder or s3://bucket/prefix",
        positional=True,
        aliases=("--out",),
        metavar="OUT",
    )
    source_kind: str = flag(
        "auto",
        choices=(*_ON_SERVERS, "folder", "table", "parquet", "recordio", "cifar10", "mnist"),
        help="layout of the source; auto detects and prints it",
    )
    follow_links: bool = switch(
        help="also read images through links that lead out of the folder of images; by default "
        "they are refused, since a downloaded source could link to private images"
    )
    splits: tuple[str, ...] = flag(
        schema.SOURCE_SPLITS,
        choices=schema.SPLITS,
        help="splits, separated by commas; an evaluation set has only the split test, and only "
        "exports and WebDataset tars have the split holdout",
        metavar="NAMES",
    )
    holdout: str = flag(
        "0",
        help="move this number of images, or this share of each class, from train to the split "
        "holdout; --seed selects them, at least one from each class that has several images",
        metavar="N|N%",
    )
    holdout_per_class: int = flag(
        0,
        least=0,
        help="move this number of images of each class, at most half of the class, from train to "
        "validation; for sources without a validation split, such as ImageNet-21K",
    )
    classes_of: str | None = optional(
        place=AddressKind.ANYWHERE,
        help="use the class list of this dataset, so that labels are those of a network trained on "
        "it; some of its classes may have no images; for class folders and tables of labels",
        metavar="SET",
    )
    exclude: str | None = optional(
        place=AddressKind.FILE,
        help="file with keys of images to exclude; one per line (such as "
        "n01440764/n01440764_10026.JPEG), or the quarantine.jsonl of a dataset, whose excluded "
        "images are excluded under any name; the remaining images stay in their shards",
    )
    allow_unknown: bool = unknown_keys()
    train_shards: int | None = optional(
        least=1,
        most=schema.MAX_SHARDS,
        help="number of train shards (default: 1024, fewer for a subset)",
    )
    validation_shards: int | None = optional(
        least=1,
        most=schema.MAX_SHARDS,
        help="number of validation shards (default: 128, fewer for a subset)",
    )
    short_side: int = flag(
        480,
        least=1,
        help="length of the shorter edge in pixels; larger images are downscaled",
        metavar="PX",
    )
    quality: int = flag(
        90, least=1, most=100, help="JPEG quality of encoded images", metavar="1-100"
    )
    codec: str = flag("auto", choices=tuple(CODECS), help=CODEC_HELP)
    keep_original: bool = switch(help="do not resize images, and keep the bytes of valid RGB JPEGs")
    orientation: str | None = optional(
        choices=RULES,
        help="handling of images with an EXIF orientation other than 1; apply: rotate pixels and "
        "boxes; neutral: keep the pixels and set the tag to 1; keep: keep the bytes, so that some "
        "decoders rotate the image and some do not (default: neutral for ImageNet, whose "
        "tags frameworks have always ignored; keep with --keep-original; otherwise apply)",
    )
    check: str = flag(
        "decode",
        choices=("decode", "header"),
        help="extent of the checks; decode: decode every image, and compute the md5 of archives; "
        "header: read only the headers of images, for archives whose md5 is already verified",
    )
    rehash: bool = switch(
        help="compute the md5 of archives again, even if imagenet-prep download verified it and "
        "they have not changed; also list the members of archives on a server again"
    )
    no_boxes: bool = switch(help="ignore the bounding boxes next to the source")
    seed: int = flag(0, least=-(2**63), most=2**63 - 1, help="seed that selects each image's shard")
    label_offset: int = flag(
        schema.DEFAULT_LABEL_OFFSET,
        least=0,
        most=1,
        help="number to add to a class index to get the stored label. 1 is for the "
        "TensorFlow, NVIDIA and MLPerf readers: their label 0 is a background class. 0 is for "
        "trainers that use stored labels as class indices, such as timm and big_vision",
        metavar="0|1",
    )
    allow_subset: bool = switch(help="accept more or fewer images than the published edition has")
    subset_classes: tuple[str, ...] = flag(
        (),
        help="use only these classes, or the first N classes; a class called N wins over the "
        "number; labels stay as in the complete dataset",
        metavar="N|WNIDS",
    )
    subset_per_class: int | None = optional(
        least=1, help="keep at most this many images of each class; --seed selects them"
    )
    share: bool = switch(
        help="share the work with all processes that run this command with --share, on any number "
        "of hosts that share the output, such as the tasks of srun"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        number = _HOLDOUT.fullmatch(self.holdout)
        if number is None or not 0 <= float(number[1]) < (100 if number[2] else math.inf):
            raise ValueError(
                f"--holdout {self.holdout}: expected a number of images, such as 1000, or a "
                "percentage, such as 10%"
            )
        recipe = self.recipe()
        if recipe.holdout and schema.TRAIN not in self.splits:
            raise ValueError("--holdout: moves images out of train. Add train to --splits")
        if recipe.holdout and schema.HOLDOUT in self.splits:
            raise ValueError("--holdout: the source has a split holdout. Remove one of the flags")
        _ = recipe.held_out_split  # raises ValueError for contradictory settings
        for split in schema.SOURCE_SPLITS:
            if getattr(self, f"{split}_shards") and split not in self.splits:
                raise ValueError(f"--{split}-shards: {split} is not in --splits")
        if self.rehash and self.check == "header" and not address.is_remote(self.source):
            raise ValueError("--rehash: has no effect with --check header, which computes no md5")
        if self.share and self.beam_args:
            raise ValueError("--share: Apache Beam has its own workers. Remove --share or the --")
        if address.is_remote(self.source) and self.source_kind not in _ON_SERVERS:
            raise ValueError(
                "--source: only the archives of ILSVRC2012, ImageNet-21K and evaluation sets, and "
                "WebDataset tars, can be read from a server; download other sources into a folder"
            )

    def recipe(self) -> Recipe:
        """Returns the settings that decide the bytes; facts about the source are still missing."""
        number = float(self.holdout.removesuffix("%"))
        amount = f"{number:.8g}%" if self.holdout.endswith("%") else f"{number:.0f}"
        splits = {*self.splits, schema.HOLDOUT} if number else {*self.splits}
        # Most settings have the name and the value of their flag.
        settings: Json = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(Recipe)
            if hasattr(self, field.name)
        }
        settings |= {
            "splits": tuple(split for split in schema.SPLITS if split in splits),
            "short_side": None if self.keep_original else self.short_side,
            "holdout": f"{amount} by class" if number else "",
            "orientation": self.orientation or "",
            "boxes": not self.no_boxes,
        }
        return Recipe(**settings)
