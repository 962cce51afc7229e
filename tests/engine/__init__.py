"""Mirrors the house: see the package of the same name."""
