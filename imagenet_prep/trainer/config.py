"""The settings of a training run, and checks for conflicts between them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_prep.core.flags import Place, Settings, flag, optional, switch
from imagenet_prep.dataset.flag import data_set
from imagenet_prep.trainer.choices import (
    EXPORTED,
    FRAMEWORKS,
    GLUON_MODELS,
    HAS,
    LEAST_CIFAR,
    OPTIMIZERS,
    RECIPES,
    usual_recipe,
)
from imagenet_prep.trainer.schedule import KINDS, STEP_EPOCHS, WARMUP_START, numbers

# Limit a flag to some frameworks, or to one schedule.
_NOT_MXNET, _STEPS = {"framework": ("tensorflow", "pytorch")}, {"schedule": ("steps",)}


@dataclass(frozen=True)
class TrainConfig(Settings):
    """Settings of one run; if a setting is None, the recipe decides.

    Aliases are flags of the tutorial's script (the verb `train` handles those that need more than
    a new name); --epochs and --learning-rate come from the SageMaker guide.
    """

    groups = {  # noqa: RUF012
        "Data and network": "data_dir synthetic framework model batch_size num_epochs",
        "Recipe": "recipe optimizer lr momentum weight_decay schedule",
        "Speed": "precision jit device",
        "Run": "log_dir eval_every checkpoint_every evaluate export",
    }
    data_dir: str | None = data_set(
        None, place=Place.ANYWHERE, help="the dataset in a folder, s3:// or http(s)://"
    )
    framework: str = flag(
        "tensorflow",
        choices=FRAMEWORKS,
        help="the framework that trains; mxnet needs an environment of its own",
    )
    comm: str = optional(
        choices=("horovod", "ddp", "dist_sync", "dist_device_sync"),
        help="how ranks sum gradients: by Horovod's ring; with --framework pytorch by "
        "DistributedDataParallel (ddp), its default; with --framework mxnet also by the parameter "
        "servers that `launch --servers` starts, where dist_device_sync adds up the GPUs of a "
        "process on a GPU",
    )
    synthetic: bool = switch(
        help="train on random images; this needs no data set",
        without=(
            *("backend", "device", "keys", "exclude", "classes", "fraction"),
            *("evaluate", "eval_every"),
        ),
    )
    model: str | None = optional(
        choices=(
            *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
            *("resnet50-v1", "resnet101-v1", "resnet152-v1", "tiny", "cifar", "mnist"),
        ),
        help="the network; resnet50 to 152 are v1.5, those with -v1 stride in their first 1x1; "
        "tiny is for tests and demos; default: resnet50, or the recipe's",
        aliases=("-m",),
    )
    batch_size: int = flag(
        256,
        least=1,
        help="images per process and step",
        aliases=("-b",),
    )
    num_epochs: float | None = optional(
        above=0,
        help="how often every image is used; default: 90, or the recipe's",
        aliases=("--epochs",),
    )
    num_batches: int | None = optional(
        least=1, help="steps of the run, instead of --num-epochs", without=("num_epochs",)
    )
    image_size: int | None = optional(
        least=16, help="height and width of the crops; default: 224, or the recipe's", metavar="PX"
    )
    log_dir: str = flag(
        "imagenet_resnet",
        place=Place.RUN,
        help="folder of the run; has checkpoints, log and TensorBoard's scalars; a run resumes "
        "from it",
    )
    clear_log: bool = switch(
        help="begin anew: remove the checkpoints, the log and the scalars of an earlier run first",
        without=("evaluate", "mirror"),
    )
    local_ckpt: bool = switch(
        help="accepted, without effect: rank 0 saves checkpoints, and gives them to all when the "
        "run resumes"
    )
    tensorboard_dir: str | None = optional(
        place=Place.RUN,
        help="folder of TensorBoard's scalars (default: LOG_DIR/tensorboard)",
        metavar="DIR",
    )
    mirror: str | None = optional(
        place=Place.BUCKET,
        help="s3://bucket/prefix where a copy of log, scalars, checkpoints and exported model is "
        "kept in the background; a new machine resumes from it",
        metavar="URL",
    )
    recipe: str = optional(
        choices=tuple(RECIPES),
        help="defaults of many flags, and crops; tutorial: AWS's tutorial of 2018; v1.5: NVIDIA's; "
        "article: AWS's article of 2019 on MXNet; cifar10: the SageMaker guide's; mnist: an epoch "
        "in seconds; default: v1.5, of mxnet article",
    )
    optimizer: str | None = optional(
        choices=OPTIMIZERS, help="the optimizer; default: the recipe's"
    )
    nesterov: bool = switch(
        help="use Nesterov momentum, as recipe tutorial does anyway",
        only={"optimizer": (None, "sgd", "larc")},
    )
    lr: float | None = optional(
        above=0,
        help="peak learning rate; default: the recipe's for the global batch",
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
        help="L2 of kernels, not of batch norms and biases; default: the recipe's",
        aliases=("--wdecay",),
    )
    trust_coefficient: float | None = optional(
        above=0,
        below=1,
        help="eta of lars and larc (default: 0.013 for larc, 0.001 for lars)",
        aliases=("--leta",),
        only={"optimizer": ("lars", "larc")},
    )
    label_smoothing: float | None = optional(
        least=0,
        below=1,
        help="share of the label that goes to the other classes; default: the recipe's",
    )
    schedule: str | None = optional(
        choices=KINDS,
        help="how the rate decays; default: the recipe's",
        aliases=("--lr-decay-mode",),
    )
    lr_decay_steps: str | None = optional(
        help="epochs at which schedule steps lowers the rate (default: 30,60,80, in proportion "
        "for fewer than 90 epochs)",
        metavar="EPOCHS",
        only=_STEPS,
    )
    lr_decay_lrs: str | None = optional(
        help="rates of schedule steps, one more than --lr-decay-steps: the first is that before "
        "the first of them (default: a tenth at each)",
        metavar="RATES",
        only=_STEPS,
    )
    warmup_epochs: float | None = optional(
        least=0, help="epochs in which the rate rises; default: the recipe's"
    )
    warmup_lr: float | None = optional(
        least=0,
        help=f"learning rate at which the warm-up begins (default: {WARMUP_START}, of recipe "
        "article 0.1)",
    )
    increased_aug: bool = switch(
        help="change colours at random too, as recipe tutorial does from 128 ranks on"
    )
    precision: str | None = optional(
        choices=("float32", "bfloat16", "float16"),
        help="type of activations; weights stay float32 (default: float32; of recipes tutorial "
        "and article float16 on a GPU that is fast at it)",
    )
    loss_scale: float | None = optional(
        least=1,
        help="factor of the loss with float16, so that gradients do not vanish (default: 1024, "
        "with larc 256)",
    )
    fp16_compression: bool = switch(
        help="send gradients between processes as float16", only=_NOT_MXNET
    )
    jit: bool = switch(
        help="compile forward and backward pass: with XLA, or PyTorch's with torch.compile",
        only=_NOT_MXNET,
    )
    train_accuracy: bool = switch(
        help="print how many of the images of a step the network knew, in a column Acc"
    )
    display_every: int = flag(50, least=1, help="steps between two lines of output")
    eval_every: float | None = optional(
        least=0,
        help="epochs between evaluations; of the split holdout if the dataset has one, else of "
        "validation; 0: evaluate only at the end; default: 0, or the recipe's",
        aliases=("--eval-interval",),
    )
    checkpoint_every: int = flag(
        1000,
        least=1,
        help="steps between checkpoints; there is always one at the end",
        aliases=("--save-interval", "--save-checkpoints-steps"),
    )
    keep: int = flag(3, least=1, help="how many checkpoints are kept")
    evaluate: bool = switch(help="evaluate the last checkpoint and end", aliases=("--eval",))
    predictions: str | None = optional(
        place=Place.RUN,
        help="with --evaluate: write what the network says of each image, a line each: "
        "key,class_index,top1,p1,... to top5,p5. `report --predictions` shows it",
        metavar="FILE.csv",
    )
    labels: tuple[str, ...] = flag(
        (),
        place=Place.FILE,
        help="the last evaluation counts by these labels too: CSV with the header key,class, "
        "ReaL's real.json, or the several-label annotations; may be given several times",
        without=("synthetic", "no_evaluation", "classes"),
    )
    also: tuple[str, ...] = flag(
        (),
        place=Place.ANYWHERE,
        help="the last evaluation is of this set too, which has the same class list; may be given "
        "several times, e.g. ImageNetV2, ImageNet-A and ImageNet-R",
        metavar="SET",
        without=("synthetic", "no_evaluation", "classes"),
    )
    no_evaluation: bool = switch(
        help="do not evaluate; for a set that has neither validation nor holdout",
        without=("synthetic", "evaluate", "eval_every"),
    )
    export: str | None = optional(
        place=Place.RUN,
        help="write the model here at the end: FILE.keras, or a folder for a SavedModel, or for "
        "the two files of Gluon; PyTorch's weights as FILE.safetensors",
        metavar="PATH",
    )
    seed: int = flag(0, least=0, help="decides first weights, order and crops")
    fraction: float = flag(
        1.0,
        above=0,
        most=1,
        help="train on this share of the images, chosen by their keys: 0.1 is a part of 0.2",
    )
    keys: str | None = optional(
        place=Place.FILE, help="train on the images whose keys this file lists, one a line"
    )
    exclude: str | None = optional(
        place=Place.FILE, help="train on no image whose key this file lists, one a line"
    )
    classes: tuple[str, ...] | None = optional(
        help="train and evaluate on these classes alone, given by name or by class index, "
        "separated by commas",
        metavar="NAMES",
    )
    remap: bool = switch(
        help="number the --classes from 0 without gaps, so that the network has no other outputs"
    )
    backend: str = flag(
        "auto", choices=("auto", "tfdata", "dali", "native"), help="what decodes the JPEGs"
    )
    device: str = flag(
        "auto",
        choices=("auto", "cpu", "gpu"),
        help="where JPEGs are decoded; gpu: by DALI on the GPU of the rank, where the images stay; "
        "auto: gpu if the rank has a GPU, DALI is installed, and --backend is auto or dali",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self._usual().items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        if self.synthetic == (self.data_dir is not None):
            raise ValueError("give either --data-dir or --synthetic")
        if self.predictions is not None and not self.evaluate:
            raise ValueError("--predictions is written by --evaluate: give that too")
        if self.device == "gpu" and self.backend not in ("auto", "dali"):
            raise ValueError(
                f"--device gpu: only DALI decodes on a GPU, and --backend is {self.backend}"
            )
        if self.remap and not self.classes:
            raise ValueError("--remap numbers the classes of --classes anew: give these too")
        if self.loss_scale is not None and self.precision != "float16" and not self.half_if_fast:
            raise ValueError(
                f"--loss-scale is for --precision float16, not {self.precision or 'float32'}"
            )
        self._check_framework()
        self._check_length()
        self._check_schedule()

    def _usual(self) -> dict[str, str]:
        """Returns the defaults that depend on the framework."""
        return {"recipe": usual_recipe(self.framework), "comm": HAS[self.framework]["comm"][0]}

    def _check_framework(self) -> None:
        model = self.model or RECIPES[self.recipe]["model"]
        if self.framework == "mxnet" and model not in GLUON_MODELS:
            raise ValueError(
                f"--framework mxnet: Gluon has no {model}; --model is one of "
                f"{', '.join(GLUON_MODELS)}"
            )
        for name, has in HAS[self.framework].items():
            if (value := getattr(self, name)) not in (None, *has):
                having = [each for each in FRAMEWORKS if value in HAS[each].get(name, (value,))]
                raise ValueError(
                    f"--{name} {value} is for --framework {' or '.join(having)} alone; "
                    f"{self.framework} has {', '.join(has)}"
                )
        endings = EXPORTED[self.framework]
        if self.export is not None and Path(self.export).suffix not in endings:
            wanted = " or ".join(f"FILE{each}" if each else "a folder" for each in endings)
            raise ValueError(
                f"--export {self.export}: --framework {self.framework} writes {wanted}"
            )

    def _check_length(self) -> None:
        first = RECIPES[self.recipe]
        warmup, whole = self.warmup_epochs, self.num_epochs
        if self.num_batches is None and whole is None:
            whole = first["num_epochs"]
        if warmup is not None and whole is not None and warmup >= whole:
            raise ValueError(
                f"--warmup-epochs {warmup:g}: expected less than --num-epochs {whole:g}"
            )
        size = self.image_size or first["image_size"]
        if (self.model or first["model"]) == "cifar" and size < LEAST_CIFAR:
            raise ValueError(f"--image-size {size}: model cifar needs at least {LEAST_CIFAR}")

    def _check_schedule(self) -> None:
        steps, rates = self.decay_epochs, self.decay_rates
        if list(steps) != sorted(set(steps)):
            raise ValueError(f"--lr-decay-steps {self.lr_decay_steps}: expected rising epochs")
        expected = len(steps or STEP_EPOCHS) + 1
        if rates and len(rates) != expected:
            raise ValueError(
                f"--lr-decay-lrs {self.lr_decay_lrs}: expected {expected} rates, that before the "
                "first epoch of --lr-decay-steps and that from each of them on"
            )
        if self.schedule == "plateau" and not (self.eval_every or self.recipe == "cifar10"):
            raise ValueError("--schedule plateau needs --eval-every: evaluations lower the rate")

    def changed(self) -> dict[str, Any]:
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
        """Whether to use float16 if the device is fast at it."""
        return self.recipe in ("tutorial", "article") and self.precision is None

    @property
    def decay_epochs(self) -> tuple[float, ...]:
        """The epochs of --lr-decay-steps; empty if it is not given."""
        return numbers("--lr-decay-steps", self.lr_decay_steps)

    @property
    def decay_rates(self) -> tuple[float, ...]:
        """The rates of --lr-decay-lrs; empty if it is not given."""
        return numbers("--lr-decay-lrs", self.lr_decay_lrs)
