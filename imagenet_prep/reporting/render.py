"""Renders HTML pages, and computes their facts about duplicates, mistakes and label conflicts.

`render` makes self-contained pages, in which text from a dataset never becomes markup. Jinja2
escapes all values. The script reads its data as JSON and only creates text nodes. The content
security policy allows no requests, and only the script with our hash.

`page` renders the page of `imagenet-prep duplicates`, with pictures of each group of duplicates.

`find_mistakes` finds the most confident mistakes of a model, and the classes that it confuses most
often. The predictions come from `imagenet-prep train --evaluate --predictions FILE`.

`find_disagreements` finds images whose labels differ between label lists; the dataset is one of the
lists.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib import resources
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, human_bytes
from imagenet_prep.core.version import version
from imagenet_prep.dataset import formats
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.predictions import Prediction
from imagenet_prep.matching.find import Group
from imagenet_prep.reporting import sample


def render(template: str, title: str, made_at: datetime, *, data: Json, **values: Any) -> str:
    """Returns a page as HTML; `data` is for the script, `values` are for the template."""
    environment = Environment(
        loader=PackageLoader("imagenet_prep.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": lambda value: f"{value:,}",
        "counted": counted,
        "size": human_bytes,
        "percent": lambda share: f"{share:.1%}",
        "by_extension": formats.ignored_in_words,
        "json": partial(json.dumps, ensure_ascii=False),
        "repr": repr,
        "columns": _columns,
    }
    script = _ours("script.js")
    digest = hashlib.sha256(script.encode()).digest()
    return environment.get_template(template).render(
        title=title,
        version=version(),
        made_at=made_at.strftime("%Y-%m-%d %H:%M UTC"),
        style=Markup(_ours("style.css")),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_hash="sha256-" + base64.b64encode(digest).decode(),
        data=data,
        **values,
    )


def _columns(cards: str, most: int) -> int:
    """Returns the number of columns, at most `most`, with which rows of cards are equally long."""
    num_cards = cards.count("<dt>")
    num_rows = math.ceil(num_cards / most)
    return math.ceil(num_cards / max(num_rows, 1)) or 1


def _ours(name: str) -> str:
    return (resources.files("imagenet_prep.reporting") / "templates" / name).read_text("utf-8")


# These limits keep the page below 20 MB.
_MOST_GROUPS = 300
_MOST_GROUP_PICTURES = 6
_SIDE = 224
_QUALITY = 70


def page(
    groups: Sequence[Group],
    read: Callable[[int], bytes],
    counts: Json,
    numbers: Sequence[tuple[str, int]],
    *,
    made_at: datetime,
) -> str:
    """Returns the page as HTML; `counts` is the object that `duplicates --json` prints.

    `numbers` are the numbers that the command prints, with their names.
    """
    ordered = sorted(groups, key=lambda group: len({image.wnid for image in group}) < 2)
    with_pictures = [
        [(image, _picture(read(image.number))) for image in group[:_MOST_GROUP_PICTURES]]
        for group in ordered[:_MOST_GROUPS]
    ]
    return render(
        "duplicates.html.jinja",
        "Duplicates",
        made_at,
        data={},
        counts=counts,
        printed=numbers,
        groups=list(zip(with_pictures, ordered, strict=False)),
        num_groups=len(groups),
    )


def _picture(data: bytes) -> str:
    image = sample.decode(data, _SIDE)
    if image is None:
        return ""
    image.thumbnail((_SIDE, _SIDE))
    return sample.data_uri(image, _QUALITY)


_MOST_PAIRS = 30
_MOST_CLASSES = 30
_MOST_PICTURES = 48


class Mistake(NamedTuple):
    """A wrong prediction; `share` is its confidence in [0, 1]."""

    key: str
    label: str
    taken_for: str
    share: float
    picture: str | None


class Pair(NamedTuple):
    """The number and share of the images of `label` that were predicted as `taken_for`."""

    label: str
    taken_for: str
    images: int
    share: float


class ClassAccuracy(NamedTuple):
    """The images of a class, and the share in [0, 1] of right predictions."""

    label: str
    images: int
    share: float


@dataclass
class Mistakes:
    """The mistakes of a model."""

    num_classes: int = 0  # number of classes with a prediction
    classes: list[ClassAccuracy] = field(default_factory=list)  # the lowest accuracy first
    images: int = 0  # number of predictions
    wrong: int = 0  # number of wrong predictions
    surest: list[Mistake] = field(default_factory=list)  # the most confident mistakes first
    pairs: list[Pair] = field(default_factory=list)  # the pairs with the most mistakes first


class PredictionCounts:
    """The numbers of predictions by class, and the most confident mistakes.

    Attributes:
      images, wrong: numbers of all and of wrong predictions.
      examples, wrong_of: the same by class index.
      confusions: numbers of mistakes by label and predicted class.
      surest: the most confident mistakes first.
    """

    def __init__(self, predictions: Iterable[Prediction]) -> None:
        """Reads all predictions, without keeping them in memory."""
        self.images = 0
        self.wrong = 0
        self.examples: Counter[int] = Counter()
        self.wrong_of: Counter[int] = Counter()
        self.confusions: Counter[tuple[int, int]] = Counter()
        mistakes = self._mistakes(predictions)
        surest = heapq.nlargest(_MOST_PICTURES, mistakes, key=lambda row: row[:2])
        self.surest = [prediction for _, _, prediction in surest]

    def _mistakes(
        self, predictions: Iterable[Prediction]
    ) -> Iterable[tuple[float, int, Prediction]]:
        for prediction in predictions:
            self.images += 1
            self.examples[prediction.class_index] += 1
            self.wrong += prediction.is_wrong
            self.wrong_of[prediction.class_index] += prediction.is_wrong
            if prediction.is_wrong and prediction.classes:
                self.confusions[prediction.class_index, prediction.classes[0]] += 1
                # Mistakes of equal confidence stay in the order of `predictions`.
                yield prediction.shares[0], -self.images, prediction


def find_mistakes(
    counts: PredictionCounts,
    words: Callable[[int], str],
    images_of: Callable[[Sequence[str], int], Iterable[ImageExample | None]],
) -> Mistakes:
    """Returns the mistakes with the words and pictures of a dataset."""
    mistakes = Mistakes(len(counts.examples), images=counts.images, wrong=counts.wrong)
    images = images_of([prediction.key for prediction in counts.surest], counts.images)
    for said, image in zip(counts.surest, images, strict=True):
        picture = image and sample.thumbnail(image.encoded)
        mistakes.surest.append(
            Mistake(
                said.key, words(said.class_index), words(said.classes[0]), said.shares[0], picture
            )
        )
    worst = sorted(counts.confusions.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST_PAIRS]
    for (label, predicted), count in worst:
        share = count / counts.examples[label]
        mistakes.pairs.append(Pair(words(label), words(predicted), count, share))
    rates = (
        (1 - counts.wrong_of[index] / count, index) for index, count in counts.examples.items()
    )
    for share, index in heapq.nsmallest(_MOST_CLASSES, rates):
        mistakes.classes.append(ClassAccuracy(words(index), counts.examples[index], share))
    return mistakes


_MOST_CONFLICTS = 48
EQUAL = "the same"
SHARED = "some in common"
APART = "none in common"
NONE = "one has none"


class ShownConflict(NamedTuple):
    """An image with conflicting labels: its class names by list, and its picture as a data URI."""

    key: str
    labels: Mapping[str, Sequence[str]]
    picture: str | None


@dataclass
class Disagreements:
    """Disagreements between label lists; `pairs` counts images by pair of lists and by kind."""

    lists: Sequence[Json]
    images: int = 0  # images that are in two or more lists
    differ: int = 0  # images for which the lists disagree
    pairs: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    shown: list[ShownConflict] = field(default_factory=list)  # examples, no common label first


def find_disagreements(
    keys: Sequence[str],
    labels_of: Mapping[str, Mapping[int, Collection[int]]],
    lists: Sequence[Json],
    words: Callable[[int], str],
    images_of: Callable[[Sequence[str], int], Iterable[ImageExample | None]],
) -> Disagreements:
    """Returns the disagreements between label lists.

    `labels_of[NAME][i]` has the class indices of the image `keys[i]` according to the list NAME.
    `words` returns the name of a class. `images_of` yields the image, or None, for each of some
    keys; it is also given the number of all keys.
    """
    result = Disagreements(lists)
    result.pairs = {pair: Counter() for pair in itertools.combinations(labels_of, 2)}
    ranks: list[tuple[int, int, int]] = []
    for number in range(len(keys)):
        of_image = {name: {*of[number]} for name, of in labels_of.items() if number in of}
        pairs = [*itertools.combinations(of_image, 2)]
        kinds = Counter[str]()
        for a, b in pairs:
            kind = _kind(of_image[a], of_image[b])
            result.pairs[a, b][kind] += 1
            kinds[kind] += 1
        result.images += bool(pairs)
        if len(pairs) > kinds[EQUAL]:
            ranks.append((-kinds[APART], -kinds[NONE], number))
    result.differ = len(ranks)
    numbers = [number for *_, number in heapq.nsmallest(_MOST_CONFLICTS, ranks)]
    images = images_of([keys[number] for number in numbers], len(keys))
    for number, image in zip(numbers, images, strict=True):
        picture = image and sample.thumbnail(image.encoded)
        labels = {n: list(map(words, of[number])) for n, of in labels_of.items() if number in of}
        result.shown.append(ShownConflict(keys[number], labels, picture))
    return result


def _kind(a: Collection[int], b: Collection[int]) -> str:
    if a == b:
        return EQUAL
    if not a or not b:
        return NONE
    return APART if {*a}.isdisjoint(b) else SHARED
