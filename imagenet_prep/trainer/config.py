"""The settings of a training run, their allowed values, and learning rate schedules."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_prep.core.flags import AddressKind, Settings, flag, optional, switch
from imagenet_prep.dataset.shared_flags import data_set

# The models for MXNet: ResNets of Gluon's model zoo, and two small networks.
GLUON_MODELS = (
    "resnet18",
    "resnet34",
    "resnet50-v1",
    "resnet101-v1",
    "resnet152-v1",
    "tiny",
    "mnist",
)
# The flags of which a framework only supports some values, and these values. The first value of
# --comm is the framework's default.
HAS: dict[str, dict[str, tuple[str, ...]]] = {
    "tensorflow": {"comm": ("horovod",)},
    "mxnet": {
        "comm": ("horovod", "dist_sync", "dist_device_sync"),
        "optimizer": ("sgd",),
        "precision": ("float32", "float16"),
        "backend": ("auto", "dali", "native"),
    },
    "pytorch": {"comm": ("ddp", "horovod"), "backend": ("auto", "dali", "native")},
}
FRAMEWORKS = tuple(HAS)
# File name suffixes of exported models; "" stands for a folder.
EXPORTED = {"tensorflow": ("", ".keras"), "mxnet": ("",), "pytorch": (".safetensors",)}
# The models that safetensors files can hold: torchvision's ResNets, and examples/tiny.py.
TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "tiny")
OPTIMIZERS = ("sgd", "lars", "larc", "adam", "rmsprop")
# The recipes' model, image size and epochs; `trainer.recipe` has the hyperparameters.
_IMAGENET = {"model": "resnet50", "image_size": 224, "num_epochs": 90.0, "eval_every": 0.0}
RECIPES: dict[str, dict[str, Any]] = {
    "tutorial": _IMAGENET,
    "v1.5": _IMAGENET,
    "article": _IMAGENET | {"model": "resnet50-v1"},
    "cifar10": {"model": "cifar", "image_size": 32, "num_epochs": 100.0, "eval_every": 1.0},
    "mnist": {"model": "mnist", "image_size": 28, "num_epochs": 2.0, "eval_every": 0.0},
}
LEAST_CIFAR = 22  # model cifar would reduce smaller images to nothing
# The number of blocks in each stage of a ResNet: He et al. 2015, table 1.
_PLAIN = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "tiny": (1, 1, 1)}
_BOTTLENECKS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}


def residual_blocks(model: str) -> Iterator[tuple[str, tuple[tuple[int, int, int], ...]]]:
    """Yields each block's torchvision name, and (filters, size, stride) of its convolutions."""
    for stage, blocks in enumerate(_PLAIN.get(model) or _BOTTLENECKS[model.removesuffix("-v1")]):
        for block in range(blocks):
            name = f"block{stage}" if model == "tiny" else f"layer{stage + 1}.{block}"
            filters = (16 if model == "tiny" else 64) << stage
            stride = 2 if stage and not block else 1
            if model in _PLAIN:
                yield name, ((filters, 3, stride), (filters, 3, 1))
            else:
                first, second = (stride, 1) if model.endswith("-v1") else (1, stride)
                yield name, ((filters, 1, first), (filters, 3, second), (4 * filters, 1, 1))


KINDS = ("poly", "cosine", "cosine-restarts", "linear-cosine", "steps", "plateau")

