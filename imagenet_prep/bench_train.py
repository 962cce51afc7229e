r"""Measure training speed with different numbers of ranks, on synthetic images and on a dataset.

Then forecast the duration and cost of 90 ImageNet epochs. Write train and its flags after --.

Examples:
  imagenet-prep bench-train -np 1,2,4,8 -- train --data-dir /data/imagenet-480
  imagenet-prep bench-train -np 8,16,32 --hosts hosts --price 30 -- train \
      --data-dir /data/imagenet-480 --recipe tutorial --precision bfloat16
  imagenet-prep bench-train -np 1,2 -- train --synthetic --model tiny
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from imagenet_prep import train
from imagenet_prep.core import children, errors, imports, program, small_files, strict_json
from imagenet_prep.core.address import absolute, with_absolute
from imagenet_prep.core.flags import (
    AddressKind,
    Settings,
    after_dashes,
    flag,
    optional,
    switch,
    words_of,
)
from imagenet_prep.core.small_files import FileKind
from imagenet_prep.core.terminal import counted, in_columns, say
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.column import WHOLE
from imagenet_prep.hosts import commands
from imagenet_prep.hosts.commands import local_first, where_ranks_run
from imagenet_prep.storage.local_file import complete_file
from imagenet_prep.trainer.config import TrainConfig

if TYPE_CHECKING:
    from imagenet_prep.reporting.scaling import RankFigures

FIGURES = "bench-train.json"
PICTURE = "bench-train.png"
_OWN = {
    FIGURES: FileKind("a file of figures of bench-train", b'{\n "command"'),
    PICTURE: FileKind("a PNG", b"\x89PNG"),
}
# The forecast is for the training run of the AWS tutorial.
_EPOCHS = 90
_IMAGES = schema.OFFICIAL_NUM_EXAMPLES[schema.TRAIN]
# The first rows of a log are slow: step 1 compiles, and until row 3 queues are filling.
_UNSETTLED_ROWS = 3
_ROWS = 10
_ANSWER_S = 60
# The train flags on which the speed may depend. All other flags are off in the measured runs.
_MEASURED = (
    "framework",
    "comm",
    "model",
    "batch_size",
    "image_size",
    "recipe",
    "optimizer",
    "nesterov",
    "momentum",
    "weight_decay",
    "trust_coefficient",
    "label_smoothing",
    "lr_decay_steps",
    "lr_decay_lrs",
    "warmup_lr",
    "increased_aug",
    "precision",
    "loss_scale",
    "fp16_compression",
    "jit",
    "train_accuracy",
    "checkpoint_every",
    "keep",
    "seed",
    "clear_log",
    "local_ckpt",
)
_MEASURED_WITH_DATA = ("data_dir", "backend", "device")


@dataclasses.dataclass(frozen=True)
class BenchTrainConfig(Settings):
    """Settings of one measurement; see the help of each flag."""

    num_processes: tuple[str, ...] = flag(
        help="numbers of ranks, in ascending order; efficiency is relative to the first number",
        aliases=("-np",),
        metavar="N,N",
    )
    hosts: str | None = optional(
        place=AddressKind.FILE, help="hosts file, as for launch (default: this machine)"
    )
    servers: int = flag(0, least=0, help="number of MXNet parameter servers, as for launch")
    price: float | None = optional(above=0, help="hourly price of one host", metavar="DOLLARS")
    steps: int = flag(100, least=_ROWS, help="steps per run")
    out: str = flag(
        "bench-train",
        place=AddressKind.FOLDER,
        help=f"folder for {PICTURE} and {FIGURES}; `report --training` shows {FIGURES}",
    )
    json: bool = switch(help="print the figures as JSON")
    command: tuple[str, ...] = after_dashes("the train command goes")

    def __post_init__(self) -> None:
        super().__post_init__()
        are_numbers = all(word.isdecimal() and len(word) < 7 for word in self.num_processes)
        if not are_numbers or [*self.ranks] != sorted({*self.ranks} - {0}) or not self.ranks:
            typed = ",".join(self.num_processes)
            raise ValueError(f"-np {typed}: expected ascending whole numbers, such as 1,2,4,8")

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of ranks to measure, as integers."""
        return tuple(map(int, self.num_processes))


