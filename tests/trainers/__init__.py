"""Popular training programs for ImageNet read our datasets, as docs/trainers.md describes."""
