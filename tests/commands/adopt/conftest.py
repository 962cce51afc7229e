"""The foreign datasets that resize uses as well."""

from tests.kit.foreign_datasets import foreign_dataset, stored

__all__ = ["foreign_dataset", "stored"]
