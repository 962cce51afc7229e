"""Writes a miniature ILSVRC2012 for the demo and the tests."""
