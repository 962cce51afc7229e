"""Trains ResNet-50 with Horovod, or in one process through the same code."""
