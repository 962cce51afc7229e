"""What a training run can be told, and what cannot go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from imagenet_prep.core import cli
from imagenet_prep.trainer import schedule

MODELS = ("resnet50", "tiny")
OPTIMIZERS = ("sgd", "lars", "larc")
PRECISIONS = ("float32", "bfloat16", "float16")
RECIPES = ("tutorial", "v1.5")


@dataclass(frozen=True)
class Config(cli.Settings):
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
        least=1,
        help="images that each process trains on in a step",
        aliases=("-b", "--batch_size"),
    )
    num_epochs: float = cli.flag(
        90.0, above=0, help="how often every image is used", aliases=("--num_epochs",)
    )
    image_size: int = cli.flag(224, least=16, help="height and width of the crops", metavar="PX")
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
        place=cli.Place.BUCKET,
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
        None, above=0, help="peak learning rate; default: the recipe's for the global batch"
    )
    momentum: float | None = cli.flag(
        None, least=0, below=1, help="momentum of the optimizer; default: the recipe's"
    )
    weight_decay: float | None = cli.flag(
        None,
        least=0,
        below=1,
        help="L2 of kernels, not of batch norms and biases; default: the recipe's",
    )
    trust_coefficient: float | None = cli.flag(
        None,
        above=0,
        below=1,
        help="eta of lars and larc (default: 0.013 for larc, 0.001 for lars)",
    )
    label_smoothing: float | None = cli.flag(
        None,
        least=0,
        below=1,
        help="share of the label that goes to the other classes; default: the recipe's",
    )
    schedule: str | None = cli.flag(
        None, choices=schedule.KINDS, help="how the rate decays; default: the recipe's"
    )
    warmup_epochs: float | None = cli.flag(
        None, least=0, help="epochs in which the rate rises; default: the recipe's"
    )
    precision: str = cli.flag(
        "float32", choices=PRECISIONS, help="type of activations; weights stay float32"
    )
    loss_scale: float | None = cli.flag(
        None,
        least=1,
        help="factor of the loss with float16, so that gradients do not vanish (default: 1024)",
    )
    fp16_compression: bool = cli.flag(False, help="send gradients between processes as float16")
    jit: bool = cli.flag(False, help="compile forward and backward pass with XLA")
    display_every: int = cli.flag(
        50, least=1, help="steps between two lines of output", aliases=("--display_every",)
    )
    eval_every: float = cli.flag(
        0.0, least=0, help="epochs between evaluations; 0: evaluate only at the end"
    )
    checkpoint_every: int = cli.flag(
        1000, least=1, help="steps between checkpoints; there is always one at the end"
    )
    keep: int = cli.flag(3, least=1, help="how many checkpoints are kept")
    evaluate: bool = cli.flag(
        False, help="evaluate the last checkpoint and end", aliases=("--eval",)
    )
    no_evaluation: bool = cli.flag(False, help="do not evaluate; for a set without validation")
    export: str | None = cli.flag(
        None,
        help="write the model here at the end: FILE.keras, or a folder for a SavedModel",
        metavar="PATH",
    )
    seed: int = cli.flag(0, least=0, help="decides first weights, order and crops")
    backend: str = cli.flag(
        "auto", choices=("auto", "tfdata", "dali"), help="what decodes the JPEGs"
    )

    def __post_init__(self) -> None:
        """Refuses values that are not allowed, and flags that would have no effect."""
        super().__post_init__()
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
        if self.warmup_epochs is not None and self.warmup_epochs >= self.num_epochs:
            raise ValueError(
                f"--warmup-epochs {self.warmup_epochs:g}: expected less than "
                f"--num-epochs {self.num_epochs:g}"
            )
