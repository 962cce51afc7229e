"""Bytes in, bytes out: what becomes of one source image. Pure; knows no file and no shard."""
