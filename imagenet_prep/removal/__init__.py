"""Finds the images that a person wants removed, and all places that have them."""
