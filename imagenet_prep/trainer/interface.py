"""The interface of a network: the normalisation of its images, and the classes of its outputs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from imagenet_prep.core.errors import some
from imagenet_prep.dataset import class_list
from imagenet_prep.dataset.class_list import ClassList

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