class TimedRun(NamedTuple):
    """Images per second of all ranks after warm-up, and seconds from launch to end of step 1."""

    images_per_s: float
    start_up_s: float


class RankRuns(NamedTuple):
    """The runs with `ranks` ranks: on synthetic images, and on the dataset if there is one."""

    ranks: int
    synthetic: TimedRun
    real: TimedRun | None = None


def figures(
    measured: Sequence[RankRuns], slots: Sequence[int], price: float | None
) -> list[RankFigures]:
    """Returns one row per number of ranks, in ascending order.

    `slots` has each host's number of slots; `price` is the hourly price of one host in dollars.
    """
    from imagenet_prep.reporting.scaling import RankFigures

    rows = []
    for ranks, synthetic, real in measured:
        run = real or synthetic
        first = measured[0]
        base = first.real or first.synthetic
        hosts = 1 + sum(used < ranks for used in itertools.accumulate(slots))
        hours = (_EPOCHS * _IMAGES / run.images_per_s + run.start_up_s) / 3600
        rows.append(
            RankFigures(
                ranks=ranks,
                hosts=hosts,
                images_per_s=run.images_per_s,
                images_per_s_without_input=synthetic.images_per_s,
                efficiency=_kept(run, ranks, base, first.ranks),
                input_share=real and max(0.0, 1 - real.images_per_s / synthetic.images_per_s),
                communication_share=max(
                    0.0, 1 - _kept(synthetic, ranks, first.synthetic, first.ranks)
                ),
                start_up_s=run.start_up_s,
                hours=hours,
                dollars=None if price is None else hours * hosts * price,
            )
        )
    return rows


def _kept(run: TimedRun, ranks: int, base: TimedRun, base_ranks: int) -> float:
    """Returns the speed per rank of `run`, divided by the speed per rank of `base`."""
    return run.images_per_s / ranks / (base.images_per_s / base_ranks)


def settled(rows: Iterable[Mapping[str, Any]]) -> float:
    """Returns the median images/s in the rows of train.jsonl, excluding the slow first rows."""
    speeds: list[float] = [row["images_per_s"] for row in rows if row["kind"] == "train"]
    return statistics.median(speeds[_UNSETTLED_ROWS:] or speeds)


