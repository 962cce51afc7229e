"""The same foreign sets as for resize."""

from tests.kit.foreign_sets import foreign_set, stored

__all__ = ["foreign_set", "stored"]
