"""Measurements, side by side in one run; README.md says how to run them and holds the last tables."""
