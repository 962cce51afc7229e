"""Fixtures of the rooms that these programs use."""

from tests.kit.training import horovod, shades

__all__ = ["horovod", "shades"]
