"""Unknown and missing arguments of public functions: the error names the function."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from imagenet_prep import verbs
from imagenet_prep.read import ColumnWriter, make_buckets, make_dataset, make_mix
from tests.kit.messages import says

SET = ("set", "train", 8)


@pytest.mark.parametrize(
    ("function", "args", "name", "advice"),
    [
        (make_dataset, SET, "shuffle", "training="),
        (make_dataset, SET, "num_workers", "num_threads="),
        (make_dataset, SET, "persistent_workers", "docs/pytorch.md, "),
        (make_dataset, SET, "transform", "Your transforms"),
        (make_dataset, SET, "collate_fn", "Your transforms"),
        (make_dataset, SET, "drop_last", "mask"),
        (make_dataset, SET, "sampler", "world="),
        (make_dataset, SET, "pin_memory", "out="),
        (make_dataset, ("set", "train"), "root", says("did-you-mean-data_dir")),
        (make_dataset, SET, "imagesize", says("did-you-mean", "image_size")),
        (make_dataset, SET, "qqqq", says("help-lists-arguments", "make_dataset")),
        (make_buckets, (*SET, [(8, 8), (8, 16)]), "shuffle", "training="),
        (make_mix, ({},), "weight", says("did-you-mean", "weights")),
        (
            ColumnWriter,
            ("set", "train", "a", (), "str"),
            "batchsize",
            says("did-you-mean", "batch_size"),
        ),
        (verbs.prepare, ("source",), "output", says("did-you-mean", "out")),
        (verbs.verify, ("set",), "num_workers", says("did-you-mean", "workers")),
        (verbs.export, ("set",), "qqqq", says("help-lists-arguments", "export")),
    ],
)
def test_unknown_argument_gets_the_right_one(
    function: Callable[..., Any], args: tuple[Any, ...], name: str, advice: str | re.Pattern[str]
) -> None:
    asked = make_dataset if function is make_buckets else function
    with pytest.raises(TypeError) as refused:
        function(*args, **{name: 1})
    message = str(refused.value)
    assert says("no-argument", asked.__name__, repr(name)).match(message)
    assert re.search(advice, message)
    assert "Config" not in message


@pytest.mark.parametrize("function", [make_dataset, make_mix, ColumnWriter, verbs.prepare])
def test_missing_argument_names_the_function(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError) as refused:
        function()
    assert says("help-lists-arguments-2", function.__name__).match(str(refused.value))
    assert "Config" not in str(refused.value)
