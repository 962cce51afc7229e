"""imagenet-prep: from ImageNet-shaped archives to verified TFRecord shards."""

__version__ = "0.1.0"
