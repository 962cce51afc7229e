"""What every stage shares: the wire format, names, manifest, storage and errors.

Imports nothing from the rest of the package.
"""
