"""Writes the images of a set as files of another program: one loop, and a small writer a format.

`job` plans, runs and commits; `examples` reads and proves what is exported; `files` writes what a
format says. A format (`folder`, `tfds`, `webdataset`, `parquet`, `recordio`) says which bytes go
into which file, and knows neither where the images come from nor where the files lie.
"""
