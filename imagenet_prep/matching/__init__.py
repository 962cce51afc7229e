"""Finds duplicate images: exact hash search, verification by pixels, and groups."""