def short_run(asked: TrainConfig, steps: int, examples: int | None, log_dir: str) -> list[str]:
    """Returns a train command that runs `steps` steps with the model and settings of `asked`.

    If `examples` is None, the run trains on random pixels. `log_dir` is on the host of rank 0.
    """
    has_data = examples is not None
    try:
        short = asked.only(
            *_MEASURED,
            *(_MEASURED_WITH_DATA if has_data else ()),
            synthetic=not has_data,
            no_evaluation=has_data,
            num_batches=steps,
            # With random pixels, the recipe's learning rate may lead to NaN.
            lr=asked.lr or 0.001,
            display_every=max(1, steps // _ROWS),
            log_dir=log_dir,
            # The plateau schedule only changes the rate after evaluations; this run has none.
            schedule=None if asked.schedule == "plateau" else asked.schedule,
            eval_every=0.0,
        )
    except ValueError as error:
        raise errors.UsageError(f"bench-train: {error}") from None
    return ["train", *words_of(short.changed())]


def bench(config: BenchTrainConfig) -> list[RankFigures]:
    """Performs all runs; writes the figures after each number of ranks, and returns them."""
    from imagenet_prep.storage.dataset_store import open_dataset

    for name, kind in _OWN.items():
        small_files.require_own(Path(config.out).expanduser() / name, kind)
    asked = train.parse(config.command[1:])
    examples = None
    hosts = where_ranks_run(config.hosts, config.ranks[-1])
    is_part = False
    if asked.data_dir is not None:
        asked = with_absolute(asked, "data_dir")
        dataset = open_dataset(str(asked.data_dir), parts=True)
        splits = dataset.manifest.splits
        is_part = dataset.placement != WHOLE
        if schema.TRAIN not in splits:
            raise errors.UsageError(f"{asked.data_dir}: has no split {schema.TRAIN}")
        examples = splits[schema.TRAIN].examples
    hosts = hosts if is_part else local_first(hosts)  # the same order as in launch
    slots = [host.slots for host in hosts]
    out = Path(absolute(config.out))
    out.mkdir(parents=True, exist_ok=True)
    measured: list[RankRuns] = []
    rows: list[RankFigures] = []
    for ranks in config.ranks:
        runs = [
            _run(config, asked, ranks, number, hosts[0].address, out / f".run-{uuid.uuid4().hex}")
            for number in ([None] if examples is None else [None, examples])
        ]
        measured.append(RankRuns(ranks, *runs))
        rows = figures(measured, slots, config.price)
        _write(out, config, rows)
    return rows


def _run(
    config: BenchTrainConfig,
    asked: TrainConfig,
    ranks: int,
    examples: int | None,
    leader: str,
    log_dir: Path,
) -> TimedRun:
    from imagenet_prep.trainer.log import LOG

    argv = ["launch", "-np", str(ranks)]
    argv += ["--hosts", config.hosts] if config.hosts is not None else []
    argv += ["--servers", str(config.servers)] if config.servers else []
    argv += ["--", *short_run(asked, config.steps, examples, str(log_dir))]
    print(f"\nimagenet-prep {' '.join(argv)}", file=sys.stderr, flush=True)
    began = time.time()
    try:
        code = subprocess.run(
            children.bound(children.python("-m", "imagenet_prep", *argv)), check=False, stdout=2
        ).returncode
        if code:
            kind = errors.by_exit_code(code)
            raise kind(f"run with {counted(ranks, 'rank')} failed with exit code {code}; see above")
        log = str(log_dir / LOG)
        ending = commands.run(commands.command_on(leader, ["cat", log]), timeout_s=_ANSWER_S)
        if ending.code != 0:  # None if it has timed out
            raise errors.ImagenetPrepError(f"{leader}: {log} cannot be read: {ending.explained}")
    finally:
        remove = commands.command_on(leader, ["rm", "-rf", str(log_dir)])
        commands.run(remove, timeout_s=_ANSWER_S)
    rows = [strict_json.loads(line) for line in ending.output.splitlines()]
    first = next(row for row in rows if row["kind"] == "train")
    return TimedRun(settled(rows), first["time"] - began)


def _write(out: Path, config: BenchTrainConfig, rows: list[RankFigures]) -> None:
    content: dict[str, object] = {
        "command": config.command,
        "steps": config.steps,
        "price": config.price,
        "rows": rows,
    }
    with complete_file(out / FIGURES, _OWN[FIGURES]) as file:
        file.write(json.dumps(content, indent=1, default=strict_json.fields).encode() + b"\n")
    if not imports.is_there("matplotlib"):
        (out / PICTURE).unlink(missing_ok=True)  # It shows the figures of an earlier run.
        say(f"no {PICTURE}: Matplotlib is not installed. Run: {errors.install_line('report')}")
        return
    from imagenet_prep.reporting import plots

    with complete_file(out / PICTURE, _OWN[PICTURE]) as file:
        plots.save_training(rows, file)


@program.verb("imagenet_prep.bench_train", BenchTrainConfig, __doc__, resumes=False)
def run(config: BenchTrainConfig) -> None:
    if config.command[:1] != ("train",):
        raise errors.UsageError("expected the train command after --: train --data-dir DIR ...")
    rows = bench(config)
    if config.json:
        print(json.dumps(rows, indent=1, default=strict_json.fields))
    else:
        from imagenet_prep.reporting import scaling

        print(in_columns([scaling.HEADER, *scaling.cells(rows)], 0))
