"""Exports the images of a dataset as files for other programs.

`job` plans, runs and commits; `examples` reads and verifies the images; `files` writes files. A
format (`folder`, `tfds`, `webdataset`, `parquet`, `recordio`) only chooses file names and bytes.
"""
