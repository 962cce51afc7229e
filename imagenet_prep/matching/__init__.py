"""Duplicate images: exact search in hashes, proof by pixels, and the groups that they form."""
