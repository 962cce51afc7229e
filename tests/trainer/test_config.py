"""Settings: which ones are refused, and how a recipe completes the others."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.train import arguments_of_crops, parse, train
from imagenet_prep.trainer import recipe
from imagenet_prep.trainer.config import TrainConfig
from tests.kit.installed import Installed
from tests.kit.messages import says, wording

MXNET = {"framework": "mxnet", "synthetic": True}
TORCH = {"framework": "pytorch", "synthetic": True}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, says("give-either-data-dir-synthetic")),
        ({"data_dir": "x", "synthetic": True}, says("give-either-data-dir-synthetic")),
        ({"synthetic": True, "evaluate": True}, "--synthetic and --evaluate"),
        ({"data_dir": "x", "predictions": "said.csv"}, says("predictions-needs-evaluate")),
        ({"data_dir": "x", "remap": True}, says("remap-needs-classes")),
        ({"data_dir": "x", "no_evaluation": True, "eval_every": 1.0}, "--no-evaluation"),
        ({"synthetic": True, "backend": "dali"}, "--backend"),
        ({"synthetic": True, "fraction": 0.5}, "--fraction"),
        ({"data_dir": "x", "fraction": 0.0}, "--fraction 0.0: expected more than 0 and at most 1"),
        ({"synthetic": True, "batch_size": 0}, "--batch-size 0"),
        ({"synthetic": True, "image_size": 8}, "--image-size 8"),
        ({"synthetic": True, "num_epochs": 0.0}, "--num-epochs"),
        ({"synthetic": True, "lr": -1.0}, "--lr"),
        ({"synthetic": True, "lr": float("nan")}, "--lr"),
        ({"synthetic": True, "momentum": 1.0}, "--momentum"),
        ({"synthetic": True, "label_smoothing": 1.0}, "--label-smoothing"),
        ({"synthetic": True, "warmup_epochs": 90.0}, "--warmup-epochs"),
        ({"synthetic": True, "loss_scale": 128.0}, says("loss-scale-needs-precision-float16-not")),
        ({"synthetic": True, "trust_coefficient": 0.01}, "lars or larc"),
        ({"synthetic": True, "optimizer": "lars", "nesterov": True}, "--nesterov"),
        ({"synthetic": True, "optimizer": "adam", "nesterov": True}, "--nesterov"),
        ({"synthetic": True, "num_epochs": 1.0, "num_batches": 1}, "--num-batches"),
        (
            {"synthetic": True, "recipe": "cifar10", "image_size": 21},
            says("image-size-model-cifar-needs-least", 21, 22),
        ),
        (
            {"synthetic": True, "recipe": "mnist", "warmup_epochs": 2.0},
            says("warmup-epochs-expected-less-num-epochs", ..., 2),
        ),
        (
            {"synthetic": True, "lr_decay_steps": "1,2"},
            says("only-used", "--lr-decay-steps", ..., "--schedule steps"),
        ),
        ({"synthetic": True, "schedule": "steps", "lr_decay_steps": "2,1"}, "ascending"),
        (
            {"synthetic": True, "schedule": "steps", "lr_decay_steps": "1,x"},
            says("expected-positive-numbers-separated-commas"),
        ),
        (
            {"synthetic": True, "schedule": "steps", "lr_decay_lrs": "1,.1"},
            says("lr-decay-lrs-expected-rates-one-before", ..., 4),
        ),
        ({"data_dir": "x", "schedule": "plateau"}, "--eval-every"),
        ({"data_dir": "x", "clear_log": True, "mirror": "s3://a/b"}, "--clear-log"),
        ({"synthetic": True, "keep": 0}, "--keep 0"),
        ({"synthetic": True, "export": "model.h5"}, "model.h5"),
        ({"synthetic": True, "comm": "dist_sync"}, says("needs-framework", ..., ..., "mxnet")),
        (
            MXNET | {"model": "resnet50"},
            says("framework-mxnet-no-model-expected", "resnet50", "resnet18"),
        ),
        (MXNET | {"recipe": "cifar10"}, says("framework-mxnet-no-model-expected", "cifar")),
        (
            MXNET | {"optimizer": "lars"},
            says("needs-framework", "optimizer", "lars", "tensorflow or pytorch"),
        ),
        (MXNET | {"precision": "bfloat16"}, says("needs-framework", "precision", "bfloat16")),
        (MXNET | {"jit": True}, says("only-used", "--jit")),
        (MXNET | {"fp16_compression": True}, says("only-used", "--fp16-compression")),
        (
            MXNET | {"export": "model.keras"},
            says("export-writes", "model.keras", "mxnet", "a folder"),
        ),
        ({"framework": "mxnet", "data_dir": "x", "backend": "tfdata"}, "--backend tfdata needs"),
        (
            TORCH | {"comm": "dist_sync"},
            says("needs-framework", ..., ..., "mxnet", "pytorch", "ddp, horovod"),
        ),
        (TORCH | {"export": "model.keras"}, "pytorch writes FILE.safetensors"),
        ({"framework": "pytorch", "data_dir": "x", "backend": "tfdata"}, "--backend tfdata needs"),
        ({"synthetic": True, "comm": "ddp"}, says("needs-framework", "comm", "ddp", "pytorch")),
    ],
)
def test_contradictory_or_ineffective_settings_are_refused(
    settings: dict[str, Any], named: str | re.Pattern[str]
) -> None:
    with pytest.raises(ValueError, match=named):
        TrainConfig(**settings)


def test_each_framework_has_a_default_comm() -> None:
    for framework, comm in (("tensorflow", "horovod"), ("mxnet", "horovod"), ("pytorch", "ddp")):
        config = TrainConfig(synthetic=True, framework=framework)
        assert config.comm == comm
        assert not {"comm", "recipe"} & config.changed().keys()
    assert TrainConfig(**TORCH, comm="horovod").changed()["comm"] == "horovod"


def test_missing_frameworks_are_reported_with_the_install_command(
    installed: Installed,
) -> None:
    installed.packages(lambda _: False)
    for framework, wanted in (("tensorflow", r"\[tf\]"), ("pytorch", r"\[torch\]")):
        with pytest.raises(UsageError, match=f"pip install 'imagenet-prep{wanted}'"):
            train(TrainConfig(synthetic=True, framework=framework))


def test_lr_is_required_if_the_recipe_lacks_it() -> None:
    with pytest.raises(UsageError, match=r"--lr"):
        recipe.resolve(TrainConfig(synthetic=True, optimizer="lars"), 8, 1_281_167, 1000)
    run = recipe.resolve(TrainConfig(synthetic=True, optimizer="lars", lr=9.0), 8, 1_281_167, 1000)
    assert (run.optimizer, run.schedule.peak, run.trust_coefficient) == ("lars", 9.0, 0.001)


def test_fewer_images_than_a_step_are_refused() -> None:
    with pytest.raises(
        UsageError, match=says("train-one-step-needs-use", "100 images", "2 ranks", 102)
    ):
        recipe.resolve(TrainConfig(synthetic=True, batch_size=51), 2, 100, 10)


def test_the_tutorial_recipe_uses_larc_from_128_gpus() -> None:
    config = TrainConfig(synthetic=True, recipe="tutorial")
    few, many = (recipe.resolve(config, gpus, 1_281_167, 1000) for gpus in (127, 128))

    assert (few.optimizer, few.schedule.kind, few.momentum, few.weight_decay) == (
        "sgd",
        "poly",
        0.9,
        1e-4,
    )
    assert few.schedule.peak == pytest.approx(12.7)
    assert (many.optimizer, many.schedule.kind, many.momentum, many.weight_decay) == (
        "larc",
        "linear-cosine",
        0.977,
        5e-4,
    )
    assert (many.schedule.peak, many.trust_coefficient, many.nesterov) == (3.7, 0.013, True)


def test_recipe_v15_equals_nvidias() -> None:
    run = recipe.resolve(TrainConfig(synthetic=True), 8, 1_281_167, 1000)

    assert run.schedule.peak == pytest.approx(2.048)
    assert run.schedule.warmup_steps == 8 * run.steps_per_epoch
    assert (run.schedule.kind, run.momentum, run.weight_decay, run.label_smoothing) == (
        "cosine",
        0.875,
        3.0517578125e-5,
        0.1,
    )


def test_mxnets_recipe_equals_the_articles() -> None:
    config = TrainConfig(framework="mxnet", synthetic=True)
    run = recipe.resolve(config, 64, 1_281_167, 1000, fast_half=True)

    assert (run.model, run.global_batch, run.precision) == ("resnet50-v1", 64 * 256, "float16")
    assert run.schedule.peak == pytest.approx(6.4)
    assert [run.schedule(step) for step in (0, run.schedule.warmup_steps)] == [0.1, 6.4]
    assert (run.schedule.kind, run.schedule.warmup_steps) == ("poly", 10 * run.steps_per_epoch)
    assert (run.optimizer, run.momentum, run.weight_decay, run.label_smoothing, run.nesterov) == (
        "sgd",
        0.9,
        1e-4,
        0.0,
        False,
    )
    # A checkpoint of TensorFlow belongs to a different run.
    assert run.facts()["framework"] == "mxnet"


def test_a_different_framework_is_the_reported_difference() -> None:
    ours, mxnets = (
        recipe.resolve(
            TrainConfig(synthetic=True, model="tiny", framework=name), 1, 1_281_167, 1000
        )
        for name in ("tensorflow", "mxnet")
    )

    mxnet = "framework mxnet, this one has tensorflow"
    tensorflow = "framework tensorflow, this one has mxnet"
    assert recipe.difference(mxnets.facts(), ours) == mxnet
    assert recipe.difference(ours.facts(), mxnets) == tensorflow
    for there, here, said in ((mxnets, ours, mxnet), (ours, mxnets, tensorflow)):
        assert (recipe.other_network(there.facts(), here) or "").startswith(f"{said}; recipe ")


def test_a_different_learning_rate_is_the_reported_difference() -> None:
    first, second = (
        recipe.resolve(TrainConfig(synthetic=True, model="tiny", lr=lr), 1, 1_281_167, 1000)
        for lr in (0.5, 0.25)
    )

    assert recipe.difference(first.facts(), second) == "learning rate 0.5, this one has 0.25"
    assert recipe.other_network(first.facts(), second) is None


@pytest.mark.parametrize("crop_filter", ["bilinear", "bicubic", "random"])
@pytest.mark.parametrize("crops", ["mae", "timm"])
def test_flags_of_crops_choose_the_filter(crops: str, crop_filter: str) -> None:
    config = parse(["set", "--crops", crops, "--crop-filter", crop_filter])
    reader = ReadConfig(
        data_dir="set", split="train", batch_size=1, backend="native", **arguments_of_crops(config)
    )
    assert (reader.recipe, reader.crops.filter) == (crops, crop_filter)


def test_runs_of_older_versions_continue_with_their_crops() -> None:
    names = (None, "resnet-1", "timm")
    older, continued, other = (
        recipe.resolve(TrainConfig(synthetic=True, crops=name), 1, 1_281_167, 1000)
        for name in names
    )

    saved = json.loads(json.dumps(older.facts()))
    assert recipe.difference(saved, continued) is None
    assert recipe.difference(saved, other) == "crops None, this one has timm"


@pytest.mark.parametrize(
    ("name", "first", "second", "words"),
    [
        ("crop_area", ("0.2", "1"), ("0.2", "0.9"), "area 0.2,1, this one has area 0.2,0.9"),
        ("crop_aspect", ("0.5", "2"), ("0.8", "2"), "aspect 0.5,2, this one has aspect 0.8,2"),
        ("crop_filter", "bicubic", "bilinear", "filter bicubic, this one has filter bilinear"),
        ("crop_share", 0.9, 0.8, "share 0.9, this one has share 0.8"),
        ("crop_share", 0.9, None, "share 0.9, this one has None"),
    ],
)
def test_runs_differ_if_a_flag_changes_crops(
    name: str, first: Any, second: Any, words: str
) -> None:
    one, other = (
        recipe.resolve(TrainConfig(data_dir="set", **{name: value}), 1, 10_000, 10)
        for value in (first, second)
    )

    saved = json.loads(json.dumps(one.facts()))
    assert recipe.difference(saved, one) is None
    assert recipe.difference(saved, other) == f"crops {words}"


def test_crops_of_a_run_name_each_flag() -> None:
    given = TrainConfig(
        data_dir="set",
        crops="timm",
        crop_area=("0.2", "1"),
        crop_aspect=("0.5", "2"),
        crop_filter="bicubic",
        crop_share=0.9,
    )

    crops = recipe.resolve(given, 1, 10_000, 10).crops
    assert crops == "timm; area 0.2,1; aspect 0.5,2; filter bicubic; share 0.9"


def test_mxnet_refuses_our_own_optimizers() -> None:
    tutorial = TrainConfig(framework="mxnet", synthetic=True, recipe="tutorial", model="resnet18")
    assert recipe.resolve(tutorial, 8, 1_281_167, 1000).optimizer == "sgd"
    with pytest.raises(
        UsageError, match=says("framework-mxnet-no-optimizer-recipe", "larc", "tutorial", 128)
    ):
        recipe.resolve(tutorial, 128, 1_281_167, 1000)


def test_given_settings_override_the_recipe() -> None:
    given = TrainConfig(synthetic=True, lr=0.7, momentum=0.0, weight_decay=0.0, label_smoothing=0.0)
    run = recipe.resolve(given, 1, 1_281_167, 1000)

    assert (run.schedule.peak, run.momentum, run.weight_decay, run.label_smoothing) == (
        0.7,
        0,
        0,
        0,
    )


def test_the_tutorial_uses_half_precision_on_fast_devices() -> None:
    def said(gpus: int, *, fast: bool, **given: Any) -> str:
        config = TrainConfig(synthetic=True, recipe="tutorial", **given)
        run = recipe.resolve(config, gpus, 1_281_167, 1000, fast_half=fast)
        return recipe.precision_in_words(config, run)

    assert said(8, fast=True) == "precision float16, loss scale 1024: recipe tutorial"
    assert said(128, fast=True) == "precision float16, loss scale 256: recipe tutorial"
    assert says("precision-float16-loss-scale-recipe", 64).match(
        said(8, fast=True, loss_scale=64.0)
    )
    assert said(8, fast=False) == wording("float32-device-no-fast-half")
    assert said(8, fast=True, precision="float32") == "float32"
    assert said(8, fast=False, precision="float16") == "float16, loss scale 1024"
    assert recipe.resolve(
        TrainConfig(synthetic=True), 8, 1_281_167, 1000, fast_half=True
    ).precision == ("float32")


def test_recipe_tutorial_changes_colours_from_128_ranks() -> None:
    tutorial, other = (TrainConfig(synthetic=True, recipe=name) for name in ("tutorial", "v1.5"))

    assert [recipe.increased_aug(tutorial, gpus) for gpus in (127, 128)] == [False, True]
    assert not recipe.increased_aug(other, 128)
    asked = TrainConfig(synthetic=True, increased_aug=True)
    assert recipe.resolve(asked, 1, 1_281_167, 1000).increased_aug


def test_recipes_of_small_datasets_choose_network_and_schedule() -> None:
    runs = [
        recipe.resolve(TrainConfig(data_dir="x", recipe=name), 2, count, 10)
        for name, count in (("cifar10", 40_000), ("mnist", 60_000))
    ]

    assert [(r.model, r.image_size, r.optimizer, r.momentum) for r in runs] == [
        ("cifar", 32, "adam", 0.0),
        ("mnist", 28, "adam", 0.0),
    ]
    assert [(r.schedule.kind, r.schedule.peak, r.schedule.warmup_steps) for r in runs] == [
        ("plateau", 0.002, 5 * 78),
        ("cosine", 0.002, 0),
    ]
    # 100 epochs with an evaluation after each, and 2 epochs.
    assert [(r.total_steps, r.plateau_steps) for r in runs] == [(7800, 78), (234, 0)]
    sgd = recipe.resolve(
        TrainConfig(data_dir="x", recipe="cifar10", optimizer="sgd"), 1, 40_000, 10
    )
    assert (sgd.momentum, sgd.schedule.peak) == (0.9, 0.001)


def test_num_batches_equals_the_same_number_of_epochs() -> None:
    steps = recipe.resolve(TrainConfig(synthetic=True, num_batches=500), 1, 1_000 * 256, 10)
    epochs = recipe.resolve(TrainConfig(synthetic=True, num_epochs=0.5), 1, 1_000 * 256, 10)

    assert steps == epochs
    assert steps.total_steps == 500


def test_flags_typed_in_the_tutorials_are_accepted() -> None:
    # The flags of train.sh and train_more_aug.sh, and the others of that script.
    words = (
        "--data_dir /data --num_epochs 90 --increased_aug -b 256 --mom 0.977 --wdecay 0.0005 "
        "--loss_scale 256. --use_larc --lr_decay_mode linear_cosine --warmup_epochs 5 --clear_log "
        "--recipe tutorial -m resnet101 --warmup_lr 0.01 --display_every 10 --save_interval 500 "
        "--local_ckpt --fp16"
    )
    found = parse(words.split())
    assert found == TrainConfig(
        data_dir="/data",
        num_epochs=90.0,
        increased_aug=True,
        batch_size=256,
        momentum=0.977,
        weight_decay=0.0005,
        loss_scale=256.0,
        optimizer="larc",
        schedule="linear-cosine",
        warmup_epochs=5.0,
        clear_log=True,
        recipe="tutorial",
        model="resnet101",
        warmup_lr=0.01,
        display_every=10,
        checkpoint_every=500,
        local_ckpt=True,
        precision="float16",
    )
    run = recipe.resolve(found, 8, 1_281_167, 1000)
    # The script uses this rate for LARC with any number of GPUs.
    assert (run.schedule.peak, run.trust_coefficient, run.loss_scale) == (3.7, 0.013, 256)

    words = "--synthetic --nofp16 --num_batches 20 --batch_size 8 --lr_decay_mode=steps "
    found = parse([*words.split(), "--lr_decay_steps", "30,60", "--lr_decay_lrs", "1,0.1,0.01"])
    assert (found.precision, found.num_batches, found.batch_size) == ("float32", 20, 8)
    assert (found.decay_epochs, found.decay_rates) == ((30, 60), (1, 0.1, 0.01))
    found = parse(["--synthetic", "--lr_decay_mode", "cosine_decay_restarts", "--num_epochs=1"])
    assert found.schedule == "cosine-restarts"
    words = ["--data_dir", "/data", "--num_epochs", "90", "-b", "256", "--eval", "--num_gpus", "8"]
    assert parse(words) == TrainConfig(
        data_dir="/data", num_epochs=90.0, batch_size=256, evaluate=True
    )


def test_the_warmup_shrinks_with_the_run() -> None:
    run = recipe.resolve(TrainConfig(synthetic=True, num_epochs=9.0), 8, 1_281_167, 1000)

    assert run.schedule.warmup_steps == round(0.8 * run.steps_per_epoch)


def test_flags_override_the_channels_of_sagemaker() -> None:
    container = {"SM_CHANNEL_TRAINING": "/ml/training", "SM_MODEL_DIR": "/ml/model"}
    alone = parse([], container)
    assert (alone.data_dir, alone.export) == ("/ml/training", "/ml/model/model.keras")

    for framework, name in (("mxnet", "model"), ("pytorch", "model.safetensors")):
        for words in (["--framework", framework], [f"--framework={framework}"]):
            assert parse(words, container).export == f"/ml/model/{name}"

    for typed in (["mine"], ["--data-dir", "mine"], ["mine/dataset.json"]):
        found = parse([*typed, "--export", "mine.keras"], container)
        assert (found.data_dir, found.export) == ("mine", "mine.keras")
    assert parse(["--synthetic"], container).data_dir is None
    with pytest.raises(UsageError, match=says("give-either-data-dir-synthetic")):
        parse(["mine", "--synthetic"], container)


@pytest.mark.parametrize(
    "settings",
    [
        {"synthetic": True, "num_batches": 10, "warmup_epochs": 95.0},
        {"synthetic": True, "num_epochs": 95.0, "warmup_epochs": 94.0},
        {"synthetic": True, "recipe": "mnist", "warmup_epochs": 1.5},
        {"synthetic": True, "recipe": "cifar10", "image_size": 22},
        {"synthetic": True, "image_size": 21},
        {"data_dir": "x", "schedule": "plateau", "eval_every": 1.0},
        {"data_dir": "x", "schedule": "plateau", "recipe": "cifar10"},
        {"data_dir": "x", "device": "gpu", "backend": "dali"},
        {"data_dir": "x", "device": "gpu"},
        {"data_dir": "x", "device": "cpu", "backend": "native"},
        {"data_dir": "x", "remap": True, "classes": "classes.txt"},
        {"data_dir": "x", "classes": "classes.txt"},
        {"data_dir": "x", "predictions": "said.csv", "evaluate": True},
        {"synthetic": True, "loss_scale": 128.0, "precision": "float16"},
        {"synthetic": True, "loss_scale": 128.0, "recipe": "tutorial"},
        {"synthetic": True, "loss_scale": 128.0, "recipe": "article"},
        {"synthetic": True, "seed": (1 << 32) - 1},
        TORCH | {"seed": 1 << 32},
        MXNET | {"seed": 1 << 32},
        {"synthetic": True, "schedule": "steps", "lr_decay_lrs": "1,.1,.01,.001"},
        {
            "synthetic": True,
            "schedule": "steps",
            "lr_decay_steps": "1,2",
            "lr_decay_lrs": "1,.1,.01",
        },
        {"synthetic": True, "export": "model.keras"},
        TORCH | {"export": "model.safetensors", "model": "resnet50"},
        TORCH | {"export": "model.safetensors"},
        MXNET | {"export": "folder"},
        MXNET | {"model": "resnet18"},
    ],
    ids=str,
)
def test_settings_next_to_refused_ones_are_accepted(settings: dict[str, Any]) -> None:
    config = TrainConfig(**settings)

    assert config.changed().keys() >= settings.keys() - {"device", "backend"}


@pytest.mark.parametrize(
    "settings",
    [
        {"data_dir": "x", "device": "gpu", "backend": "native"},
        {"synthetic": True, "seed": 1 << 32},
        TORCH | {"export": "model.safetensors", "model": "cifar"},
        {"synthetic": True, "loss_scale": 128.0, "recipe": "tutorial", "precision": "float32"},
        {"synthetic": True, "recipe": "cifar10", "warmup_epochs": 1000.0},
        {"synthetic": True, "num_epochs": 2.0, "warmup_epochs": 2.0},
        {"synthetic": True, "model": "cifar", "image_size": 21},
        {"synthetic": True, "schedule": "steps", "lr_decay_steps": "1,1"},
        {
            "synthetic": True,
            "schedule": "steps",
            "lr_decay_steps": "1,2",
            "lr_decay_lrs": "1,.1,.01,.001",
        },
    ],
    ids=str,
)
def test_settings_just_beyond_a_bound_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="--"):
        TrainConfig(**settings)


def test_table_is_printed_for_lists_and_other_datasets() -> None:
    assert not TrainConfig(data_dir="x").tabulates
    assert TrainConfig(data_dir="x", evaluate=True, labels=("a.csv",)).tabulates
    assert TrainConfig(data_dir="x", evaluate=True, also=("set",)).tabulates


def test_only_some_settings_are_copied() -> None:
    config = TrainConfig(data_dir="x", seed=3, batch_size=5)
    made = config.only("seed", "framework", synthetic=True)

    assert (made.seed, made.batch_size) == (3, TrainConfig(synthetic=True).batch_size)
    assert made.changed() == {"seed": 3, "synthetic": True}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (None, None),
        (("0.2", "1"), (0.2, 1.0)),
        (("0.2",), None),
        (("0.2", "half"), None),
        (("0.2", "0.5", "1"), None),
    ],
)
def test_ranges_of_crops_are_two_numbers(
    words: tuple[str, ...] | None, expected: tuple[float, float] | None
) -> None:
    for flag in ("crop_area", "crop_aspect"):
        config = TrainConfig(data_dir="set", log_dir="run", **{flag: words})
        if words is None or expected is not None:
            assert arguments_of_crops(config)[flag.removeprefix("crop_")] == expected
            continue
        named = flag.replace("_", "-")
        with pytest.raises(UsageError, match=says("expected-two-numbers-such-0.2", named)):
            arguments_of_crops(config)
