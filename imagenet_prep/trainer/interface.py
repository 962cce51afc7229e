"""The interface of a network (normalisation and classes), and its export for torchvision.

Weights are exported as safetensors, without TensorFlow or PyTorch.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError, UsageError, some
from imagenet_prep.core.small_files import FileKind
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import class_list
from imagenet_prep.dataset.class_list import MOST_CLASSES, ClassList
from imagenet_prep.storage.local_file import complete_file, storage_errors
from imagenet_prep.trainer import checkpoint
from imagenet_prep.trainer.checkpoint import Arrays, Checkpoint, Header, Shape
from imagenet_prep.trainer.config import TORCHVISION, residual_blocks

if TYPE_CHECKING:
    import numpy.typing as npt


Colours = tuple[float, float, float]


@dataclass(frozen=True)
class Interface:
    """What checkpoints and exported models state about a network's input and output.

    Attributes:
      classes: the class of each output as a line of `labels.txt`: WNID, space, words. Empty for
        synthetic images.
      mean, std: mean and standard deviation of R, G, B in [0, 255]; the network's input is
        (pixel - mean) / std.
    """

    classes: str
    mean: Colours
    std: Colours

    @property
    def outputs(self) -> ClassList:
        """The class of each output, in the order of the outputs."""
        return class_list.parse(self.classes.encode(), "the classes of the network")

    def difference(self, saved: Interface) -> str | None:
        """Describes how the outputs of a saved network differ from these; None if they agree."""
        old, new = saved.outputs.wnids, self.outputs.wnids
        if old == new:
            return None
        pairs = itertools.zip_longest(old, new, fillvalue="no class")
        number, pair = next(each for each in enumerate(pairs) if each[1][0] != each[1][1])
        return (
            f"a network for the classes {some(old) or 'of no dataset'}, but this command is for "
            f"{some(new) or 'random images'} "
            f"(output {number}: {pair[0]}, here {pair[1]})"
        )


TINY = "tiny"  # examples/tiny.py builds it from torchvision's blocks
SLOT = "slot_"  # optimizer tensors have this prefix and a number
_KINDS = {  # PyTorch's name for each Keras variable of a layer
    "kernel": "weight",
    "bias": "bias",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
_LAYERS = {"classes": "fc"}
OWN = FileKind("a file of safetensors", b'{"__metadata__"', at=8)
_DTYPES = {"float32": "F32", "int64": "I64"}
_MOST_SIDE = 1 << 16
_PER_FILTER = 4  # a batch norm has scale, offset, mean and variance


@dataclass(frozen=True)
class ExportedNetwork:
    """The facts about a network in a checkpoint that decide how it is exported."""

    model: str
    num_classes: int
    image_size: int
    framework: str = "tensorflow"

    def __post_init__(self) -> None:
        if not 1 <= self.num_classes <= MOST_CLASSES:
            raise ValueError(f"num_classes {self.num_classes}: expected 1 to {MOST_CLASSES:,}")
        if not 1 <= self.image_size <= _MOST_SIDE:
            raise ValueError(f"image_size {self.image_size}: expected 1 to {_MOST_SIDE:,}")

    @property
    def num_weights(self) -> int:
        """The number of weights and statistics of the model, without the optimizer's."""
        width, size = (16, 3) if self.model == TINY else (64, 7)
        count = (3 * size**2 + _PER_FILTER) * width
        for _, convolutions in residual_blocks(self.model):
            inputs = width
            strides = 1
            for filters, size, stride in convolutions:
                count += (width * size**2 + _PER_FILTER) * filters
                width = filters
                strides *= stride
            if strides > 1 or inputs != width:  # the shortcut is a convolution, too
                count += (inputs + _PER_FILTER) * width
        return count + (width + 1) * self.num_classes


@dataclass(frozen=True)
class _NetworkFacts:
    run: Json


def last(folder: Path) -> Checkpoint:
    """Returns the last checkpoint of a run, with its model's variables.

    Without variables if the model cannot be exported, for which `tensors` raises UsageError.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    latest = checkpoint.load_latest(folder, _model_shapes)
    if latest is None:
        raise UsageError(f"{folder}: no checkpoint. Expected the --log-dir of a training run.")
    return latest


def interface_of(facts: Json) -> Interface | None:
    """Returns the interface of a checkpoint's network; None in a checkpoint of version 0.1.0."""
    found = facts.get("interface")
    return None if found is None else strict_json.parse(Interface, found, "interface")


