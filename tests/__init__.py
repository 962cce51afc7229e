"""The tests of imagenet_prep; the tree mirrors the package."""
