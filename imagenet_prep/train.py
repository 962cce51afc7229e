r"""Train a network on a dataset. After an interruption, run the same command again to resume.

This command also accepts the flags of the AWS tutorial's train_imagenet_resnet_hvd.py.

Examples:
  imagenet-prep train --data-dir /data/imagenet-480 --precision bfloat16 --jit
  imagenet-prep train --synthetic --num-epochs 0.1
  imagenet-prep launch -np 16 --hosts hosts -- train --data-dir /data/imagenet-480
  imagenet-prep train --data-dir cifar10 --recipe cifar10
  imagenet-prep train --data-dir mnist --recipe mnist
  imagenet-prep launch -np 8 --servers 8 -- train --data-dir /data/imagenet-480 \
      --framework mxnet --comm dist_sync
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from imagenet_prep.core import flags, imports, program, terminal
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.terminal import counted, human_bytes
from imagenet_prep.dataset import schema
from imagenet_prep.trainer.config import EXPORTED, TrainConfig

if TYPE_CHECKING:
    from imagenet_prep.core.world import World
    from imagenet_prep.trainer.evaluation import Score
    from imagenet_prep.trainer.feed import BatchReader, OpenReader

# Bytes per image of 224 pixels in training on a CPU, in float32: the tensors that PyTorch keeps
# for the backward pass, and 6 MB. Peaks of 16 images less those of 4 confirm 28.5 and 91.5 MB for
# resnet18 and resnet50.
_IMAGE_BYTES = {
    "resnet18": 28_000_000,
    "resnet34": 38_000_000,
    "resnet50": 92_000_000,
    "resnet101": 133_000_000,
    "resnet152": 184_000_000,
}
_RANK_BYTES = 1_000_000_000  # memory of a rank without images
_MEMINFO = Path("/proc/meminfo")
# Switches of the AWS tutorial's script. Flags with a value are aliases in `TrainConfig`.
_SWITCHES = {
    "--fp16": ("--precision", "float16"),
    "--nofp16": ("--precision", "float32"),
    "--use_larc": ("--optimizer", "larc"),
}
# The evaluation in the tutorial's script needs the number of GPUs; this flag is ignored here.
_NEEDLESS = "--num_gpus"
_DECAY = "--lr_decay_mode"
_DECAYS = {"linear_cosine": "linear-cosine", "cosine_decay_restarts": "cosine-restarts"}


def train(config: TrainConfig) -> Score | None:
    """Trains a network and returns the score of the last evaluation, if there is one."""
    from imagenet_prep.evaluation.sheet import Sheet
    from imagenet_prep.trainer import loop, recipe
    from imagenet_prep.trainer.comm import launched

    lacking = imports.lacking(needs(config, launched().size))
    if lacking:
        raise UsageError("\n".join(["training cannot start here:", *(f"  {x}" for x in lacking)]))
    _require_compiler(config)
    _require_gpu_build(config)
    config = recipe.settled(config)
    sheet = None
    _check_memory(config, launched())
    if config.tabulates and launched().rank == 0:
        assert config.data_dir is not None
        sheet = Sheet([config.data_dir, *config.also], config.labels)
    return loop.train(config, readers(config), sheet)


def _require_compiler(config: TrainConfig) -> None:
    """Raises UsageError if --jit needs a C++ compiler, which torch.compile calls on CPUs."""
    compiler = os.environ.get("CXX", "g++")
    needs_compiler = config.jit and config.framework == "pytorch"
    if needs_compiler and not imports.gpus_of("pytorch") and shutil.which(compiler) is None:
        raise UsageError(
            f"--jit: torch.compile needs a C++ compiler, but there is no {compiler}. Install "
            "g++, set CXX to your compiler, or omit --jit."
        )


def _require_gpu_build(config: TrainConfig) -> None:
    """Raises UsageError if images are to be decoded on a GPU that the framework cannot use."""
    package = imports.on_cpu_only(config.framework)
    if config.device == "gpu" and package is not None:
        raise UsageError(
            f"--device gpu: {package} cannot use GPUs. Install a build of the framework for GPUs, "
            "or use --device cpu."
        )


def _check_memory(config: TrainConfig, world: World) -> None:
    """Prints a warning if a batch needs more memory than this host has available."""
    assert config.model is not None
    assert config.image_size is not None
    image_bytes: float = _IMAGE_BYTES.get(config.model.removesuffix("-v1"), 0)
    if config.evaluate or world.local_rank or imports.gpus_of(config.framework) or not image_bytes:
        return
    image_bytes *= (config.image_size / 224) ** 2
    needed = world.local_size * (_RANK_BYTES + config.batch_size * image_bytes)
    found = re.search(r"^MemAvailable: *(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE)
    available = 1024 * int(found[1]) if found else needed
    if needed > available:
        fitting = max(1, int((available / world.local_size - _RANK_BYTES) / image_bytes))
        terminal.say(
            f"{counted(world.local_size, 'rank')} x {counted(config.batch_size, 'image')} of "
            f"{config.image_size} px need about {human_bytes(needed)} of memory for {config.model} "
            f"on the CPU, but {os.uname().nodename} has {human_bytes(available)} available. Use "
            f"--batch-size {fitting} or less."
        )


def needs(config: TrainConfig, ranks: int) -> list[str]:
    """Returns the packages that a rank needs, as arguments of `core.imports.lacking`."""
    needs = [config.framework]
    if ranks > 1 and config.comm == imports.HOROVOD:
        needs.append(imports.HOROVOD)
    if not config.synthetic:
        needs.append("dali" if config.device == "gpu" else config.backend)
    return needs


def _pinned(config: TrainConfig) -> Any:
    """Returns memory for a batch of images from which a GPU can copy."""
    from imagenet_prep.trainer.pytorch_learner import pinned

    assert config.image_size is not None
    return pinned(config.batch_size, config.image_size)


def readers(config: TrainConfig) -> OpenReader:
    """Returns a function that opens a split; `config` is a result of `recipe.settled`."""
    from imagenet_prep.trainer import recipe

    def open_reader(split: str, training: bool, world: World, is_set: bool = False) -> BatchReader:
        from imagenet_prep.evaluation.sheet import opened
        from imagenet_prep.read import batch, make_dataset
        from imagenet_prep.read.backend import choose_device

        assert config.data_dir is not None
        assert config.image_size is not None
        needs_keys = (config.predictions is not None or config.tabulates) and not training
        data_dir = config.data_dir
        if is_set:
            data_dir, split = split, opened(split)[1]
        device = choose_device(config.device, config.backend, config.framework, world.local_rank)
        backend = "dali" if device == "gpu" else config.backend
        if backend == "auto":
            backend = "tfdata" if config.framework == "tensorflow" else "native"
        framework: batch.Framework | None = "dlpack"
        if config.framework == "tensorflow":
            framework = "tensorflow"
        elif config.framework == "mxnet" and device == "cpu":
            framework = "numpy"
        out = None
        is_native = config.framework == "pytorch" and backend == "native"
        if is_native and world.local_rank < imports.gpus_of("pytorch"):
            # Only copies from pinned memory overlap with computation on the GPU.
            out = partial(_pinned, config)
            framework = None
        reader = make_dataset(
            data_dir,
            split,
            batch_size=config.batch_size,
            image_size=config.image_size,
            training=training,
            world=world,
            seed=config.seed,
            colour=training and recipe.increased_aug(config, world.size),
            out=out,
            backend=cast("batch.Backend", backend),
            framework=framework,
            layout="NCHW" if config.framework == "mxnet" else "NHWC",
            device=device,
            fields=(*batch.DECODED, "key") if needs_keys else batch.DECODED,
            classes=config.classes,
            remap=config.remap,
            keys=config.keys if training else None,
            exclude=config.exclude if training else None,
            fraction=config.fraction if training else 1.0,
            **arguments_of_crops(config),
        )
        if needs_keys and schema.FILENAME in reader.manifest.lacks:
            raise UsageError(
                f"{data_dir}: the records lack file names, so predictions would have no keys"
            )
        return reader

    return open_reader


def arguments_of_crops(config: TrainConfig) -> dict[str, Any]:
    """Returns the arguments of `make_dataset` that describe crops."""
    usual = "resnet" if config.recipe in ("v1.5", "article") else config.recipe
    return {
        "recipe": config.crops or usual,
        "area": _range("crop_area", config.crop_area),
        "aspect": _range("crop_aspect", config.crop_aspect),
        "filter": config.crop_filter,
        "share": config.crop_share,
    }


def _range(name: str, words: tuple[str, ...] | None) -> tuple[float, float] | None:
    """Returns the two numbers of a flag such as --crop-area 0.2,1."""
    if words is None:
        return None
    try:
        low, high = map(float, words)
    except ValueError:
        flag_name = name.replace("_", "-")
        raise UsageError(
            f"--{flag_name} {','.join(words)}: expected two numbers, such as 0.2,1"
        ) from None
    return low, high


def _of_sagemaker(argv: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    channel = environment.get("SM_CHANNEL_TRAINING") or environment.get("SM_CHANNEL_TRAIN")
    if channel and "--synthetic" not in argv:
        return {"data_dir": channel}
    return {}


def _exported(config: TrainConfig, environment: Mapping[str, str]) -> TrainConfig:
    """Sets --export to a file in SageMaker's folder, if the framework can export the model."""
    folder = environment.get("SM_MODEL_DIR")
    if folder is None or config.export is not None:
        return config
    path = f"{folder}/model{EXPORTED[config.framework][-1]}"
    try:
        return dataclasses.replace(config, export=path)
    except ValueError as error:
        terminal.say(f"no model is exported: {error}")
        return config