def network_of(facts: Json) -> ExportedNetwork:
    """Returns the facts about a checkpoint's network; raises ValueError if they are malformed."""
    return strict_json.parse(ExportedNetwork, facts.get("run"), "run", others=True)


def _model_shapes(facts: Json, headers: Mapping[str, Header]) -> list[Shape]:
    """Returns the shapes of the model's variables, which precede those of the optimizer.

    Raises ValueError if they do not fit the network, or if the facts are malformed.
    """
    run = strict_json.parse(_NetworkFacts, facts, others=True).run
    interface = interface_of(facts)
    if interface is not None:
        _ = interface.outputs
    if not _is_exportable(run):
        return []
    network = network_of(facts)
    of_model = [header for name, header in headers.items() if not name.startswith(SLOT)]
    num_bytes = sum(header.num_bytes for header in of_model)
    if num_bytes > 4 * network.num_weights:
        raise ValueError(
            f"its arrays have {num_bytes:,} bytes; {network.model} for "
            f"{counted(network.num_classes, 'class')} has at most {4 * network.num_weights:,}"
        )
    if any(header.dtype != np.float32 for header in of_model):
        raise ValueError("an array of the model does not have the type float32")
    return [header.shape for header in of_model]


def _is_exportable(run: Json) -> bool:
    framework = run.get("framework", "tensorflow")
    return run.get("model") in TORCHVISION and framework in ("tensorflow", "pytorch")


def tensors(run: Json, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Returns the model's tensors under torchvision's names, from the variables of a run."""
    framework = run.get("framework", "tensorflow")
    if not _is_exportable(run):
        raise UsageError(
            f"cannot export {str(run.get('model'))[:80]} of {str(framework)[:80]} for PyTorch. "
            f"Expected {' or '.join(TORCHVISION)}, trained with TensorFlow or PyTorch"
        )
    if framework == "pytorch":
        return _of_pytorch(arrays)
    named: dict[str, npt.NDArray[Any]] = {}
    for path, array in arrays.items():
        layer, _, kind = path.rpartition("/")
        if not layer:
            continue  # an optimizer slot
        if kind not in _KINDS:
            raise DataDamagedError(f"the checkpoint: {path[:80]!r} is not a variable of a layer")
        layer = _LAYERS.get(layer, layer)
        if array.ndim == 4:
            array = array.transpose(3, 2, 0, 1)
        elif array.ndim == 2:
            array = array.T
        named[f"{layer}.{_KINDS[kind]}"] = array
    return _of_pytorch(named)


def _of_pytorch(arrays: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Returns the model's tensors from the variables of the PyTorch learner.

    Adds `num_batches_tracked` of each batch norm, which PyTorch expects in weights files.
    """
    of_model = {}
    for name, array in arrays.items():
        if not name.startswith(SLOT):
            of_model[name] = array
        layer, _, kind = name.rpartition(".")
        if kind == "running_mean":
            of_model[f"{layer}.num_batches_tracked"] = np.zeros((), np.int64)
    return of_model


def notes(run: Json, interface: Interface | None) -> dict[str, str]:
    """Returns the metadata of an exported file; `interface` is None for a run of version 0.1.0."""
    metadata = {name: str(run[name]) for name in ("model", "num_classes", "image_size")}
    if interface is None:
        return metadata
    lists = {
        "class_ids": interface.outputs.wnids,
        "class_names": interface.outputs.words,
        "mean": interface.mean,
        "std": interface.std,
    }
    return metadata | {name: json.dumps(values) for name, values in lists.items()}


def write(path: Path, named: Mapping[str, npt.NDArray[Any]], notes: Mapping[str, str]) -> int:
    """Writes a safetensors file atomically; returns its size in bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **notes}}
    place = 0
    for name, array in named.items():
        end = place + array.nbytes
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [place, end],
        }
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    with storage_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with complete_file(path, OWN) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        # One array at a time, because each is copied.
        for array in named.values():
            file.write(array.tobytes())
    return 8 + len(text) + place
