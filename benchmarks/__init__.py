"""Measurements, side by side in one run; README.md holds how to run them and the last tables."""
