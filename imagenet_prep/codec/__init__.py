"""Converts the bytes of one source image to the stored bytes; independent of files and shards."""
