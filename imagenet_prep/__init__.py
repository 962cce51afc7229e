"""Converts the archives of ImageNet and similar datasets to verified TFRecord shards."""

__version__ = "0.1.0"
