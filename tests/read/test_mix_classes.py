"""Classes of mixes: all parts have the numbers of the mix, and no other mix has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.read import make_dataset, make_mix
from imagenet_prep.read.mix import _joined
from tests.kit.dataset import split_records
from tests.kit.messages import says


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("more", [(), ("images", "mask")], ids=["table", "records"])
def test_class_indices_are_those_of_all_parts(
    colours: Path, homogeneous: bool, more: tuple[str, ...]
) -> None:
    """Classes are joined by WNID, in the order of the parts."""
    usual: dict[str, Any] = {"framework": "numpy", "backend": "native", "batch_size": 1}
    usual |= {"fields": ("number", "class_index", *more), "world": World(), "remap": True}
    readers = {
        "high": make_dataset(colours, "train", classes=[30, 31], **usual),
        "low": make_dataset(colours, "train", classes=[31, 4], **usual),
    }
    mix = make_mix(readers, homogeneous=homogeneous)
    names = [readers["high"].class_list.wnids[i] for i in range(2)]
    assert mix.classes[:2] == tuple(names)
    assert mix.num_classes == 3
    for batch in mix:
        (number,), (class_index,) = batch["number"], batch["class_index"]
        record = split_records(colours, "train")[number]
        assert mix.classes[class_index] == record.wnid


@pytest.mark.parametrize("homogeneous", [False, True])
def test_second_mix_of_readers_has_its_classes(colours: Path, homogeneous: bool) -> None:
    """A cell of a notebook may run twice, or join the readers in a different order."""
    usual: dict[str, Any] = {"framework": "numpy", "backend": "native", "batch_size": 1}
    usual |= {"fields": ("number", "class_index"), "world": World(), "remap": True}
    high = make_dataset(colours, "train", classes=[30, 31, 32], **usual)
    low = make_dataset(colours, "train", classes=[31, 4], **usual)
    for readers in ({"high": high, "low": low}, {"high": high, "low": low}, {"low": low}):
        make_mix(readers, homogeneous=homogeneous)
    loops = [iter(high), iter(low)]
    sampler = high.sampler()
    first = make_mix({"high": high, "low": low}, homogeneous=homogeneous)
    begun = iter(first)
    if not homogeneous:  # a reader of an alternation that has been read cannot be a part again
        next(begun)
    mix = make_mix({"low": low, "high": high}, homogeneous=homogeneous)
    for loop in (begun, iter(first)):
        with pytest.raises(UsageError, match=says("newer-mix-bucketed-reader-readers")):
            next(loop)
    for loop in (*loops, iter(low), iter(high)):
        with pytest.raises(UsageError, match=says("reader-part-mix-numbers-classes")):
            next(loop)
    with pytest.raises(UsageError, match=says("reader-part-mix-numbers-classes")):
        high[next(iter(sampler))]
    wnids = [record.wnid for record in split_records(colours, "train")]
    for batch in mix:
        (number,), (class_index,) = batch["number"], batch["class_index"]
        assert mix.classes[class_index] == wnids[number]


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize("taken", ["high", "low"])
def test_mix_without_one_of_its_readers_is_refused(
    colours: Path, homogeneous: bool, taken: str
) -> None:
    """Only some of its batches would have the numbers of the newer mix."""
    usual: dict[str, Any] = {"framework": "numpy", "backend": "native", "batch_size": 1}
    usual |= {"fields": ("number", "class_index"), "world": World(), "remap": True}
    high = make_dataset(colours, "train", classes=[30, 31, 32], **usual)
    low = make_dataset(colours, "train", classes=[31, 4], **usual)
    readers = {"high": high, "low": low}
    mix = make_mix(readers, homogeneous=homogeneous)
    make_mix({taken: readers[taken]}, homogeneous=homogeneous)
    with pytest.raises(UsageError, match=says("newer-mix-bucketed-reader-readers")):
        next(iter(mix))


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        (("cat", "dog"), ("dog", "eel"), ("cat", "dog", "eel")),
        (("a/b", "ab"), ("a b",), ("a/b", "ab", "a b")),
        (("dog",), ("Dog",), None),
        (("caf\xe9", "dog"), ("dog", "cafe\u0301"), None),
        (("cat ",), ("ant", "cat"), None),
        # A class list of its own may have both.
        (("dog", "Dog"), ("dog", "Dog"), ("dog", "Dog")),
        (("ant", "dog"), ("Dog", "dog"), None),
    ],
)
def test_classes_of_parts_are_spelt_equally(
    first: tuple[str, ...], second: tuple[str, ...], joined: tuple[str, ...] | None
) -> None:
    classes_of = {"a": first, "b": second}
    if joined is not None:
        assert _joined(classes_of) == joined
    else:
        with pytest.raises(UsageError, match=says("class-part-part-look-same")):
            _joined(classes_of)
