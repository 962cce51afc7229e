"""The same foreign sets as for resize."""

from tests.commands.resize.conftest import foreign_set, mini, stored

__all__ = ["foreign_set", "mini", "stored"]
