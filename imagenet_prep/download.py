"""Download the archives of ILSVRC2012, CIFAR-10 or MNIST, and verify their md5.

After an interruption, run the same command again: it keeps finished parts. Credentials come from
~/.netrc, from the cookies.txt named by IMAGENET_PREP_COOKIES, or from a bearer token in
IMAGENET_PREP_TOKEN (HOST=TOKEN); for s3://, from the AWS_... variables or ~/.aws.

Examples:
  imagenet-prep download --into /data/ilsvrc2012 --dry-run
  IMAGENET_PREP_COOKIES=~/cookies.txt imagenet-prep download --into /data/ilsvrc2012
  imagenet-prep download --into /data/ilsvrc2012 --base-url https://mirror.example.edu/ilsvrc
  imagenet-prep download --into /data/ilsvrc2012 --base-url s3://bucket/ilsvrc --connections 16
  imagenet-prep download --into /data/cifar10 --what cifar10
  imagenet-prep download --into /data/labels --what real
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from imagenet_prep.core import program
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.flags import AddressKind, Settings, flag, optional, switch
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import human_bytes
from imagenet_prep.sources import published
from imagenet_prep.storage.http import COOKIES_VARIABLE

_IMAGENET = "https://image-net.org/data/ILSVRC/2012"
# The site of CIFAR-10's authors, PyTorch's mirror of MNIST, and the ReaL authors' repository.
_OTHERS = {
    "cifar10": "https://www.cs.toronto.edu/~kriz",
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist",
    "real": "https://raw.githubusercontent.com/google-research/reassessed-imagenet/master",
}
ARCHIVES = {
    "train": (published.TRAIN,),
    "validation": (published.VALIDATION,),
    "test": (published.TEST,),
    "devkit": (published.DEVKIT,),
    "bbox": (published.TRAIN_BOXES,),
    "cifar10": (published.CIFAR10,),
    "mnist": published.MNIST,
    "real": (published.REAL,),
}

# Flags of the 2018 tutorial's preprocess_imagenet.py that have no effect.
_DEAD_FLAGS = {"__imagenet_username", "__imagenet_access_key"}
DEAD_FLAGS = (
    "--imagenet_username and --imagenet_access_key have no effect since image-net.org closed the "
    "old addresses in 2019"
)


@dataclass(frozen=True)
class DownloadConfig(Settings):
    """Settings of one download; see the help of each flag."""

    groups = {  # noqa: RUF012
        "Archives": "into what base_url allow_other",
        "Transfer and result": "connections dry_run json",
    }
    into: str = flag(place=AddressKind.FOLDER, help="folder for the archives, created if absent")
    what: tuple[str, ...] = flag(
        ("train", "validation", "devkit"),
        choices=tuple(ARCHIVES),
        help="archives to download, separated by commas",
        metavar="NAMES",
    )
    base_url: str | None = optional(
        place=AddressKind.ANYWHERE,
        help="http(s)://..., s3://bucket/prefix or a folder (default: the publisher's site)",
        metavar="URL",
    )
    allow_other: bool = switch(
        help="accept archives with a different md5, such as repacked ones, and print their md5"
    )
    connections: int = flag(8, least=1, help="number of ranges downloaded in parallel", metavar="N")
    part_size: int = flag(32, least=1, help="size of a range in MiB", metavar="MIB")
    retries: int = flag(20, least=0, help="retries per range", metavar="N")
    timeout: int = flag(60, least=1, help="fail after this many seconds without data", metavar="S")
    dry_run: bool = switch(help="print names, sizes and free space; write nothing")
    json: bool = switch(help="print the result as JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({_OTHERS.get(name) for name in self.what}) > 1:
            raise ValueError(
                f"--what {','.join(self.what)}: archives of different datasets. Download each "
                "dataset into a separate folder"
            )

    @property
    def address(self) -> str:
        """The folder or address from which the archives are downloaded."""
        return self.base_url or _OTHERS.get(self.what[0], _IMAGENET)


def download(config: DownloadConfig) -> Json:
    """Downloads the missing archives and returns the summary."""
    from imagenet_prep.sources.archive_download import ArchiveDownload
    from imagenet_prep.storage.folder import LocalStore
    from imagenet_prep.storage.remote import Access
    from imagenet_prep.storage.store import open_readable

    start = time.monotonic()
    into = LocalStore(Path(config.into).expanduser())
    wanted = (ARCHIVES[name] for name in ARCHIVES if name in config.what)
    archives = ArchiveDownload(
        store=into,
        remote=open_readable(
            config.address, Access(connections=config.connections, timeout_s=config.timeout)
        ),
        archives=[*itertools.chain.from_iterable(wanted)],
        allow_other=config.allow_other,
        connections=config.connections,
        part_size=config.part_size,
        retries=config.retries,
        quiet=config.json,
    )
    summary: Json = {"into": str(into.root)}
    if config.dry_run:
        return {**summary, "archives": archives.foresee(), "free_bytes": into.free_bytes()}
    summary["archives"] = archives.bring()
    return {**summary, "seconds": round(time.monotonic() - start, 3)}


def _checked(argv: Sequence[str]) -> Sequence[str]:
    if any(arg.partition("=")[0].replace("-", "_") in _DEAD_FLAGS for arg in argv):
        raise UsageError(
            f"{DEAD_FLAGS}. Remove them. Log in at image-net.org, accept the terms, save the "
            f"browser's cookies as cookies.txt and set {COOKIES_VARIABLE} to its path, or add "
            "login and password to ~/.netrc. For a mirror, use --base-url."
        )
    return argv


@program.verb("imagenet_prep.download", DownloadConfig, __doc__, rewrite=_checked)
def run(config: DownloadConfig) -> None:
    summary = download(config)
    print(json.dumps(summary, indent=1) if config.json else _render(summary))


def _render(summary: Json) -> str:
    lines = []
    if "free_bytes" in summary:
        for archive in summary["archives"]:
            state = "complete" if archive["there"] else f"from {archive['from']}"
            lines.append(f"{archive['name']}: {human_bytes(archive['bytes'])}, {state}")
        missing = sum(a["bytes"] for a in summary["archives"] if not a["there"])
        lines.append(
            f"disk: {human_bytes(missing)} to download, {human_bytes(summary['free_bytes'])} "
            f"free in {summary['into']}; dry run, nothing was written"
        )
        return "\n".join(lines)
    for archive in summary["archives"]:
        official = "official" if archive["official"] else "NOT the official archive"
        lines.append(
            f"{archive['name']}: {human_bytes(archive['bytes'])}, md5 {archive['md5']} ({official})"
        )
    run = "nothing was left to download"
    fetched = sum(archive["fetched_bytes"] for archive in summary["archives"])
    if fetched:
        seconds = summary["seconds"]
        run = f"{human_bytes(fetched)} in {seconds:,.1f} s, {human_bytes(fetched / seconds)}/s"
    return "\n".join([*lines, f"this run: {run}"])