# The constants of train_imagenet_resnet_hvd.py, on which the tutorial's output depends.
WARMUP_START = 0.001
_POLY_END = 1e-5
_LINEAR_COSINE_PERIODS = 0.47
_LINEAR_COSINE_FLOOR = 1e-5
# cosine_decay_restarts in that script: the first decay takes a third of the steps. Each later decay
# is twice as long as the previous one and starts at a tenth of its first rate.
_FIRST_DECAY = 0.33
_RESTART_LONGER = 2.0
_RESTART_LOWER = 0.1
STEP_EPOCHS = (30.0, 60.0, 80.0)  # Goyal et al. 2017: the rate drops to a tenth at each
_STEP_FACTOR = 0.1
# Keras' ReduceLROnPlateau: after `_PATIENCE` evaluations in a row without improvement, the rate is
# multiplied by the factor. The loss has improved if it is lower by more than `_LEAST_GAIN`.
_PATIENCE = 10
_PLATEAU_FACTOR = 0.1
_LEAST_GAIN = 1e-4


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step: a linear warm-up, then a decay to the last step.

    The warm-up rises from `start` (or `peak`, if `peak` is smaller) to `peak`. The kind "steps"
    changes the rate at each step in `drops`: to a tenth, or to the next of `rates`. The first of
    `rates` is the rate before the first drop.
    """

    kind: str
    peak: float
    warmup_steps: int
    total_steps: int
    drops: tuple[int, ...] = ()
    start: float = WARMUP_START
    rates: tuple[float, ...] = ()

    def __call__(self, step: int) -> float:
        """Returns the rate of a step, counted from 0, before any reduction by `Plateau`."""
        if step < self.warmup_steps:
            start = min(self.start, self.peak)
            return start + (self.peak - start) * step / self.warmup_steps
        if self.kind == "plateau":
            return self.peak
        if self.kind == "steps":
            fallen = sum(step >= drop for drop in self.drops)
            return self.rates[fallen] if self.rates else self.peak * _STEP_FACTOR**fallen
        decaying = max(1, self.total_steps - self.warmup_steps)
        done = min(1.0, (step - self.warmup_steps) / decaying)
        if self.kind == "poly":
            end = min(_POLY_END, self.peak)
            return (self.peak - end) * (1 - done) ** 2 + end
        if self.kind == "cosine":
            return self.peak * (1 + math.cos(math.pi * done)) / 2
        if self.kind == "cosine-restarts":
            return self.peak * _restarting_cosine(done)
        # Bello et al. 2017, as in tf.train.linear_cosine_decay.
        swing = (1 + math.cos(2 * math.pi * _LINEAR_COSINE_PERIODS * done)) / 2
        return self.peak * ((1 - done) * swing + _LINEAR_COSINE_FLOOR)


def _restarting_cosine(done: float) -> float:
    """Returns the factor of tf.train.cosine_decay_restarts (Loshchilov and Hutter 2016)."""
    begin = 0.0
    length = _FIRST_DECAY
    height = 1.0
    while done >= begin + length:
        begin = begin + length
        length = length * _RESTART_LONGER
        height = height * _RESTART_LOWER
    return height * (1 + math.cos(math.pi * (done - begin) / length)) / 2


@dataclass
class Plateau:
    """Lowers the learning rate if the evaluation loss no longer falls.

    Checkpoints store this state, which is the same on all ranks. The schedule's rate is multiplied
    by `scale`. `waited` is the number of evaluations since the `best` loss or the last reduction.
    """

    scale: float = 1.0
    best: float | None = None
    waited: int = 0

    def see(self, loss: float) -> None:
        """Updates the state after an evaluation with this loss."""
        if math.isfinite(loss) and (self.best is None or loss < self.best - _LEAST_GAIN):
            self.best = loss
            self.waited = 0
            return
        self.waited += 1
        if self.waited >= _PATIENCE:
            self.scale = self.scale * _PLATEAU_FACTOR
            self.waited = 0


def numbers(name: str, text: str | None) -> tuple[float, ...]:
    """Returns the numbers in the value of a comma-separated flag; () for None."""
    try:
        values = tuple(float(part) for part in (text or "").split(",") if part)
    except ValueError:
        values = (0.0,)
    if not all(0 < value < math.inf for value in values):
        raise ValueError(f"{name} {text}: expected positive numbers, separated by commas")
    return values


# Values of `only`, which limits a flag to some frameworks or to one schedule.
_NOT_MXNET = {"framework": ("tensorflow", "pytorch")}
_STEPS = {"schedule": ("steps",)}


@dataclass(frozen=True)
class TrainConfig(Settings):
    """Settings of one training run; if a hyperparameter is None, the recipe's value is used.

    Aliases are flags of the tutorial's script, except --epochs and --learning-rate, which are from
    the SageMaker guide. `train` also translates tutorial flags that need more than a new name.
    """

    are_defaults_first = True
    groups = {  # noqa: RUF012
        "Data and network": "data_dir synthetic framework model batch_size num_epochs",
        "Recipe": "recipe optimizer lr momentum weight_decay schedule",
        "Speed": "precision jit device",
        "Run": "log_dir eval_every checkpoint_every evaluate export",
    }
    data_dir: str | None = data_set(
        None,
        place=AddressKind.ANYWHERE,
        help="the dataset: a folder, or an s3:// or http(s):// URL",
    )
    framework: str = flag(
        "tensorflow", choices=FRAMEWORKS, help="training framework; mxnet needs its own environment"
    )
    comm: str = optional(
        choices=("horovod", "ddp", "dist_sync", "dist_device_sync"),
        help="how ranks sum gradients; ddp: DistributedDataParallel, the default for pytorch; "
        "dist_sync: MXNet's parameter servers, which `launch --servers` starts; "
        "dist_device_sync: the same as dist_sync, but sums are computed on the GPU",
    )
    synthetic: bool = switch(
        help="train on random images, without a dataset",
        without=(
            "backend",
            "device",
            "keys",
            "exclude",
            "classes",
            "fraction",
            "evaluate",
            "eval_every",
        ),
    )
    model: str | None = optional(
        choices=(
            "resnet18",
            "resnet34",
            "resnet50",
            "resnet101",
            "resnet152",
            "resnet50-v1",
            "resnet101-v1",
            "resnet152-v1",
            "tiny",
            "cifar",
            "mnist",
        ),
        help="network; resnet50 to resnet152 are v1.5; names with -v1 have the stride in the "
        "first 1x1 convolution; tiny is for tests and demos; default: the recipe's, else resnet50",
        aliases=("-m",),
    )
    batch_size: int = flag(256, least=1, help="images per process and step", aliases=("-b",))
    num_epochs: float | None = optional(
        above=0, help="number of epochs; default: the recipe's, else 90", aliases=("--epochs",)
    )
    num_batches: int | None = optional(
        least=1, help="number of steps, instead of --num-epochs", without=("num_epochs",)
    )
    image_size: int | None = optional(
        least=16, help="height and width of crops; default: the recipe's, else 224", metavar="PX"
    )
    log_dir: str = flag(
        "imagenet_resnet",
        place=AddressKind.RUN,
        help="folder of the run (checkpoints, log, TensorBoard scalars); the run resumes from it",
    )
    clear_log: bool = switch(
        help="delete checkpoints, log and scalars of an earlier run, and start from scratch",
        without=("evaluate", "mirror"),
    )
    local_ckpt: bool = switch(
        help="accepted and ignored: rank 0 saves all checkpoints, and all ranks resume from them"
    )
    tensorboard_dir: str | None = optional(
        place=AddressKind.RUN,
        help="folder for TensorBoard scalars (default: LOG_DIR/tensorboard)",
        metavar="DIR",
    )
    mirror: str | None = optional(
        place=AddressKind.BUCKET,
        help="copy log, scalars, checkpoints and exported model to this s3://bucket/prefix in the "
        "background; a new machine resumes from it",
        metavar="URL",
    )
    recipe: str = optional(
        choices=tuple(RECIPES),
        help="preset of hyperparameters and crops; tutorial: AWS's tutorial of 2018; v1.5: "
        "NVIDIA's ResNet-50; article: AWS's article of 2019 on MXNet; cifar10: the SageMaker "
        "guide; mnist: a few seconds per epoch; default: v1.5 (with mxnet: article)",
    )
    crops: str | None = optional(
        choices=("resnet", "resnet-1", "tutorial", "timm", "torchvision-v2", "mae"),
        help="preset of crops and normalisation, see docs/reading.md; default: the recipe's",
    )
    crop_area: tuple[str, ...] | None = optional(
        help="range of crop area / image area in training, such as 0.2,1; default: that of --crops",
        metavar="LOW,HIGH",
    )
    crop_aspect: tuple[str, ...] | None = optional(
        help="range of width / height of crops in training; default: that of --crops",
        metavar="LOW,HIGH",
    )
    crop_filter: str | None = optional(
        choices=("bilinear", "bicubic", "random"),
        help="filter that resizes crops; random: drawn for each image, needs --backend native",
    )
    crop_share: float | None = optional(
        above=0,
        most=1,
        help="side of the evaluation crop as a share of the shorter side; default: that of --crops",
    )
    optimizer: str | None = optional(choices=OPTIMIZERS, help="optimizer; default: the recipe's")
    nesterov: bool = switch(
        help="use Nesterov momentum; the tutorial recipe always does",
        only={"optimizer": (None, "sgd", "larc")},
    )
    lr: float | None = optional(
        above=0,
        help="peak learning rate; default: the recipe's, scaled to the global batch",
        aliases=("--learning-rate",),
    )
    momentum: float | None = optional(
        least=0,
        below=1,
        help="momentum of sgd, lars and larc; default: the recipe's",
        aliases=("--mom",),
    )
    weight_decay: float | None = optional(
        least=0,
        below=1,
        help="L2 weight decay of kernels; batch norms and biases have none; default: the recipe's",
        aliases=("--wdecay",),
    )
    trust_coefficient: float | None = optional(
        above=0,
        below=1,
        help="trust coefficient of lars and larc (default: 0.013 for larc, 0.001 for lars)",
        aliases=("--leta",),
        only={"optimizer": ("lars", "larc")},
    )
    label_smoothing: float | None = optional(
        least=0,
        below=1,
        help="share of each label that is spread evenly over all classes; default: the recipe's",
    )
    schedule: str | None = optional(
        choices=KINDS,
        help="decay of the learning rate; default: the recipe's",
        aliases=("--lr-decay-mode",),
    )
    lr_decay_steps: str | None = optional(
        help="epochs at which --schedule steps lowers the learning rate (default: 30,60,80, scaled "
        "down for runs of fewer than 90 epochs)",
        metavar="EPOCHS",
        only=_STEPS,
    )
    lr_decay_lrs: str | None = optional(
        help="learning rates for --schedule steps: the initial rate, then one for each epoch of "
        "--lr-decay-steps (default: each rate is a tenth of the previous one)",
        metavar="RATES",
        only=_STEPS,
    )
    warmup_epochs: float | None = optional(
        least=0, help="number of warm-up epochs with a rising learning rate; default: the recipe's"
    )
    warmup_lr: float | None = optional(
        least=0,
        help=f"learning rate at the start of the warm-up (default: {WARMUP_START}; "
        "0.1 with recipe article)",
    )
    increased_aug: bool = switch(
        help="also change colours at random; the tutorial recipe does so with 128 or more ranks"
    )
    precision: str | None = optional(
        choices=("float32", "bfloat16", "float16"),
        help="type of activations; weights stay float32 (default: float32; with recipes "
        "tutorial and article, float16 on a GPU with fast float16)",
    )
    loss_scale: float | None = optional(
        least=1,
        help="with float16, multiply the loss by this factor, so that small gradients do not "
        "become 0 (default: 1024; 256 with larc)",
    )
    fp16_compression: bool = switch(help="send gradients as float16", only=_NOT_MXNET)
    jit: bool = switch(help="compile the network with XLA or torch.compile", only=_NOT_MXNET)
    train_accuracy: bool = switch(help="also print top-1 training accuracy, in the column Acc")
    display_every: int = flag(50, least=1, help="steps between lines of output")
    eval_every: float | None = optional(
        least=0,
        help="epochs between evaluations (on the split holdout, or on validation if there is no "
        "holdout); 0: evaluate only at the end; default: the recipe's, else 0",
        aliases=("--eval-interval",),
    )
    checkpoint_every: int = flag(
        1000,
        least=1,
        help="steps between checkpoints; the last step is always saved",
        aliases=("--save-interval", "--save-checkpoints-steps"),
    )
    keep: int = flag(3, least=1, help="number of checkpoints to keep")
    evaluate: bool = switch(help="evaluate the last checkpoint and exit", aliases=("--eval",))
    predictions: str | None = optional(
        place=AddressKind.RUN,
        help="with --evaluate, write the top-5 predictions for each image of the dataset (not of "
        "--also) to this file; columns: key,class_index,top1,p1,...,top5,p5,class; `report "
        "--predictions` reads it",
        metavar="FILE.csv",
    )
    labels: tuple[str, ...] = flag(
        (),
        place=AddressKind.FILE,
        help="also score the last evaluation against the labels in this file (CSV with the header "
        "key,class; ReaL's real.json; or annotations with several labels per image); may be given "
        "several times",
        without=("synthetic", "no_evaluation", "classes"),
    )
    also: tuple[str, ...] = flag(
        (),
        place=AddressKind.ANYWHERE,
        help="also evaluate on this dataset at the end; its class list must be the same; may be "
        "given several times, e.g. ImageNetV2, ImageNet-A and ImageNet-R",
        metavar="SET",
        without=("synthetic", "no_evaluation", "classes"),
    )
    no_evaluation: bool = switch(
        help="do not evaluate; for a dataset with neither validation nor holdout",
        without=("synthetic", "evaluate", "eval_every"),
    )
    export: str | None = optional(
        place=AddressKind.RUN,
        help="write the trained model to this path; tensorflow: FILE.keras, or a folder for a "
        "SavedModel; mxnet: a folder for Gluon's two files; pytorch: FILE.safetensors",
        metavar="PATH",
    )
    seed: int = flag(0, least=0, help="seed of initial weights, image order and crops")
    fraction: float = flag(
        1.0,
        above=0,
        most=1,
        help="train on this share of the images, chosen by key; 0.2 includes all that 0.1 selects",
    )
    keys: str | None = optional(
        place=AddressKind.FILE, help="train only on images with the keys in this file, one per line"
    )
    exclude: str | None = optional(
        place=AddressKind.FILE,
        help="do not train on images with the keys in this file, one per line",
    )
    classes: tuple[str, ...] | None = optional(
        help="train and evaluate only on these classes; names or class indices, separated by "
        "commas",
        metavar="NAMES",
    )
    remap: bool = switch(help="renumber the --classes from 0; the network has no other outputs")
    backend: str = flag("auto", choices=("auto", "tfdata", "dali", "native"), help="JPEG decoder")
    device: str = flag(
        "auto",
        choices=("auto", "cpu", "gpu"),
        help="device that decodes JPEGs; gpu: DALI decodes on the rank's GPU, where images stay; "
        "auto: gpu if the framework can use the rank's GPU, DALI is installed, and --backend is "
        "auto or dali",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self._usual().items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        if self.synthetic == (self.data_dir is not None):
            raise ValueError("give either --data-dir or --synthetic")
        if self.predictions is not None and not self.evaluate:
            raise ValueError("--predictions needs --evaluate")
        if self.device == "gpu" and self.backend not in ("auto", "dali"):
            raise ValueError(f"--device gpu needs --backend dali, not {self.backend}")
        if self.remap and not self.classes:
            raise ValueError("--remap needs --classes")
        if self.loss_scale is not None and self.precision != "float16" and not self.half_if_fast:
            precision = self.precision or "float32"
            raise ValueError(f"--loss-scale needs --precision float16, not {precision}")
        self._check_framework()
        self._check_length()
        self._check_schedule()

    def _usual(self) -> dict[str, str]:
        """Returns the defaults that depend on the framework."""
        recipe = "article" if self.framework == "mxnet" else "v1.5"
        return {"recipe": recipe, "comm": HAS[self.framework]["comm"][0]}

    def _check_framework(self) -> None:
        model = self.model or RECIPES[self.recipe]["model"]
        if self.framework == "mxnet" and model not in GLUON_MODELS:
            raise ValueError(
                f"--framework mxnet has no model {model}: expected --model "
                f"{' or '.join(GLUON_MODELS)}"
            )
        for name, has in HAS[self.framework].items():
            value = getattr(self, name)
            if value not in (None, *has):
                others = [other for other in FRAMEWORKS if value in HAS[other].get(name, (value,))]
                raise ValueError(
                    f"--{name} {value} needs --framework {' or '.join(others)}; "
                    f"{self.framework} has {', '.join(has)}"
                )
        bits = 32 if self.framework == "tensorflow" else 64
        if self.seed >= 1 << bits:
            raise ValueError(f"--seed {self.seed}: {self.framework} needs less than 2**{bits}")
        endings = EXPORTED[self.framework]
        if self.export is None:
            return
        if Path(self.export).suffix not in endings:
            expected = " or ".join(f"FILE{suffix}" if suffix else "a folder" for suffix in endings)
            raise ValueError(f"--export {self.export}: {self.framework} writes {expected}")
        if self.framework == "pytorch" and model not in TORCHVISION:
            raise ValueError(
                f"--export {self.export}: torchvision has no {model}. Expected --model "
                f"{' or '.join(TORCHVISION)}; the checkpoints of the run have the weights"
            )

    def _check_length(self) -> None:
        first = RECIPES[self.recipe]
        warmup, epochs = self.warmup_epochs, self.num_epochs
        if self.num_batches is None and epochs is None:
            epochs = first["num_epochs"]
        if warmup is not None and epochs is not None and warmup >= epochs:
            raise ValueError(
                f"--warmup-epochs {warmup:g}: expected less than --num-epochs {epochs:g}"
            )
        size = self.image_size or first["image_size"]
        if (self.model or first["model"]) == "cifar" and size < LEAST_CIFAR:
            raise ValueError(f"--image-size {size}: model cifar needs at least {LEAST_CIFAR}")

    def _check_schedule(self) -> None:
        steps, rates = self.decay_epochs, self.decay_rates
        if list(steps) != sorted(set(steps)):
            raise ValueError(f"--lr-decay-steps {self.lr_decay_steps}: expected ascending epochs")
        expected = len(steps or STEP_EPOCHS) + 1
        if rates and len(rates) != expected:
            raise ValueError(
                f"--lr-decay-lrs {self.lr_decay_lrs}: expected {expected} rates: one before the "
                "first epoch of --lr-decay-steps, and one from each of these epochs on"
            )
        if self.schedule == "plateau" and not (self.eval_every or self.recipe == "cifar10"):
            raise ValueError("--schedule plateau needs --eval-every")

    def only(self, *names: str, **values: Any) -> TrainConfig:
        """Returns a config with the settings of these names, and `values`; all others are off."""
        same = {name: getattr(self, name) for name in names}
        return TrainConfig(**same | values)

    def changed(self) -> dict[str, object]:
        """Returns the settings that differ from their defaults, by name."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        defaults |= self._usual()
        return {name: value for name, value in vars(self).items() if value != defaults[name]}

    @property
    def tabulates(self) -> bool:
        """Whether the last evaluation prints a table of datasets and label lists."""
        return bool(self.labels or self.also)

    @property
    def half_if_fast(self) -> bool:
        """Whether activations are float16 on a device that computes float16 fast."""
        return self.recipe in ("tutorial", "article") and self.precision is None

    @property
    def decay_epochs(self) -> tuple[float, ...]:
        """The epochs of --lr-decay-steps; empty if it is not given."""
        return numbers("--lr-decay-steps", self.lr_decay_steps)

    @property
    def decay_rates(self) -> tuple[float, ...]:
        """The rates of --lr-decay-lrs; empty if it is not given."""
        return numbers("--lr-decay-lrs", self.lr_decay_lrs)
