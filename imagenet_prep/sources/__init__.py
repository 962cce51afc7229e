"""Readers of source datasets: they list each image (key, byte range, class) and copy nothing."""
