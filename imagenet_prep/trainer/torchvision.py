"""Exports weights as safetensors with torchvision's names, without TensorFlow or PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.core import records
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.own_file import Kind
from imagenet_prep.storage.new_file import complete_file
from imagenet_prep.storage.os_errors import storage_errors
from imagenet_prep.trainer import checkpoint
from imagenet_prep.trainer.checkpoint import Checkpoint
from imagenet_prep.trainer.choices import TORCHVISION
from imagenet_prep.trainer.interface import Interface

if TYPE_CHECKING:
    import numpy.typing as npt

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
OWN = Kind("a file of safetensors", b'{"__metadata__"', at=8)
_DTYPES = {"float32": "F32", "int64": "I64"}


def last(folder: Path) -> Checkpoint:
    """Returns the last checkpoint of a run."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    latest = checkpoint.load_latest(folder, accept=interface_of)
    if latest is None:
        raise UsageError(f"{folder}: no checkpoint. Expected the --log-dir of a training run.")
    return latest


def interface_of(facts: Json) -> Interface | None:
    """Returns the interface of a checkpoint's network; None in a checkpoint of version 0.1.0."""
    found = facts.get("interface")
    return None if found is None else records.parse(Interface, found, "interface")


def tensors(run: Json, arrays: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Returns the model's tensors under torchvision's names, from the variables of a run."""
    model, framework = run.get("model"), run.get("framework", "tensorflow")
    if model not in TORCHVISION or framework not in ("tensorflow", "pytorch"):
        raise UsageError(
            f"cannot export {model} of {framework} for PyTorch. Expected "
            f"{' or '.join(TORCHVISION)}, trained with TensorFlow or PyTorch"
        )
    if framework == "pytorch":
        return _of_pytorch(arrays)
    named: dict[str, npt.NDArray[Any]] = {}
    for path, array in arrays.items():
        layer, _, kind = path.rpartition("/")
        if not layer:
            continue  # an optimizer slot
        layer = _LAYERS.get(layer, layer)
        if array.ndim == 4:
            array = array.transpose(3, 2, 0, 1)
        elif array.ndim == 2:
            array = array.T
        named[f"{layer}.{_KINDS[kind]}"] = np.ascontiguousarray(array)
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
    data = (array.tobytes() for array in named.values())
    content = b"".join((len(text).to_bytes(8, "little"), text, *data))
    with storage_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with complete_file(path, OWN) as file:
        file.write(content)
    return len(content)
