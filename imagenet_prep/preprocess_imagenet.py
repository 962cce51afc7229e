r"""Run step 1 of the 2018 AWS tutorial with its flags: download, then write TFRecords.

The command runs imagenet-prep prepare --keep-original, which writes the unchanged images to 1024
training and 128 validation shards. After an interruption, run the same command again to resume.

Examples:
  python -m imagenet_prep.preprocess_imagenet --local_scratch_dir=/data/imagenet-full \
      --imagenet_username=NAME --imagenet_access_key=KEY
  imagenet-prep preprocess-imagenet --local_scratch_dir=/data/imagenet-full \
      --raw_data_dir=/data/ilsvrc2012
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from imagenet_prep import download
from imagenet_prep.core import program, terminal
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.flags import AddressKind, Settings, flag, optional, switch
from imagenet_prep.dataset import schema

_ARCHIVES = f"{schema.WORK}/archives"


@dataclass(frozen=True)
class PreprocessImagenetConfig(Settings):
    """Settings of one run; see the help of each flag."""

    local_scratch_dir: str = flag(
        place=AddressKind.FOLDER, help="folder for the dataset, created if absent"
    )
    raw_data_dir: str | None = optional(
        place=AddressKind.FOLDER,
        help="folder with the archives (default: download them into DIR/.work/archives)",
    )
    allow_subset: bool = switch(help="accept image counts that differ from ILSVRC2012's")
    imagenet_username: str | None = optional(help="accepted, without effect", metavar="NAME")
    imagenet_access_key: str | None = optional(help="accepted, without effect", metavar="KEY")
    nogcs_upload: bool = switch(help="accepted, without effect")
    project: str | None = optional(help="not accepted, since there is no upload to Google Cloud")
    gcs_output_path: str | None = optional(
        help="not accepted, since there is no upload to Google Cloud", metavar="URL"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.project is not None or self.gcs_output_path is not None:
            raise ValueError(
                "--project and --gcs_output_path: there is no upload to Google Cloud. Remove these "
                "flags. To copy the dataset to S3, run imagenet-prep replicate "
                f"{shlex.quote(self.local_scratch_dir)} --to s3://bucket/prefix"
            )


@program.verb("imagenet_prep.preprocess_imagenet", PreprocessImagenetConfig, __doc__)
def run(config: PreprocessImagenetConfig) -> int:
    from imagenet_prep.pipelines import prepare

    if config.imagenet_username is not None or config.imagenet_access_key is not None:
        terminal.say(f"{download.DEAD_FLAGS}. To log in, see imagenet-prep download --help")
    source = config.raw_data_dir or _downloaded(config)
    command = ["--source", source, "--out", config.local_scratch_dir, "--keep-original"]
    return prepare.run(command + ["--allow-subset"] * config.allow_subset)


def _downloaded(config: PreprocessImagenetConfig) -> str:
    from imagenet_prep.storage.folder import LocalStore

    out = LocalStore(Path(config.local_scratch_dir).expanduser())
    folder = out.path(_ARCHIVES)
    if out.size(schema.MANIFEST) is not None and not folder.exists():
        raise UsageError(
            f"{out.root}: the dataset is finished, and its archives were removed. Check it with "
            "imagenet-prep verify. To repair it, download the archives and pass their folder as "
            "--raw_data_dir."
        )
    # `make_folder` does not follow links.
    out.make_folder(_ARCHIVES)
    download.download(download.DownloadConfig(into=str(folder), allow_other=config.allow_subset))
    return str(folder)
