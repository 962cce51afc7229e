"""The accuracy of networks on datasets, by one or more label lists, in one table.

For example::

    from imagenet_prep.evaluation import score

    print(score(scores, "/data/imagenet-480", labels=["real.json"]))
"""

from imagenet_prep.evaluation.sheet import score
from imagenet_prep.evaluation.table import Row, Table

__all__ = ["Row", "Table", "score"]
