"""Tests of the images and manifests in docker/."""
