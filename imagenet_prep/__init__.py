"""Converts the archives of ImageNet and similar datasets to verified TFRecord shards."""

__version__ = "0.2.0.dev0"
