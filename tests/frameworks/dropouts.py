"""Prints the losses of `tests.kit.dropouts` by PyTorch's learner as JSON.

`python dropouts.py RANK:STEP ...`
"""

from __future__ import annotations

import json
import sys

from imagenet_prep.trainer.pytorch_learner import PytorchLearner
from tests.kit import dropouts

if __name__ == "__main__":
    cases = [(int(rank), int(step)) for rank, step in (word.split(":") for word in sys.argv[1:])]
    print(json.dumps(dropouts.losses("pytorch", PytorchLearner, cases)))
