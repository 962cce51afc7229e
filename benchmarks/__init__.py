"""Measurements, side by side in one run; README.md has the commands and the last tables."""
