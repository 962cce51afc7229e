"""Fixtures of the packages that the pipelines use."""

from tests.kit.training import horovod, shades

__all__ = ["horovod", "shades"]
