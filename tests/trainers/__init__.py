"""The programs that people train ImageNet with, on our sets: docs/trainers.md, proven."""