def _translated(argv: Sequence[str]) -> list[str]:
    words: list[str] = []
    remaining = iter(argv)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name not in (_NEEDLESS, _DECAY):
            words += _SWITCHES.get(word, (word,))
            continue
        values = [value] if equals else list(islice(remaining, 1))
        if name == _DECAY:
            words += [_DECAY, *(_DECAYS.get(mode, mode) for mode in values)]
    return words


def parse(
    argv: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    of_run: Mapping[str, Any] = MappingProxyType({}),
) -> TrainConfig:
    """Returns the config of a command line, which may have flags of the AWS tutorial's script.

    In a SageMaker container, `environment` has defaults for --data-dir and --export. `of_run` has
    the values of fields that neither the flags nor `environment` set.
    """
    config = flags.parse(
        TrainConfig,
        _translated(argv),
        verb="train",
        text=__doc__,
        fallback={**of_run, **_of_sagemaker(argv, environment)},
    )
    return _exported(config, environment)


def run(argv: Sequence[str]) -> int:
    """Trains as the command line says; returns exit code 0, or raises an error."""
    config = parse(argv)
    if config.evaluate:
        from imagenet_prep.trainer.comm import launched
        from imagenet_prep.trainer.saved import settings_of

        of_run = settings_of(config.log_dir, launched())
        if config.also or config.labels:
            of_run.pop("classes", None)
            if of_run.pop("remap", False):
                raise UsageError(
                    f"{config.log_dir} holds a network for some classes of its dataset (--classes "
                    "with --remap), but --also and --labels need a network for all classes. Omit "
                    "these flags."
                )
        config = parse(argv, of_run=of_run)
    train(config)
    return 0


if __name__ == "__main__":
    program.main("imagenet_prep.train")
