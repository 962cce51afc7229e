"""How good a network is on which set, by which labels: one table for every network.

For example::

    from imagenet_prep.evaluation import score

    print(score(scores, "/data/imagenet-480", labels=["real.json"]))
"""

from imagenet_prep.evaluation.sheet import score
from imagenet_prep.evaluation.table import Row, Table

__all__ = ["Row", "Table", "score"]
