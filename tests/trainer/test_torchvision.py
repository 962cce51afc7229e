"""Weights for torchvision: its names, shapes and layout; tests/frameworks has its logits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.trainer import checkpoint, interface
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.interface import ExportedNetwork, Interface
from imagenet_prep.trainer.saved import Saved
from tests.kit import command
from tests.kit.messages import exactly, says
from tests.kit.training import built

RUN: dict[str, Any] = {
    "run": {"model": "resnet50", "num_classes": 7, "image_size": 32},
    "reader": {},
}
INTERFACE = Interface("n1 cat\nn2 dog, hound\n", (121.5, 115.0, 100.0), (70.0, 68.0, 71.0))


def tensors(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Returns notes and tensors of a file, read only by the description of the format."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    notes = header.pop("__metadata__")
    found = {}
    for name, each in header.items():
        begin, end = (8 + size + place for place in each["data_offsets"])
        dtype = {"F32": np.float32, "I64": np.int64}[each["dtype"]]
        found[name] = np.frombuffer(data[begin:end], dtype).reshape(each["shape"])
    assert (size + 8) % 8 == 0
    return notes, found


def test_kernels_are_transposed_and_renamed_without_optimizer_slots(tmp_path: Path) -> None:
    kernel = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    arrays = {
        "conv1/kernel": kernel,
        "bn1/gamma": np.full(5, 2, np.float32),
        "bn1/beta": np.full(5, 3, np.float32),
        "classes/kernel": np.arange(35, dtype=np.float32).reshape(5, 7),
        "classes/bias": np.arange(7, dtype=np.float32),
        "bn1/moving_mean": np.full(5, 4, np.float32),
        "bn1/moving_variance": np.full(5, 5, np.float32),
        "slot_0000": kernel,
    }
    checkpoint.save(tmp_path / "run", 3, RUN, arrays, keep=1)
    out = tmp_path / "made" / "resnet50.pt"
    result = command.run("export", tmp_path / "run", "--format", "torch", "--out", out)

    assert (result.code, result.err) == (0, "")
    assert "resnet50 for 7 classes, from checkpoint-00000003.npz" in result.out
    notes, found = tensors(out)
    assert notes == {
        "format": "pt",
        "model": "resnet50",
        "num_classes": "7",
        "image_size": "32",
        "step": "3",
    }
    assert list(found) == [
        "conv1.weight",
        "bn1.weight",
        "bn1.bias",
        "fc.weight",
        "fc.bias",
        "bn1.running_mean",
        "bn1.num_batches_tracked",
        "bn1.running_var",
    ]
    assert found["conv1.weight"].shape == (5, 4, 2, 3)
    assert found["conv1.weight"][1, 2, 0, 1] == kernel[0, 1, 2, 1]
    assert found["fc.weight"].shape == (7, 5)
    assert found["fc.weight"][6, 4] == arrays["classes/kernel"][4, 6]
    assert found["bn1.num_batches_tracked"] == 0


def test_all_layers_have_the_names_of_torchvision(tf: Any, tmp_path: Path) -> None:
    """torchvision 0.29 prints these names and shapes for its state_dict."""
    for name, tensors_of_it, weights in (
        ("resnet18", 122, 11_689_512),
        ("resnet50", 320, 25_557_032),
        ("tiny", 56, 142_392),
    ):
        network = built(name)
        variables = (*network.trainable_variables, *network.non_trainable_weights)
        arrays = {each.path: each.numpy() for each in variables}
        found = interface.tensors({"model": name}, arrays)
        assert len(found) == tensors_of_it
        trained = [v.size for k, v in found.items() if "running" not in k and "num_b" not in k]
        assert sum(trained) == weights
        if name == "tiny":
            assert found["block2.conv2.weight"].shape == (64, 64, 3, 3)
            continue
        assert found["layer1.0.conv2.weight"].shape == (64, 64, 3, 3)
        assert found["layer2.0.downsample.0.weight"].shape[2:] == (1, 1)
        assert found["layer4.1.bn2.running_var"].shape == (512,)
        assert found["fc.weight"].shape[0] == 1000


def test_weights_of_pytorch_runs_are_exported_unchanged(tmp_path: Path) -> None:
    arrays = {
        "conv1.weight": np.arange(60, dtype=np.float32).reshape(5, 4, 3, 1),
        "bn1.running_mean": np.full(5, 4, np.float32),
        "slot_0000": np.zeros(3, np.float32),
    }
    run = RUN | {"run": RUN["run"] | {"framework": "pytorch"}}
    run["interface"] = vars(INTERFACE)
    checkpoint.save(tmp_path / "run", 3, run, arrays, keep=1)
    out = tmp_path / "resnet50.pt"
    assert command.run("export", tmp_path / "run", "--format", "torch", "--out", out).code == 0

    notes, found = tensors(out)
    assert json.loads(notes["class_ids"]) == ["n1", "n2"]
    assert json.loads(notes["class_names"]) == ["cat", "dog, hound"]
    assert json.loads(notes["mean"]) == [121.5, 115.0, 100.0]
    assert json.loads(notes["std"]) == [70.0, 68.0, 71.0]
    assert list(found) == ["conv1.weight", "bn1.running_mean", "bn1.num_batches_tracked"]
    assert found["conv1.weight"].tobytes() == arrays["conv1.weight"].tobytes()


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (
            {"model": "cifar"},
            says(
                "cannot-export-pytorch-expected-trained",
                "cifar",
                "tensorflow",
                "resnet18 or resnet34",
            ),
        ),
        (
            {"model": "resnet50-v1"},
            says("cannot-export-pytorch-expected-trained", "resnet50-v1", "tensorflow"),
        ),
        (
            {"model": "mnist", "framework": "pytorch"},
            says("cannot-export-pytorch-expected-trained", "mnist", "pytorch"),
        ),
        (
            {"model": "resnet18", "framework": "mxnet"},
            says("cannot-export-pytorch-expected-trained", "resnet18", "mxnet"),
        ),
    ],
)
def test_exporting_networks_unknown_to_torchvision_is_refused(
    tmp_path: Path, run: dict[str, str], said: re.Pattern[str]
) -> None:
    arrays = {"a/kernel": np.zeros((1, 1), np.float32)}
    checkpoint.save(tmp_path, 1, {"run": run, "reader": {}}, arrays, keep=1)
    result = command.run("export", tmp_path, "--format", "torch", "--out", tmp_path / "x")

    assert (result.code, result.out) == (2, "")
    assert said.search(result.err)


def test_unknown_variables_of_layers_are_refused() -> None:
    arrays = {"conv1/kernal": np.zeros((1, 1), np.float32)}
    with pytest.raises(DataDamagedError, match=says("checkpoint-not-variable-layer", "kernal")):
        interface.tensors({"model": "resnet18", "framework": "tensorflow"}, arrays)


def test_an_export_replaces_only_files_of_safetensors(tmp_path: Path) -> None:
    file = tmp_path / "tiny.safetensors"
    config = {"framework": "pytorch", "synthetic": True, "log_dir": str(tmp_path / "run")}
    run = Saved(TrainConfig(**config, export=str(file), model="tiny"), INTERFACE)
    interface.write(file, {"a": np.zeros(1, np.float32)}, {})
    run.refuse_another_run(lambda _: None)  # type: ignore[arg-type,return-value]
    file.write_text("mine")
    with pytest.raises(
        UsageError, match=says("not-not-replaced-choose-different", ..., says("file-safetensors"))
    ):
        run.refuse_another_run(lambda _: None)  # type: ignore[arg-type,return-value]


def test_exporting_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    for folder, said in (
        (tmp_path, says("no-checkpoint-expected-log-dir-training", tmp_path)),
        (tmp_path / "a", exactly("no such")),
    ):
        result = command.run("export", folder, "--format", "torch", "--out", tmp_path / "x")
        assert result.code == 2
        assert said.search(result.err)


@pytest.mark.parametrize(
    ("name", "parameters", "normalised"),
    [
        # As published by torchvision, and the channels of all batch norms.
        ("resnet18", 11_689_512, 4_800),
        ("resnet34", 21_797_672, 8_512),
        ("resnet50", 25_557_032, 26_560),
        ("resnet101", 44_549_160, 52_672),
        ("resnet152", 60_192_808, 75_712),
    ],
)
def test_the_number_of_weights_is_that_of_torchvision(
    name: str, parameters: int, normalised: int
) -> None:
    assert ExportedNetwork(name, 1000, 224).num_weights == parameters + 2 * normalised


@pytest.mark.parametrize(
    ("classes", "side", "is_valid"),
    [(1, 1, True), (0, 1, False), (1, 0, False), (1, 1 << 16, True), (1, (1 << 16) + 1, False)],
)
def test_a_network_has_a_class_and_a_pixel(classes: int, side: int, is_valid: bool) -> None:
    if is_valid:
        ExportedNetwork("tiny", classes, side)
        return
    refused = says("image_size-expected-1", side) if classes else says("num_classes-expected-1", 0)
    with pytest.raises(ValueError, match=refused):
        ExportedNetwork("tiny", classes, side)
