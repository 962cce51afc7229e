"""The errors of a network on ImageNet-C for each corruption, relative to AlexNet's errors."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from imagenet_prep.core.canonical import Json
from imagenet_prep.dataset.keys import CORRUPTIONS

# AlexNet's mean top-1 error over five severities. The errors of networks are divided by it
# (Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
# Perturbations", 2019).
ALEXNET_ERRORS = dict(
    zip(
        CORRUPTIONS,
        (
            0.886428,
            0.894468,
            0.922640,
            0.819880,
            0.826268,
            0.785948,
            0.798360,
            0.866816,
            0.826572,
            0.819324,
            0.564592,
            0.853204,
            0.646056,
            0.717840,
            0.606500,
        ),
        strict=False,  # mCE excludes the other corruptions
    )
)
SEVERITIES = ("1", "2", "3", "4", "5")


def errors(keys: Sequence[str], right: npt.NDArray[np.bool_]) -> Json | None:
    """Returns the error rates defined for ImageNet-C, or None if `keys` do not match its images.

    `right` [images] is True for correct top-1 predictions. Each item of `corruptions` has `errors`,
    the error rate by severity, and `ce`, the mean error rate divided by AlexNet's. `mce` is the
    mean of the 15 `ce`. If a severity is missing, `ce` and `mce` are None.
    """
    groups = defaultdict(list)
    for number, key in enumerate(keys):
        groups[tuple(key.split("/", 2)[:2])].append(number)
    if not groups.keys() <= {*itertools.product(CORRUPTIONS, SEVERITIES)}:
        return None
    results: dict[str, Json] = {}
    for name in CORRUPTIONS:
        images = {level: groups[name, level] for level in SEVERITIES if (name, level) in groups}
        rates = {level: 1 - float(right[numbers].mean()) for level, numbers in images.items()}
        if rates:
            complete = len(rates) == len(SEVERITIES) and name in ALEXNET_ERRORS
            mean = sum(rates.values()) / len(SEVERITIES)
            results[name] = {
                "errors": rates,
                "ce": mean / ALEXNET_ERRORS[name] if complete else None,
            }
    shares = [result["ce"] for result in results.values() if result["ce"] is not None]
    complete = len(shares) == len(ALEXNET_ERRORS)
    return {"corruptions": results, "mce": sum(shares) / len(shares) if complete else None}
