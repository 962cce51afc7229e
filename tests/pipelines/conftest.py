"""Fixtures of the rooms that these programs use."""

from tests.trainer.conftest import horovod, shades

__all__ = ["horovod", "shades"]
