"""What a training run can be told, and what cannot go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from imagenet_prep.core import address, cli
from imagenet_prep.trainer import schedule

MODELS = ("resnet50", "tiny")
OPTIMIZERS = ("sgd", "lars", "larc")
PRECISIONS = ("float32", "bfloat16", "float16")
RECIPES = ("tutorial", "v1.5")


@dataclass(frozen=True)
class Config:
    """Settings of one run; see the help of each flag. None: the recipe decides."""

    data_dir: str | None = cli.flag(
        None, help="the data set: a folder, s3:// or http(s)://", aliases=("--data_dir",)
    )
    synthetic: bool = cli.flag(False, help="train on random images; this needs no data set")
    model: str = cli.flag(
        "resnet50",
        choices=MODELS,
        help="the network; tiny is for tests, CIFAR-10, demos",
        aliases=("-m",),
    )
    batch_size: int = cli.flag(
        256,
        help="images that each process trains on in a step",
        metavar="N",
        aliases=("-b", "--batch_size"),
    )
    num_epochs: float = cli.flag(
        90.0, help="how often every image is used", metavar="X", aliases=("--num_epochs",)
    )
    image_size: int = cli.flag(224, help="height and width of the crops", metavar="PX")
    log_dir: str = cli.flag(
        "imagenet_resnet",
        help="folder of checkpoints, log and TensorBoard's scalars; a run resumes from it",
        aliases=("--log_dir",),
    )
    tensorboard_dir: str | None = cli.flag(
        None, help="folder of TensorBoard's scalars (default: LOG_DIR/tensorboard)", metavar="DIR"
    )
    mirror: str | None = cli.flag(
        None,
        help="s3://bucket/prefix where a copy of log, scalars, checkpoints and exported model is "
        "kept in the background; a new machine resumes from it",
        metavar="URL",
    )
    recipe: str = cli.flag(
        "v1.5",
        choices=RECIPES,
        help="defaults of many flags; tutorial: AWS's tutorial of 2018; v1.5: NVIDIA's",
    )
    optimizer: str | None = cli.flag(
        None, choices=OPTIMIZERS, help="the optimizer; default: the recipe's"
    )
    nesterov: bool = cli.flag(False, help="use Nesterov momentum, as recipe tutorial does anyway")
    lr: float | None = cli.flag(
        None, help="peak learning rate; default: the recipe's for the global batch", metavar="X"
    )
    momentum: float | None = cli.flag(
        None, help="momentum of the optimizer; default: the recipe's", metavar="X"
    )
    weight_decay: float | None = cli.flag(
        None,
        help="L2 of kernels, not of batch norms and biases; default: the recipe's",
        metavar="X",
    )
    trust_coefficient: float | None = cli.flag(
        None, help="eta of lars and larc (default: 0.013 for larc, 0.001 for lars)", metavar="X"
    )
    label_smoothing: float | None = cli.flag(
        None,
        help="share of the label that goes to the other classes; default: the recipe's",
        metavar="X",
    )
    schedule: str | None = cli.flag(
        None, choices=schedule.KINDS, help="how the rate decays; default: the recipe's"
    )
    warmup_epochs: float | None = cli.flag(
        None, help="epochs in which the rate rises; default: the recipe's", metavar="X"
    )
    precision: str = cli.flag(
        "float32", choices=PRECISIONS, help="type of activations; weights stay float32"
    )
    loss_scale: float | None = cli.flag(
        None,
        help="factor of the loss with float16, so that gradients do not vanish (default: 1024)",
        metavar="X",
    )
    fp16_compression: bool = cli.flag(False, help="send gradients between processes as float16")
    jit: bool = cli.flag(False, help="compile forward and backward pass with XLA")
    display_every: int = cli.flag(
        50, help="steps between two lines of output", metavar="N", aliases=("--display_every",)
    )
    eval_every: float = cli.flag(
        0.0, help="epochs between evaluations; 0: evaluate only at the end", metavar="X"
    )
    checkpoint_every: int = cli.flag(
        1000, help="steps between checkpoints; there is always one at the end", metavar="N"
    )
    keep: int = cli.flag(3, help="how many checkpoints are kept", metavar="N")
    evaluate: bool = cli.flag(
        False, help="evaluate the last checkpoint and end", aliases=("--eval",)
    )
    no_evaluation: bool = cli.flag(False, help="do not evaluate; for a set without validation")
    export: str | None = cli.flag(
        None,
        help="write the model here at the end: FILE.keras, or a folder for a SavedModel",
        metavar="PATH",
    )
    seed: int = cli.flag(0, help="decides first weights, order and crops", metavar="N")
    backend: str = cli.flag(
        "auto", choices=("auto", "tfdata", "dali"), help="what decodes the JPEGs"
    )

    def __post_init__(self) -> None:
        """Refuses values that cannot be, and flags that would have no effect."""
        self._check_numbers()
        if self.synthetic == (self.data_dir is not None):
            raise ValueError("give either --data-dir or --synthetic")
        if self.synthetic and (self.evaluate or self.eval_every):
            raise ValueError(
                "--synthetic has nothing to evaluate: leave out --evaluate/--eval-every"
            )
        if self.no_evaluation and (self.synthetic or self.evaluate or self.eval_every):
            raise ValueError("--no-evaluation: leave out --evaluate, --eval-every and --synthetic")
        if self.synthetic and self.backend != "auto":
            raise ValueError("--synthetic decodes nothing: leave out --backend")
        if self.loss_scale is not None and self.precision != "float16":
            raise ValueError(f"--loss-scale is for --precision float16, not {self.precision}")
        if self.trust_coefficient is not None and self.optimizer not in ("lars", "larc"):
            raise ValueError("--trust-coefficient is for --optimizer lars or larc")
        if self.nesterov and self.optimizer == "lars":
            raise ValueError("--nesterov is not for --optimizer lars, whose momentum is plain")
        if self.export is not None and Path(self.export).suffix not in ("", ".keras"):
            raise ValueError(f"--export {self.export}: expected FILE.keras, or a folder")
        for name in ("log_dir", "tensorboard_dir", "export"):
            if "://" in (getattr(self, name) or ""):
                raise ValueError(
                    f"--{name.replace('_', '-')} {getattr(self, name)}: expected a folder of this "
                    "machine; --mirror s3://bucket/prefix keeps a copy of all in a bucket"
                )
        if self.mirror is not None:
            if not self.mirror.startswith("s3://"):
                raise ValueError(f"--mirror {self.mirror}: expected s3://bucket/prefix")
            address.check_base(self.mirror)

    def _check_numbers(self) -> None:
        least = {"batch_size": 1, "display_every": 1, "checkpoint_every": 1, "keep": 1}
        for name, minimum in (least | {"image_size": 16, "seed": 0}).items():
            if getattr(self, name) < minimum:
                raise ValueError(
                    f"--{name.replace('_', '-')} {getattr(self, name)}: expected {minimum} or more"
                )
        # A flag's range: the least, whether that itself is allowed, and what it stays below.
        ranges = {
            "num_epochs": (0.0, False, float("inf")),
            "eval_every": (0.0, True, float("inf")),
            "lr": (0.0, False, float("inf")),
            "momentum": (0.0, True, 1.0),
            "weight_decay": (0.0, True, 1.0),
            "trust_coefficient": (0.0, False, 1.0),
            "label_smoothing": (0.0, True, 1.0),
            "warmup_epochs": (0.0, True, float("inf")),
            "loss_scale": (1.0, True, float("inf")),
        }
        for name, (low, with_low, high) in ranges.items():
            value = getattr(self, name)
            if value is not None and not (
                (low < value or (with_low and low == value)) and value < high
            ):
                raise ValueError(
                    f"--{name.replace('_', '-')} {value}: expected "
                    f"{'at least' if with_low else 'more than'} {low:g}"
                    + (f" and less than {high:g}" if high < float("inf") else "")
                )
        if self.warmup_epochs is not None and self.warmup_epochs >= self.num_epochs:
            raise ValueError(
                f"--warmup-epochs {self.warmup_epochs:g}: expected less than "
                f"--num-epochs {self.num_epochs:g}"
            )
