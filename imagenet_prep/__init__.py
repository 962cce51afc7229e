"""imagenet-prep: from ImageNet-shaped archives to proven TFRecord shards."""

__version__ = "0.1.0"
