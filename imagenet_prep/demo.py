"""Run all steps from archives to a trained network on a miniature ILSVRC2012.

Examples:
  imagenet-prep demo
  imagenet-prep demo /tmp/demo --images 2000 --short-side 256
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from imagenet_prep.core import children, program
from imagenet_prep.core.errors import ImagenetPrepError, install_line
from imagenet_prep.core.flags import AddressKind, Settings, flag, switch
from imagenet_prep.core.imports import is_there
from imagenet_prep.core.terminal import human_bytes
from imagenet_prep.dataset import schema
from imagenet_prep.storage.folder import LocalStore


@dataclass(frozen=True)
class DemoConfig(Settings):
    """Settings of the demo; see the help of each flag."""

    folder: str = flag(
        "imagenet-prep-demo",
        place=AddressKind.FOLDER,
        help="folder for archives, dataset and training run",
        positional=True,
    )
    # A smaller miniature could not include one image of each damaged or unusual kind.
    images: int = flag(400, least=40, help="number of training images")
    short_side: int = flag(256, least=1, help="shorter edge of the resized images", metavar="PX")
    no_training: bool = switch(help="skip the training of a small network")


@program.verb("imagenet_prep.demo", DemoConfig, __doc__)
def run(config: DemoConfig) -> None:
    from imagenet_prep import report, show, verify
    from imagenet_prep.pipelines import prepare
    from imagenet_prep.testing.miniature import make_miniature
    from imagenet_prep.testing.photographs import require_photographs

    folder = Path(config.folder).expanduser()
    archives = folder / f"archives-{config.images}"
    dataset = folder / f"dataset-{config.images}-{config.short_side}"
    if not archives.is_dir():
        _say(f"1. {archives}: a miniature ILSVRC2012 of {config.images} real photographs")
        partial = folder / "archives.partial"
        require_photographs()
        # A new folder has no links of other users.
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        make_miniature(partial, num_train=config.images, num_validation=config.images // 4)
        partial.rename(archives)
    for path in sorted(archives.iterdir()):
        print(f"   {human_bytes(path.stat().st_size):>9}  {path.name}")

    command = ["--source", str(archives), "--out", str(dataset)]
    command += ["--short-side", str(config.short_side)]
    command += ["--train-shards", "4", "--validation-shards", "2", "--allow-subset"]
    _say(f"2. imagenet-prep prepare {shlex.join(command)}")
    prepare.run(command)
    _say(f"3. imagenet-prep verify {shlex.quote(str(dataset))} --level decode")
    verify.run([str(dataset), "--level", "decode"])
    shard = dataset / "train-00000-of-00004"
    _say(f"4. imagenet-prep show {shlex.quote(str(shard))} --limit 5")
    show.run([str(shard), "--limit", "5"])
    if not (dataset / schema.REPORT).exists():
        _say(f"5. imagenet-prep report {shlex.quote(str(dataset))} --level decode")
        report.run([str(dataset), "--level", "decode"])
    if not config.no_training:
        train_model(dataset, folder / f"training-{config.images}-{config.short_side}")

    print(
        f"\nCreated: {dataset}: shards, index/ for DALI, dataset.json (the manifest), labels.txt,\n"
        "quarantine.jsonl (all excluded and repaired images, with the reasons).\n"
        f"Open {dataset / schema.REPORT} in a browser.\n"
        "\nNext:\n"
        f"  imagenet-prep show {shlex.quote(str(shard))} --image 0 --out image.jpg\n"
        f"  imagenet-prep prepare {shlex.join(command)}   # nothing is left to do\n"
        "  imagenet-prep prepare --source ILSVRC2012 --out imagenet-480   # the real dataset"
    )


def train_model(dataset: Path, log_dir: Path) -> None:
    """Trains a small network in a separate process, on two ranks if Horovod is installed."""
    if not is_there("tensorflow"):
        _say(f"6. no training: TensorFlow is not installed ({install_line('tf')})")
        return
    ranks = 2 if is_there("horovod") else 1
    command = [
        "train",
        "--data-dir",
        str(dataset),
        "--log-dir",
        str(log_dir),
        "--model",
        "tiny",
        "--image-size",
        "64",
        "--batch-size",
        str(32 // ranks),
        "--num-epochs",
        "12",
        "--display-every",
        "20",
    ]
    if ranks > 1:
        command = ["launch", "-np", str(ranks), "--", *command]
    _say(f"6. imagenet-prep {shlex.join(command)}")
    log_dir.mkdir(parents=True, exist_ok=True)
    # TensorFlow prints many lines, which only matter if training fails.
    log = LocalStore(log_dir).open("stderr.txt", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    with open(log, "w+", encoding="utf-8", errors="replace") as stderr:
        argv = children.bound(children.python("-m", "imagenet_prep", *command), signal.SIGTERM)
        code = subprocess.run(argv, check=False, stderr=stderr, stdin=subprocess.DEVNULL).returncode
        stderr.seek(0)
        last = "".join(stderr.readlines()[-5:])
    if code:
        raise ImagenetPrepError(f"training failed with exit code {code}:\n{last}")


def _say(text: str) -> None:
    print(f"\n{text}", flush=True)
