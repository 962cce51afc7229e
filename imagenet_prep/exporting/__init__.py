"""Writes the images of a dataset as files of another program: one loop, one writer per format.

`job` plans, runs and commits; `examples` reads and verifies the images; `files` writes files. A
format (`folder`, `tfds`, `webdataset`, `parquet`, `recordio`) names the file of each byte, and
knows neither the source of the images nor the location of the files.
"""
