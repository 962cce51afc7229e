"""Exports the images of a dataset as files for other programs.

`job` runs an export. `examples` reads and verifies the images, and writes the files. Each format in
`formats` only chooses file names and bytes. `croissant` describes a dataset as Croissant metadata.
"""
