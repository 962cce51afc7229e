"""The errors raised by readers, `score` and pipelines, for use in `except` clauses.

All are subclasses of `ImagenetPrepError`. The message of an error names the failure, the object,
the expected and the actual value, and the next step.

Example:
  >>> from imagenet_prep.errors import ImagenetPrepError
  >>> from imagenet_prep.read import make_dataset
  >>> try:
  ...     make_dataset("/data/nowhere", "train", batch_size=8)
  ... except ImagenetPrepError as error:
  ...     print(type(error).__name__, error.exit_code, error)
  UsageError 2 /data/nowhere: there is no such folder
"""

from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    StoreError,
    UsageError,
)

__all__ = [
    "BusyError",
    "DataDamagedError",
    "ImagenetPrepError",
    "IncompleteError",
    "StoreError",
    "UsageError",
]
