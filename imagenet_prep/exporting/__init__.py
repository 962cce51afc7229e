"""Exports the images of a dataset as files for other programs.

`job` runs an export; `examples` reads and verifies the images; `files` writes files. A format
(`folder`, `tfds`, `webdataset`, `parquet`, `recordio`) only chooses file names and bytes.
"""
